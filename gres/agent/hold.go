// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"carma/gres"
	"carma/gres/capacity"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/steward"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/policy"
	"carma/slurmbridge/sctl"
)

// askAgain is how soon slurmctld is asked again about a job that may start soon.
const askAgain = 2 * time.Second

// openHolds has GPUs that are kept for a job offered to slurmctld, once they are what
// the job needs, from when it can start: not before, for slurmctld would send there
// whoever fits. Until then slurmctld is asked again when counts are compared, as that
// may change. GPUs that are offered and are not what the job needs, for a while, have been
// offered since they are again.
func (a *Agent) openHolds(ctx context.Context, s lease.Snapshot, now time.Duration) {
	askAt, taken := map[uint32]time.Duration{}, map[uint32]bool{}
	for _, job := range heldJobs(s.Holds) {
		if open(s.Holds, job) {
			taken[job] = !a.ready(job, s)
			if a.taken[job] && !taken[job] {
				if err := a.Ledger.OpenHold(ctx, job, 0); err != nil {
					taken[job] = true
					a.Log.Error("offer held GPUs", "job", job, "error", err)
				}
			}
			continue
		}
		if !a.ready(job, s) || a.awaitsRestart(s.PendingRestarts, job) {
			continue
		}
		askAt[job] = max(a.askAt[job], a.silentUntil)
		if askAt[job] > now {
			continue
		}
		known, err := a.openHold(ctx, job)
		askAt[job] = now + askAgain
		if known || err != nil {
			askAt[job] = now + a.Config.Capacity.Compare.D()
		}
		if err != nil {
			a.silentUntil = askAt[job]
			a.Log.Warn("offer held GPUs", "job", job, "error", err)
		}
	}
	a.askAt, a.taken = askAt, taken
}

// openHold does so for one job, and tells whether it is known when that starts.
func (a *Agent) openHold(ctx context.Context, job uint32) (known bool, err error) {
	j, err := a.Jobs.Job(ctx, job)
	if errors.Is(err, sctl.ErrNoJob) || err == nil && j.State != jobstate.Pending {
		return false, nil // which followHolds sees, or it is requeued
	} else if err != nil {
		return false, err
	}
	at, hastened, err := a.startOf(ctx, j)
	if err != nil || at.IsZero() {
		return at.IsZero(), err
	}
	if hastened { // another node may just be setting it too, which returned the job to the queue
		return false, nil
	}
	return true, a.Ledger.OpenHold(ctx, job, max(time.Until(at), 0))
}

// kept is the request of a job that GPUs are kept for, as far as it is known here;
// with 0 MiB it wants all of each.
func (a *Agent) kept(job, uid uint32, gpus int, mib int64) gres.Request {
	return gres.Request{JobID: job, UID: uid, GPUs: gpus, ReserveMiB: mib, Exclusive: mib == 0,
		MarginMiB: a.Config.Placement.MarginMiB}
}

// strictest is the policy, of those that the job may have, by which the fewest GPUs do.
func (a *Agent) strictest() choose.Policy {
	p := choose.Policy(a.Config.Placement.Policy)
	if p != policy.Exclusive && slices.Contains(a.Config.Placement.AllowPolicies, string(policy.Carma)) {
		return policy.Carma
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
		free, _ := choose.Offer(a.Config.Placement.IdleOnly(), r, s.Leases, a.Thresholds)
		if capacity.Grain(free, r.GPU, r.TotalMiB) < h.MiB {
			return false
		}
		kept = append(kept, r)
	}
	if len(kept) == 0 {
		return true
	}
	in := choose.Input{Readings: kept, Leases: s.Leases, Request: a.kept(job, uid, len(kept), mib),
		Thresholds: a.Thresholds}
	return choose.GPUs(a.strictest(), in).UUIDs != nil
}

