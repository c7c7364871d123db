// SPDX-License-Identifier: Apache-2.0

package window

import (
	"math"
	"testing"
	"time"
)

const s = time.Second

func TestMean(t *testing.T) {
	w := New(60 * s)
	if !math.IsNaN(w.Value(0, mean)) {
		t.Error("an empty window has a mean")
	}
	for i := 1; i <= 120; i++ { // a minute at 20 %, then a minute at 90 %
		pct := 20.0
		if i > 60 {
			pct = 90
		}
		w.Add(time.Duration(i)*s, s, pct)
	}
	for _, c := range []struct {
		at   time.Duration
		want float64
	}{{120 * s, 90}, {150 * s, 90}, {180 * s, math.NaN()}} {
		if got := w.Value(c.at, mean); got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("at %s: %v, want %v", c.at, got, c.want)
		}
	}
}

func TestMeanCountsThePartInside(t *testing.T) {
	w := New(10 * s)
	w.Add(8*s, 8*s, 100)       // 4 s of it are inside at 14 s
	w.Add(14*s, 6*s, 0)        // all of it
	w.Add(14*s, 0, 77)         // no time has passed
	w.Add(14*s, s, math.NaN()) // not measured
	if got := w.Value(14*s, mean); got != 40 {
		t.Errorf("got %v, want 40", got)
	}
}

func TestAddBoundsPct(t *testing.T) {
	w := New(10 * s)
	w.Add(s, s, 250)
	w.Add(2*s, s, -50)
	if got := w.Value(2*s, mean); got != 50 {
		t.Errorf("got %v, want 50", got)
	}
}

func TestStatistics(t *testing.T) {
	w := New(100 * s)
	for i := 1; i <= 20; i++ { // 5, 10, ... 100
		w.Add(time.Duration(i)*s, s, float64(5*i))
	}
	// EMA with alpha 2/21 over 5..100, computed apart from the code.
	moving := 5.0
	for i := 2; i <= 20; i++ {
		moving = moving*(1-2.0/21) + 2.0/21*float64(5*i)
	}
	for stat, want := range map[Statistic]float64{
		mean: 52.5, median: 50, p95: 95, ema: moving, risk: 0.2*52.5 + 0.2*50 + 0.3*95 + 0.1*50 + 0.2*moving,
	} {
		if got := w.Value(20*s, stat); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", stat, got, want)
		}
	}
	one := New(s)
	one.Add(s, s, 30)
	for _, stat := range Statistics() {
		if got := one.Value(s, Statistic(stat)); math.Abs(got-30) > 1e-9 {
			t.Errorf("%s of one reading: %v", stat, got)
		}
	}
}
