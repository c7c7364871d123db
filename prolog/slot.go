// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"

	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// nextSlot puts a job whose time slot is over into the queue again, as it was:
// where it was, with what it books.
func (n *Node) nextSlot(ctx context.Context, h jobenv.Hook, v verdict, ledger Held, slurm Slurm) verdict {
	v.note = "requeued after its time slot"
	if err := n.putBackForSlot(ctx, h, v.job, ledger, slurm); err != nil {
		v.note = "its time slot was over; " + err.Error()
		n.Log.Error("not requeued", "job", h.JobKey, "reason", v.note)
		if errors.Is(err, errHeld) {
			n.comment(ctx, v.job, admincomment.Slot(h.Restart+1), slurm)
		}
		return v
	}
	v.slotOver = true
	n.Log.Info("requeued after its time slot", "job", h.JobKey)
	return v
}

func (n *Node) putBackForSlot(ctx context.Context, h jobenv.Hook, j sctl.Job, ledger Held, slurm Slurm) error {
	if !j.Requeue {
		return errNoRequeue
	}
	words, err := slurm.Words(ctx, h.JobID)
	if err != nil {
		return fmt.Errorf("slurmctld did not answer: %s", reason(err))
	}
	ctx, cancel, err := n.turn(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	comment := admincomment.WithSlot(words.AdminComment, h.Restart+1)
	_, err = n.putBack(ctx, j, h.Partition, sctl.Change{AdminComment: comment}, ledger, slurm)
	return err
}
