// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"

	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// nextSlot puts a job whose time slot is over into the queue again, as it was:
// where it was, with what it books.
func (n *Node) nextSlot(ctx context.Context, h jobenv.Hook, v verdict, slurm Slurm) verdict {
	v.note = "requeued after its time slot"
	if err := n.putBackForSlot(ctx, h, v.job, slurm); err != nil {
		v.note = "its time slot was over; " + err.Error()
		n.Log.Error("not requeued", "job", h.JobKey, "reason", v.note)
		if errors.Is(err, errHeld) {
			n.comment(ctx, v.job, slotToken(h), slurm)
		}
		return v
	}
	v.slotOver = true
	n.Log.Info("requeued after its time slot", "job", h.JobKey)
	return v
}

func (n *Node) putBackForSlot(ctx context.Context, h jobenv.Hook, j sctl.Job, slurm Slurm) error {
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
	// One token stands for all slots: a job may have hundreds.
	comment := withToken(slotTokens().ReplaceAllString(words.AdminComment, ""), slotToken(h))
	_, err = n.putBack(ctx, j, h.Partition, sctl.Change{AdminComment: comment}, slurm)
	return err
}

var slotTokens = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(` ?carma-retry=\{"reason":"timeslot","restart":[0-9]+\}`)
})

func slotToken(h jobenv.Hook) string {
	return fmt.Sprintf(`carma-retry={"reason":"timeslot","restart":%d}`, h.Restart+1)
}
