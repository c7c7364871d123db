// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math"

	"carma/gres"
	"carma/gres/choose"
	"carma/gres/energy"
	"carma/gres/lease"
)

// A bound on slowdown (docs/adr/0019) needs the activity of a job when alone, which
// the agent measures, and a check whether the bound holds: a job that is slowed beyond
// its bound for long is logged. Nothing is moved.

// slowness is what is known of one job on one GPU.
type slowness struct {
	times float64 // how many times as long as alone the job takes, by the law, since the last look; 0: it was not here

	// while the job was alone on the GPU and used it:
	smactS, dramS       float64 // percent x seconds
	smactForS, dramForS float64

	// of the stretch that is judged next:
	heldS, aloneS float64
	guessed       bool // a part of aloneS is the law's
	slowed        bool
}

// slowWindows is for how many windows of SM activity a job is looked at before it is
// said to be slowed: with a window of 60 s ten minutes.
const slowWindows = 10

// slowTolerance is how far beyond its bound a job must be: the law is right within
// this tolerance.
const slowTolerance = 1.05

// boundSlowdown adds to the usages of an interval what concerns slowdown.
func (a *Agent) boundSlowdown(usages []lease.Usage, order []*holder, s gres.Sample, leases []gres.Lease, foreign bool) {
	present := 0
	evidence := make([]energy.Evidence, len(order))
	for i, h := range order {
		evidence[i] = h.Evidence
		if h.Present {
			present++
		}
	}
	rate := math.NaN()
	// A coarse source overstates how fast jobs get on; jobs that together do nothing are not
	// slowed.
	if !s.Source.Coarse() && s.SMActPct >= idlePct {
		rate = energy.Rate(float64(s.SMActPct), evidence)
	}
	for i, h := range order {
		u := &usages[i]
		u.LawS = u.Seconds / max(h.slow.times, 1)
		if present == 1 && len(order) == 1 && h.Present && !h.gone && !foreign {
			h.slow.alone(u, s, h.lease, a.Config.SMAct.Window.D().Seconds())
		}
		bound := choose.BoundOf(a.Thresholds.MaxSlowdown, h.lease.MaxSlowdown)
		if bound > 0 && h.Present && !h.gone {
			a.judge(h, u, rate, bound)
		}
	}
	r := gres.Reading{GPU: s.GPU, SMActPct: math.NaN()}
	for _, x := range choose.Slowdowns(nil, &r, leases) {
		for _, h := range order {
			if h.lease.Job == x.Lease.Job {
				h.slow.times = x.Times
			}
		}
	}
}

// alone notes the activity of a job that has the GPU to itself. Seconds without activity
// do not count: the job may be reading its data.
func (w *slowness) alone(u *lease.Usage, s gres.Sample, l gres.Lease, windowS float64) {
	if s.Source.Coarse() || !(s.SMActPct >= idlePct) {
		return
	}
	w.smactS += float64(s.SMActPct) * u.Seconds
	w.smactForS += u.Seconds
	if s.DRAMPct.Known() {
		w.dramS += float64(s.DRAMPct) * u.Seconds
		w.dramForS += u.Seconds
	}
	if w.smactForS < windowS || w.smactForS == 0 {
		return
	}
	pct, dram := w.smactS/w.smactForS, 0.0
	if w.dramForS >= windowS {
		dram = w.dramS / w.dramForS
	}
	if math.Abs(pct-l.AlonePct) >= 1 || math.Abs(dram-l.AloneDRAMPct) >= 1 {
		u.AlonePct, u.AloneDRAMPct = pct, dram
	}
}

// judge says at the end of each stretch whether the job is slowed beyond its bound.
func (a *Agent) judge(h *holder, u *lease.Usage, rate, bound float64) {
	w := &h.slow
	w.heldS += u.Seconds
	if math.IsNaN(rate) {
		rate, w.guessed = 1/max(w.times, 1), true
	}
	w.aloneS += u.Seconds * rate
	if w.heldS < slowWindows*a.Config.SMAct.Window.D().Seconds() {
		return
	}
	times, by := w.heldS/max(w.aloneS, w.heldS/1000), "SM activity"
	if w.guessed {
		by = "law"
	}
	switch slowed := times > slowTolerance*bound; {
	case slowed:
		u.Slowed = times
		if !w.slowed {
			a.Log.Warn("a job is slowed beyond its bound", "job", h.lease.Job, "gpu", u.UUID, "slowdown", round2(times), "bound",
				bound, "by", by)
		}
		w.slowed = true
	case w.slowed || h.lease.Slowed > 0:
		u.Slowed, w.slowed = -1, false
	}
	w.heldS, w.aloneS, w.guessed = 0, 0, false
}

func round2(f float64) float64 { return math.Round(100*f) / 100 }
