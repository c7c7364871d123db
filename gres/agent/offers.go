// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"carma/gres"
	"carma/gres/capacity"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/steward"
	"carma/slurmbridge/config"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/policy"
	"carma/slurmbridge/sctl"
)

// askAgain is how soon slurmctld is asked again about a job that may start soon.
const askAgain = 2 * time.Second

// Offers keeps GPUs of the node for jobs, as the ledger and the node's Extra say, and offers them to slurmctld.
type Offers struct {
	Config     *config.Config
	Thresholds choose.Thresholds
	Ledger     Holds
	Jobs       Places
	Own        OwnNode
	Returned   *Returned
	Node       string
	Log        *slog.Logger

	// open:
	askAt       map[uint32]time.Duration // when slurmctld is asked again about jobs that GPUs are ready for
	silentUntil time.Duration            // slurmctld did not answer
	taken       map[uint32]bool          // jobs with GPUs that are offered but not ready

	// follow:
	vain map[uint32]time.Time // when holds in vain ended here, until the node's Extra says so
}

// answers are slurmctld's words on the jobs with holds, in a comparison: slurmctld is asked once about a job.
type answers map[uint32]answer

type answer struct {
	job         sctl.Job
	comes, here bool // GPUs are to be kept on; the job may run on this node
}

// openHolds has the GPUs kept for a job offered to slurmctld, once they meet the job's
// needs, from when the job can start: not before, for slurmctld would send any job there
// that fits. Until then slurmctld is asked again when counts are compared, as the start
// may change. Where offered GPUs have not met the job's needs for a while, the time of the
// offer counts from when they meet the needs again.
func (o *Offers) openHolds(ctx context.Context, s lease.Snapshot, now time.Duration) {
	askAt, taken := map[uint32]time.Duration{}, map[uint32]bool{}
	for _, job := range heldJobs(s.Holds) {
		if open(s.Holds, job) {
			taken[job] = !o.ready(job, s)
			if o.taken[job] && !taken[job] {
				if err := o.Ledger.OpenHold(ctx, job, 0); err != nil {
					taken[job] = true
					o.Log.Error("offer held GPUs", "job", job, "error", err)
				}
			}
			continue
		}
		if !o.ready(job, s) || o.awaitsRestart(s.PendingRestarts, job) {
			continue
		}
		askAt[job] = max(o.askAt[job], o.silentUntil)
		if askAt[job] > now {
			continue
		}
		known, err := o.openHold(ctx, job)
		askAt[job] = now + askAgain
		if known || err != nil {
			askAt[job] = now + o.Config.Capacity.Compare.D()
		}
		if err != nil {
			o.silentUntil = askAt[job]
			o.Log.Warn("offer held GPUs", "job", job, "error", err)
		}
	}
	o.askAt, o.taken = askAt, taken
}

// openHold offers the GPUs of one job, and tells whether the job's start is known.
func (o *Offers) openHold(ctx context.Context, job uint32) (known bool, err error) {
	j, err := o.Jobs.Job(ctx, job)
	if errors.Is(err, sctl.ErrNoJob) || err == nil && j.State != jobstate.Pending {
		return false, nil // which followHolds sees, or the job is requeued
	} else if err != nil {
		return false, err
	}
	at, hastened, err := o.startOf(ctx, j)
	if err != nil || at.IsZero() {
		return at.IsZero(), err
	}
	if hastened { // another node, which returned the job to the queue, may just be setting the start too
		return false, nil
	}
	return true, o.Ledger.OpenHold(ctx, job, max(time.Until(at), 0))
}

// kept is the request of a job that GPUs are kept for, as far as it is known here; with
// 0 MiB the job wants all of each.
func (o *Offers) kept(job, uid uint32, gpus int, mib int64) gres.Request {
	return gres.Request{JobID: job, UID: uid, GPUs: gpus, ReserveMiB: mib, Exclusive: mib == 0,
		MarginMiB: o.Config.Placement.MarginMiB}
}

// strictest is the policy, of those that the job may have, by which the fewest GPUs
// fit.
func (o *Offers) strictest() choose.Policy {
	p := choose.Policy(o.Config.Placement.Policy)
	if p != policy.Exclusive && slices.Contains(o.Config.Placement.AllowPolicies, string(policy.Carma)) {
		return policy.Carma
	}
	return p
}

// ready tells whether the GPUs kept for a job would do: each has as much memory as is
// then published, and the Prolog would give the job all of them.
func (o *Offers) ready(job uint32, s lease.Snapshot) bool {
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
		free, _ := choose.Offer(o.Config.Placement.IdleOnly(), r, s.Leases, o.Thresholds)
		if capacity.Grain(free, r.GPU, r.TotalMiB) < h.MiB {
			return false
		}
		kept = append(kept, r)
	}
	if len(kept) == 0 {
		return true
	}
	in := choose.Input{Readings: kept, Leases: s.Leases, Request: o.kept(job, uid, len(kept), mib),
		Thresholds: o.Thresholds}
	return choose.GPUs(o.strictest(), in).UUIDs != nil
}

