// SPDX-License-Identifier: Apache-2.0

// Package window keeps the last stretch of a GPU's activity and says what it
// was like.
package window

import (
	"math"
	"slices"
	"time"
)

// Statistic makes one figure of a window.
type Statistic string

// The statistics. risk is the weighted score of the authors' second system:
// 0.2 mean + 0.2 median + 0.3 95th percentile + 0.1 50th percentile + 0.2 EMA.
const (
	mean   Statistic = "mean"
	median Statistic = "median"
	p95    Statistic = "p95"
	ema    Statistic = "ema"
	risk   Statistic = "risk"
)

// Statistics lists their names.
func Statistics() []string {
	return []string{string(mean), string(median), string(p95), string(ema), string(risk)}
}

// point is one interval between two samples.
type point struct {
	end    time.Duration // on the sampler's monotonic clock
	length time.Duration
	pct    float64
}

// Window is a rolling window of activity. The zero value is not usable; see
// New. It is not safe for concurrent use.
type Window struct {
	length time.Duration
	points []point // oldest first
	sorted []float64
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

// Value returns the statistic over the window; NaN without a reading.
func (w *Window) Value(now time.Duration, s Statistic) float64 {
	w.expire(now)
	if len(w.points) == 0 {
		return math.NaN()
	}
	switch s {
	case median:
		return w.percentile(0.5)
	case p95:
		return w.percentile(0.95)
	case ema:
		return w.ema()
	case risk:
		return 0.2*w.mean(now) + 0.3*w.percentile(0.5) + 0.3*w.percentile(0.95) + 0.2*w.ema()
	}
	return w.mean(now)
}

// mean weights each interval by the part of it that lies inside the window.
func (w *Window) mean(now time.Duration) float64 {
	var sum, weight float64
	for _, p := range w.points {
		inside := min(p.length, p.end-(now-w.length)).Seconds()
		sum += p.pct * inside
		weight += inside
	}
	return sum / weight
}

// percentile is the smallest reading that a share q of them does not exceed.
func (w *Window) percentile(q float64) float64 {
	w.sorted = w.sorted[:0]
	for _, p := range w.points {
		w.sorted = append(w.sorted, p.pct)
	}
	slices.Sort(w.sorted)
	return w.sorted[max(int(math.Ceil(q*float64(len(w.sorted))))-1, 0)]
}

// ema is the exponential moving average with alpha = 2/(n+1).
func (w *Window) ema() float64 {
	alpha := 2 / float64(len(w.points)+1)
	v := w.points[0].pct
	for _, p := range w.points[1:] {
		v += alpha * (p.pct - v)
	}
	return v
}
