// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"carma/cmd/carma-sim/internal/model"
)

// Arrivals is a process of arrivals.
type Arrivals string

// The processes, all with the same mean gap.
const (
	Poisson Arrivals = "poisson" // gaps without memory
	Bursty  Arrivals = "bursty"  // bursts of 5 on average, a tenth of the gap within them
	Diurnal Arrivals = "diurnal" // Poisson with a rate that swings by 90 % over 24 h
)

// ArrivalNames lists the processes.
var ArrivalNames = []string{string(Poisson), string(Bursty), string(Diurnal)}

// Synthetic is what a synthetic trace is drawn from.
type Synthetic struct {
	Submissions int
	MeanGapS    float64
	Arrivals    Arrivals
	Mix         Mix
	Users       int
	Seed        uint64
}

// check returns the first value that cannot be meant.
func (s Synthetic) check() error {
	switch {
	case s.Submissions < 1 || s.Submissions > maxSubmissions:
		return fmt.Errorf("submissions %d: must be between 1 and %d", s.Submissions, maxSubmissions)
	case !(s.MeanGapS >= 0 && s.MeanGapS <= 1e6):
		return fmt.Errorf("gap %g s: must be between 0 and 1e6", s.MeanGapS)
	case !slices.Contains(ArrivalNames, string(s.Arrivals)):
		return fmt.Errorf("arrivals %q is not one of %s", s.Arrivals, strings.Join(ArrivalNames, ", "))
	case s.Users < 1 || s.Users > 1e6:
		return fmt.Errorf("users %d: must be between 1 and 1000000", s.Users)
	}
	return nil
}

// Synthesise draws a trace of jobs.
func Synthesise(name string, s Synthetic, jobs []Job) (Workload, error) {
	w := Workload{Name: name, Jobs: jobs}
	if err := s.check(); err != nil {
		return w, err
	}
	classes := map[string][]int32{}
	for i := range jobs {
		classes[jobs[i].Class] = append(classes[jobs[i].Class], int32(i))
	}
	for _, c := range s.Mix {
		if len(classes[c.Class]) == 0 {
			return w, fmt.Errorf("mix: the job table has no job of class %q", c.Class)
		}
	}
	r := rand.New(rand.NewPCG(s.Seed, 2))
	at := 0.0
	for range s.Submissions {
		of := classes[s.Mix.at(r.Float64())]
		w.Trace = append(w.Trace, Submission{ArrivalS: math.Round(at), Job: of[r.IntN(len(of))],
			User: 1000 + uint32(r.IntN(s.Users))})
		at += s.gap(r, at)
	}
	return w, nil
}

// gap is the time from an arrival at at to the next one.
func (s Synthetic) gap(r *rand.Rand, at float64) float64 {
	const (
		burst  = 5.0 // jobs of a burst on average
		within = 0.1 // of the mean gap
		swing  = 0.9
		day    = 86400
	)
	gap := s.MeanGapS * r.ExpFloat64()
	switch s.Arrivals {
	case Bursty:
		if r.Float64() < 1-1/burst {
			return within * gap
		}
		return (burst - within*(burst-1)) * gap
	case Diurnal:
		return gap / (1 + swing*math.Sin(2*math.Pi*at/day))
	}
	return gap
}

// SynthesiseJobs draws a job table of kinds jobs, as many of each class as its
// share of the trace.
func SynthesiseJobs(kinds int, classes map[string]model.Class, mix Mix, steady float64, seed uint64) ([]Job, error) {
	if kinds < len(mix) || kinds > 1e5 {
		return nil, fmt.Errorf("kinds %d: must be between %d, the classes of the mix, and 100000", kinds, len(mix))
	}
	r := rand.New(rand.NewPCG(seed, 3))
	var jobs []Job
	for i := range kinds {
		name := mix.at((float64(i) + 0.5) / float64(kinds))
		if i < len(mix) {
			name = mix[i].Class // one of each at least
		}
		c, ok := classes[name]
		if !ok {
			return nil, fmt.Errorf("mix: the model has no [synth.%s]", name)
		}
		peak := math.Round(c.MemMiB.At(r.Float64()))
		jobs = append(jobs, Job{
			Name: fmt.Sprintf("%s%d", name, i), Model: "synthetic", Class: name, GPUs: c.GPUs[r.IntN(len(c.GPUs))],
			DurationS: math.Round(60 * c.Minutes.At(r.Float64())), SMActPct: math.Round(10*c.SMActPct.At(r.Float64())) / 10,
			PeakMiB: int64(peak), SteadyMiB: int64(math.Round(peak * steady)),
		})
	}
	return jobs, nil
}
