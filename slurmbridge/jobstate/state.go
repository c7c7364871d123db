// SPDX-License-Identifier: Apache-2.0

// Package jobstate has the states of jobs and the reasons why they wait, in the words of
// squeue and sacct, 22.05 to 26.05 (src/common/slurm_protocol_defs.c, job_state_string
// and job_reason_string).
package jobstate

import "strings"

// State is a job's state.
type State string

// The states that CARMA tells apart. slurmctld shows Stopped, Signaling and Resizing in
// place of Running.
const (
	Pending     = "PENDING"
	Running     = "RUNNING"
	Suspended   = "SUSPENDED"
	Stopped     = "STOPPED"
	Signaling   = "SIGNALING"
	Resizing    = "RESIZING"
	StageOut    = "STAGE_OUT"
	Configuring = "CONFIGURING"
	Completing  = "COMPLETING"
	Completed   = "COMPLETED"
	Failed      = "FAILED"
	Timeout     = "TIMEOUT"
	Cancelled   = "CANCELLED"
	NodeFail    = "NODE_FAIL"
	BootFail    = "BOOT_FAIL"
	Deadline    = "DEADLINE"
	Preempted   = "PREEMPTED"
	OutOfMemory = "OUT_OF_MEMORY"
	Requeued    = "REQUEUED"
)

// HoldsNode tells whether a job in this state has nodes.
func (s State) HoldsNode() bool {
	switch s {
	case Running, Completing, Configuring, Suspended, Stopped, Signaling, StageOut:
		return true
	}
	return false
}

// MayBeInProlog tells whether a Prolog may run for a job in this state.
func (s State) MayBeInProlog() bool {
	switch s {
	case Running, Configuring, Suspended, Stopped, Signaling, Resizing:
		return true
	}
	return false
}

// Reason is why a job is pending, in squeue's words; InProlog also of a running one.
type Reason string

// The reasons that CARMA tells apart.
const (
	Resources  = "Resources"
	ByPriority = "Priority"
	None       = "None"
	BeginTime  = "BeginTime"
	InProlog   = "Prolog"
	Cleaning   = "Cleaning"
	TimeLimit  = "TimeLimit"
)

// RequeuedHeld is the reason of a job that requeuehold holds (_job_requeue_op, 22.05 to 25.11). It stays
// while the job is held and is changed; a hold that is placed after a release has another. Only
// that of an administrator upon this one shows the same.
const RequeuedHeld = "job requeued in held state"

// Anchor is the node that is never up. It keeps requests pending that no other node
// could take at the moment.
const Anchor = "carma-anchor"

const notAvailable = "ReqNodeNotAvail"

// IsRoom tells whether a job waits for no more than room. Where only the anchor could
// take the job now, slurmctld names that as a node that is not available (22.05.8,
// 25.11.7), with all others of the partition that are drained or down, or says nothing
// (23.11.11). For a job that names its nodes it lists only these.
func (r Reason) IsRoom() bool {
	if r == Resources || r == ByPriority || r == None {
		return true
	}
	// The anchor's name has no number to be folded with others'. This is asked for each
	// job of the queue, and there the list may be long.
	_, unavailable, _ := strings.Cut(string(r), "UnavailableNodes:")
	return strings.HasPrefix(string(r), notAvailable) && strings.Contains(","+unavailable+",", ","+Anchor+",")
}

// IsOfItsUser tells whether a job waits for what its user has set, or a limit, and not
// for room: a hold, a dependency, a licence. It may still be a time of CARMA's with
// BeginTime, and with Cleaning, InProlog and None, as a job has until slurmctld looks at it.
func (r Reason) IsOfItsUser() bool {
	switch {
	case r.IsRoom(), r == BeginTime, r == InProlog, r == Cleaning, strings.HasPrefix(string(r), notAvailable):
		return false
	}
	// "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher
	// priority partitions" (job_scheduler.c); scontrol writes it with "_".
	return !strings.HasPrefix(strings.ReplaceAll(string(r), "_", " "), "Nodes required for job")
}
