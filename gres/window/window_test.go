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
	if !math.IsNaN(w.Mean(0)) {
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
		if got := w.Mean(c.at); got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
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
	if got := w.Mean(14 * s); got != 40 {
		t.Errorf("got %v, want 40", got)
	}
	w.Reset()
	if !math.IsNaN(w.Mean(14 * s)) {
		t.Error("something is left after Reset")
	}
}

func TestAddBoundsPct(t *testing.T) {
	w := New(10 * s)
	w.Add(s, s, 250)
	w.Add(2*s, s, -50)
	if got := w.Mean(2 * s); got != 50 {
		t.Errorf("got %v, want 50", got)
	}
}
