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
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
)

// idlePct is the SM activity below which a GPU counts as unused.
const idlePct = 0.5

// idleness is since when a holder has not used its GPU, as the agent has seen without
// a gap.
type idleness struct {
	from, sure         time.Duration // 0: in use, or not known; sure: for certain
	toldFrom, toldSure time.Duration // what the ledger has
	told               bool
}

// look adds a look at the GPU and notes in the usage what is new.
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

// unused tells whether a holder does nothing on its GPU: it has no context there, or
// its SMs do nothing. coarse says that the answer may be wrong: the SM activity was not
// measured, or is a part, by rule, of what several holders did. What cannot be told
// counts as use: processes of no job may be the holder's own, and an empty list of
// processes may be a driver that tells none.
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

// forgetIdle ends the idleness seen so far: an unreadable GPU shows nothing.
func (g *account) forgetIdle() {
	for _, h := range g.holders {
		h.idle.from, h.idle.sure = 0, 0
	}
}

// tellAgain has the next look report the present state, changed or not: the ledger
// has not taken the last report.
func (c *accounts) tellAgain() {
	for _, g := range c.gpus {
		for _, h := range g.holders {
			h.idle.told = false
		}
	}
}

// acted is what was done about a job that uses no GPU.
type acted struct{ told, cancelled bool }

// tellIdle acts on jobs that have used none of their GPUs for idle.after: their users
// are told once for as long as the idleness lasts.
func (a *Agent) tellIdle(ctx context.Context, s lease.Snapshot) {
	after := a.Config.Idle.After.D()
	still := map[jobenv.JobKey]acted{}
	for key, j := range idleJobs(s, a.Config.NVML.Interval.D()) {
		if j.idle < after {
			continue
		}
		done := a.acted[key]
		if !done.told {
			a.Log.Warn("a job holds GPUs and does not use them", "job", key, "uid", j.uid, "for", j.idle.Round(time.Second),
				"certain", j.sure.Round(time.Second))
		}
		var err error
		text := fmt.Sprintf("carma: job %d holds GPUs and has not used them for %s", key.JobID, j.idle.Round(time.Second))
		switch {
		case a.Config.Idle.Action == "cancel" && j.sure >= after && !done.cancelled:
			done.cancelled, err = a.cancelIdle(ctx, key, j, text, done.told)
		case a.Config.Idle.Action != "none" && !done.told:
			err = a.Users.Notify(ctx, key.JobID, text)
		}
		if err != nil {
			a.Log.Warn("notify or cancel a job that uses no GPU", "job", key, "error", err)
		}
		done.told = true
		still[key] = done
	}
	a.acted = still
}

// idleJob is for how long a job has used none of its GPUs, and for how long
// that is certain.
type idleJob struct {
	uid        uint32
	idle, sure time.Duration
}

// idleJobs looks at the jobs of a node. An old or missing reading shows nothing.
func idleJobs(s lease.Snapshot, interval time.Duration) map[jobenv.JobKey]idleJob {
	fresh := map[string]bool{}
	for _, r := range s.Readings {
		fresh[r.UUID] = r.Unreadable == "" && r.Age < sampleDeadline+3*interval
	}
	jobs := map[jobenv.JobKey]idleJob{}
	for _, l := range s.Leases {
		j, ok := jobs[l.Job]
		if !fresh[l.UUID] {
			l.Idle, l.IdleSure = 0, 0
		}
		if !ok {
			j = idleJob{l.UID, l.Idle, l.IdleSure}
		}
		j.idle, j.sure = min(j.idle, l.Idle), min(j.sure, l.IdleSure)
		jobs[l.Job] = j
	}
	return jobs
}

// cancelIdle cancels a job, or tells its user if the job may not be cancelled: a
// suspended job cannot use its GPUs, and of a job on several nodes the agent sees a
// part.
func (a *Agent) cancelIdle(ctx context.Context, key jobenv.JobKey, idle idleJob, text string,
	told bool) (cancelled bool, err error) {
	job, err := a.Jobs.Job(ctx, key.JobID)
	if err == nil && job.UID != idle.uid {
		err = fmt.Errorf("slurmctld says that it is uid %d's, the ledger that it is uid %d's", job.UID, idle.uid)
	}
	if err != nil {
		return false, err
	}
	if !a.isHere(job, key) {
		return false, nil // the job may run elsewhere, and reap ends its lease
	}
	if job.State != jobstate.Running || job.Nodes != 1 {
		if told {
			return false, nil
		}
		return false, a.Users.Notify(ctx, key.JobID, text)
	}
	// slurmctld may have taken its time.
	s, err := a.Ledger.Snapshot(ctx)
	if err != nil {
		return false, err
	}
	// While the job was seen not to use its GPUs, it may have been suspended.
	if still := idleJobs(s, a.Config.NVML.Interval.D())[key]; still.sure-job.Suspended < a.Config.Idle.After.D() {
		return false, nil
	}
	if err := a.Users.Notify(ctx, key.JobID, text+"; it is cancelled"); err != nil {
		a.Log.Warn("notify or cancel a job that uses no GPU", "job", key, "error", err)
	}
	if err := a.Ledger.Cancelled(ctx, key, fmt.Sprintf("cancelled: it used none of its GPUs for %s",
		idle.idle.Round(time.Second))); err != nil {
		return false, err
	}
	if a.Daemons != nil {
		a.Daemons.endClients(ctx, key, s)
	}
	if err := a.Users.Cancel(ctx, job.Target()); err != nil {
		return false, errors.Join(err, a.Ledger.Cancelled(ctx, key, "")) // tried again
	}
	return true, nil
}
