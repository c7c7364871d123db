// SPDX-License-Identifier: Apache-2.0

package live

import (
	"math"
	"strings"
	"testing"
	"time"

	"carma/cmd/carma-sim/internal/replay"
	"carma/cmd/carma-sim/internal/workload"
	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
)

func TestScript(t *testing.T) {
	j := Job{GPUs: 2, ReserveMiB: 12000, SMActPct: 65.5, Draw: replay.Draw{StartupS: 12.5, SpikeS: 30, AloneS: 600,
		PeakMiB: 11000, SteadyMiB: 10000}}
	s := j.script()
	if !strings.Contains(s, "simjob --gpus 2 --mem 10000M --spike 11000M:30000ms --smact 65.5 --startup 12500ms "+
		"--duration 600000ms --ramp 0s\n") {
		t.Errorf("got\n%s", s)
	}
	d, err := directive.Parse([]byte(s))
	if err != nil || d.MemMiB != 12000 {
		t.Errorf("%+v, %v", d, err)
	}
	j.Exclusive = true
	if d, err := directive.Parse([]byte(j.script())); err != nil || d.Policy != directive.PolicyExclusive {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestParseTimes(t *testing.T) {
	list, err := parseTimes("f", "begin 1700000000.5\nend 1700000001.25 1\nbegin 1700000010.0\n")
	if err != nil || len(list) != 2 || list[0].rc != 1 || list[0].end.Sub(list[0].begin) != 750*time.Millisecond ||
		!list[1].end.IsZero() {
		t.Errorf("%+v, %v", list, err)
	}
	for _, bad := range []string{"", "end 5 1", "begin", "begin x", "begin 1\nend 2", "begin 1\nend 2 x"} {
		if _, err := parseTimes("f", bad); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

func FuzzParseTimes(f *testing.F) {
	f.Add("begin 1700000000.5\nend 1700000001.25 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		if list, err := parseTimes("f", text); err == nil && len(list) == 0 {
			t.Fatal("no attempt and no error")
		}
	})
}

// The jobs of all runs are the same; what the cluster takes around them differs by a
// quarter each way.
func TestSimulate(t *testing.T) {
	c := Cluster{Config: config.Default(), GPUs: GPUs{TimeScale: 100, List: []GPU{{TotalMiB: 40536}}}}
	s := replay.Default()
	s.Estimator = replay.Oracle
	w := workload.Workload{
		Jobs:  []workload.Job{{Name: "j", GPUs: 1, DurationS: 10000, SMActPct: 50, PeakMiB: 1000, SteadyMiB: 1000}},
		Trace: []workload.Submission{{User: 1000}},
	}
	f, err := c.Simulate(s, Latency{Schedule: 800 * time.Millisecond, Launch: 200 * time.Millisecond}, &w)
	if err != nil {
		t.Fatal(err)
	}
	d := s.DrawOf(&w, 0)
	if alone := d.StartupS + d.AloneS; math.Abs(f.MakespanS.Mean-alone-100) > 1e-6 ||
		math.Abs(f.MakespanS.Max-f.MakespanS.Min-50) > 1e-6 {
		t.Errorf("%+v; alone it takes %g", f.MakespanS, alone)
	}
}
