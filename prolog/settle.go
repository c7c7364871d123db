// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"carma/gres"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// ErrUndecided means that a job could be neither leased GPUs nor returned to the queue yet. Its
// tasks wait for either.
var ErrUndecided = errors.New("the job waits: it could neither be leased GPUs nor be returned to the queue yet")

// settlePause is the pause between two rounds; heartbeatEvery is much shorter than
// taskGivesUpAt.
const (
	settlePause    = time.Second
	heartbeatEvery = 10 * time.Second
)

// settle leases the job its GPUs or returns it to the queue, trying the one and the other in
// turn until one works, or the job has gone. Each has a deadline of its own, so that one
// that hangs does not cost the other its time. The error is ErrUndecided when until has
// come; the zero value is never.
func (l *launch) settle(ctx context.Context, until time.Time) error {
	defer l.node.heartbeat(l.Hook)()
	wait := l.node.Config.Hooks.Wait.D()
	for {
		most := preemptionTakes
		if !until.IsZero() {
			most = time.Until(until) - 2*l.node.Config.Hooks.Deadline.D()
		}
		granted, err := l.acquire(ctx, wait, most)
		full, tried := errors.Is(err, lease.ErrNoFit), l.request.GPUs
		switch {
		case err == nil && until.IsZero() && l.node.gone(ctx, l.Hook, l.slurm):
			// Its Epilog may have run, and found no lease.
			return l.ledger.Release(context.WithoutCancel(ctx), l.JobKey)
		case err == nil:
			if err = l.finish(ctx, granted); err == nil {
				if until.IsZero() {
					l.forgetEnded(ctx)
				}
				return nil
			}
			l.node.Log.Error("write the job's GPUs for TaskProlog; retrying", "job", l.JobKey, "error", err)
		case errors.Is(err, lease.ErrSuperseded):
			return nil
		case l.node.Config.Hooks.Strict && lease.Damaged(err) && !until.IsZero():
			return fmt.Errorf("%w: lease GPUs: %w", ErrNode, err)
		case full && l.yielding.awaits() && !until.IsZero():
			return ErrUndecided // in another Prolog the wait would begin anew, and for ever where hooks have little time
		}
		switch {
		case granted != nil: // only its tasks do not know yet
		case !l.stays:
			err = l.giveBack(ctx, errors.Is(err, errUncounted))
		case l.node.gone(ctx, l.Hook, l.slurm):
			err = errGone
		default:
			err = nil
		}
		switch {
		case granted != nil:
		case errors.Is(err, errGone), errors.Is(err, sctl.ErrNoJob):
			l.node.Log.Info("ended before it was leased a GPU", "job", l.JobKey)
			return nil
		case errors.Is(err, sctl.ErrBatchOnly):
			l.keep(ctx)
			l.stays = true
			if tried == l.request.GPUs { // otherwise the next round may lease the job's real need
				l.tell(ctx, l.waitsFor(full))
			}
		case err != nil:
			l.node.Log.Warn("neither leased nor returned; retrying", "job", l.JobKey, "error", err)
		case !l.stays:
			return nil
		default:
			l.keep(ctx)
			l.tell(ctx, l.waitsFor(full))
		}
		wait = l.node.Config.Hooks.Wait.D()
		if !until.IsZero() {
			// A round takes its wait and the time for lease and return to the queue.
			left := time.Until(until) - 2*l.node.Config.Hooks.Deadline.D()
			if left < settlePause {
				return ErrUndecided
			}
			wait = min(wait, left)
		}
		if until.IsZero() && !l.node.undecided(l.Hook) { // the Epilog has run, or CARMA was removed from the node
			l.node.Log.Info("the job no longer waits", "job", l.JobKey)
			if granted != nil {
				return l.ledger.Release(context.WithoutCancel(ctx), l.JobKey)
			}
			return nil
		}
		time.Sleep(settlePause)
	}
}

// waitsFor is the text for the user of a job that cannot return to the queue. full: no GPU fits; else something else
// keeps the node from leasing any.
func (l *launch) waitsFor(full bool) string {
	if !full {
		return waitsForNode(l.Hook, "lease it a GPU")
	}
	r := l.request
	gpus, each := "1 GPU", ""
	if r.GPUs > 1 {
		gpus, each = fmt.Sprintf("%d GPUs", r.GPUs), " each"
	}
	if r.Exclusive {
		return fmt.Sprintf("carma: the job waits on node %s for %s that no other job uses", l.Node, gpus)
	}
	return fmt.Sprintf("carma: the job waits on node %s for %s with room for %d MiB%s", l.Node, gpus, r.ReserveMiB, each)
}

// gone tells whether the job that waits for its GPUs has gone; a silent slurmctld is no
// reason to think so.
func (n *Node) gone(ctx context.Context, h jobenv.Hook, slurm Jobs) bool {
	ctx, cancel := n.part(ctx)
	defer cancel()
	_, err := waiting(ctx, h, slurm)
	return errors.Is(err, errGone) || errors.Is(err, sctl.ErrNoJob)
}

// markUndecided leaves word for the job's tasks to wait. told: the user knows why.
func (n *Node) markUndecided(h jobenv.Hook, told bool) error {
	return writeTaskFile(n.RunDir, h.JobKey, taskFile{Restart: h.Restart, Slots: h.Slots, Undecided: true, Told: told})
}

// heartbeat tells waiting tasks that somebody is at work, until stop is called. The
// word to wait stays when the job has gone: otherwise a task would start before
// slurmd has ended the task. The Epilog takes the word away.
func (n *Node) heartbeat(h jobenv.Hook) (stop func()) {
	done := make(chan struct{})
	go func() {
		for tick := time.NewTicker(heartbeatEvery); ; {
			select {
			case <-done:
				tick.Stop()
				return
			case now := <-tick.C:
				if n.undecided(h) {
					os.Chtimes(taskPath(n.RunDir, h.JobID), now, now)
				}
			}
		}
	}()
	return func() { close(done) }
}

// undecided tells whether tasks of this attempt wait.
func (n *Node) undecided(h jobenv.Hook) bool {
	t, err := readTaskFile(n.RunDir, h.JobID)
	return err == nil && t.Undecided && t.Restart == h.Restart
}

// forgetUndecided removes the word of an ending attempt: no task waits any more. slurmctld may
// have counted the next attempt already.
func (n *Node) forgetUndecided(h jobenv.Hook) {
	if t, err := readTaskFile(n.RunDir, h.JobID); err == nil && t.Undecided && t.Restart <= h.Restart {
		os.Remove(taskPath(n.RunDir, h.JobID))
	}
}

// forgetEnded removes the job's task file if its Epilog came before the file was written, and has ended the
// lease.
func (l *launch) forgetEnded(ctx context.Context) {
	s, err := l.ledger.Snapshot(ctx)
	if err != nil || slices.ContainsFunc(s.Leases, func(held gres.Lease) bool { return held.Job == l.JobKey }) {
		return
	}
	if t, err := readTaskFile(l.node.RunDir, l.JobID); err == nil && t.Restart == l.Restart {
		os.Remove(taskPath(l.node.RunDir, l.JobID))
	}
}
