// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"carma/db"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// restartsAtOnce bounds the questions to slurmctld in one tick; a job that is
// not pending after giveUpAfter needs no help any more.
const (
	restartsAtOnce = 5
	giveUpAfter    = 5 * time.Minute
)

// setStarts lets jobs that were requeued start as early as is safe. Those that were not asked
// about for longest come first: some may hang, completing.
func (a *Agent) setStarts(ctx context.Context, pending []lease.PendingRestart) {
	asked := map[uint32]time.Duration{}
	for _, c := range pending {
		asked[c.JobID] = a.startAsked[c.JobID]
	}
	a.startAsked = asked
	pending = slices.Clone(pending) // other loops read it
	slices.SortStableFunc(pending, func(x, y lease.PendingRestart) int {
		return cmp.Compare(asked[x.JobID], asked[y.JobID])
	})
	for i, c := range pending {
		if i == restartsAtOnce {
			return
		}
		asked[c.JobID] = lease.Now()
		done, err := a.setStart(ctx, c)
		if err != nil {
			a.Log.Warn("set the start time of a requeued job", "job", c.JobID, "error", err)
		}
		if !done && c.Age < giveUpAfter {
			continue
		}
		if err := a.Ledger.DropPendingRestart(ctx, c.JobID); err != nil {
			a.Log.Error("set the start time of a requeued job", "error", err)
		}
	}
}

// forgottenAfter is slurmctld's MinJobAge by default: later it knows no more.
// Records whose job nobody has been asked about for askNoMore get no answer:
// slurmctld was away, jobs ended faster than questions are put, or no record could be written.
const (
	forgottenAfter = 5 * time.Minute
	askNoMore      = time.Hour
)

// endedAtOnce bounds what one tick does about jobs that have ended, and
// endsAskedAtOnce what it asks slurmctld.
const (
	endedAtOnce     = 50
	endsAskedAtOnce = 3
)

// complete puts slurmctld's word on the end of jobs into their records. The
// Epilog's environment does not tell a job that was cancelled or ran out of
// time from one that ended well. The agent is woken before slurmctld has heard of the end, so the
// first question often comes too early, and soon slurmctld forgets the job. So the next one comes a
// second later, and then ever more rarely, at most whenever counts are compared: a job whose
// processes hang completes for long, and others come before it. So with a slurmctld that does not
// answer.
func (a *Agent) complete(ctx context.Context, now time.Duration) {
	ended, err := a.Ledger.Ended(ctx, endedAtOnce+len(a.askEndAt))
	if err != nil {
		a.Log.Error("read ledger", "error", err)
		return
	}
	again := map[jobenv.JobKey]time.Duration{}
	for _, e := range ended {
		if at, asked := a.askEndAt[e.JobKey]; asked {
			again[e.JobKey] = at
		}
	}
	a.askEndAt = again
	slices.SortStableFunc(ended, func(x, y lease.Ended) int { return cmp.Compare(again[x.JobKey], again[y.JobKey]) })
	asked, rarest := 0, a.Config.Capacity.Compare.D()
	for _, e := range ended {
		var j sctl.Job
		var words sctl.Words
		if e.Age < askNoMore {
			if asked == endsAskedAtOnce || again[e.JobKey] > now || a.endsSilentUntil > now {
				continue
			}
			asked++
			again[e.JobKey] = now + min(rarest, max(time.Second, e.Age/4))
			j, err = a.Jobs.Job(ctx, e.JobID)
			known := err == nil || errors.Is(err, sctl.ErrNoJob)
			if !known {
				a.endsSilence = min(rarest, max(time.Second, 2*a.endsSilence))
				a.endsSilentUntil = now + a.endsSilence
				a.Log.Warn("query how a job ended", "job", e.JobKey, "error", err)
				continue
			}
			a.endsSilence = 0
			if j.State == jobstate.Completing && e.Age < forgottenAfter {
				continue
			}
			if j.State != "" { // a record without a name is better than none
				words, _ = a.Jobs.Words(ctx, e.JobID)
			}
		}
		// REQUEUED is the record's last word only until the job's own: one that waits may be cancelled there.
		waits := j.State == jobstate.Pending && uint32(max(j.Restarts, 0)) == e.Restart+1
		if _, complete := a.waiting[e.JobKey]; waits && complete {
			continue
		}
		a.setEnd(ctx, e, j, words, waits)
	}
}

// setEnd completes the record of one attempt; j is zero if slurmctld does not
// know the job any more. Of a job that waits for its next attempt there will be more to say.
func (a *Agent) setEnd(ctx context.Context, e lease.Ended, j sctl.Job, words sctl.Words, waits bool) {
	end := db.End{JobID: e.JobID, Restart: e.Restart, Node: a.Node, Forward: a.Config.Accounting.Forward == "slurmdbd"}
	if j.State != "" {
		end.ArrayJobID, end.ArrayTask, end.State = j.ArrayJobID, j.Task(), finalState(j, e.Restart)
		end.Name, end.Account = words.Name, words.Account
		end.Never = end.State != jobstate.Requeued && uint32(max(j.Restarts, 0)) > e.Restart
	}
	var err error
	if end.Figures, err = a.Ledger.FiguresOf(ctx, e.JobKey); err == nil {
		err = a.Records.SetEnd(ctx, end)
	}
	if err != nil {
		a.Log.Error("complete a record", "job", e.JobKey, "error", err)
		if e.Age < askNoMore {
			return // a later tick tries again
		}
	}
	if waits {
		if a.waiting == nil {
			a.waiting = map[jobenv.JobKey]struct{}{}
		}
		a.waiting[e.JobKey] = struct{}{}
		return
	}
	delete(a.waiting, e.JobKey)
	if err := a.Ledger.DropEnded(ctx, e.JobKey); err != nil {
		a.Log.Error("complete a record", "error", err)
	}
}

