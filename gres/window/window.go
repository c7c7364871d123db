// SPDX-License-Identifier: Apache-2.0

// Package window keeps the last stretch of SM activity of a GPU.
package window

import (
	"math"
	"time"
)

// point is one interval between two samples.
type point struct {
	end    time.Duration // on the sampler's monotonic clock
	length time.Duration
	pct    float64
}

// Window is a rolling window of SM activity. The zero value is not usable; see
// New. It is not safe for concurrent use.
type Window struct {
	length time.Duration
	points []point // oldest first
}

// New returns an empty window of the given length.
func New(length time.Duration) *Window { return &Window{length: length} }

// Add records that activity was pct from the previous sample until now, an
// interval of the given length. NaN stands for an interval without a reading
// and is left out.
func (w *Window) Add(now, interval time.Duration, pct float64) {
	w.expire(now)
	if math.IsNaN(pct) || interval <= 0 {
		return
	}
	w.points = append(w.points, point{now, interval, min(max(pct, 0), 100)})
}

// expire drops the intervals that ended before the window begins.
func (w *Window) expire(now time.Duration) {
	n := 0
	for n < len(w.points) && w.points[n].end <= now-w.length {
		n++
	}
	if n > 0 {
		w.points = append(w.points[:0], w.points[n:]...)
	}
}

// Mean returns the mean activity over the window, each interval weighted by
// the part of it that lies inside; NaN without a reading. (The paper's gate is
// the mean of one minute.)
func (w *Window) Mean(now time.Duration) float64 {
	w.expire(now)
	var sum, weight float64
	for _, p := range w.points {
		inside := min(p.length, p.end-(now-w.length)).Seconds()
		sum += p.pct * inside
		weight += inside
	}
	if weight == 0 {
		return math.NaN()
	}
	return sum / weight
}

// Reset forgets everything, for a GPU whose last job has gone.
func (w *Window) Reset() { w.points = w.points[:0] }
