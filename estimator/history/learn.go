// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"slices"
	"strconv"
)

// Run is a job that has ended, all its attempts together.
type Run struct {
	Key       Key
	Submit    int64 // seconds since 1970
	End       int64
	PeakMiB   int64 // 0: not known
	MeanMiB   int64
	SMActPct  float64 // 0: not known
	Alone     bool    // SMActPct is that of a job alone on its GPU
	RunS      int64
	Completed bool // it ran to its end, or to its time limit
	OOM       bool
	// The peak is what a framework took at its start (function Preallocated).
	Preallocated bool
	// For the base of the analytic estimate.
	Analytic bool
	EstMiB   int64
	FullMiB  int64
}

// last is how many runs of a key count: what a script did long ago says less than
// what it does now.
const last = 10

// Learner makes a history of runs, which may come in any order.
type Learner struct {
	runs   map[Key][]Run
	errors map[int64][]residual
}

type residual struct{ submit, mib int64 }

// NewLearner returns one that knows nothing.
func NewLearner() *Learner { return &Learner{runs: map[Key][]Run{}, errors: map[int64][]residual{}} }

// ParseKey reads what Key.String wrote.
func ParseKey(s string) (Key, bool) {
	v, err := strconv.ParseUint(s, 16, 64)
	return Key(v), err == nil && len(s) == 16
}

// maxResiduals bounds what is kept of one size of GPU: the newest count.
const maxResiduals = 1000

// Add takes a run.
func (l *Learner) Add(r Run) {
	if r.Analytic && r.EstMiB > 0 && r.PeakMiB > 0 && r.Completed && !r.OOM && !r.Preallocated {
		list := append(l.errors[r.FullMiB], residual{r.Submit, r.PeakMiB - r.EstMiB})
		if len(list) > 2*maxResiduals {
			slices.SortFunc(list, func(a, b residual) int { return cmp.Compare(b.submit, a.submit) })
			list = list[:maxResiduals]
		}
		l.errors[r.FullMiB] = list
	}
	if r.Key == 0 || !r.OOM && (!r.Completed || r.PeakMiB == 0) {
		return // cut short: its peak says little
	}
	list := l.runs[r.Key]
	at, _ := slices.BinarySearchFunc(list, r, func(a, b Run) int { return cmp.Compare(b.End, a.End) })
	list = slices.Insert(list, at, r)
	// So many of each kind, that those which teach nothing do not push out those that do.
	kind := func(o Run) bool { return o.Preallocated == r.Preallocated }
	if seen := 0; len(list) > last {
		list = slices.DeleteFunc(list, func(o Run) bool {
			if kind(o) {
				seen++
			}
			return kind(o) && seen > last
		})
	}
	l.runs[r.Key] = list
}

// Values returns what was learned, and the keys, those with the newest runs first. A
// script that ran out of memory and has not been seen to end well since has outgrown
// what is known of it: it is left out and runs alone again.
func (l *Learner) Values() (order []Key, values map[Key]Value) {
	values = map[Key]Value{}
	for k, runs := range l.runs {
		if v, ok := valueOf(runs); ok {
			values[k] = v
			order = append(order, k)
		}
	}
	slices.SortFunc(order, func(a, b Key) int {
		return cmp.Or(cmp.Compare(l.runs[b][0].End, l.runs[a][0].End), cmp.Compare(a, b))
	})
	return order, values
}

// valueOf puts runs together, newest first. A job that takes turns between sizes is known by
// the highest. What a framework took at its start teaches only where there is
// nothing else.
func valueOf(runs []Run) (v Value, ok bool) {
	low, smact, smactRuns, alone := int64(0), 0.0, 0, false
	teaches := func(r Run) bool { return r.Completed && r.PeakMiB > 0 && !r.Preallocated }
	onlyPreallocated := !slices.ContainsFunc(runs, teaches)
	for i, r := range runs {
		if !r.Completed || r.PeakMiB == 0 {
			if i == 0 {
				return Value{}, false
			}
			continue
		}
		if !teaches(r) && !onlyPreallocated {
			continue
		}
		v.Runs++
		v.RunS += r.RunS
		v.PeakMiB, v.MeanMiB = max(v.PeakMiB, r.PeakMiB), max(v.MeanMiB, r.MeanMiB)
		if low == 0 || r.PeakMiB < low {
			low = r.PeakMiB
		}
		if r.SMActPct <= 0 {
			continue
		}
		if r.Alone && !alone { // what sharing slowed down says less
			alone, smact, smactRuns = true, 0, 0
		}
		if r.Alone == alone {
			smact += r.SMActPct
			smactRuns++
		}
	}
	if v.Runs == 0 {
		return Value{}, false
	}
	v.SpreadMiB, v.RunS = v.PeakMiB-low, v.RunS/int64(v.Runs)
	if smactRuns > 0 {
		v.SMActPct = smact / float64(smactRuns)
	}
	return v, true
}

// fewest residuals make a shift, and furthest is how far a base may be moved.
const (
	fewest   = 5
	furthest = 1024
)

// Shifts returns how far the analytic estimate's base is off by now: the middle of
// peak less estimate of the jobs that were submitted since the last shift took
// effect, on top of it.
func (l *Learner) Shifts(before Snapshot, now int64) (shifts []Shift) {
	sizes := map[int64]bool{}
	for full := range l.errors {
		sizes[full] = true
	}
	for _, s := range before.shifts {
		sizes[s.FullMiB] = true
	}
	for full := range sizes {
		old, _ := before.Shift(full)
		var since []int64
		for _, r := range l.errors[full] {
			if r.submit >= old.Since {
				since = append(since, r.mib)
			}
		}
		switch {
		case len(since) >= fewest:
			slices.Sort(since)
			middle := since[len(since)/2]
			shifts = append(shifts, Shift{FullMiB: full, MiB: min(max(old.MiB+middle, -furthest), furthest), Jobs: len(since),
				Since: now})
		case old.Jobs > 0:
			shifts = append(shifts, old)
		}
	}
	slices.SortFunc(shifts, func(a, b Shift) int { return cmp.Compare(a.FullMiB, b.FullMiB) })
	return shifts
}
