// SPDX-License-Identifier: Apache-2.0

package energy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

var nan = math.NaN()

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		name          string
		joules, floor float64
		holders       []Holder
		want          string // idle/dynamic/held/shared of each, then what is nobody's
	}{
		{"nobody", 100, 60, nil, "| 100"},
		{"one alone", 100, 60, []Holder{{0, 1, 5}}, "60/40/1/0 | 0"},
		{"one alone that does nothing", 100, 60, []Holder{{0, 1, 0}}, "60/40/1/0 | 0"},
		{"one for the second half", 100, 60, []Holder{{0.5, 1, 5}}, "30/40/0.5/0 | 30"},
		{"one for the second half that does nothing", 100, 60, []Holder{{0.5, 1, 0}}, "30/20/0.5/0 | 50"},
		{"two, one with three times the activity", 100, 60, []Holder{{0, 1, 30}, {0, 1, 10}}, "30/30/0.5/1 30/10/0.5/1 | 0"},
		{"one leaves, one stays", 100, 60, []Holder{{0, 0.5, 10}, {0, 1, 10}}, "15/13.3/0.25/0.5 45/26.7/0.75/0.5 | 0"},
		{"one leaves, then one comes", 100, 60, []Holder{{0, 0.4, 10}, {0.6, 1, 10}}, "24/20/0.4/0 24/20/0.4/0 | 12"},
		{"a floor above what was used", 50, 60, []Holder{{0, 1, 10}, {0, 1, 10}}, "25/0/0.5/1 25/0/0.5/1 | 0"},
		{"a negative floor", 50, -60, []Holder{{0, 1, 10}}, "0/50/1/0 | 0"},
	} {
		shares, rest := Split(c.joules, c.floor, c.holders)
		got := ""
		for _, s := range shares {
			got += fmt.Sprintf("%.3g/%.3g/%.3g/%.3g ", s.IdleJ, s.DynamicJ, s.Held, s.Shared)
		}
		if got += fmt.Sprintf("| %.3g", rest); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// Over random overlaps nothing is made and nothing lost, and nobody gets less
// than nothing.
func TestSplitConserves(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 21))
	for range 100_000 {
		joules := rng.Float64() * 1000
		holders := make([]Holder, rng.IntN(6))
		for i := range holders {
			a, b := rng.Float64(), rng.Float64()
			if rng.IntN(2) == 0 {
				a, b = 0, 1
			}
			holders[i] = Holder{min(a, b), max(a, b), float64(rng.IntN(3)) * rng.Float64()}
		}
		shares, sum := Split(joules, rng.Float64()*1200-100, holders)
		held := 0.0
		for _, s := range shares {
			if s.IdleJ < 0 || s.DynamicJ < 0 || s.Held < 0 || s.Shared < 0 || s.Shared > 1 {
				t.Fatalf("%+v of %+v", s, holders)
			}
			sum += s.IdleJ + s.DynamicJ
			held += s.Held
		}
		if math.Abs(sum-joules) > 1e-6 || held > 1+1e-9 {
			t.Fatalf("%g of %g J, held %g: %+v", sum, joules, held, holders)
		}
	}
}

