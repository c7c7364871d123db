// SPDX-License-Identifier: Apache-2.0

// Package choose picks the GPUs of a job: values in, a decision out. It keeps
// the preconditions of the CARMA paper (SM activity at most 80 %, memory free)
// and adds the ledger that the paper's system lacks: memory that was promised
// counts as used.
package choose

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"carma/gres"
)

// Thresholds are the preconditions, from carma.toml.
type Thresholds struct {
	SMActMaxPct  float64
	CoarseMaxPct float64 // for sources that over-state SM activity
	MarginMiB    int64
	MaxJobs      int
	Settle       time.Duration
	CrossUser    bool // jobs of several users may time-slice one GPU
}

// idleSlackMiB is what an idle GPU may show as used: the driver's own.
const idleSlackMiB = 1024

// Decision is the outcome for one request.
type Decision struct {
	UUIDs    []string  // K GPUs, best first; nil: none fits
	Refusals []Refusal // why each other GPU was passed over
}

// Refusal says in words why a GPU was not taken.
type Refusal struct {
	UUID   string
	Reason string
}

// state is one GPU as the ledger and the last sample see it.
type state struct {
	gres.Reading
	jobs       int
	bookedMiB  int64
	exclusive  bool
	settling   bool // a newcomer has not shown a process yet
	otherUsers bool // a lease of a user other than the request's
}

func (s state) idle() bool {
	return s.jobs == 0 && s.Foreign == 0 && s.UsedMiB <= idleSlackMiB
}

// freeMiB is what nobody uses and nobody was promised.
func (s state) freeMiB() int64 { return s.TotalMiB - max(s.UsedMiB, s.bookedMiB) }

func stateOf(r gres.Reading, leases []gres.Lease, uid uint32, t Thresholds) state {
	s := state{Reading: r}
	for i := range leases {
		l := &leases[i]
		if l.UUID != r.UUID {
			continue
		}
		s.jobs++
		s.bookedMiB += l.ReserveMiB
		s.exclusive = s.exclusive || l.Exclusive
		s.settling = s.settling || !l.Seen && l.Age < t.Settle
		s.otherUsers = s.otherUsers || l.UID != uid
	}
	return s
}

// closed returns why the GPU takes nobody, or "".
func (s state) closed(t Thresholds) string {
	smactMax := t.SMActMaxPct
	if s.Source.Coarse() {
		smactMax = t.CoarseMaxPct
	}
	switch {
	case s.Unreadable != "":
		return s.Unreadable
	case s.exclusive:
		return "held exclusively"
	case s.Foreign > 0:
		return plural(s.Foreign, "process", "processes") + " of no job"
	case s.jobs >= t.MaxJobs:
		return fmt.Sprintf("%d jobs share it already", s.jobs)
	case s.settling:
		return "a new job has not shown itself yet"
	case s.jobs > 0 && s.SMActPct > smactMax:
		return fmt.Sprintf("SM activity %.1f %% above %.0f %%", s.SMActPct, smactMax)
	}
	return ""
}

// refuses returns why the GPU does not take r, or "".
func (s state) refuses(r gres.Request, t Thresholds) string {
	if why := s.closed(t); why != "" {
		return why
	}
	need := r.ReserveMiB
	if r.HasEstimate {
		need += t.MarginMiB
	}
	switch {
	case s.idle() && (r.ReserveMiB <= s.TotalMiB || s.Whole(r.ReserveMiB)):
		return ""
	case r.ReserveMiB > s.TotalMiB:
		return fmt.Sprintf("it has %d MiB, %d needed", s.TotalMiB, r.ReserveMiB)
	case r.Exclusive:
		return "not idle"
	case s.otherUsers && !t.CrossUser:
		return "held by another user"
	case s.freeMiB() < need:
		return fmt.Sprintf("%d MiB free, %d needed", max(s.freeMiB(), 0), need)
	}
	return ""
}

// MAGM returns the r.GPUs GPUs with the most available memory among those that
// take r, or none. GPUs without jobs of other users come first: jobs of one
// user share through MPS, jobs of two users only by turns.
func MAGM(readings []gres.Reading, leases []gres.Lease, r gres.Request, t Thresholds) Decision {
	var d Decision
	fit := make([]state, 0, len(readings))
	for _, reading := range readings {
		s := stateOf(reading, leases, r.UID, t)
		if why := s.refuses(r, t); why != "" {
			d.Refusals = append(d.Refusals, Refusal{s.UUID, why})
			continue
		}
		fit = append(fit, s)
	}
	slices.SortStableFunc(fit, func(a, b state) int {
		if a.otherUsers != b.otherUsers {
			return map[bool]int{false: -1, true: 1}[a.otherUsers]
		}
		return cmp.Compare(b.freeMiB(), a.freeMiB())
	})
	if r.GPUs > len(fit) {
		for _, s := range fit {
			d.Refusals = append(d.Refusals, Refusal{s.UUID, fmt.Sprintf("fits, but %d are needed at once", r.GPUs)})
		}
		return d
	}
	for _, s := range fit[:r.GPUs] {
		d.UUIDs = append(d.UUIDs, s.UUID)
	}
	return d
}

// Placeable returns how many MiB a next job of any user can be given on the
// GPU, and why not if none: all of it when idle, nothing when closed, else what
// is free less the margin.
func Placeable(reading gres.Reading, leases []gres.Lease, t Thresholds) (mib int64, why string) {
	s := stateOf(reading, leases, math.MaxUint32, t)
	if why := s.closed(t); why != "" {
		return 0, why
	}
	if s.idle() {
		return s.TotalMiB, ""
	}
	if mib = s.freeMiB() - t.MarginMiB; mib <= 0 {
		return 0, "no memory free"
	}
	return mib, ""
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
