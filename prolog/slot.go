// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
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
			n.comment(ctx, h, slotToken(h), slurm)
		}
		return v
	}
	v.slotOver = true
	n.Log.Info("time slot is over; back in the queue", "job", h.JobKey)
	return v
}

func (n *Node) putBackForSlot(ctx context.Context, h jobenv.Hook, j sctl.Job, slurm Slurm) error {
	r, err := requeueing(ctx, h, slurm)
	if err != nil {
		return err
	}
	ctx, cancel, err := n.turn(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	target, changed := targets(j, r)
	// One token stands for all slots: a job may have hundreds.
	comment := strings.TrimSpace(slotTokens().ReplaceAllString(r.AdminComment, "") + " " + slotToken(h))
	_, err = n.putBack(ctx, target, changed, h.Partition, sctl.Change{AdminComment: comment}, slurm)
	return err
}

var slotTokens = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(` ?carma-retry=\{"reason":"timeslot","restart":[0-9]+\}`)
})

func slotToken(h jobenv.Hook) string {
	return fmt.Sprintf(`carma-retry={"reason":"timeslot","restart":%d}`, h.Restart+1)
}
