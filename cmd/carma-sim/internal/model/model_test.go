// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"carma/contrib/gpucheck/data"
	"carma/gres/interference"
)

func TestParse(t *testing.T) {
	m, err := parse("[gpu]\nlaw = \"table\"\n")
	if err != nil || m.GPU.Law != "table" || m.Job.SteadyShare != 0.92 {
		t.Errorf("%+v, %v", m, err)
	}
	for text, want := range map[string]string{
		"[gpu]\nlaw = \"magic\"\n":    `line 2: gpu.law: "magic" is not one of equal, none, propu, table`,
		"[job]\nramp_s = -1\n":        "line 2: job.ramp_s: must be between 0 and 1e+06",
		"[job]\nstartup_s = [5, 1]\n": "line 2: job.startup_s: must be two times from 0 up, the smaller first",
		"[job]\nramps = 1\n": "line 2: job.ramps: unknown key; " +
			"cmd/carma-sim/internal/model/model.toml lists them all",
		"[gpu]\npower_watts = [1.0]\n":     "must rise from 0 to 100, with as many watts",
		"[gpu]\ntable_slowdown = [0.5]\n":  "line 2: gpu.table_slowdown: must be 1 or more",
		"[history]\nmargin_pct = []\n":     "line 2: history.margin_pct: must have at least one value",
		"[analytic]\nsure_ratio = [1.0]\n": "line 2: analytic.sure_ratio: must have as many values as analytic.quantile_pct",
		"[slurm]\nsample_s = nan\n":        "line 2: slurm.sample_s: must be between 0.01 and 1e+06",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v\nwant %s", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("[gpu]\nlaw = \"propu\"\n")
	f.Add(defaults)
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parse(text)
		if err == nil && (math.IsNaN(m.GPU.Watts(0.5)) || m.GPU.LawOf() == nil) {
			t.Fatalf("%+v", m.GPU)
		}
	})
}

// A mix that was measured goes before the rule; what is near to none does not.
func TestMeasuredFirst(t *testing.T) {
	law := measuredFirst([]data.Interference{{DemandPct: []int{25, 25}, MPS: true, Rate: 0.5}}, none)
	for _, c := range []struct {
		demands []float64
		rate    float64
	}{
		{[]float64{0.25, 0.3}, 0.5},
		{[]float64{0.25, 0.4}, 1},
		{[]float64{0.25, 0.25, 0.25}, 1},
		{[]float64{0.25}, 1},
	} {
		var clients []Client
		for _, d := range c.demands {
			clients = append(clients, Client{Demand: d, Server: 1})
		}
		util := interference.Share(law, clients)
		if clients[0].Rate != c.rate || util <= 0 || util > 1 {
			t.Errorf("%v: rate %g, activity %g", c.demands, clients[0].Rate, util)
		}
	}
}

// Every law that conserves work: what clients do adds up to what the GPU does,
// and nobody is faster than alone.
func TestLawsConserveWork(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		c := make([]Client, 1+r.IntN(6))
		for i := range c {
			c[i] = Client{Demand: 0.01 + 0.98*r.Float64(), Server: int32(r.IntN(3))}
		}
		for _, name := range []string{"equal", "propu"} {
			util := interference.Share(laws[name], c)
			var work float64
			for _, x := range c {
				work += x.Rate * x.Demand
				if !(x.Rate > 0 && x.Rate <= 1+1e-12) {
					t.Fatalf("%s: rate %g in %+v", name, x.Rate, c)
				}
			}
			if math.Abs(work-util) > 1e-9 || util > 1 {
				t.Fatalf("%s: work %g, activity %g of %+v", name, work, util, c)
			}
		}
	}
}

// The laws on numbers that can be worked out by hand.
func TestLawsByHand(t *testing.T) {
	two := []Client{{Demand: 0.5, Server: 1}, {Demand: 0.5, Server: 1}}
	if u := interference.Share(interference.Equal, two); u != 0.75 || two[0].Rate != 0.75 {
		t.Errorf("equal: %g %+v", u, two)
	}
	uneven := []Client{{Demand: 0.8, Server: 1}, {Demand: 0.2, Server: 1}}
	u := interference.Share(propu, uneven)
	if math.Abs(u-0.84) > 1e-12 || math.Abs(uneven[0].Rate-0.84*0.8/0.68) > 1e-12 ||
		math.Abs(uneven[1].Rate-0.84*0.2/0.68) > 1e-12 {
		t.Errorf("propu: %g %+v", u, uneven)
	}
	turns := []Client{{Demand: 0.6}, {Demand: 0.4}}
	if u := interference.Share(interference.Equal, turns); u != 0.5 || turns[0].Rate != 0.5 {
		t.Errorf("by turns: %g %+v", u, turns)
	}
	three := []Client{{Demand: 0.3, Server: 1}, {Demand: 0.3, Server: 1}, {Demand: 0.3, Server: 1}}
	if interference.Share(table([]float64{1, 1, 1.8}), three); three[2].Rate != 1/1.8 {
		t.Errorf("table: %+v", three)
	}
	if w := Default().GPU.Watts(0.425); math.Abs(w-183.5) > 1e-9 {
		t.Errorf("power between two points: %g W", w)
	}
}
