// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"carma/gres"
	"carma/gres/lease"
)

// idlePct is the SM activity below which a GPU counts as unused.
const idlePct = 0.5

// idleness is since when a holder has not used its GPU, as the agent has seen
// it without a gap.
type idleness struct {
	from, sure         time.Duration // 0: it does, or that is not known; sure: for certain
	toldFrom, toldSure time.Duration // what the ledger has
	told               bool
}

// look adds one look at the GPU and says in the usage what is new.
func (i *idleness) look(u *lease.Usage, s gres.Sample, foreign bool, holders int, now time.Duration) {
	idle, coarse := unused(u.Present, u.SMActPct, s, foreign, holders)
	begin := func(at *time.Duration, yes bool) {
		if !yes {
			*at = 0
		} else if *at == 0 {
			*at = now
		}
	}
	begin(&i.from, idle)
	begin(&i.sure, idle && !coarse)
	u.IdleChanged = !i.told || i.from != i.toldFrom || i.sure != i.toldSure
	u.IdleFrom, u.IdleSure = i.from, i.sure
	i.toldFrom, i.toldSure, i.told = i.from, i.sure, true
}

// unused tells whether a holder does nothing on its GPU: it has no context there,
// or its SMs do nothing. coarse says that this may be wrong: SM activity that is
// no measurement, or a part by rule of what several did. What cannot be told
// counts as use: processes of no job may be the holder's own, and an empty list
// of processes may be a driver that tells none.
func unused(present bool, ownPct float64, s gres.Sample, foreign bool, holders int) (idle, coarse bool) {
	quiet := s.SMActPct.Known() && s.SMActPct < idlePct
	switch {
	case foreign:
		return false, false
	case !present && len(s.Processes) > 0:
		return true, false
	case quiet:
		return true, s.Source.Coarse()
	case !present || math.IsNaN(ownPct):
		return false, false
	}
	return holders > 1 && ownPct < idlePct, true
}

// forgetIdle ends what was seen so far: a GPU that cannot be read shows nothing.
func (g *account) forgetIdle() {
	for _, h := range g.holders {
		h.idle.from, h.idle.sure = 0, 0
	}
}

// Users is how the agent reaches the users of jobs.
type Users interface {
	Notify(ctx context.Context, job uint32, text string) error
	Cancel(ctx context.Context, target string) error
}

// tellIdle acts on jobs that have used none of their GPUs for idle.after: their
// users are told once for as long as that lasts.
func (a *Agent) tellIdle(ctx context.Context, s lease.Snapshot) {
	told := map[gres.JobKey]bool{}
	for _, j := range s.Jobs {
		idle, sure := idleOf(j.JobKey, s, a.Config.NVML.Interval.D())
		if idle < a.Config.Idle.After.D() {
			continue
		}
		if told[j.JobKey] = true; !a.told[j.JobKey] {
			a.Log.Warn("a job holds GPUs and does not use them", "job", j.JobKey, "uid", j.UID, "for", idle.Round(time.Second), "certain", sure.Round(time.Second))
		}
		var err error
		switch {
		case a.Config.Idle.Action == "cancel" && sure >= a.Config.Idle.After.D() && j.Cancelled == "":
			err = a.cancelIdle(ctx, j, idle, a.told[j.JobKey])
		case a.Config.Idle.Action != "none" && !a.told[j.JobKey]:
			err = a.Users.Notify(ctx, j.JobID, idleText(j, idle))
		}
		if err != nil {
			a.Log.Warn("act on a job that uses no GPU", "job", j.JobKey, "error", err)
		}
	}
	a.told = told
}

func idleText(j lease.Held, idle time.Duration) string {
	return fmt.Sprintf("carma: job %d holds GPUs and has not used them for %s", j.JobID, idle.Round(time.Second))
}

// idleOf is for how long a job has used none of its GPUs, and for how long that
// is certain. A reading that is old or missing shows nothing.
func idleOf(key gres.JobKey, s lease.Snapshot, interval time.Duration) (idle, sure time.Duration) {
	fresh := map[string]bool{}
	for _, r := range s.Readings {
		fresh[r.UUID] = r.Unreadable == "" && r.Age < sampleDeadline+3*interval
	}
	idle, sure = math.MaxInt64, math.MaxInt64
	found := false
	for _, l := range s.Leases {
		if l.Job != key {
			continue
		}
		if found = true; !fresh[l.UUID] {
			return 0, 0
		}
		idle, sure = min(idle, l.Idle), min(sure, l.IdleSure)
	}
	if !found {
		return 0, 0
	}
	return idle, sure
}

// cancelIdle cancels a job, or tells its user if the job may not be cancelled: a
// suspended one cannot use its GPUs, and of one on several nodes this one sees a
// part.
func (a *Agent) cancelIdle(ctx context.Context, j lease.Held, idle time.Duration, told bool) error {
	job, err := a.Jobs.Job(ctx, j.JobID)
	if err != nil {
		return err
	}
	if job.State != "RUNNING" || job.Nodes != 1 {
		if told {
			return nil
		}
		return a.Users.Notify(ctx, j.JobID, idleText(j, idle))
	}
	if err := a.Users.Notify(ctx, j.JobID, idleText(j, idle)+"; it is cancelled"); err != nil {
		a.Log.Warn("act on a job that uses no GPU", "job", j.JobKey, "error", err)
	}
	if err := a.Ledger.Cancelled(ctx, j.JobKey, fmt.Sprintf("cancelled: it used none of its GPUs for %s", idle.Round(time.Second))); err != nil {
		return err
	}
	if err := a.Users.Cancel(ctx, job.Target()); err != nil {
		return errors.Join(err, a.Ledger.Cancelled(ctx, j.JobKey, "")) // tried again
	}
	return nil
}
