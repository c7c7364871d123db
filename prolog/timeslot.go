// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"

	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/sctl"
)

// nextSlot puts a job whose time slot is over into the queue again, unchanged:
// in the same partition, with the same booking.
func (ep *epilog) nextSlot(ctx context.Context, v verdict) verdict {
	v.note = "requeued after its time slot"
	if err := ep.putBackForSlot(ctx, v.job); err != nil {
		v.note = "its time slot was over; " + err.Error()
		ep.node.Log.Error("not requeued", "job", ep.hook.JobKey, "reason", v.note)
		if errors.Is(err, errHeld) {
			ep.queue().comment(ctx, v.job, admincomment.Slot(ep.hook.Restart+1))
		}
		return v
	}
	v.slotOver = true
	ep.node.Log.Info("requeued after its time slot", "job", ep.hook.JobKey)
	return v
}

func (ep *epilog) putBackForSlot(ctx context.Context, j sctl.Job) error {
	if !j.Requeue {
		return errNoRequeue
	}
	words, err := ep.slurm.Words(ctx, ep.hook.JobID)
	if err != nil {
		return fmt.Errorf("slurmctld did not answer: %s", reason(err))
	}
	ctx, cancel, err := ep.node.turn(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	comment := admincomment.WithSlot(words.AdminComment, ep.hook.Restart+1)
	_, err = ep.queue().putBack(ctx, j, ep.hook.Partition, sctl.Change{AdminComment: comment}, ep.ledger)
	return err
}
