// SPDX-License-Identifier: Apache-2.0

package page

import (
	"math"
	"strings"
	"testing"
	"time"
)

// A gap in the figures is a gap in the line, and what is not known is not drawn.
func TestChartHasGaps(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	for name, c := range map[string]struct {
		points []Point
		moves  int
	}{
		"none":    {nil, 0},
		"joined":  {[]Point{{at(0), at(10), 1}, {at(10), at(20), 2}}, 1},
		"late":    {[]Point{{at(0), at(10), 1}, {at(11), at(20), 2}}, 1},
		"one out": {[]Point{{at(0), at(5), 1}, {at(10), at(15), 2}}, 1},
		"a gap":   {[]Point{{at(0), at(5), 1}, {at(11), at(16), 2}}, 2},
		"thinned": {[]Point{{at(0), at(20), 1}, {at(30), at(35), 2}}, 1},
		"unknown": {[]Point{{at(0), at(10), 1}, {at(10), at(20), math.NaN()}, {at(20), at(30), 1}}, 2},
	} {
		d := New(Width, 100)
		d.Chart(0, 60, name, at(0), at(30), 2, c.points)
		_, line, _ := strings.Cut(d.String(), `class="d-line"`)
		if got := strings.Count(line, "M"); got != c.moves {
			t.Errorf("%s: %d lines, want %d: %s", name, got, c.moves, line)
		}
	}
}
