// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"fmt"
	"os"
	"testing"
	"time"

	"carma/cmd/carma-sim/internal/model"
	"carma/cmd/carma-sim/internal/replay"
	"carma/cmd/carma-sim/internal/workload"
	"carma/db"
	"carma/db/figure"
	"carma/slurmbridge/policy"
)

// shipped is a trace of contrib/traces. Each user's jobs of a kind have a key of their own.
func shipped(t *testing.T, name string) workload.Workload {
	t.Helper()
	open := func(file string) *os.File {
		f, err := os.Open("../../../../contrib/traces/" + name + "/" + file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	jobs, err := workload.ReadJobs("jobs.csv", open("jobs.csv"), nil, 0.9)
	if err != nil {
		t.Fatal(err)
	}
	w, err := workload.ReadTrace(name, open("trace.csv"), jobs, workload.Limits{GPUsPerNode: 4})
	if err != nil {
		t.Fatal(err)
	}
	all := workload.Workload{}
	for i, s := range w.Trace {
		j := jobs[s.Job]
		j.Key = fmt.Sprint(s.User, j.Name)
		s.Job = int32(i)
		all.Jobs, all.Trace = append(all.Jobs, j), append(all.Trace, s)
	}
	return all
}

// observed are the records that an agent would make of a replay without sharing.
func observed(w *workload.Workload, jobs []replay.JobResult) *Records {
	r := &Records{}
	begin := time.Unix(1.7e9, 0)
	at := func(s float64) time.Time { return begin.Add(time.Duration(s * 1e9)) }
	for i, result := range jobs {
		j := &w.Jobs[w.Trace[i].Job]
		runS := result.EndS - result.StartS
		// The mean over the whole run, of which the start-up is a part.
		smact := figure.Measured(j.SMActPct * (runS - 22) / runS)
		uuids := []string{"a", "b", "c", "d"}[:j.GPUs]
		r.Add([]db.Attempt{{Cluster: "c", JobID: uint32(i + 1), Node: "n1", UID: w.Trace[i].User, Name: j.Name,
			Partition: "gpu", Submit: at(result.ArrivalS), Start: at(result.StartS), End: at(result.EndS), FullMiB: 40536,
			Total: db.Total{UUIDs: uuids, PeakMiB: j.PeakMiB, MeanMiB: j.SteadyMiB, SMActPct: smact,
				EnergyJ: figure.Unknown, LeaseS: runS * float64(j.GPUs), HeldS: runS * float64(j.GPUs)}}})
	}
	return r
}

// A forecast from the records of a day without sharing comes close to the same day with it,
// both in the model: makespan and GPU hours within 5 %, slowdown within 10 %. So little is
// lost by what a record does not have: start-up, the length of the peak, the kind of job.
func TestAccuracy(t *testing.T) {
	const repeats = 4
	for _, trace := range []string{"day", "mixed", "heavy"} {
		w := shipped(t, trace)
		truth := replay.Default()
		truth.Estimator, truth.Record, truth.Policy = replay.History, true, policy.Exclusive
		before, err := replay.Run(truth, &w)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := observed(&w, before.Jobs).Plan(nil, Size{GPUs: 4}, model.Default())
		if err != nil {
			t.Fatal(err)
		}
		guess := truth
		guess.Model = plan.Model(truth.Model)
		k := plan.Pools[0].Kinds[0]
		figures := func(s replay.Setup, w *workload.Workload) Figures {
			s.Policy = policy.MAGM
			var list [][]*Outcome
			for range repeats {
				r, err := replay.Run(s, w)
				if err != nil {
					t.Fatal(err)
				}
				o := k.Of(&s, &r)
				list = append(list, []*Outcome{&o})
				s.Seed++
			}
			return Sum(list, make([]float64, repeats))
		}
		got, want := figures(guess, &k.Work), figures(truth, &w)
		for _, f := range []struct {
			name      string
			got, want float64
			within    float64
		}{
			{"makespan", got.MakespanS.Mean, want.MakespanS.Mean, 0.05},
			{"GPU hours", got.GPUHours.Mean, want.GPUHours.Mean, 0.05},
			{"p50 slowdown", got.P50Slowdown.Mean, want.P50Slowdown.Mean, 0.1},
			{"p95 slowdown", got.P95Slowdown.Mean, want.P95Slowdown.Mean, 0.1},
		} {
			off := f.got/f.want - 1
			t.Logf("%s: %s %.4g, want %.4g (%+.1f %%)", trace, f.name, f.got, f.want, 100*off)
			if off > f.within || off < -f.within {
				t.Errorf("%s: %s is %+.1f %% off", trace, f.name, 100*off)
			}
		}
	}
}
