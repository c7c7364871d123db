// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"

	"carma/gres/confine"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// guard looks for what confines jobs now: slurmd, which may come later than the agent,
// makes what a guard stands on. It says so when that changes.
func (a *Agent) guard() confine.Guard {
	if a.Guard == nil {
		return nil
	}
	g, err := a.Guard()
	says := ""
	switch {
	case err != nil:
		says = err.Error()
	case g != nil:
		says = g.String()
	}
	if a.reopened && says == a.confinedBy {
		return g
	}
	a.confinedBy = says
	switch {
	case err != nil:
		a.Log.Error("no job can be confined as devices.confine says; jobs wait", "error", err)
	case g != nil:
		a.Log.Info("jobs are confined to their GPUs", "by", says)
	case a.Config.Devices.Confine != "none":
		a.Log.Warn("jobs are not confined to their GPUs; carma-node doctor says why")
	}
	a.reopened = false
	return g
}

// reopen confines the jobs that an agent finds when it starts: those that started before
// there was a guard, too.
func (a *Agent) reopen(g confine.Guard, s lease.Snapshot) {
	if g != nil && !g.Exact() {
		// Device nodes that the driver has made meanwhile are open to all.
		if err := g.Close(confine.Job{}); err != nil {
			a.Log.Error("set access lists", "error", err)
		}
	}
	if a.reopened {
		return
	}
	a.reopened = true
	if g == nil {
		return
	}
	minors := map[string]int{}
	for _, r := range s.Readings {
		minors[r.UUID] = r.Minor
	}
	own := map[confine.Job][]int{}
	for _, l := range s.Leases {
		job := confine.Job{ID: l.Job.JobID, UID: l.UID}
		if minor, ok := minors[l.UUID]; ok && minor >= 0 {
			own[job] = append(own[job], minor)
		}
	}
	for job, gpus := range own {
		if err := g.Open(job, gpus); err != nil {
			a.Log.Error("confine a job that was already running", "job", job.ID, "error", err)
		}
	}
}

// reapConfined forgets jobs that have ended without an Epilog.
func (a *Agent) reapConfined(ctx context.Context, g confine.Guard, s lease.Snapshot) {
	if g == nil {
		return
	}
	jobs, err := g.Jobs()
	if err != nil {
		a.Log.Error("find confined jobs that have ended", "error", err)
		return
	}
	here := map[uint32]bool{}
	for _, l := range s.Leases {
		here[l.Job.JobID] = true
	}
	stepds, err := a.Owners.Stepds()
	if err != nil {
		a.Log.Error("find confined jobs that have ended", "error", err)
		return
	}
	for _, j := range jobs {
		if here[j.ID] || stepds[j.ID] {
			continue
		}
		job, err := a.Jobs.Job(ctx, j.ID)
		if err == nil && job.State.HoldsNode() || err != nil && !errors.Is(err, sctl.ErrNoJob) {
			continue
		}
		a.Log.Warn("confinement of a lost job removed", "job", jobenv.JobKey{JobID: j.ID}, "state", job.State)
		if err := g.Close(j); err != nil {
			a.Log.Error("remove a job's confinement", "job", j.ID, "error", err)
		}
	}
}
