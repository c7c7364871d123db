// SPDX-License-Identifier: Apache-2.0

// Package choose picks the GPUs of a job: values in, a decision out. The package
// keeps the preconditions of the CARMA paper (a bound on SM activity, free memory)
// and adds the ledger, which the paper's system lacks: promised memory counts as
// used. The Prolog decides with the package, and so does carma-sim.
package choose

import (
	"slices"
	"time"

	"carma/gres"
	"carma/slurmbridge/config"
	"carma/slurmbridge/policy"
)

// Policy orders the fitting GPUs.
type Policy = policy.Name

// Thresholds are the preconditions, from carma.toml. A percentage of 100 or
// more switches its gate off.
type Thresholds struct {
	SMActMaxPct float64
	MarginMiB   int64 // kept free by Placeable on a shared GPU
	MaxJobs     int
	Settle      time.Duration
	CrossUser   bool    // jobs of several users may time-slice a GPU
	Streams     bool    // no MPS: all jobs of a GPU are time-sliced
	NodeDaemon  bool    // an MPS daemon serves all GPUs of the node, not just the job's
	MaxSlowdown float64 // that sharing may cost a job, by the law of package interference; 0: no bound
}

// The number of clients that an MPS server takes, from Volta on (MPS documentation), and
// the SM activity that closes a GPU where the source is NVML utilisation, which is 100 %
// whenever some kernel runs.
const (
	maxClients   = 48
	coarseMaxPct = 95
)

// FromConfig takes the thresholds of a carma.toml.
func FromConfig(c config.Config) Thresholds {
	return Thresholds{
		SMActMaxPct: c.SMAct.MaxPct,
		MarginMiB:   c.Placement.MarginMiB,
		MaxJobs:     c.Placement.MaxJobs,
		Settle:      c.Placement.Settle.D(),
		CrossUser:   c.Placement.CrossUser == "timeslice",
		Streams:     !c.MPS.Enabled,
		MaxSlowdown: c.Placement.MaxSlowdown,
	}
}

// Input is what a choice is based on. Leases of the same GPU should stand together.
type Input struct {
	Readings   []gres.Reading // in the order of the devices
	Leases     []gres.Lease
	Request    gres.Request
	Thresholds Thresholds
	Last       string // UUID of the GPU given last, for RoundRobin
}

// Decision is the outcome for a request.
type Decision struct {
	UUIDs    []string    // K GPUs, best first; nil: none fits
	Daemon   gres.Daemon // through which the job shares them; none: the job takes turns, or is alone
	Refusals []Refusal   // why each GPU not taken was passed over
}

// Uncounted tells whether a GPU was passed over for a reason that slurmctld's counts do
// not show: the counts say how much memory a GPU can give, and not to which user, beside
// which activity, through which daemon, or alone. Such a request can be sent to the node
// again and again; where the request waits for idle GPUs, the counts show all that
// matters.
func (d *Decision) Uncounted() bool {
	return slices.ContainsFunc(d.Refusals, func(r Refusal) bool {
		switch r.Reason.code {
		case otherUser, byTurns, notIdle, tooFewTogether, slowed:
			return true
		}
		return false
	})
}

// Refusal says why a GPU was not taken.
type Refusal struct {
	UUID   string
	Reason Reason
}

// idleSlackMiB is the memory that an idle GPU may show as used: the driver's own,
// and an MPS server without clients.
const idleSlackMiB = 1024

// state is a GPU in the view of the ledger and the last sample.
type state struct {
	r          *gres.Reading
	jobs       int
	bookedMiB  int64
	smactPct   float64 // expected of its jobs, where known
	exclusive  bool
	bounded    bool // a job's user bounds its slowdown
	settling   bool // a newcomer has not shown a process yet
	otherUsers bool // a lease of a user other than the request's
	turns      bool // a lease without MPS: jobs that share the GPU take turns
	daemon     gres.Daemon
	taken      bool // daemon is another user's
	fits       bool
}

func (s *state) idle() bool {
	return s.jobs == 0 && s.r.Foreign == 0 && s.r.UsedMiB <= idleSlackMiB
}

// freeMiB is the memory that nobody uses and that is promised to nobody.
func (s *state) freeMiB() int64 { return s.r.TotalMiB - max(s.r.UsedMiB, s.bookedMiB) }

