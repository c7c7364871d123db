// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"carma/cmd/carma-sim/internal/replay"
)

// Outcome is one replay of the jobs of a kind of node.
type Outcome struct {
	endS      float64 // last end, since the plan's first submission
	heldS     float64
	energyJ   float64 // up to endS, before the kind's first submission included
	idleWatts float64 // of all its GPUs
	waits     []float64
	slowdowns []float64
	ooms      int
}

// Of is the outcome of a replay of the kind that kept its jobs.
func (k *Kind) Of(s *replay.Setup, r *replay.Result) Outcome {
	firstS := k.Work.Trace[0].ArrivalS
	o := Outcome{endS: firstS + r.MakespanS, heldS: r.HeldS, idleWatts: float64(k.Nodes*k.GPUs) * s.Model.GPU.Watts(0),
		waits: make([]float64, 0, len(r.Jobs)), slowdowns: make([]float64, 0, len(r.Jobs))}
	o.energyJ = r.EnergyJ + firstS*o.idleWatts
	for _, j := range r.Jobs {
		o.waits = append(o.waits, max(j.EndS-j.ArrivalS-j.ExecS, 0))
		if !j.Failed {
			o.slowdowns = append(o.slowdowns, j.Slowdown)
		}
		if j.Failed || j.Attempts > 1 {
			o.ooms++
		}
	}
	return o
}

// EndS is the last end, since the plan's first submission.
func (o *Outcome) EndS() float64 { return o.endS }

// Figures are of all kinds of nodes together, over the repeats.
type Figures struct {
	GPUHours    replay.Spread `json:"gpu_hours"` // in which GPUs were held, however many jobs held them
	MakespanS   replay.Spread `json:"makespan_s"`
	WaitS       replay.Spread `json:"wait_s"`
	P95WaitS    replay.Spread `json:"p95_wait_s"`
	EnergyJ     replay.Spread `json:"energy_j"`
	P50Slowdown replay.Spread `json:"p50_slowdown"`
	P95Slowdown replay.Spread `json:"p95_slowdown"`
	OOM         replay.Spread `json:"oom"` // jobs that ran out of memory
}

// once are the figures of one repeat.
type once struct{ gpuHours, makespanS, waitS, p95WaitS, energyJ, p50, p95, oom float64 }

// Sum adds up the outcomes of all kinds, by repeat. Energy is of all GPUs until horizonS of the
// repeat: a cluster without work draws power none the less.
func Sum(repeats [][]*Outcome, horizonS []float64) Figures {
	list := make([]once, len(repeats))
	for i, kinds := range repeats {
		list[i] = sum(kinds, horizonS[i])
	}
	of := func(f func(*once) float64) replay.Spread {
		return replay.SpreadOf(len(list), func(i int) float64 { return f(&list[i]) })
	}
	return Figures{
		GPUHours:    of(func(o *once) float64 { return o.gpuHours }),
		MakespanS:   of(func(o *once) float64 { return o.makespanS }),
		WaitS:       of(func(o *once) float64 { return o.waitS }),
		P95WaitS:    of(func(o *once) float64 { return o.p95WaitS }),
		EnergyJ:     of(func(o *once) float64 { return o.energyJ }),
		P50Slowdown: of(func(o *once) float64 { return o.p50 }),
		P95Slowdown: of(func(o *once) float64 { return o.p95 }),
		OOM:         of(func(o *once) float64 { return o.oom }),
	}
}

func sum(kinds []*Outcome, horizonS float64) once {
	var o once
	var waits, slowdowns []float64
	for _, k := range kinds {
		o.gpuHours += k.heldS / 3600
		o.makespanS = max(o.makespanS, k.endS)
		o.energyJ += k.energyJ + (horizonS-k.endS)*k.idleWatts
		o.oom += float64(k.ooms)
		waits, slowdowns = append(waits, k.waits...), append(slowdowns, k.slowdowns...)
	}
	for _, w := range waits {
		o.waitS += w / float64(len(waits))
	}
	o.p95WaitS = replay.Quantile(waits, 0.95)
	o.p50, o.p95 = replay.Quantile(slowdowns, 0.5), replay.Quantile(slowdowns, 0.95)
	return o
}