// awaitsRestart tells whether the start of a job that was requeued is still to be
// set: its GPUs are offered from that moment on.
func (a *Agent) awaitsRestart(pending []lease.PendingRestart, job uint32) bool {
	for _, c := range pending {
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

// followHolds ends holds whose job has started elsewhere, has gone, waits for what its
// user has set, or has not come in time, and lets a job come for which GPUs are open.
func (a *Agent) followHolds(ctx context.Context, s lease.Snapshot) {
	for _, id := range heldJobs(s.Holds) {
		late := false
		for _, h := range s.Holds {
			late = late || h.JobID == id && h.Age > steward.HoldTimeout
		}
		if !late {
			j, err := a.Jobs.Job(ctx, id)
			comes := false
			if err == nil {
				comes = a.comes(j)
			}
			if err != nil && !errors.Is(err, sctl.ErrNoJob) {
				a.Log.Warn("query a job that a hold is for", "job", id, "error", err)
				continue
			}
			if comes && j.State == jobstate.Pending && open(s.Holds, id) && a.ready(id, s) {
				if err := a.closeHold(ctx, j); err != nil {
					a.Log.Warn("set the start time of a job with a hold", "job", id, "error", err)
				}
			}
			if comes {
				continue
			}
		}
		if late && a.inVain(id, s) { // followExtra says so
			if a.vain == nil {
				a.vain = map[uint32]time.Time{}
			}
			a.vain[id] = time.Now()
		} else {
			delete(a.vain, id)
		}
		a.Log.Info("hold ended", "job", id, "timed_out", late)
		if err := a.Ledger.DropHold(ctx, id); err != nil {
			a.Log.Error("end a hold", "error", err)
		}
	}
}

// inVain tells whether a hold whose time is over has offered what the job needs for long.
func (a *Agent) inVain(job uint32, s lease.Snapshot) bool {
	return a.ready(job, s) && !slices.ContainsFunc(s.Holds, func(h lease.Hold) bool {
		return h.JobID == job && h.Offered < steward.VainAfter
	})
}

// comes tells whether GPUs are to be kept on for a job: it may come yet, and waits for
// no more than room or the end of a time that is ours. One that its user holds, or lets
// start later, wait for another or move elsewhere, has no claim to idle GPUs.
func (a *Agent) comes(j sctl.Job) bool {
	if j.State != jobstate.Pending {
		return mayComeYet(j)
	}
	ours := slices.ContainsFunc(strings.Split(j.Partition, ","), func(name string) bool {
		_, ok := a.Config.Partition[name]
		return ok
	})
	if !ours || j.Reason.IsOfItsUser() {
		return false
	}
	// The reason may be the one of before, until slurmctld looks at the job again.
	return !j.Eligible.After(time.Now()) || steward.BacksOff(j.Restarts, j.Submitted, j.Eligible)
}

// closeHold stops offering GPUs to a job that cannot start now, as some Prolog has
// returned it to the queue, until it can.
func (a *Agent) closeHold(ctx context.Context, j sctl.Job) error {
	at, _, err := a.startOf(ctx, j)
	in := time.Until(at)
	if at.IsZero() {
		in = steward.HoldTimeout // openHolds looks again before
	}
	if err != nil || in <= 0 {
		return err
	}
	return a.Ledger.OpenHold(ctx, j.ID, in)
}

// mayComeYet tells whether a job waits, or is in a Prolog somewhere, which may give it
// back: it is RUNNING then (node_scheduler.c, launch_prolog; not with
// PrologFlags=NoHold), or CONFIGURING while nodes boot. A Prolog that leases GPUs on
// this node ends the hold itself.
func mayComeYet(j sctl.Job) bool {
	switch j.State {
	case jobstate.Pending, jobstate.Completing, jobstate.Configuring:
		return true
	}
	return j.State == jobstate.Running && j.Reason == jobstate.InProlog
}

// startOf tells from when on a waiting job can start for which GPUs are ready; zero: not
// as things are. If it backs off, as some Prolog has returned it to the queue, it is hastened: it
// starts as soon as is safe. A start that its user has set stays.
func (a *Agent) startOf(ctx context.Context, j sctl.Job) (at time.Time, hastened bool, err error) {
	switch {
	case j.Reason == jobstate.BeginTime, j.Reason == jobstate.InProlog, j.Reason == jobstate.None:
		// Prolog is what a job that was returned to the queue has waited for, until slurmctld
		// next looks at it.
	case j.Reason.IsRoom():
		return time.Now(), false, nil
	default: // held, or waits for another job
		return time.Time{}, false, nil
	}
	if !steward.BacksOff(j.Restarts, j.Submitted, j.Eligible) || time.Until(j.Eligible) < a.Config.Capacity.Compare.D() {
		return j.Eligible, false, nil
	}
	safe, err := a.Jobs.SafeStart(ctx)
	if err != nil {
		return j.Eligible, false, err
	}
	at = time.Now().Add(safe)
	if j.Eligible.Sub(at) < a.Config.Capacity.Compare.D() {
		return j.Eligible, false, nil
	}
	return at, true, a.startAt(ctx, j, at)
}

// followExtra keeps GPUs as the node's Extra says, and takes the word out
// of it when the job has started, has gone, waits for what its user has set, or did not
// come in time. It says so there where the hold was in vain, or cannot be kept.
func (a *Agent) followExtra(ctx context.Context, text string, s lease.Snapshot) {
	hold, ok := steward.HoldIn(text)
	// Other holds that were in vain stand in no Extra: the node made them itself.
	maps.DeleteFunc(a.vain, func(id uint32, _ time.Time) bool { return id != hold.JobID })
	if !ok || a.Steward == nil {
		return
	}
	j, err := a.Jobs.Job(ctx, hold.JobID)
	comes := false
	if err == nil {
		comes = a.comes(j)
	}
	if err != nil && !errors.Is(err, sctl.ErrNoJob) {
		a.Log.Warn("query a job that is to get a hold", "job", hold.JobID, "error", err)
		return
	}
	age := time.Since(hold.Since)
	kept := slices.IndexFunc(s.Holds, func(h lease.Hold) bool { return h.JobID == hold.JobID })
	if kept >= 0 {
		age = s.Holds[kept].Age // by a clock that nobody sets
	}
	// Its time is over, whatever the steward's clock says, unless the steward decided anew since.
	ended, vain := a.vain[hold.JobID]
	vain = vain && ended.Sub(hold.Since) > steward.HoldTimeout/2
	if comes && age < steward.HoldTimeout && !vain {
		if j.State != jobstate.Pending || kept >= 0 || hold.Preempts != "" { // for that its Prolog keeps GPUs
			return
		}
		if a.Thresholds.MaxSlowdown > 0 {
			hold.MiB = 0 // what the job expects is known to its Prolog
		}
		r := a.kept(hold.JobID, j.UID, hold.GPUs, hold.MiB)
		if uuids := choose.Soonest(a.strictest(), s.Readings, s.Leases, r, a.Thresholds); uuids != nil {
			a.Log.Info("hold started", "job", hold.JobID, "gpus", uuids, "mib", hold.MiB)
			if err := a.Ledger.Hold(ctx, hold.JobID, j.UID, hold.GPUs, hold.MiB, uuids); err != nil {
				a.Log.Error("start a hold", "error", err)
			}
			return
		}
		a.Log.Warn("place a hold", "job", hold.JobID, "error", "too few GPUs here accept jobs")
		// The steward is to look for another node, unless GPUs are but held for others, which ends soon.
		unheld := slices.Clone(s.Readings)
		for i := range unheld {
			unheld[i].HeldFor = 0
		}
		vain = choose.Soonest(a.strictest(), unheld, s.Leases, r, a.Thresholds) == nil
	}
	if err := a.Ledger.DropHold(ctx, hold.JobID); err != nil {
		a.Log.Error("end a hold", "error", err)
	}
	words := map[string]string{extra.Hold: ""}
	if vain && comes && j.State == jobstate.Pending {
		words[extra.Vain] = steward.VainWord(hold)
	}
	if err := a.Publisher.SetWords(ctx, words); err != nil {
		a.Log.Warn("remove a hold from the node's Extra", "error", err)
		return
	}
	delete(a.vain, hold.JobID)
}
