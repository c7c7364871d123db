// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"slices"
	"strconv"
)

// Run is an ended job, all its attempts together.
type Run struct {
	Key       Key
	UID       uint32
	Submit    int64 // seconds since 1970
	End       int64
	PeakMiB   int64 // 0: not known
	MeanMiB   int64
	SMActPct  float64 // 0: not known
	Alone     bool    // SMActPct is of a job alone on its GPU
	RunS      int64
	Completed bool // the job ran to its end, or to its time limit
	OOM       bool
	// The peak is the memory that a framework took at its start (function Preallocated).
	Preallocated bool
	// For the base of the analytic estimate.
	Analytic bool
	EstMiB   int64
	FullMiB  int64
}

// last is how many runs of a key count: what a script did long ago says less
// than what it does now.
const last = 10

// Learner makes a history of runs, which may come in any order.
type Learner struct {
	runs   map[Key][]Run
	errors map[whose][]residual
}

// NewLearner returns an empty Learner.
func NewLearner() *Learner { return &Learner{runs: map[Key][]Run{}, errors: map[whose][]residual{}} }

// ParseKey reads the text of Key.String.
func ParseKey(s string) (Key, bool) {
	v, err := strconv.ParseUint(s, 16, 64)
	return Key(v), err == nil && len(s) == 16
}

// Add takes a run.
func (l *Learner) Add(r Run) {
	l.addError(r)
	if r.Key == 0 || !r.OOM && (!r.Completed || r.PeakMiB == 0) {
		return // cut short: its peak says little
	}
	list := l.runs[r.Key]
	at, _ := slices.BinarySearchFunc(list, r, func(a, b Run) int { return cmp.Compare(b.End, a.End) })
	list = slices.Insert(list, at, r)
	// So many of each kind: runs that teach nothing must not push out the others.
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

// Values returns what was learned, and the keys, those with the newest runs first. Where
// there are more than a snapshot takes, users take turns: a user with very many scripts
// does not push out the others' scripts. A script that ran out of memory and has not been
// seen to end well since has outgrown its records: such a script is left out and runs
// alone again.
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
	if len(order) > maxKeys {
		l.takeTurns(order)
	}
	return order, values
}

// takeTurns puts each user's first key before anybody's second.
func (l *Learner) takeTurns(order []Key) {
	turns, of := map[uint32]int{}, make(map[Key]int, len(order))
	for _, k := range order {
		uid := l.runs[k][0].UID
		of[k] = turns[uid]
		turns[uid]++
	}
	slices.SortStableFunc(order, func(a, b Key) int { return cmp.Compare(of[a], of[b]) })
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
