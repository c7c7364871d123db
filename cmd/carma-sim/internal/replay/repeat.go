// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math"

	"carma/cmd/carma-sim/internal/workload"
)

// Spread is one figure over the repeats. SD is the standard deviation of a
// sample; 0 for a single run.
type Spread struct {
	Mean float64 `json:"mean"`
	SD   float64 `json:"sd"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// Figures are the figures of Result, over repeats.
type Figures struct {
	MakespanS   Spread `json:"makespan_s"`
	WaitS       Spread `json:"wait_s"`
	ExecS       Spread `json:"exec_s"`
	JCTS        Spread `json:"jct_s"`
	P95Slowdown Spread `json:"p95_slowdown"`
	OOM         Spread `json:"oom"`
	Failed      Spread `json:"failed"`
	GivenBack   Spread `json:"given_back"`
	EnergyJ     Spread `json:"energy_j"`
	SMActPct    Spread `json:"smact_pct"`
	MemMiB      Spread `json:"mem_mib"`
}

// Repeat runs a setup with seeds Seed, Seed+1, ... and calls each after each
// run. If the setup records, the first run is returned whole.
func Repeat(set Setup, w *workload.Workload, repeats int, run func(Setup, *workload.Workload) (Result, error),
	each func()) (Figures, Result, error) {
	results := make([]Result, 0, repeats)
	for range repeats {
		r, err := run(set, w)
		if err != nil {
			return Figures{}, Result{}, err
		}
		results = append(results, r)
		set.Seed++
		set.Record = false
		each()
	}
	return figures(results), results[0], nil
}

// SpreadOf is the spread of n values.
func SpreadOf(n int, of func(i int) float64) Spread {
	s := Spread{Min: math.Inf(1), Max: math.Inf(-1)}
	for i := range n {
		x := of(i)
		s.Mean += x / float64(n)
		s.Min, s.Max = min(s.Min, x), max(s.Max, x)
	}
	for i := range n {
		d := of(i) - s.Mean
		s.SD += d * d / float64(max(n-1, 1))
	}
	s.SD = math.Sqrt(s.SD)
	return s
}

func figures(results []Result) Figures {
	of := func(f func(*Result) float64) Spread {
		return SpreadOf(len(results), func(i int) float64 { return f(&results[i]) })
	}
	return Figures{
		MakespanS:   of(func(r *Result) float64 { return r.MakespanS }),
		WaitS:       of(func(r *Result) float64 { return r.WaitS }),
		ExecS:       of(func(r *Result) float64 { return r.ExecS }),
		JCTS:        of(func(r *Result) float64 { return r.JCTS }),
		P95Slowdown: of(func(r *Result) float64 { return r.P95Slowdown }),
		OOM:         of(func(r *Result) float64 { return float64(r.OOM) }),
		Failed:      of(func(r *Result) float64 { return float64(r.Failed) }),
		GivenBack:   of(func(r *Result) float64 { return float64(r.GivenBack) }),
		EnergyJ:     of(func(r *Result) float64 { return r.EnergyJ }),
		SMActPct:    of(func(r *Result) float64 { return r.SMActPct }),
		MemMiB:      of(func(r *Result) float64 { return r.MemMiB }),
	}
}
