// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math"

	"carma/cmd/carma-sim/internal/workload"
	"carma/slurmbridge/policy"
)

// Ideal plays the workload as a packer would that knows what each job truly
// uses at every moment, acts at once and has no gate on activity: in three
// orders of the queue, with and without GPUs held for large requests. Each
// figure of the result is the best of these runs, so that no single run reaches
// all of them.
func Ideal(set Setup, w *workload.Workload) (Result, error) {
	set = set.knowing()
	longest, shortest := make([]float64, len(w.Trace)), make([]float64, len(w.Trace))
	for i := range w.Trace {
		shortest[i] = set.DrawOf(w, i).AloneS * float64(w.Jobs[w.Trace[i].Job].GPUs)
		longest[i] = -shortest[i]
	}
	holdAfterS := set.HoldAfterS
	var best Result
	for _, ranks := range [][]float64{nil, longest, shortest} {
		for _, hold := range []float64{0, holdAfterS} {
			set.ranks, set.HoldAfterS = ranks, hold
			r, err := Run(set, w)
			if err != nil {
				return Result{}, err
			}
			if best.MakespanS == 0 {
				best = r
			}
			best.MakespanS = min(best.MakespanS, r.MakespanS)
			best.WaitS, best.ExecS, best.JCTS = min(best.WaitS, r.WaitS), min(best.ExecS, r.ExecS), min(best.JCTS, r.JCTS)
			best.P95Slowdown, best.EnergyJ = min(best.P95Slowdown, r.P95Slowdown), min(best.EnergyJ, r.EnergyJ)
			best.SMActPct, best.MemMiB = max(best.SMActPct, r.SMActPct), max(best.MemMiB, r.MemMiB)
		}
	}
	return best, nil
}

// knowing returns the setup of one who knows what jobs truly use.
func (s Setup) knowing() Setup {
	s.Mode, s.Estimator, s.Queue = Slurm, Oracle, Backfill
	s.Policy, s.Streams, s.Record, s.ideal = policy.LUG, false, false, true
	t := &s.Thresholds
	t.SMActMaxPct, t.MarginMiB, t.Settle, t.MaxJobs = 100, 0, 0, math.MaxInt32
	s.Model.Slurm.MPSMultiGPU, s.Model.Slurm.LeastLoaded, s.Model.Slurm.ScheduleS = true, false, 0
	return s
}

// Bound is what no schedule can beat while SM work is conserved.
type Bound struct {
	MakespanS float64
	EnergyJ   float64
}

// BoundOf: from each arrival on, the SM work that is still to come takes all
// GPUs at full activity at least so long, and a job at least its own time. Power
// is a concave function of activity, so it lies above the straight line from
// idle to full.
func BoundOf(set Setup, w *workload.Workload) Bound {
	var b Bound
	gpus := float64(set.Nodes * set.GPUs)
	var work float64
	for i := len(w.Trace) - 1; i >= 0; i-- {
		sub := &w.Trace[i]
		j := &w.Jobs[sub.Job]
		d, at := w.Duration(sub), sub.ArrivalS-w.Trace[0].ArrivalS
		work += d * float64(j.GPUs) * j.SMActPct / 100
		b.MakespanS = max(b.MakespanS, at+work/gpus, at+d)
	}
	idle, full := set.Model.GPU.Watts(0), set.Model.GPU.Watts(1)
	b.EnergyJ = idle*gpus*b.MakespanS + (full-idle)*work
	return b
}
