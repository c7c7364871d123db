// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"slices"
)

// Shift is how far the analytic estimate's base is off on GPUs of one size: for a user, by the
// user's own runs, or for all users without known runs.
type Shift struct {
	FullMiB int64
	Own     bool   // of the user with UID; else of everybody else
	UID     uint32 // of a user's own shift
	MiB     int64
	Jobs    int   // with the middle error; Own and 0: too few yet, MiB is the shift for everybody before
	Since   int64 // seconds since 1970: jobs submitted before were estimated otherwise
}

const (
	// fewest residuals make a user's shift, and fewestUsers make one for everybody.
	fewest      = 5
	fewestUsers = 3
	// furthest is how far a user's own runs may move the base for the user, and furthestOfOthers
	// how far others' runs may raise it.
	furthest         = 1024
	furthestOfOthers = 512
	// maxResiduals bounds the residuals of a user and a size of GPU: the newest count.
	maxResiduals = 100
)

// whose names the user and the size of GPUs of an error.
type whose struct {
	fullMiB int64
	uid     uint32
}

// residual is how far the estimate of a job was off.
type residual struct{ submit, mib int64 }

func (l *Learner) addError(r Run) {
	if !r.Analytic || r.EstMiB <= 0 || r.PeakMiB <= 0 || !r.Completed || r.OOM || r.Preallocated {
		return
	}
	w := whose{r.FullMiB, r.UID}
	list := append(l.errors[w], residual{r.Submit, r.PeakMiB - r.EstMiB})
	if len(list) > 2*maxResiduals {
		slices.SortFunc(list, func(a, b residual) int { return cmp.Compare(b.submit, a.submit) })
		list = list[:maxResiduals]
	}
	l.errors[w] = list
}

// Shifts returns how far the base of the analytic estimate is off by now. What a user's runs
// say counts for the user: the middle of peak less estimate of the jobs submitted since the
// user's last shift took effect, on top of that shift. Others are moved by no one user
// (function ofUsers).
func (l *Learner) Shifts(before Snapshot, now int64) (shifts []Shift) {
	own, others := map[whose]Shift{}, map[int64]Shift{}
	for _, s := range before.shifts {
		if s.Own {
			own[whose{s.FullMiB, s.UID}] = s
		} else {
			others[s.FullMiB] = s
		}
	}
	for w, list := range l.errors {
		was, known := own[w]
		if !known {
			was = others[w.fullMiB] // the base of the estimates of the user's jobs
			was = Shift{FullMiB: w.fullMiB, Own: true, UID: w.uid, MiB: was.MiB, Since: was.Since}
		}
		switch middle, jobs := middleSince(list, was.Since); {
		case jobs >= fewest:
			was.MiB, was.Jobs, was.Since = min(max(was.MiB+middle, -furthest), furthest), jobs, now
			own[w] = was
		case !known && jobs > 0:
			// Kept until there are enough jobs, so that all are estimated by the same base.
			if was.MiB < 0 { // of a version in which others could lower the base
				was.MiB, was.Since = 0, now
			}
			own[w] = was
		}
	}
	return append(forOthers(own, others, now), newest(own)...)
}

// middleSince is the middle of the errors of the jobs since a time, and how many there are.
func middleSince(list []residual, since int64) (middle int64, jobs int) {
	var errors []int64
	for _, r := range list {
		if r.submit >= since {
			errors = append(errors, r.mib)
		}
	}
	if len(errors) == 0 {
		return 0, 0
	}
	slices.Sort(errors)
	return errors[len(errors)/2], len(errors)
}

// newest are the users' own shifts, as many as a snapshot takes: shifts with enough jobs first.
func newest(own map[whose]Shift) []Shift {
	list := make([]Shift, 0, len(own))
	for _, s := range own {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Shift) int {
		return cmp.Or(cmp.Compare(min(b.Jobs, 1), min(a.Jobs, 1)), cmp.Compare(b.Since, a.Since), byPlace(a, b))
	})
	list = list[:min(len(list), maxOwnShifts)]
	slices.SortFunc(list, byPlace)
	return list
}

// byPlace is the order in a snapshot.
func byPlace(a, b Shift) int {
	return cmp.Or(cmp.Compare(a.FullMiB, b.FullMiB), cmp.Compare(a.UID, b.UID))
}

// forOthers are the shifts for users with too few jobs.
func forOthers(own map[whose]Shift, before map[int64]Shift, now int64) (shifts []Shift) {
	middles := map[int64][]int64{}
	for w := range own {
		middles[w.fullMiB] = nil
	}
	for full := range before {
		middles[full] = nil
	}
	for w, s := range own {
		if s.Jobs > 0 {
			middles[w.fullMiB] = append(middles[w.fullMiB], s.MiB)
		}
	}
	for full, list := range middles {
		s := before[full]
		if mib := ofUsers(list); mib != s.MiB {
			s.MiB, s.Since = mib, now
		}
		s.FullMiB, s.Jobs = full, len(list)
		shifts = append(shifts, s)
	}
	slices.SortFunc(shifts, byPlace)
	return shifts[:min(len(shifts), maxSizes)]
}

// ofUsers is what users' own shifts say to a user who has none: the middle of them with each
// user left out in turn, and the least of these. So no one user's runs, whatever they say,
// raise others' estimates above what the other users' say, nor lower them below what is
// estimated without.
func ofUsers(middles []int64) int64 {
	if len(middles) < fewestUsers {
		return 0
	}
	slices.Sort(middles)
	return min(max(middles[(len(middles)-2)/2], 0), furthestOfOthers)
}