// load is the SM activity by which GPUs are ordered: measured, or expected of jobs
// too new to show in the window.
func (s *state) load() float64 {
	if s.jobs == 0 {
		return 0
	}
	if s.r.SMActPct != s.r.SMActPct { // NaN
		return s.smactPct
	}
	return max(s.r.SMActPct, s.smactPct)
}

// statesOf adds the leases up by GPU. The search for a GPU begins where the last one
// was found, so that leases in groups cost a comparison each.
func statesOf(buf []state, in *Input) []state {
	states := buf[:0]
	for i := range in.Readings {
		states = append(states, state{r: &in.Readings[i]})
	}
	at := 0
	for i := range in.Leases {
		l := &in.Leases[i]
		for n := 0; n < len(states) && states[at].r.UUID != l.UUID; n++ {
			at = (at + 1) % len(states)
		}
		if len(states) == 0 || states[at].r.UUID != l.UUID {
			continue // the GPU is gone
		}
		s := &states[at]
		s.jobs++
		s.bookedMiB += l.ReserveMiB
		s.smactPct += l.SMActPct
		s.exclusive = s.exclusive || l.Exclusive
		s.bounded = s.bounded || l.MaxSlowdown > 0
		s.settling = s.settling || !l.Seen && l.Age < in.Thresholds.Settle
		s.otherUsers = s.otherUsers || l.UID != in.Request.UID
		if l.Daemon == "" {
			s.turns = true
		} else {
			s.daemon, s.taken = l.Daemon, l.UID != in.Request.UID
		}
	}
	return states
}

// closed returns why the GPU takes no job, whatever the job asks for.
func (s *state) closed(t *Thresholds) Reason {
	switch {
	case s.r.Unreadable != "":
		return Reason{code: unreadable, text: s.r.Unreadable}
	case s.r.Quarantined != "":
		return Reason{code: quarantined, text: s.r.Quarantined}
	case s.exclusive:
		return Reason{code: heldExclusively}
	case s.r.Foreign > 0:
		return Reason{code: foreign, a: float64(s.r.Foreign)}
	case s.r.MIG && s.jobs > 0:
		return Reason{code: migTaken}
	case s.jobs >= t.MaxJobs:
		return Reason{code: fullOfJobs, a: float64(s.jobs)}
	case s.r.MPSClients >= maxClients:
		return Reason{code: fullOfClients, a: float64(s.r.MPSClients)}
	case s.settling:
		return Reason{code: settling}
	case s.jobs == 0:
		return Reason{} // activity of a job that has gone says nothing
	}
	return s.busy(t)
}

// busy returns why the activity of the GPU's jobs closes it.
func (s *state) busy(t *Thresholds) Reason {
	smactMax := t.SMActMaxPct
	if s.r.Source.Coarse() {
		smactMax = max(smactMax, coarseMaxPct)
	}
	// Unknown activity passes no gate: GPUs whose counters do not answer would take every job.
	if smactMax < 100 && !(s.r.SMActPct <= smactMax) {
		return Reason{code: smact, a: s.r.SMActPct, b: smactMax}
	}
	return Reason{}
}

// refuses returns why the GPU does not take the request.
func (s *state) refuses(r *gres.Request, t *Thresholds) Reason {
	if why := s.closed(t); why.code != 0 {
		return why
	}
	need := r.ReserveMiB + r.MarginMiB
	switch {
	case s.r.HeldFor != 0 && s.r.HeldFor != r.JobID:
		return Reason{code: heldBack, a: float64(s.r.HeldFor)}
	case r.ReserveMiB > s.r.TotalMiB && !s.r.Whole(r.ReserveMiB):
		return Reason{code: tooSmall, a: float64(s.r.TotalMiB), b: float64(r.ReserveMiB)}
	case s.idle():
		return Reason{}
	case r.Exclusive || s.r.MIG:
		return Reason{code: notIdle}
	case s.otherUsers && !t.CrossUser:
		return Reason{code: otherUser}
	case s.freeMiB() < need:
		return Reason{code: memory, a: float64(max(s.freeMiB(), 0)), b: float64(need)}
	}
	return Reason{}
}

// refusedBy returns why a policy does not share the GPU with the request.
// Carma shares through MPS only: a time-sliced GPU does no more work than a GPU
// with a single job (thesis 4.3.2; docs/bench/sim.md).
func (s *state) refusedBy(p Policy, streams bool) Reason {
	switch {
	case p == policy.Exclusive:
		return Reason{code: notIdle}
	case p == policy.Carma && (s.otherUsers || s.turns && !streams):
		return Reason{code: byTurns}
	}
	return Reason{}
}

