// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"fmt"
	"os"
	"syscall"
	"testing"

	"carma/cmd/carma-sim/internal/model"
	"carma/cmd/carma-sim/internal/workload"
	"carma/gres/choose"
	"carma/slurmbridge/policy"
)

// publishedTraces is the folder with the published traces, as CONTRIBUTING.md says.
func publishedTraces() string {
	return cmp.Or(os.Getenv("CARMA_DATA"), "../../../../data") + "/traces/"
}

func readWorkload(b *testing.B, trace, table string) *workload.Workload {
	m := model.Default()
	f, err := os.Open(table)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	jobs, err := workload.ReadJobs(table, f, m.SMActGuess, m.Job.SteadyShare)
	if err != nil {
		b.Fatal(err)
	}
	t, err := os.Open(trace)
	if err != nil {
		b.Fatal(err)
	}
	defer t.Close()
	w, err := workload.ReadTrace(trace, t, jobs, workload.Limits{GPUsPerNode: 4})
	if err != nil {
		b.Fatal(err)
	}
	return &w
}

// One run of a trace of 90 jobs on four GPUs.
func BenchmarkTrace(b *testing.B) {
	w := readWorkload(b, "../../../../contrib/traces/mixed/trace.csv", "../../../../contrib/traces/mixed/jobs.csv")
	for _, mode := range []Mode{Slurm, PaperV1, PaperV2} {
		b.Run(string(mode), func(b *testing.B) {
			s := Default().As(mode)
			s.Estimator = Oracle
			for b.Loop() {
				if _, err := Run(s, w); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func used(b *testing.B) (u syscall.Rusage) {
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u
}

// A cluster of 1,250 nodes with 8 GPUs, which 10,000 jobs do not fill, and smaller
// ones with as many jobs a GPU as the largest has with 1,000,000. The memory is the
// most that the process has had so far; CPU time tells more than the clock where
// the machine is shared.
func BenchmarkCluster(b *testing.B) {
	m := model.Default()
	mix := workload.Mix{{Class: "light", Pct: 65}, {Class: "medium", Pct: 27}, {Class: "heavy", Pct: 8}}
	jobs, err := workload.SynthesiseJobs(200, m.Synth, mix, m.Job.SteadyShare, 1)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct{ n, nodes int }{{1e4, 12}, {1e5, 125}, {1e4, 1250}, {1e5, 1250}, {1e6, 1250}} {
		w, err := workload.Synthesise("big", workload.Synthetic{Submissions: c.n, MeanGapS: 75 / float64(c.nodes),
			Arrivals: workload.Poisson, Mix: mix, Users: 200, Seed: 1}, jobs)
		if err != nil {
			b.Fatal(err)
		}
		for _, p := range []choose.Policy{policy.MAGM, policy.Carma} {
			b.Run(fmt.Sprintf("%d/%d/%s", c.n, c.nodes, p), func(b *testing.B) {
				s := Default()
				s.Nodes, s.GPUs, s.Policy = c.nodes, 8, p
				before := used(b)
				for b.Loop() {
					if _, err := Run(s, &w); err != nil {
						b.Fatal(err)
					}
				}
				u := used(b)
				b.ReportMetric(float64(u.Maxrss)/1024, "MiB-peak")
				b.ReportMetric(float64(u.Utime.Nano()-before.Utime.Nano())/1e9/float64(b.N), "cpu-s/op")
			})
		}
	}
}
