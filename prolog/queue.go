// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// queue is slurmctld's queue, in which a hook changes jobs.
type queue struct {
	node  *Node
	slurm Slurm
}

func (n *Node) queue(slurm Slurm) queue { return queue{n, slurm} }
func (ep *epilog) queue() queue         { return queue{ep.node, ep.slurm} }
func (l *launch) queue() queue          { return queue{l.node, l.slurm} }

// putBack puts a completing job into the queue again and returns the job's partition from then on. A
// change that slurmctld refuses leaves the job held, never half moved; where slurmctld's answer is
// missing, or slurmctld does not release the job, the agent does (lease.PerhapsHeld). All components
// of a heterogeneous job are requeued, and the job's own is changed. home is its partition so far.
// Each call has a deadline of its own: slurmctld may take seconds for each.
func (q queue) putBack(ctx context.Context, j sctl.Job, home string, change sctl.Change,
	ledger Held) (partition string, err error) {
	target := j.Leader()
	asking, cancel := q.node.part(ctx)
	defer cancel()
	if err := q.slurm.CheckCron(asking, j.Component()); errors.Is(err, sctl.ErrCron) {
		return "", err
	} else if err != nil { // a job of scrontab would be held for ever
		return "", fmt.Errorf("slurmctld did not answer: %w", shorter(err))
	}
	requeuing, cancelRequeue := q.node.part(ctx)
	defer cancelRequeue()
	key := jobenv.JobKey{JobID: j.ID, Restart: uint32(j.Restarts) + 1}
	if err := ledger.AddPerhapsHeld(requeuing, key, j.UID); err != nil {
		q.node.Log.Warn("record a job that is held while it is requeued", "job", j.ID, "error", err)
	}
	defer func() {
		final := errors.Is(err, errHeld) || errors.Is(err, sctl.ErrBatchOnly)
		if err != nil && !final { // the job may be held, now or later
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookAtLedger) // else the agent looks once
		defer cancel()
		if err := ledger.DropPerhapsHeld(ctx, key); err != nil {
			q.node.Log.Warn("record a job that is held while it is requeued", "job", j.ID, "error", err)
		}
	}()
	if err := q.slurm.RequeueHold(requeuing, target); sctl.Unanswered(err) {
		return "", fmt.Errorf("slurmctld did not answer whether it is requeued: %w", shorter(err))
	} else if err != nil {
		return "", fmt.Errorf("requeue refused: %w", shorter(err))
	}
	if change.Partition, err = q.change(ctx, j, home, change); sctl.Unanswered(err) {
		return "", fmt.Errorf("slurmctld did not answer whether it is changed: %w", shorter(err))
	} else if err != nil {
		return "", fmt.Errorf("%w: %s", errHeld, reason(err))
	}
	releasing, cancelRelease := q.node.part(ctx)
	defer cancelRelease()
	if err := q.slurm.Release(releasing, target); sctl.Unanswered(err) {
		return "", fmt.Errorf("slurmctld did not answer whether it is released: %w", shorter(err))
	} else if err != nil { // the change is complete
		return "", fmt.Errorf("requeued, held until the agent releases it: %w", shorter(err))
	}
	return change.Partition, nil
}

// change changes a job that is in the queue again, and returns the job's partition. The job starts
// after latestStart at the latest.
func (q queue) change(ctx context.Context, j sctl.Job, home string, change sctl.Change) (string, error) {
	ctx, cancel := q.node.part(ctx)
	defer cancel()
	change.StartIn = latestStart
	err := q.update(ctx, j.Component(), change)
	if err != nil && change.Partition != "" && !sctl.Unanswered(err) {
		// The partition may not be for this user, account or QOS: whole
		// GPUs are whole GPUs where the job was, too. slurmctld reports the refusal
		// after it has set the partition, so the partition is set back (22.05,
		// job_mgr.c, _update_job).
		q.node.Log.Warn("cannot move the job; it is requeued in its own partition", "target", j.Component(), "partition",
			change.Partition, "error", err)
		change.Partition = home
		err = q.update(ctx, j.Component(), change)
	}
	return cmp.Or(change.Partition, home), err
}

// Where a user has no association (accounting is off, or does not ask for one),
// slurmctld fails a change of partition with an errno left in the thread by
// something else (job_mgr.c, _update_job: error_code = errno, 23.11 to 26.05). On
// 25.11.7 the errno is EAGAIN, "Resource temporarily unavailable", 4 of 5 times;
// never on 23.11.11, whose threads do not read without blocking. Another try meets
// another thread.
const (
	updateTries = 40
	updatePause = 20 * time.Millisecond
)

// latestStart is after how long a requeued job starts at the latest, if GPUs are
// free. The agent lets the job start as soon as starting is safe; slurmctld's
// own time is not on 22.05, where slurmd may then still know the job's last run
// and skip its Prolog (gres/agent/returned.go).
const latestStart = 10 * time.Minute

func (q queue) update(ctx context.Context, target sctl.Target, change sctl.Change) error {
	for try := 1; ; try++ {
		err := q.slurm.Update(ctx, target, change)
		if err == nil || try == updateTries || ctx.Err() != nil || !strings.Contains(err.Error(), "temporarily") {
			return err
		}
		time.Sleep(updatePause)
	}
}

// setStart lets a returned job start as soon as is safe, and not sooner than after delay, where
// the agent will not.
func (q queue) setStart(ctx context.Context, h jobenv.Hook, t sctl.Target, delay time.Duration) {
	ctx, cancel := q.node.part(ctx)
	defer cancel()
	safe, err := q.slurm.SafeStart(ctx)
	if err == nil {
		err = q.update(ctx, t, sctl.Change{StartIn: max(safe, delay)})
	}
	if err != nil {
		q.node.Log.Warn("set the start time of a requeued job", "job", h.JobKey, "error", err)
	}
}

// comment adds a token to the AdminComment of a job in the queue, for people.
// slurmctld takes none for a finished job; accounting forwards the note of such
// a job to slurmdbd.
func (q queue) comment(ctx context.Context, j sctl.Job, token string) {
	ctx, cancel := q.node.part(ctx)
	defer cancel()
	w, err := q.slurm.Words(ctx, j.ID)
	if err == nil {
		err = q.slurm.Update(ctx, j.Component(), sctl.Change{AdminComment: admincomment.With(w.AdminComment, token)})
	}
	if err != nil {
		q.node.Log.Warn("write to AdminComment why a job is held", "job", j.ID, "error", err)
	}
}
