// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// progress is how far a process of a job is, in time of the simulated GPUs: they say at
// which rate each gets on, so that the machine's own load does not matter.
type progress struct {
	demand      float64
	from, to    float64 // simulated seconds, of the first look at it and the last
	begun, done float64 // work at these, in seconds alone
	worst       float64 // of its slowdowns at the looks
}

// slowdown is how many times as long as alone its work took.
func (p *progress) slowdown() float64 {
	if p.done-p.begun < 1 {
		return p.worst
	}
	return (p.to - p.from) / (p.done - p.begun)
}

// look notes how far the processes on n1 are.
func (c *cluster) look(all map[int]*progress) {
	c.t.Helper()
	var s struct {
		Now       float64 `json:"now_s"`
		Processes []struct {
			PID    int     `json:"pid"`
			Demand float64 `json:"demand"`
			Rate   float64 `json:"rate"`
			Work   float64 `json:"work_s"`
		} `json:"processes"`
	}
	if err := json.Unmarshal([]byte(c.sh("", "SIMGPU_STATE="+c.dir+"/simgpu/n1 simgpu show --json")), &s); err != nil {
		c.t.Fatal(err)
	}
	for _, x := range s.Processes {
		if x.Demand == 0 || x.Rate == 0 {
			continue // a server, or one that has only begun
		}
		p := all[x.PID]
		if p == nil {
			p = &progress{demand: x.Demand, from: s.Now, begun: x.Work}
			all[x.PID] = p
		}
		p.to, p.done, p.worst = s.Now, x.Work, max(p.worst, 1/x.Rate)
	}
}

// With placement.max_slowdown no job is slowed beyond that on GPUs that it shares. A job
// that asks for less than any shared GPU can give waits, and has one alone.
func TestSlowdownBound(t *testing.T) {
	takesMinutes(t)
	needsServer(t)
	const bound, within = 1.5, 1.05
	c := up(t, "--nodes", "1", "--time-scale", "10")
	c.settings(map[string]string{
		"placement.max_slowdown": fmt.Sprint(bound), "placement.settle": `"0s"`, "placement.max_jobs": "4",
		"smact.max_pct": "100", "smact.window": `"2s"`, "hooks.wait": `"1s"`, "hooks.vetoes": "1",
	})
	c.restart("slurmctld")
	program := func(smact int) string {
		return fmt.Sprintf("simjob --mem 3G --smact %d --ramp 0s --duration 400s\n", smact)
	}
	var ids []string
	for i, smact := range []int{60, 60, 50, 50, 40, 40, 30, 30, 20, 20, 90, 70} {
		says := fmt.Sprintf("#CARMA mem=4G smact=%d\n", smact)
		if i == 5 { // of which nobody knows
			says = "#CARMA mem=4G\n"
		}
		ids = append(ids, c.sbatch(alice, "--gres=gpu:1", says+program(smact)))
	}
	strict := c.sbatch(alice, "--gres=gpu:1", "#CARMA mem=4G smact=60 slowdown=1.01\n"+program(60))
	ids = append(ids, strict)
	all := map[int]*progress{}
	var left string
	for begun := time.Now(); time.Since(begun) < 3*patience; time.Sleep(200 * time.Millisecond) {
		c.look(all)
		if left = c.sh("", "squeue -h -t PD,CF,R,CG -o %A"); left == "" {
			break
		}
	}
	if left != "" {
		t.Fatalf("jobs that have not ended: %s\n%s", left, c.sh("", "squeue"))
	}
	var slowdowns []float64
	for _, p := range all {
		slowdowns = append(slowdowns, p.slowdown())
		if p.worst > within*bound {
			t.Errorf("a process with SM activity %.0f %% alone was slowed %.2f times", 100*p.demand, p.worst)
		}
	}
	slices.Sort(slowdowns)
	if len(slowdowns) < len(ids) {
		t.Fatalf("%d processes seen of %d jobs", len(slowdowns), len(ids))
	}
	p95 := slowdowns[int(math.Ceil(0.95*float64(len(slowdowns))))-1]
	t.Logf("slowdowns by the simulated GPUs' progress: %.2f; p95 %.2f", slowdowns, p95)
	if p95 > within*bound || slowdowns[len(slowdowns)-1] < 1.05 {
		t.Errorf("p95 %.2f, bound %g; at most %.2f: nobody shared?", p95, bound, slowdowns[len(slowdowns)-1])
	}
	for _, id := range ids {
		c.ends(id, "COMPLETED")
	}
	known := 0
	for _, id := range ids {
		f := strings.Fields(c.sh("", "carma-report -n -o ExpSlowdown,Slowdown,Neighbours -j "+id))
		t.Logf("job %s: expected, found, shared with: %v", id, f)
		var expected float64
		if _, err := fmt.Sscan(f[0], &expected); err != nil || expected > within*bound {
			t.Errorf("job %s: %v", id, f)
		}
		if f[1] != "-" {
			known++
		}
		if id == strict && expected > 1.01*within {
			t.Errorf("job %s, which allows 1.01: %v", id, f)
		}
	}
	if known == 0 {
		t.Error("no report knows a slowdown")
	}
	c.noDrain()
}
