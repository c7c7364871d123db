// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// ErrUndecided means that a job could be neither leased GPUs nor given back yet. Its
// tasks wait for that.
var ErrUndecided = errors.New("the job waits: it could be neither leased GPUs nor given back yet")

// settlePause is the pause between two rounds.
const settlePause = time.Second

// settle leases the job its GPUs or gives it back, trying the one and the other in
// turn until one works, or the job has gone. Each has a deadline of its own, so that
// one that hangs does not cost the other its time. The error is ErrUndecided when until
// has come; the zero value is never.
func (n *Node) settle(ctx context.Context, l *launch, ledger Ledger, slurm Slurm, until time.Time) error {
	wait := n.Config.Hooks.Wait.D()
	for interactive := false; ; {
		granted, err := n.acquire(ctx, l, ledger, wait)
		if err == nil {
			return n.finish(ctx, l, granted)
		}
		if n.Config.Hooks.Strict && lease.Damaged(err) {
			return fmt.Errorf("%w: lease GPUs: %w", ErrNode, err)
		}
		if !interactive {
			err = n.giveBack(ctx, l, errors.Is(err, errOtherUsers), ledger, slurm)
		} else {
			err = n.stillThere(ctx, l.Hook, slurm)
		}
		switch {
		case errors.Is(err, errGone), errors.Is(err, sctl.ErrNoJob):
			n.Log.Info("gone before it was leased a GPU", "job", l.JobKey)
			return n.forget(l.Hook)
		case errors.Is(err, sctl.ErrBatchOnly):
			n.keep(ctx, l.Hook, l.request, ledger)
			interactive = true
		case err != nil:
			n.Log.Warn("neither leased nor given back; tried again", "job", l.JobKey, "error", err)
		case !interactive:
			return n.forget(l.Hook)
		}
		wait = n.Config.Hooks.Wait.D()
		if !until.IsZero() {
			// A round takes its wait and what lease and give-back may take.
			left := time.Until(until) - 2*n.Config.Hooks.Deadline.D()
			if left < settlePause {
				return ErrUndecided
			}
			wait = min(wait, left)
		}
		n.heartbeat(l.Hook)
		time.Sleep(settlePause)
	}
}

// stillThere tells whether the job that cannot go back still waits for its GPUs; a
// slurmctld that does not answer is no reason to think otherwise.
func (n *Node) stillThere(ctx context.Context, h jobenv.Hook, slurm Slurm) error {
	ctx, cancel := n.part(ctx)
	defer cancel()
	j, err := ask(ctx, h, slurm)
	if err == nil && !startsHere(j.State) {
		return errGone
	}
	return err
}

// Undecided leaves word for the job's tasks that they are to wait.
func (n *Node) Undecided(h jobenv.Hook) error {
	return writeTaskFile(n.RunDir, h.JobKey, taskFile{Restart: h.Restart, Undecided: true})
}

// heartbeat tells tasks that wait that somebody is still at it.
func (n *Node) heartbeat(h jobenv.Hook) {
	if t, err := readTaskFile(n.RunDir, h.JobID, fmt.Sprint(h.Restart)); err == nil && t.Undecided {
		now := time.Now()
		os.Chtimes(taskPath(n.RunDir, h.JobID), now, now)
	}
}

// forget takes back the word for tasks of a job that is not here any more.
func (n *Node) forget(h jobenv.Hook) error {
	if t, err := readTaskFile(n.RunDir, h.JobID, fmt.Sprint(h.Restart)); err == nil && t.Undecided {
		return os.Remove(taskPath(n.RunDir, h.JobID))
	}
	return nil
}
