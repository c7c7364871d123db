// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"

	"carma/gres"
	"carma/gres/confine"
	"carma/gres/lease"
	"carma/slurmbridge/sctl"
)

// reopen confines, once, the jobs that an agent finds when it starts: those that started
// before there was a guard, too.
func (a *Agent) reopen(s lease.Snapshot) {
	if a.Guard == nil || a.reopened {
		return
	}
	a.reopened = true
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
		if err := a.Guard.Open(job, gpus); err != nil {
			a.Log.Error("confine a job that is here already", "job", job.ID, "error", err)
		}
	}
}

// reapConfined forgets jobs that have ended without an Epilog.
func (a *Agent) reapConfined(ctx context.Context, s lease.Snapshot) {
	if a.Guard == nil {
		return
	}
	jobs, err := a.Guard.Jobs()
	if err != nil {
		a.Log.Error("look for confined jobs that have ended", "error", err)
		return
	}
	here := map[uint32]bool{}
	for _, l := range s.Leases {
		here[l.Job.JobID] = true
	}
	stepds, err := a.Owners.Stepds()
	if err != nil {
		a.Log.Error("look for confined jobs that have ended", "error", err)
		return
	}
	for _, j := range jobs {
		if here[j.ID] || stepds[j.ID] {
			continue
		}
		job, err := a.Jobs.Job(ctx, j.ID)
		if err == nil && holdsNode(job.State) || err != nil && !errors.Is(err, sctl.ErrNoJob) {
			continue
		}
		a.Log.Warn("confined job without an end forgotten", "job", gres.JobKey{JobID: j.ID}, "state", job.State)
		if err := a.Guard.Close(j); err != nil {
			a.Log.Error("forget a confined job", "job", j.ID, "error", err)
		}
	}
}
