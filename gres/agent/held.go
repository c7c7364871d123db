// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// An Epilog that does its work has dropped its note by heldSince; slurmctld, which is slow then, is
// asked about the rest every heldEvery. Nobody looks after a hold any more after heldNoMore.
const (
	heldSince  = 30 * time.Second
	heldEvery  = 30 * time.Second
	heldNoMore = 24 * time.Hour
)

// releaseHeld releases jobs that Epilogs have requeued held without learning whether slurmctld has
// released them. Those that were not asked about for longest come first: some may hang, completing.
func (a *Agent) releaseHeld(ctx context.Context, held []lease.PerhapsHeld, now time.Duration) {
	if a.askedHeld != 0 && now-a.askedHeld < heldEvery {
		return
	}
	asked := map[uint32]time.Duration{}
	var due []lease.PerhapsHeld
	for _, p := range held {
		if at, ok := a.heldAsked[p.JobID]; ok {
			asked[p.JobID] = at
		}
		if p.Age >= heldSince {
			due = append(due, p)
		}
	}
	a.heldAsked = asked
	slices.SortStableFunc(due, func(x, y lease.PerhapsHeld) int { return cmp.Compare(asked[x.JobID], asked[y.JobID]) })
	for _, p := range due[:min(len(due), restartsAtOnce)] {
		a.askedHeld, asked[p.JobID] = now, now
		done, err := a.releaseIfHeld(ctx, p)
		if err != nil {
			a.Log.Warn("release a requeued job", "job", p.JobKey, "error", err)
		}
		if !done && p.Age < heldNoMore {
			continue
		}
		if err := a.Ledger.DropPerhapsHeld(ctx, p.JobKey); err != nil {
			a.Log.Error("release a requeued job", "job", p.JobKey, "error", err)
		}
	}
}

// releaseIfHeld returns whether nothing is left to do for the job. A hold that its user or an
// administrator has placed after a release, of another attempt, or of another job of the same id stays.
func (a *Agent) releaseIfHeld(ctx context.Context, p lease.PerhapsHeld) (done bool, err error) {
	j, err := a.Jobs.Job(ctx, p.JobID)
	switch {
	case errors.Is(err, sctl.ErrNoJob):
		return true, nil
	case err != nil:
		return false, err
	case j.UID != p.UID, j.Restarts > int(p.Restart):
		return true, nil
	case j.Restarts < int(p.Restart): // it was not requeued; slurmctld may still do that
		return p.Age >= giveUpAfter, nil
	case j.State == jobstate.Completing: // perhaps its Epilog is at it
		return false, nil
	case j.State != jobstate.Pending || j.Reason != jobstate.RequeuedHeld:
		return true, nil
	}
	if err := a.Jobs.Release(ctx, j.Leader()); err != nil {
		return false, err
	}
	a.Log.Info("released a requeued job: slurmctld had not answered its Epilog", "job", p.JobKey)
	if _, err := a.setStart(ctx, lease.PendingRestart{JobID: p.JobID}); err != nil {
		a.Log.Warn("set the start time of a requeued job", "job", p.JobID, "error", err)
	}
	return true, nil
}
