// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math/rand/v2"
	"os"
	"testing"

	"carma/cmd/carma-sim/internal/workload"
	"carma/slurmbridge/policy"
)

// How short a makespan some order of the queue has, for one who knows every
// arrival, every run time and the start-up of this very run: he plays the trace
// again and again, moves a few jobs in the queue, and keeps what was no worse.
// Placement and holds stay as they are. What a policy misses of that is what it
// cannot know.
func BenchmarkOrder(b *testing.B) {
	published := publishedTraces()
	if _, err := os.Stat(published); err != nil {
		b.Skipf("%s is not present", published)
	}
	known := Default()
	known.Estimator, known.Known = History, true
	full := known
	full.Thresholds.SMActMaxPct, full.Thresholds.MaxJobs, full.Thresholds.MarginMiB = 100, 6, 512
	for _, c := range []struct {
		name string
		set  Setup
	}{{"history", known}, {"history, 100 %, 6 jobs", full}, {"ideal packer", known.knowing()}} {
		for _, trace := range []string{"trace60", "trace90", "trace_t1_v2", "trace_t2_v2"} {
			w := readWorkload(b, published+trace+".csv", published+"jobs.csv")
			b.Run(c.name+"/"+trace, func(b *testing.B) {
				const seeds = 2
				for b.Loop() {
					var makespan, energy float64
					for seed := uint64(1); seed <= seeds; seed++ {
						alone := Default().As(PaperV1)
						alone.Policy, alone.Estimator, alone.Seed, c.set.Seed = policy.Exclusive, None, seed, seed
						base, err := Run(alone, w)
						if err != nil {
							b.Fatal(err)
						}
						best := shortest(b, c.set, w)
						makespan += 100 * (best.MakespanS/base.MakespanS - 1) / seeds
						energy += 100 * (best.EnergyJ/base.EnergyJ - 1) / seeds
					}
					b.ReportMetric(makespan, "%-makespan")
					b.ReportMetric(energy, "%-energy")
				}
			})
		}
	}
}

// shortest climbs from four orders: that of arrival and three at random.
func shortest(b *testing.B, set Setup, w *workload.Workload) (best Result) {
	const climbs, steps = 4, 2000
	for climb := range climbs {
		r := rand.New(rand.NewPCG(set.Seed, uint64(climb)))
		set.ranks = make([]float64, len(w.Trace))
		for i := range set.ranks {
			set.ranks[i] = r.Float64() + 1e-9
			if climb == 0 {
				set.ranks[i] = float64(i+1) / float64(len(w.Trace))
			}
		}
		var last Result
		for range steps {
			old := set
			set.ranks = append([]float64(nil), old.ranks...)
			for range 1 + r.IntN(3) {
				set.ranks[r.IntN(len(set.ranks))] = r.Float64() + 1e-9
			}
			got, err := Run(set, w)
			if err != nil {
				b.Fatal(err)
			}
			if got.OOM == 0 && (last.MakespanS == 0 || got.MakespanS <= last.MakespanS) {
				last = got
			} else {
				set = old
			}
		}
		if last.MakespanS > 0 && (best.MakespanS == 0 || last.MakespanS < best.MakespanS) {
			best = last
		}
	}
	if best.MakespanS == 0 {
		b.Fatal("every order has jobs out of memory")
	}
	return best
}
