// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// restartsAtOnce bounds the questions to slurmctld in one tick; a job not pending after
// giveUpAfter needs no help any more.
const (
	restartsAtOnce = 5
	giveUpAfter    = 5 * time.Minute
)

// Returned looks after jobs returned to the queue by Prologs and Epilogs: such a job is to be released, and to
// start as early as is safe.
type Returned struct {
	Ledger Pending
	Jobs   ReturnedJobs
	Log    *slog.Logger

	// askOfJobs and compare:
	startsLock sync.Mutex
	starts     []start // which wakeScheduler looks after

	// askOfJobs:
	startAsked map[uint32]time.Duration // when slurmctld was asked about requeued jobs
	askedHeld  time.Duration            // releaseHeld: when slurmctld was asked
	heldAsked  map[uint32]time.Duration // and about which jobs
}

// setStarts lets requeued jobs start as early as is safe. Jobs not asked about for the longest time
// come first: some may hang, completing.
func (r *Returned) setStarts(ctx context.Context, pending []lease.PendingRestart) {
	asked := map[uint32]time.Duration{}
	for _, c := range pending {
		asked[c.JobID] = r.startAsked[c.JobID]
	}
	r.startAsked = asked
	pending = slices.Clone(pending) // other loops read the same list
	slices.SortStableFunc(pending, func(x, y lease.PendingRestart) int {
		return cmp.Compare(asked[x.JobID], asked[y.JobID])
	})
	for i, c := range pending {
		if i == restartsAtOnce {
			return
		}
		asked[c.JobID] = lease.Now()
		done, err := r.setStart(ctx, c)
		if err != nil {
			r.Log.Warn("set the start time of a requeued job", "job", c.JobID, "error", err)
		}
		if !done && c.Age < giveUpAfter {
			continue
		}
		if err := r.Ledger.DropPendingRestart(ctx, c.JobID); err != nil {
			r.Log.Error("set the start time of a requeued job", "error", err)
		}
	}
}

// setStart returns whether nothing is left to do for the job.
func (r *Returned) setStart(ctx context.Context, c lease.PendingRestart) (done bool, err error) {
	j, err := r.Jobs.Job(ctx, c.JobID)
	if errors.Is(err, sctl.ErrNoJob) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	if j.State == jobstate.Completing {
		return false, nil
	}
	// Its reason says nothing: until slurmctld next looks at a requeued job, the
	// job has its old reason, "Prolog" say.
	if j.State != jobstate.Pending {
		return true, nil
	}
	safe, err := r.Jobs.SafeStart(ctx)
	if err != nil {
		return false, err
	}
	err = r.startAt(ctx, j, time.Now().Add(max(safe, c.Delay-c.Age)))
	return err == nil, err
}

// start is when a returned job is to have started.
type start struct {
	job, uid uint32
	due      time.Time
}

// startsOfUser bounds the starts remembered for a user; a job beyond starts at the next
// change.
const startsOfUser = 100

// How long after its start a job is left to slurmctld. sched/backfill alone starts a
// heterogeneous job, and does not look again by itself; any other job is mostly started by then.
// slurmctld counts whole seconds.
const (
	hetPatience = time.Second
	patience    = 5 * time.Second
)

// startAt sets the start time of a pending job.
func (r *Returned) startAt(ctx context.Context, j sctl.Job, at time.Time) error {
	if err := r.Jobs.SetStart(ctx, j.Target(), at); err != nil {
		return err
	}
	r.startsLock.Lock()
	defer r.startsLock.Unlock()
	r.starts = slices.DeleteFunc(r.starts, func(s start) bool { return s.job == j.ID })
	kept := 0
	for _, s := range r.starts {
		if s.uid == j.UID {
			kept++
		}
	}
	if kept >= startsOfUser {
		return nil
	}
	due := at.Add(patience)
	if j.HetJobID != 0 {
		due = at.Add(hetPatience)
	}
	r.starts = append(r.starts, start{j.ID, j.UID, due})
	return nil
}

// wakeScheduler changes returned jobs that still wait although their start has come. As long as no
// job, node, partition or reservation changes, sched/backfill does not look again (backfill.c,
// _more_work, 22.05 to 26.05), and the main scheduler once a minute. A backup slurmctld of 22.05
// that has taken over has no main scheduler at all (run_backup reads slurm.conf, which starts the
// scheduler, while shutdown_time is still set; 23.02 resets shutdown_time before). On a quiet
// cluster such a job would wait for something else to happen. A start that the job's user has set
// stays. Each user has a turn before anybody has a second.
func (r *Returned) wakeScheduler(ctx context.Context) {
	now := time.Now()
	for _, s := range r.takeDue(now) {
		j, err := r.Jobs.Job(ctx, s.job)
		if err == nil && j.State == jobstate.Pending && !j.Eligible.IsZero() && !j.Eligible.After(now) {
			err = r.Jobs.SetStart(ctx, j.Target(), now)
		}
		if err != nil && !errors.Is(err, sctl.ErrNoJob) {
			r.Log.Warn("set the start time of a requeued job", "job", s.job, "error", err)
		}
	}
}