func TestActivities(t *testing.T) {
	const on, mps = true, true
	for _, c := range []struct {
		name    string
		holders []Evidence
		server  float64
		want    string
	}{
		{"by process", []Evidence{{30, 90, on, false}, {10, 0, on, false}}, 0, "[30 10]"},
		{"by process, one idle", []Evidence{{30, 0, on, false}, {0, 50, on, false}}, 0, "[30 0]"},
		{"expected of all", []Evidence{{nan, 60, on, mps}, {nan, 20, on, mps}}, 0, "[0.75 0.25]"},
		{"expected of one only", []Evidence{{nan, 60, on, mps}, {nan, 0, on, mps}}, 0, "[0.5 0.5]"},
		{"one has no process yet", []Evidence{{nan, 60, on, mps}, {nan, 60, false, mps}}, 0, "[1 0]"},
		{"nobody has", []Evidence{{nan, 60, false, mps}}, 0, "[0]"},
		{"the MPS server counts its clients", []Evidence{{nan, 60, on, mps}, {nan, 20, on, mps}}, 40, "[30 10]"},
		{"the MPS server, and one beside it", []Evidence{{0, 0, on, mps}, {0, 0, on, mps}, {20, 0, on, false}}, 40,
			"[20 20 20]"},
		{"nothing at all", nil, 0, "[]"},
	} {
		if got := fmt.Sprint(Activities(c.holders, c.server)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestRate(t *testing.T) {
	two := []Evidence{{nan, 60, true, true}, {nan, 20, true, true}}
	for _, c := range []struct {
		name    string
		smact   float64
		holders []Evidence
		want    float64
	}{
		{"slowed", 68, two, 0.85},
		{"as fast as alone, a little more measured", 83, two, 1},
		{"alone", nan, two[:1], 1},
		{"alone, nothing known of it", 50, []Evidence{{nan, 0, true, true}}, 1},
		{"the other has no process", 60, []Evidence{two[0], {nan, 0, false, true}}, 1},
		{"one not known", 68, []Evidence{two[0], {nan, 0, true, true}}, nan},
		{"not measured", nan, two, nan},
	} {
		if got := Rate(c.smact, c.holders); math.Abs(got-c.want) > 1e-9 || math.IsNaN(got) != math.IsNaN(c.want) {
			t.Errorf("%s: got %g, want %g", c.name, got, c.want)
		}
	}
}

func TestMeter(t *testing.T) {
	type look struct{ counter, watts, seconds, want float64 }
	for _, c := range []struct {
		name  string
		looks []look
	}{
		{"counter", []look{{1000, 100, 0, nan}, {1150, 100, 1, 150}, {1150, 100, 1, 0}}},
		{"started anew", []look{{1000, 100, 0, nan}, {20, 200, 2, 300}, {120, 200, 1, 100}}},
		{"started anew, no power", []look{{1000, nan, 0, nan}, {20, nan, 2, 20}}},
		{"started anew while the node was off", []look{{1000, 100, 0, nan}, {20, 200, 3600, 20}}},
		{"wrapped", []look{{wrapJ - 100, 100, 0, nan}, {50, 100, 1, 150}}},
		{"no counter", []look{{nan, 100, 0, nan}, {nan, 300, 2, 400}, {nan, nan, 1, 300}, {nan, 100, 1, 100},
			{nan, nan, 1, 100}, {nan, nan, 1, nan}}},
		{"the counter comes and goes", []look{{100, 100, 0, nan}, {nan, 100, 1, 100}, {300, 100, 1, 100}, {380, 100, 1, 80}}},
		{"a wild value", []look{{100, 100, 0, nan}, {1e12, 100, 1, 100}, {200, 100, 1, 100}}},
		{"no time", []look{{100, 100, 0, nan}, {200, 100, 0, nan}}},
	} {
		var m Meter
		for i, l := range c.looks {
			if got := m.Add(l.counter, l.watts, l.seconds); math.Abs(got-l.want) > 1e-6 ||
				math.IsNaN(got) != math.IsNaN(l.want) {
				t.Errorf("%s, look %d: got %g, want %g", c.name, i, got, l.want)
			}
		}
	}
	m := Since(1000)
	if got := m.Add(1600, 100, 5); got != 600 {
		t.Errorf("after a restart: %g", got)
	}
}

func TestFloor(t *testing.T) {
	f := Floor{Watts: nan}
	if got := f.Joules(500, 2); got != 500 {
		t.Errorf("never idle, first look: %g", got)
	}
	if got := f.Joules(300, 1); got != 250 {
		t.Errorf("never idle, more power: %g", got)
	}
	f.Learn(nan, 1)
	f.Learn(60, 0)
	for range 200 {
		f.Learn(116, 2)
	}
	if got := f.Joules(300, 1); math.Abs(got-58) > 1e-6 {
		t.Errorf("learned: %g", got)
	}
	if got := f.Joules(20, 1); got != 20 {
		t.Errorf("less than the floor: %g", got)
	}
}
