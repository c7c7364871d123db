// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/sctl"
)

// Guard is what keeps GPUs from jobs.
type Guard interface {
	Hold(ctx context.Context, job uint32, uuids []string) error
	OpenHold(ctx context.Context, job uint32, in time.Duration) error
	DropHold(ctx context.Context, job uint32) error
	Quarantine(ctx context.Context, uuid, reason string) (victims []uint32, err error)
	Readmit(ctx context.Context, uuid string) error
}

// openHolds offers GPUs that are kept for a job to slurmctld once all of them
// are idle: not before, for slurmctld would give them to whoever fits.
func (a *Agent) openHolds(ctx context.Context, s lease.Snapshot) {
	busy := map[string]bool{}
	for _, l := range s.Leases {
		busy[l.UUID] = true
	}
	for _, job := range heldJobs(s.Holds) {
		ready := true
		for _, h := range s.Holds {
			ready = ready && (h.JobID != job || !busy[h.UUID] && !h.Open)
		}
		if !ready || a.comesBack(s.Comebacks, job) {
			continue
		}
		if err := a.Ledger.OpenHold(ctx, job, 0); err != nil {
			a.Log.Error("offer GPUs that were kept", "job", job, "error", err)
		}
	}
}

// comesBack tells whether the start of a job that was put back is still to be
// set: its GPUs are offered from that moment on.
func (a *Agent) comesBack(comebacks []lease.Comeback, job uint32) bool {
	for _, c := range comebacks {
		if c.JobID == job {
			return true
		}
	}
	return false
}

func heldJobs(holds []lease.Hold) []uint32 {
	var jobs []uint32
	for _, h := range holds {
		if len(jobs) == 0 || jobs[len(jobs)-1] != h.JobID {
			jobs = append(jobs, h.JobID)
		}
	}
	return jobs
}

// dropHolds ends holds whose job has started elsewhere, has gone, or has not
// come in time.
func (a *Agent) dropHolds(ctx context.Context, s lease.Snapshot) {
	for _, id := range heldJobs(s.Holds) {
		late := false
		for _, h := range s.Holds {
			late = late || h.JobID == id && h.Age > a.Config.Hold.Timeout.D()
		}
		if !late {
			j, err := a.Jobs.Job(ctx, id)
			if err != nil && !errors.Is(err, sctl.ErrNoJob) {
				a.Log.Warn("ask about a job that GPUs are kept for", "job", id, "error", err)
				continue
			}
			if err == nil && (j.State == "PENDING" || j.State == "COMPLETING") {
				continue
			}
		}
		a.Log.Info("GPUs are kept no more", "job", id, "timed_out", late)
		if err := a.Ledger.DropHold(ctx, id); err != nil {
			a.Log.Error("end a hold", "error", err)
		}
	}
}

// soonest returns the k GPUs that are likely to be idle first: those with the
// fewest jobs, the oldest of them first. GPUs that take nobody are left out.
func soonest(s lease.Snapshot, k int) []string {
	type candidate struct {
		uuid string
		jobs int
		age  time.Duration
	}
	var all []candidate
	for _, r := range s.Readings {
		if r.Unreadable != "" || r.Quarantined != "" || r.HeldFor != 0 || r.MIG {
			continue
		}
		c := candidate{uuid: r.UUID}
		for _, l := range s.Leases {
			if l.UUID == r.UUID {
				c.jobs++
				c.age = max(c.age, l.Age)
			}
		}
		all = append(all, c)
	}
	if len(all) < k {
		return nil
	}
	var uuids []string
	for range k {
		best := 0
		for i, c := range all {
			if b := all[best]; c.jobs < b.jobs || c.jobs == b.jobs && c.age > b.age {
				best = i
			}
		}
		uuids = append(uuids, all[best].uuid)
		all = append(all[:best], all[best+1:]...)
	}
	return uuids
}