// takeDue removes from the starts those that wakeScheduler looks after now.
func (r *Returned) takeDue(now time.Time) (taken []start) {
	r.startsLock.Lock()
	defer r.startsLock.Unlock()
	served := map[uint32]bool{}
	for range restartsAtOnce {
		due := func(s start) bool { return !now.Before(s.due) }
		i := slices.IndexFunc(r.starts, func(s start) bool { return due(s) && !served[s.uid] })
		if i < 0 {
			i = slices.IndexFunc(r.starts, due)
		}
		if i < 0 {
			break
		}
		taken = append(taken, r.starts[i])
		served[r.starts[i].uid] = true
		r.starts = slices.Delete(r.starts, i, i+1)
	}
	// At the next tick a user who had a turn comes after the others.
	slices.SortStableFunc(r.starts, func(x, y start) int {
		switch {
		case served[x.uid] == served[y.uid]:
			return 0
		case served[x.uid]:
			return 1
		}
		return -1
	})
	return taken
}

// An Epilog that does its work has dropped its note by heldSince; slurmctld, which is slow if notes
// are left, is asked about these every heldEvery. Nobody looks after a hold any more after
// heldNoMore.
const (
	heldSince  = 30 * time.Second
	heldEvery  = 30 * time.Second
	heldNoMore = 24 * time.Hour
)

// releaseHeld releases jobs that Epilogs have requeued held without learning whether
// slurmctld has released them. Jobs not asked about for the longest time come first: some may hang,
// completing.
func (r *Returned) releaseHeld(ctx context.Context, held []lease.PerhapsHeld, now time.Duration) {
	if r.askedHeld != 0 && now-r.askedHeld < heldEvery {
		return
	}
	asked := map[uint32]time.Duration{}
	var due []lease.PerhapsHeld
	for _, p := range held {
		if at, ok := r.heldAsked[p.JobID]; ok {
			asked[p.JobID] = at
		}
		if p.Age >= heldSince {
			due = append(due, p)
		}
	}
	r.heldAsked = asked
	slices.SortStableFunc(due, func(x, y lease.PerhapsHeld) int { return cmp.Compare(asked[x.JobID], asked[y.JobID]) })
	for _, p := range due[:min(len(due), restartsAtOnce)] {
		r.askedHeld, asked[p.JobID] = now, now
		done, err := r.releaseIfHeld(ctx, p)
		if err != nil {
			r.Log.Warn("release a requeued job", "job", p.JobKey, "error", err)
		}
		if !done && p.Age < heldNoMore {
			continue
		}
		if err := r.Ledger.DropPerhapsHeld(ctx, p.JobKey); err != nil {
			r.Log.Error("release a requeued job", "job", p.JobKey, "error", err)
		}
	}
}

// releaseIfHeld returns whether nothing is left to do for the job. A hold that the job's user or an
// administrator has placed after a release, or that is of another attempt or of another job of the
// same id, stays.
func (r *Returned) releaseIfHeld(ctx context.Context, p lease.PerhapsHeld) (done bool, err error) {
	j, err := r.Jobs.Job(ctx, p.JobID)
	switch {
	case errors.Is(err, sctl.ErrNoJob):
		return true, nil
	case err != nil:
		return false, err
	case j.UID != p.UID, j.Restarts > int(p.Restart):
		return true, nil
	case j.Restarts < int(p.Restart): // it was not requeued; slurmctld may still do so
		return p.Age >= giveUpAfter, nil
	case j.State == jobstate.Completing: // perhaps its Epilog is at work
		return false, nil
	case j.State != jobstate.Pending || j.Reason != jobstate.RequeuedHeld:
		return true, nil
	}
	if err := r.Jobs.Release(ctx, j.Leader()); err != nil {
		return false, err
	}
	r.Log.Info("released a requeued job: slurmctld had not answered its Epilog", "job", p.JobKey)
	if _, err := r.setStart(ctx, lease.PendingRestart{JobID: p.JobID}); err != nil {
		r.Log.Warn("set the start time of a requeued job", "job", p.JobID, "error", err)
	}
	return true, nil
}
