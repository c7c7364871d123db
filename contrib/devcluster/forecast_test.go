// SPDX-License-Identifier: Apache-2.0

//go:build integration && forecast

package devcluster_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// kindOfDay is a script that its user submits again and again; the times are real.
type kindOfDay struct {
	user, name string
	gpus       int
	mib        int
	smact      int
	seconds    float64
}

// submissionOfDay is a job of a trace.
type submissionOfDay struct {
	kind *kindOfDay
	at   time.Duration
}

const (
	dayScale = 10 // simulated seconds in a real second
	dayJobs  = 48
	dayGap   = 4 * time.Second // mean, between two submissions
)

// trace is the same in each run: jobs of three users, a few minutes of them, more than eight GPUs take at once.
func trace() (kinds []*kindOfDay, list []submissionOfDay) {
	rng := rand.New(rand.NewPCG(41, 5))
	for i := range 12 {
		k := &kindOfDay{user: []string{alice, bob, carol}[i%3], name: fmt.Sprintf("kind%d.sh", i), gpus: 1,
			mib: 3000 + rng.IntN(13000), smact: 12 + rng.IntN(40), seconds: 30 + 50*rng.Float64()}
		if i == 10 {
			k.gpus = 2
		}
		kinds = append(kinds, k)
	}
	at := time.Duration(0)
	for range dayJobs {
		list = append(list, submissionOfDay{kinds[rng.IntN(len(kinds))], at})
		at += time.Duration(rng.ExpFloat64() * float64(dayGap))
	}
	return kinds, list
}

// dayRun is what a day's records say.
type dayRun struct {
	MakespanS, GPUHours float64
	jobs                []account // by submission
	begin               float64   // first submission
}

// of is how a job ran.
func (r *dayRun) of(i int) string {
	a := &r.jobs[i]
	gpus := ""
	for _, uuid := range a.GPUs {
		gpus += " " + uuid[4:8]
	}
	return fmt.Sprintf("from %5.1f s for %5.1f s on%s", a.Start-r.begin, a.RunS, gpus)
}

// play submits the trace, waits for the jobs' ends, and reads the records.
func (c *cluster) play(kinds []*kindOfDay, list []submissionOfDay, learn bool) dayRun {
	c.t.Helper()
	for _, k := range kinds {
		text := fmt.Sprintf("#!/bin/bash\n#SBATCH --gres=gpu:%d\n#SBATCH -t 10 -o /dev/null\n#CARMA on\n%ssimjob --gpus %d "+
			"--mem %dM --smact %d --startup 0s --ramp 0s --duration %.1fs\n", k.gpus, c.here(), k.gpus, k.mib, k.smact,
			k.seconds*dayScale)
		if err := os.WriteFile(filepath.Join(c.dir, "jobs", k.name), []byte(text), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	begin := time.Now()
	var ids []string
	for _, s := range list {
		for time.Since(begin) < s.at {
			time.Sleep(min(2*time.Second, s.at-time.Since(begin)))
			if learn { // as carma-history.timer does
				c.sh("", "carma-report history --write")
			}
		}
		ids = append(ids, c.sh(s.kind.user, "sbatch --parsable "+s.kind.name))
	}
	for start := time.Now(); c.sh("", "squeue -h | wc -l") != "0"; time.Sleep(time.Second) {
		if time.Since(start) > 20*time.Minute {
			c.t.Fatalf("jobs are left:\n%s", c.sh("", "squeue"))
		}
	}
	var records []account // slurmctld forgets jobs
	c.eventually(func() string {
		all := c.accounts("")
		records = nil
		for _, id := range ids {
			var n uint32
			fmt.Sscan(id, &n)
			if a := all[n]; a.State == "COMPLETED" {
				records = append(records, a)
			}
		}
		return fmt.Sprint(len(records))
	}, fmt.Sprintf("^%d$", len(ids)))
	var r dayRun
	first, last := math.Inf(1), 0.0
	for _, a := range records {
		first, last = min(first, a.Submit), max(last, a.End)
		r.GPUHours += a.HeldS / 3600
	}
	r.MakespanS, r.jobs, r.begin = last-first, records, first
	return r
}

// here runs a program with the GPUs of the node where no hook says which.
func (c *cluster) here() string {
	if _, err := os.Stat(filepath.Join(c.dir, "bin", "here")); err == nil {
		return "here "
	}
	return ""
}

// A forecast from the records of an observed day without sharing says what the same day brings with sharing: makespan
// and GPU hours within 5 %, the 95th percentile of slowdown within 10 %.
func TestForecast(t *testing.T) {
	kinds, list := trace()
	nodes := []string{"--nodes", "2", "--time-scale", fmt.Sprint(dayScale)}
	watched := &observed{cluster: up(t, append(nodes, "--observe")...)}
	watched.installHere()
	before := watched.play(kinds, list, false)
	db := filepath.Join(t.TempDir(), "day.db")
	watched.sh("", "carma-node --node n1 db backup "+db)
	watched.down()

	c := up(t, nodes...)
	after := c.play(kinds, list, true)
	type spread struct{ Mean, Min, Max float64 }
	var f struct {
		Rows []struct {
			MakespanS   spread `json:"makespan_s"`
			GPUHours    spread `json:"gpu_hours"`
			P95Slowdown spread `json:"p95_slowdown"`
		}
	}
	text := c.sh("", "carma-sim forecast -S now-3hours --json --repeats 16 --db "+db)
	if err := json.Unmarshal([]byte(text), &f); err != nil || len(f.Rows) < 2 {
		t.Fatal(err, text)
	}
	t.Log(c.sh("", "carma-sim forecast -S now-3hours --repeats 16 --db "+db))
	var slow []float64
	for i := range list {
		slow = append(slow, after.jobs[i].RunS/before.jobs[i].RunS)
		t.Logf("%-10s submitted at %5.1f s: %s; shared, %d MiB booked, %s, %.2f times", list[i].kind.name,
			list[i].at.Seconds(), before.of(i), after.jobs[i].ReserveMiB, after.of(i), slow[i])
	}
	slices.Sort(slow)
	p95 := slow[int(math.Ceil(0.95*float64(len(slow))))-1]
	t.Logf("without sharing: makespan %.0f s, %.3f GPU hours", before.MakespanS, before.GPUHours)
	if f.Rows[0].MakespanS.Mean > 0 {
		t.Logf("the model of that: makespan %.0f s, %.3f GPU hours", f.Rows[0].MakespanS.Mean, f.Rows[0].GPUHours.Mean)
	}
	for _, x := range []struct {
		name      string
		live, off float64
		forecast  spread
	}{
		{"makespan", after.MakespanS, 5, f.Rows[1].MakespanS},
		{"GPU hours", after.GPUHours, 5, f.Rows[1].GPUHours},
		{"p95 slowdown", p95, 10, f.Rows[1].P95Slowdown},
	} {
		off := 100 * (x.forecast.Mean/x.live - 1)
		t.Logf("%s on the shared day %.4g, forecast %.4g (%.4g to %.4g): %+.1f %%", x.name, x.live, x.forecast.Mean,
			x.forecast.Min, x.forecast.Max, off)
		if !(math.Abs(off) <= x.off) {
			t.Errorf("%s: the forecast is off by %+.1f %%", x.name, off)
		}
	}
}
