// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"carma/gres"
	"carma/gres/capacity"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/sctl"
)

// Guard is what keeps GPUs from jobs.
type Guard interface {
	Hold(ctx context.Context, job, uid uint32, gpus int, mib int64, uuids []string) error
	OpenHold(ctx context.Context, job uint32, in time.Duration) error
	DropHold(ctx context.Context, job uint32) error
	Quarantine(ctx context.Context, uuid, reason string) (victims []uint32, err error)
	Readmit(ctx context.Context, uuid string) error
}

// openHolds offers GPUs that are kept for a job to slurmctld once they are what
// the job needs: not before, for slurmctld would give them to whoever fits.
func (a *Agent) openHolds(ctx context.Context, s lease.Snapshot) {
	for _, job := range heldJobs(s.Holds) {
		if open(s.Holds, job) || !a.ready(job, s) || a.comesBack(s.Comebacks, job) {
			continue
		}
		if err := a.Ledger.OpenHold(ctx, job, 0); err != nil {
			a.Log.Error("offer GPUs that were kept", "job", job, "error", err)
		}
	}
}

// kept is the request of a job that GPUs are kept for, as far as it is known here;
// with 0 MiB it wants all of each.
func (a *Agent) kept(job, uid uint32, gpus int, mib int64) gres.Request {
	r := gres.Request{JobID: job, UID: uid, GPUs: gpus, ReserveMiB: mib, Exclusive: mib == 0, MarginMiB: a.Config.Placement.MarginMiB}
	for _, m := range a.Config.Placement.Margin {
		r.MarginMiB = max(r.MarginMiB, m)
	}
	return r
}

// strictest is the policy, of those that the job may have, by which the fewest GPUs do.
func (a *Agent) strictest() choose.Policy {
	p := choose.Policy(a.Config.Placement.Policy)
	if p != choose.Exclusive && slices.Contains(a.Config.Placement.AllowPolicies, string(choose.Carma)) {
		return choose.Carma
	}
	return p
}

// ready tells whether the GPUs that are kept for a job would do for it: each has as
// much memory as is then published, and the Prolog would give it all of them.
func (a *Agent) ready(job uint32, s lease.Snapshot) bool {
	var kept []gres.Reading
	var uid uint32
	var mib int64
	for _, h := range s.Holds {
		if h.JobID != job {
			continue
		}
		if h.MiB == 0 && slices.ContainsFunc(s.Leases, func(l gres.Lease) bool { return l.UUID == h.UUID }) {
			return false
		}
		if h.MiB == 0 {
			continue
		}
		uid, mib = h.UID, h.MiB
		i := slices.IndexFunc(s.Readings, func(r gres.Reading) bool { return r.UUID == h.UUID })
		if i < 0 {
			return false
		}
		r := s.Readings[i]
		r.HeldFor = 0
		free, _ := choose.Placeable(r, s.Leases, a.Thresholds)
		if capacity.Grain(free, r.GPU, r.TotalMiB) < h.MiB {
			return false
		}
		kept = append(kept, r)
	}
	if len(kept) == 0 {
		return true
	}
	in := choose.Input{Readings: kept, Leases: s.Leases, Request: a.kept(job, uid, len(kept), mib), Thresholds: a.Thresholds}
	return choose.GPUs(a.strictest(), in).UUIDs != nil
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

// open tells whether the GPUs that are kept for a job are offered.
func open(holds []lease.Hold, job uint32) bool {
	return slices.ContainsFunc(holds, func(h lease.Hold) bool { return h.JobID == job && h.Open })
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

// followHolds ends holds whose job has started elsewhere, has gone, or has not come
// in time, and lets a job come for which GPUs are open.
func (a *Agent) followHolds(ctx context.Context, s lease.Snapshot) {
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
			if err == nil && open(s.Holds, id) && a.ready(id, s) {
				if err := a.hasten(ctx, j); err != nil {
					a.Log.Warn("set the start of a job that GPUs are kept for", "job", id, "error", err)
				}
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

// hasten lets a job start that backs off, as some Prolog has given it back, while the
// GPUs that are kept for it would do. A job that has never been back, or whose start is
// further away, waits for what its user has set.
func (a *Agent) hasten(ctx context.Context, j sctl.Job) error {
	if j.State != "PENDING" || j.Reason != "BeginTime" {
		return nil
	}
	safe, err := a.Jobs.SafeStart(ctx)
	if err != nil {
		return err
	}
	at := time.Now().Add(safe)
	if later := j.Start.Sub(at); later < a.Config.Capacity.Compare.D() || later > lease.LongestDelay {
		return nil
	}
	restarts, err := a.Jobs.Restarts(ctx, j.ID)
	if err != nil || restarts == 0 {
		return err
	}
	return a.Jobs.SetStart(ctx, j.Target(), at)
}