// awaitsRestart tells whether the start of a requeued job is still to be set: its GPUs
// are offered from that moment on.
func (o *Offers) awaitsRestart(pending []lease.PendingRestart, job uint32) bool {
	for _, c := range pending {
		if c.JobID == job {
			return true
		}
	}
	return false
}

// open tells whether the GPUs kept for a job are offered.
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

// followHolds ends holds whose job has started elsewhere, has gone, waits because its
// user wants so, or has not come in time, and lets a job start for which GPUs are open.
// followHolds returns slurmctld's answers.
func (o *Offers) followHolds(ctx context.Context, s lease.Snapshot) (said answers) {
	said = answers{}
	for _, id := range heldJobs(s.Holds) {
		late := false
		for _, h := range s.Holds {
			late = late || h.JobID == id && h.Age > steward.HoldTimeout
		}
		if !late {
			a, err := o.ask(ctx, id)
			if err != nil {
				o.Log.Warn("query a job that a hold is for", "job", id, "error", err)
				continue
			}
			said[id] = a
			j, comes := a.job, a.comes && a.here
			if comes && j.State == jobstate.Pending && open(s.Holds, id) && o.ready(id, s) {
				if err := o.closeHold(ctx, j); err != nil {
					o.Log.Warn("set the start time of a job with a hold", "job", id, "error", err)
				}
			}
			if late = comes && !planned(j) && !j.Eligible.After(time.Now()) && o.inVain(id, s); comes && !late {
				continue
			}
		}
		if late && o.inVain(id, s) { // followExtra says so
			if o.vain == nil {
				o.vain = map[uint32]time.Time{}
			}
			o.vain[id] = time.Now()
		} else {
			delete(o.vain, id)
		}
		o.Log.Info("hold ended", "job", id, "timed_out", late)
		if err := o.Ledger.DropHold(ctx, id); err != nil {
			o.Log.Error("end a hold", "error", err)
		}
	}
	return said
}

// planned tells whether a waiting job on several nodes has only the others to wait for, and not for long: slurmctld
// plans the job's start before a hold would be over.
func planned(j sctl.Job) bool {
	in := time.Until(j.Start)
	return j.Nodes > 1 && in > 0 && in < steward.HoldTimeout
}

// inVain tells whether a hold has long offered enough GPUs to the job.
func (o *Offers) inVain(job uint32, s lease.Snapshot) bool {
	return o.ready(job, s) && !slices.ContainsFunc(s.Holds, func(h lease.Hold) bool {
		return h.JobID == job && h.Offered < steward.VainAfter
	})
}

// ask tells whether GPUs are to be kept on for a job, and whether the job may run on this node: slurmctld may say of a
// job that can run nowhere now that the job waits for its turn.
func (o *Offers) ask(ctx context.Context, id uint32) (a answer, err error) {
	a.job, err = o.Jobs.Job(ctx, id)
	a.comes, a.here = err == nil && o.comes(a.job), true
	if a.comes && a.job.State == jobstate.Pending {
		a.here, err = o.Jobs.MayRun(ctx, id, o.Node)
	}
	if errors.Is(err, sctl.ErrNoJob) {
		a.comes, err = false, nil
	}
	return a, err
}

// comes tells whether GPUs are to be kept on for a job: the job may come yet, and waits
// for nothing but room or the end of a delay that CARMA has set. A job that its user
// holds, or lets start later, wait for another or move elsewhere, has no claim to idle
// GPUs.
func (o *Offers) comes(j sctl.Job) bool {
	if j.State != jobstate.Pending {
		return mayComeYet(j)
	}
	ours := slices.ContainsFunc(strings.Split(j.Partition, ","), func(name string) bool {
		_, ok := o.Config.Partition[name]
		return ok
	})
	if !ours || j.Reason.IsOfItsUser() {
		return false
	}
	// The reason may be that of an earlier wait, until slurmctld looks at the job
	// again.
	return !j.Eligible.After(time.Now()) || steward.BacksOff(j.Restarts, j.Submitted, j.Eligible)
}

// closeHold stops offering GPUs to a job that cannot start now, as some Prolog has
// returned the job to the queue, until the job can.
func (o *Offers) closeHold(ctx context.Context, j sctl.Job) error {
	at, _, err := o.startOf(ctx, j)
	in := time.Until(at)
	if at.IsZero() {
		in = steward.HoldTimeout // openHolds looks again before
	}
	if err != nil || in <= 0 {
		return err
	}
	return o.Ledger.OpenHold(ctx, j.ID, in)
}