// finalState is what an attempt came to by what slurmctld says of its job after it; empty:
// it runs on without this node (scontrol update NumNodes), and the Epilog's word stays.
func finalState(j sctl.Job, restart uint32) string {
	switch {
	case uint32(max(j.Restarts, 0)) == restart+1 && j.State == jobstate.Cancelled && j.NodeList == "":
		return string(j.State) // it never started again
	case uint32(max(j.Restarts, 0)) > restart: // what it is now, a later attempt came to
		return jobstate.Requeued
	case j.State.HoldsNode() && uint32(j.Restarts) == restart:
		return ""
	case j.State.HoldsNode(), j.State == jobstate.Pending:
		return jobstate.Requeued
	}
	return string(j.State)
}

// setStart returns whether nothing is left to do for the job.
func (a *Agent) setStart(ctx context.Context, c lease.PendingRestart) (done bool, err error) {
	j, err := a.Jobs.Job(ctx, c.JobID)
	if errors.Is(err, sctl.ErrNoJob) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	if j.State == jobstate.Completing {
		return false, nil
	}
	// Its reason says nothing: until slurmctld next looks at a requeued job that is
	// what it was before, "Prolog" say.
	if j.State != jobstate.Pending {
		return true, nil
	}
	safe, err := a.Jobs.SafeStart(ctx)
	if err != nil {
		return false, err
	}
	err = a.startAt(ctx, j, time.Now().Add(max(safe, c.Delay-c.Age)))
	return err == nil, err
}

// start is when a returned job is to have started.
type start struct {
	job, uid uint32
	due      time.Time
}

// startsOfUser bounds what is remembered for one user; a job beyond starts at the next change.
const startsOfUser = 100

// How long after its start a job is left to slurmctld. sched/backfill alone starts a
// heterogeneous job, and does not look again by itself; any other job is mostly started by then.
// slurmctld counts whole seconds.
const (
	hetPatience = time.Second
	patience    = 5 * time.Second
)

// startAt sets the start time of a pending job.
func (a *Agent) startAt(ctx context.Context, j sctl.Job, at time.Time) error {
	if err := a.Jobs.SetStart(ctx, j.Target(), at); err != nil {
		return err
	}
	a.startsLock.Lock()
	defer a.startsLock.Unlock()
	a.starts = slices.DeleteFunc(a.starts, func(s start) bool { return s.job == j.ID })
	kept := 0
	for _, s := range a.starts {
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
	a.starts = append(a.starts, start{j.ID, j.UID, due})
	return nil
}

// wakeScheduler changes returned jobs that still wait although their start has come. As long as no
// job, node, partition or reservation changes, sched/backfill does not look again (backfill.c,
// _more_work, 22.05 to 26.05), and the main scheduler once a minute. A backup slurmctld of 22.05
// that has taken over has no main scheduler at all (run_backup reads slurm.conf, and with that
// starts it, while shutdown_time is still set; 23.02 resets it before). On a quiet cluster such a
// job would wait for something else to happen. A start that its user has set stays. Each
// user has a turn before one has a second.
func (a *Agent) wakeScheduler(ctx context.Context) {
	now := time.Now()
	for _, s := range a.takeDue(now) {
		j, err := a.Jobs.Job(ctx, s.job)
		if err == nil && j.State == jobstate.Pending && !j.Eligible.IsZero() && !j.Eligible.After(now) {
			err = a.Jobs.SetStart(ctx, j.Target(), now)
		}
		if err != nil && !errors.Is(err, sctl.ErrNoJob) {
			a.Log.Warn("set the start time of a requeued job", "job", s.job, "error", err)
		}
	}
}

// takeDue removes from the starts those that wakeScheduler looks after now.
func (a *Agent) takeDue(now time.Time) (taken []start) {
	a.startsLock.Lock()
	defer a.startsLock.Unlock()
	served := map[uint32]bool{}
	for range restartsAtOnce {
		due := func(s start) bool { return !now.Before(s.due) }
		i := slices.IndexFunc(a.starts, func(s start) bool { return due(s) && !served[s.uid] })
		if i < 0 {
			i = slices.IndexFunc(a.starts, due)
		}
		if i < 0 {
			break
		}
		taken = append(taken, a.starts[i])
		served[a.starts[i].uid] = true
		a.starts = slices.Delete(a.starts, i, i+1)
	}
	// At the next tick who had a turn comes after the others.
	slices.SortStableFunc(a.starts, func(x, y start) int {
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