// maxGPUs is for how many GPUs a choice needs no memory of the heap.
const maxGPUs = 64

// GPUs picks the request's GPUs by policy among the GPUs that take the request,
// all or none. Whatever the policy, GPUs without jobs of other users come first:
// jobs of the same user share through MPS, jobs of two users only time-sliced.
func GPUs(p Policy, in Input) Decision {
	var buf [maxGPUs]state
	states := statesOf(buf[:], &in)
	fit := 0
	var d Decision
	for i := range states {
		s := &states[i]
		why := s.refuses(&in.Request, &in.Thresholds)
		if why.code == 0 && !s.idle() {
			if why = s.refusedBy(p, in.Thresholds.Streams); why.code == 0 {
				demand, known := activity(in.Request.SMActPct, 0)
				why = s.slows(&in, newcomer{demand, s.joins(&in)}, known)
			}
		}
		if why.code != 0 {
			if d.Refusals == nil {
				d.Refusals = make([]Refusal, 0, len(states))
			}
			d.Refusals = append(d.Refusals, Refusal{s.r.UUID, why})
			continue
		}
		s.fits = true
		fit++
	}
	k := in.Request.GPUs
	short := tooFew
	if k > 1 && fit >= k && !in.Request.Exclusive && !in.Thresholds.Streams && !shareable(p, states, k) {
		fit, short = 0, tooFewTogether
	}
	if k < 1 || fit < k {
		for i := range states {
			if states[i].fits {
				d.Refusals = append(d.Refusals, Refusal{states[i].r.UUID, Reason{code: short, a: float64(k)}})
			}
		}
		return d
	}
	d.UUIDs = make([]string, 0, k)
	after := lastIndex(states, in.Last)
	for len(d.UUIDs) < k {
		best := pick(p, states, after, chosenOf(states, d.UUIDs))
		states[best].fits = false
		d.UUIDs = append(d.UUIDs, states[best].r.UUID)
	}
	d.Daemon = daemonOf(states, &in, d.UUIDs)
	return d
}

// Owner returns the user whose jobs alone a GPU takes, for the jobs there or for
// the job that the GPU is held for; own is false if the GPU takes anybody's.
func Owner(p Policy, r gres.Reading, leases []gres.Lease, t Thresholds) (uid uint32, own bool) {
	if r.HeldFor != 0 {
		return r.HeldUID, true
	}
	if t.CrossUser && p != policy.Carma {
		return 0, false
	}
	for i := range leases {
		if leases[i].UUID == r.UUID {
			return leases[i].UID, true
		}
	}
	return 0, false
}

// Placeable returns how many MiB a next job of any user can be given on the
// GPU, and why not if none: all of it when idle, nothing when closed, else the
// free memory less the margin.
func Placeable(r gres.Reading, leases []gres.Lease, t Thresholds) (mib int64, why Reason) {
	var buf [1]state
	in := Input{Readings: []gres.Reading{r}, Leases: leases, Thresholds: t}
	s := &statesOf(buf[:], &in)[0]
	if why := s.closed(&t); why.code != 0 {
		return 0, why
	}
	if r.HeldFor != 0 && !r.HeldOpen {
		return 0, Reason{code: heldBack, a: float64(r.HeldFor)}
	}
	if s.idle() {
		return r.TotalMiB, Reason{}
	}
	if mib = s.freeMiB() - t.MarginMiB; mib <= 0 {
		return 0, Reason{code: noMemory}
	}
	// Whoever asks may be the user of the daemon.
	if why := s.slows(&in, newcomer{leastDemand, s.daemon}, true); why.code != 0 {
		return 0, why
	}
	return mib, Reason{}
}

// Offer is the memory of a GPU as told to slurmctld: the placeable memory, or 0 of a GPU
// in use where the policy gives every job idle GPUs alone.
func Offer(idleOnly bool, r gres.Reading, leases []gres.Lease, t Thresholds) (mib int64, why Reason) {
	mib, why = Placeable(r, leases, t)
	if idleOnly && mib > 0 && mib < r.TotalMiB {
		return 0, Reason{code: notIdle}
	}
	return mib, why
}
