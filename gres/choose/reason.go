// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"fmt"
	"math"
)

// Reason is why a GPU was not taken. Its words are made only when somebody reads them. The zero value
// is no reason.
type Reason struct {
	code  code
	known bool   // the request's activity when alone is known
	job   uint32 // the slowed job; 0: the request's
	a, b  float64
	text  string
}

type code uint8

const (
	unreadable code = iota + 1
	quarantined
	heldExclusively
	foreign
	migTaken
	fullOfJobs
	fullOfClients
	settling
	smact
	heldBack
	tooSmall
	notIdle
	otherUser
	memory
	slowed
	byTurns
	tooFew
	tooFewTogether
	noMemory
)

// String gives the reason in words; empty for none.
func (r Reason) String() string {
	switch r.code {
	case unreadable, quarantined:
		return r.text
	case heldExclusively:
		return "leased exclusively"
	case foreign:
		if r.a == 1 {
			return "1 process that belongs to no job"
		}
		return fmt.Sprintf("%.0f processes that belong to no job", r.a)
	case migTaken:
		return "MIG instance in use"
	case fullOfJobs:
		return fmt.Sprintf("%.0f jobs share it already", r.a)
	case fullOfClients:
		return fmt.Sprintf("its MPS server has %.0f clients", r.a)
	case settling:
		return "a new job has not settled yet"
	case smact:
		return above("SM activity", r.a, r.b)
	case heldBack:
		return fmt.Sprintf("held for job %.0f", r.a)
	case tooSmall:
		return fmt.Sprintf("it has %.0f MiB, %.0f needed", r.a, r.b)
	case notIdle:
		return "not idle"
	case otherUser:
		return "leased to another user"
	case memory:
		return fmt.Sprintf("%.0f MiB free, %.0f needed", r.a, r.b)
	case slowed:
		return r.slowed()
	case byTurns:
		return "its jobs and this one would be time-sliced"
	case tooFew:
		return fmt.Sprintf("fits, but %.0f are needed at once", r.a)
	case tooFewTogether:
		return fmt.Sprintf("fits, but %.0f that one MPS daemon serves are needed", r.a)
	case noMemory:
		return "no memory free"
	}
	return ""
}

// above says why a gate is shut.
func above(what string, pct, maxPct float64) string {
	if math.IsNaN(pct) {
		return what + " is not known"
	}
	return fmt.Sprintf("%s %.1f %% above %.0f %%", what, pct, maxPct)
}

// slowed says whose slowdown is above its bound, and how it was estimated.
func (r Reason) slowed() string {
	who := "this job's"
	if r.job != 0 {
		who = fmt.Sprintf("job %d's", r.job)
	}
	text := fmt.Sprintf("%s expected slowdown %.2f above %.2f", who, r.a, r.b)
	if !r.known {
		text += "; SM activity of this job is not known, 100 % counted"
	}
	return text
}