// mayComeYet tells whether a job waits, or is in a Prolog somewhere, which may give the
// job back: the job is RUNNING then (node_scheduler.c, launch_prolog; not with
// PrologFlags=NoHold), or CONFIGURING while nodes boot. A Prolog that leases GPUs on
// this node ends the hold itself.
func mayComeYet(j sctl.Job) bool {
	switch j.State {
	case jobstate.Pending, jobstate.Completing, jobstate.Configuring:
		return true
	}
	return j.State == jobstate.Running && j.Reason == jobstate.InProlog
}

// startOf tells from when on a waiting job can start for which GPUs are ready; zero: not as
// things are. A job that backs off, as some Prolog has returned it to the queue, is hastened: it
// starts as soon as is safe. A start that the job's user has set stays.
func (o *Offers) startOf(ctx context.Context, j sctl.Job) (at time.Time, hastened bool, err error) {
	switch {
	case j.Reason == jobstate.BeginTime, j.Reason == jobstate.InProlog, j.Reason == jobstate.None:
		// Prolog is the reason of a job returned to the queue, until slurmctld next looks at
		// the job.
	case j.Reason.IsRoom():
		return time.Now(), false, nil
	default: // held, or waits for another job
		return time.Time{}, false, nil
	}
	if !steward.BacksOff(j.Restarts, j.Submitted, j.Eligible) || time.Until(j.Eligible) < o.Config.Capacity.Compare.D() {
		return j.Eligible, false, nil
	}
	safe, err := o.Returned.Jobs.SafeStart(ctx)
	if err != nil {
		return j.Eligible, false, err
	}
	at = time.Now().Add(safe)
	if j.Eligible.Sub(at) < o.Config.Capacity.Compare.D() {
		return j.Eligible, false, nil
	}
	return at, true, o.Returned.startAt(ctx, j, at)
}

// followExtra keeps GPUs as the node's Extra says, and takes the word out of Extra when
// the job has started, has gone, waits because its user wants so, or did not come in
// time. It says so in Extra where the hold was in vain, or cannot be kept.
func (o *Offers) followExtra(ctx context.Context, text string, s lease.Snapshot, said answers) {
	hold, ok := steward.HoldIn(text)
	// Other holds that were in vain stand in no Extra: the node made them itself.
	maps.DeleteFunc(o.vain, func(id uint32, _ time.Time) bool { return id != hold.JobID })
	if !ok {
		return
	}
	a, known := said[hold.JobID]
	if !known {
		var err error
		if a, err = o.ask(ctx, hold.JobID); err != nil {
			o.Log.Warn("query a job that is to get a hold", "job", hold.JobID, "error", err)
			return
		}
	}
	j, comes, here := a.job, a.comes, a.here
	age := time.Since(hold.Since)
	kept := slices.IndexFunc(s.Holds, func(h lease.Hold) bool { return h.JobID == hold.JobID })
	if kept >= 0 {
		age = s.Holds[kept].Age // by a clock that nobody sets
	}
	// Its time is over, whatever the steward's clock says, unless the steward decided anew since.
	ended, vain := o.vain[hold.JobID]
	vain = vain && ended.Sub(hold.Since) > steward.VainAfter/2 || !here
	if comes && age < steward.HoldTimeout && !vain {
		if j.State != jobstate.Pending || kept >= 0 || hold.Preempts != "" { // for a job that preempts its Prolog keeps GPUs
			return
		}
		if o.Thresholds.MaxSlowdown > 0 {
			hold.MiB = 0 // what the job expects is known to its Prolog
		}
		r := o.kept(hold.JobID, j.UID, hold.GPUs, hold.MiB)
		if uuids := choose.Soonest(o.strictest(), s.Readings, s.Leases, r, o.Thresholds); uuids != nil {
			o.Log.Info("hold started", "job", hold.JobID, "gpus", uuids, "mib", hold.MiB)
			if err := o.Ledger.Hold(ctx, hold.JobID, j.UID, hold.GPUs, hold.MiB, uuids); err != nil {
				o.Log.Error("start a hold", "error", err)
			}
			return
		}
		o.Log.Warn("place a hold", "job", hold.JobID, "error", "too few GPUs here accept jobs")
		// The steward is to look for another node, unless GPUs are but held for others, which ends soon.
		unheld := slices.Clone(s.Readings)
		for i := range unheld {
			unheld[i].HeldFor = 0
		}
		vain = choose.Soonest(o.strictest(), unheld, s.Leases, r, o.Thresholds) == nil
	}
	if err := o.Ledger.DropHold(ctx, hold.JobID); err != nil {
		o.Log.Error("end a hold", "error", err)
	}
	words := map[string]string{extra.Hold: ""}
	if vain && comes && j.State == jobstate.Pending {
		words[extra.Vain] = steward.VainWord(hold)
	}
	if err := o.Own.SetWords(ctx, words); err != nil {
		o.Log.Warn("remove a hold from the node's Extra", "error", err)
		return
	}
	delete(o.vain, hold.JobID)
}
