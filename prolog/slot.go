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
	v.note = "its time slot was over; it came back"
	if err := n.putBackForSlot(ctx, h, v.job, slurm); err != nil {
		v.note = "its time slot was over; " + err.Error()
		n.Log.Error("not brought back", "job", h.JobKey, "reason", v.note)
		if errors.Is(err, errHeld) {
			n.comment(ctx, v.job, slotToken(h), slurm)
		}
		return v
	}
	v.slotOver = true
	n.Log.Info("time slot is over; back in the queue", "job", h.JobKey)
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
