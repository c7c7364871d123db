// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"os"
	"path/filepath"
	"testing"

	"carma/cmd/carma-sim/internal/workload"
	"carma/slurmbridge/policy"
)

// traces are the project's own and, where they are, the published ones.
func traces(t *testing.T) map[string]*workload.Workload {
	t.Helper()
	all := map[string]*workload.Workload{}
	add := func(name, trace, table string) {
		f, err := os.Open(table)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		set := Default()
		jobs, err := workload.ReadJobs(table, f, set.Model.SMActGuess, set.Model.Job.SteadyShare)
		if err != nil {
			t.Fatal(err)
		}
		g, err := os.Open(trace)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		w, err := workload.ReadTrace(trace, g, jobs, workload.Limits{GPUsPerNode: set.GPUs})
		if err != nil {
			t.Fatal(err)
		}
		all[name] = &w
	}
	for _, name := range []string{"mixed", "heavy", "day"} {
		dir := filepath.Join("../../../../contrib/traces", name)
		add(name, filepath.Join(dir, "trace.csv"), filepath.Join(dir, "jobs.csv"))
	}
	published := publishedTraces()
	if _, err := os.Stat(published); err != nil {
		t.Logf("%s is not present: only the project's own traces are played", published)
		return all
	}
	for _, name := range []string{"trace60", "trace90", "trace_t1_v2", "trace_t2_v2"} {
		add(name, published+name+".csv", published+"jobs.csv")
	}
	return all
}

// Under a bound the slowest twentieth of jobs stays below it, whether history knows the
// jobs or nothing is known of their activity, and all jobs end.
func TestSlowdownBound(t *testing.T) {
	for name, w := range traces(t) {
		alone := Default().As(PaperV1)
		alone.Policy, alone.Estimator = policy.Exclusive, None
		base, err := Run(alone, w)
		if err != nil {
			t.Fatal(err)
		}
		for _, bound := range []float64{1.2, 1.5, 1.75} {
			for _, e := range []Estimator{History, Analytic} {
				set := Default()
				set.Estimator, set.Known, set.Thresholds.MaxSlowdown = e, true, bound
				r, err := Run(set, w)
				if err != nil {
					t.Fatal(err)
				}
				change := 100 * (r.MakespanS/base.MakespanS - 1)
				t.Logf("%s, %s, bound %g: makespan %+.1f %%, p95 %.2f", name, e, bound, change, r.P95Slowdown)
				if r.P95Slowdown > bound || r.Failed > 0 {
					t.Errorf("%s, %s: p95 %.2f above the bound of %g; %d failed", name, e, r.P95Slowdown, bound, r.Failed)
				}
				if name == "trace60" && e == History && bound == 1.5 && change > -12 {
					t.Errorf("%s: makespan %+.1f %%", name, change)
				}
			}
		}
	}
}
