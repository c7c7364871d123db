// SPDX-License-Identifier: Apache-2.0

package replay

import "math"

// trail is the SM activity of a GPU over the last stretch of time, exactly: it
// is constant between events. The agent's window (gres/window) is the mean of
// samples of the same.
type trail struct {
	length float64 // s that have to be kept
	steps  []step  // oldest first; the last one holds now
}

type step struct {
	from  float64 // s
	value float64 // from then on, 0 to 1
	sum   float64 // integral up to from
}

// set records that activity is value from now on.
func (t *trail) set(now, value float64) {
	n := len(t.steps)
	if n == 0 {
		t.steps = append(t.steps, step{from: now, value: value})
		return
	}
	last := &t.steps[n-1]
	if last.from == now {
		last.value = value
		return
	}
	if last.value == value {
		return
	}
	sum := last.sum + last.value*(now-last.from)
	// Drop what ended before the window began.
	drop := 0
	for drop+1 < n && t.steps[drop+1].from <= now-t.length {
		drop++
	}
	if drop > 0 && n == cap(t.steps) {
		t.steps = t.steps[:copy(t.steps, t.steps[drop:])]
	}
	t.steps = append(t.steps, step{now, value, sum})
}

// integral returns the integral of activity up to at, which lies in what is kept.
func (t *trail) integral(at float64) float64 {
	i := len(t.steps) - 1
	for i > 0 && t.steps[i].from > at {
		i--
	}
	s := &t.steps[i]
	if at < s.from {
		return s.sum
	}
	return s.sum + s.value*(at-s.from)
}

// mean is the mean activity of the window seconds before at, NaN before there is
// anything to tell.
func (t *trail) mean(at, window float64) float64 {
	if len(t.steps) == 0 {
		return math.NaN()
	}
	from := max(at-window, t.steps[0].from)
	if from >= at {
		return t.steps[len(t.steps)-1].value
	}
	return (t.integral(at) - t.integral(from)) / (at - from)
}

// falls returns when the mean over window will have come down to limit if
// activity stays as it is at now; +Inf: it will not.
func (t *trail) falls(now, window, limit float64) float64 {
	n := len(t.steps)
	if n == 0 || t.mean(now, window) <= limit {
		return now
	}
	last := t.steps[n-1].value
	if last > limit {
		return math.Inf(1)
	}
	// The mean moves in a straight line until the next step leaves the window.
	at := now
	for i := range t.steps {
		leaves := t.steps[n-1].from + window
		if i+1 < n {
			leaves = t.steps[i+1].from + window
		}
		if leaves <= at {
			continue
		}
		if m := t.mean(leaves, window); m <= limit {
			m0 := t.mean(at, window)
			if m0 <= limit {
				return at
			}
			return at + (leaves-at)*(m0-limit)/(m0-m)
		}
		at = leaves
	}
	return at
}
