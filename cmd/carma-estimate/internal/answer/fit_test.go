// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"testing"

	"carma/estimator"
	"carma/gres"
	"carma/gres/choose"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/policy"
)

// What the table says is what the Prolog does: jobs are put on a GPU by
// gres/choose until it takes no more.
func TestFitsAsThePrologDoes(t *testing.T) {
	const margin = 2048
	for _, g := range models {
		for _, reserve := range []int64{1500, 5000, 9622, 13707, 19244, 20000, 38488, 38489, g.memMiB - margin, g.memMiB} {
			e := estimator.Estimate{FloorMiB: reserve - 100, MiB: reserve - 100, ReserveMiB: reserve}
			want := int64(0)
			in := choose.Input{
				Readings:   []gres.Reading{{GPU: gres.GPU{UUID: "GPU-a", TotalMiB: g.memMiB}}},
				Request:    gres.Request{GPUs: 1, ReserveMiB: reserve, MarginMiB: margin},
				Thresholds: choose.Thresholds{SMActMaxPct: 80, MarginMiB: margin, MaxJobs: 1000, CrossUser: true},
			}
			for want < 1000 && len(choose.GPUs(policy.MAGM, in).UUIDs) == 1 {
				want++
				in.Leases = append(in.Leases, gres.Lease{Job: jobenv.JobKey{JobID: uint32(want)}, UUID: "GPU-a",
					ReserveMiB: reserve, Seen: true})
				in.Readings[0].UsedMiB += reserve - 100
			}
			if reserve <= g.memMiB {
				if got := jobsOn(g.memMiB, margin, e); got != want {
					t.Errorf("%d MiB on %s: %d jobs, the Prolog takes %d", reserve, g.name, got, want)
				}
			}
		}
	}
}

func TestJobsOn(t *testing.T) {
	for _, c := range []struct {
		floor, mib, reserve int64
		confidence          estimator.Confidence
		want                int64
	}{
		{900, 1000, 2000, estimator.Sure, 4},
		{900, 1000, 2001, estimator.Unsure, 3},
		{8000, 9000, 11000, estimator.Unsure, 1}, // alone, although the reserve is more than the GPU
		{8000, 10001, 12000, estimator.Unsure, 0},
		{900, 1000, 1128, estimator.Bound, 1},
		{900, 11000, 1128, estimator.Bound, 1},
		{10001, 11000, 12128, estimator.Bound, 0},
		{0, 0, 0, estimator.Bound, 1},
	} {
		e := estimator.Estimate{FloorMiB: c.floor, MiB: c.mib, ReserveMiB: c.reserve, Confidence: c.confidence}
		if got := jobsOn(10000, 2000, e); got != c.want {
			t.Errorf("%+v: %d jobs", c, got)
		}
	}
}
