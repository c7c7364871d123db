// SPDX-License-Identifier: Apache-2.0

// Package jobstate has the states of jobs and the reasons why they wait, in the words
// of squeue and sacct, 22.05 to 26.05 (src/common/slurm_protocol_defs.c,
// job_state_string and job_reason_string).
package jobstate

import "strings"

// State is a job's state.
type State string

// The states that CARMA tells apart. slurmctld shows Stopped, Signaling and Resizing
// in place of Running.
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

// HoldsNode tells whether a job in the state has nodes.
func (s State) HoldsNode() bool {
	switch s {
	case Running, Completing, Configuring, Suspended, Stopped, Signaling, StageOut:
		return true
	}
	return false
}

// MayBeInProlog tells whether a Prolog may run for a job in the state.
func (s State) MayBeInProlog() bool {
	switch s {
	case Running, Configuring, Suspended, Stopped, Signaling, Resizing:
		return true
	}
	return false
}

// HasEnded tells whether a job in the state has ended for good: another attempt follows REQUEUED.
func (s State) HasEnded() bool {
	return !s.HoldsNode() && s != Pending && s != Resizing && s != Requeued
}

// Reason is why a job is pending, in squeue's words; InProlog also of a running job.
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
	// Constraints: no node of the partition satisfies its --extra now (24.11 to 26.05).
	Constraints = "Constraints"
	// BadConstraints: slurmctld holds the job, as nodes satisfy the job's --extra, but none that the job can
	// have (package steward, Releases); or the cluster has lost what the job asks for.
	BadConstraints = "BadConstraints"
)

// RequeuedHeld is the reason of a job held by requeuehold (_job_requeue_op, 22.05 to 25.11). The reason
// stays while the job is held and is changed; a hold placed after a release has another. Only a hold
// that an administrator places upon this one shows the same.
const RequeuedHeld = "job requeued in held state"

const (
	notAvailable = "ReqNodeNotAvail"
	// reserved is what slurmctld says in place of an unmet constraint where another node of the partition
	// is drained (24.11.5).
	reserved = notAvailable + ", May be reserved"
	// noNodes is slurmctld's reason for a job on several nodes while too few can take the job: nodes are
	// down, or satisfy no constraint (job_scheduler.c); scontrol writes the reason with "_".
	noNodes = "Nodes required for job are DOWN"
)

// IsRoom tells whether a job with booked memory waits for nothing but room: on nodes, or on nodes that satisfy its
// constraints (package extra).
func (r Reason) IsRoom() bool {
	return r == Resources || r == ByPriority || r == None || r == Constraints || r == BadConstraints || r.isNoNodes() ||
		strings.HasPrefix(string(r), reserved)
}

func (r Reason) isNoNodes() bool {
	return strings.HasPrefix(strings.ReplaceAll(string(r[:min(len(r), len(noNodes))]), "_", " "), noNodes)
}

// IsOfItsUser tells whether a job waits for a setting of its user, or a limit, and not for
// room: a hold, a dependency, a licence. It may still be a delay that CARMA has set with
// BeginTime, and with Cleaning, InProlog and None, the reasons that a job has until
// slurmctld looks at it.
func (r Reason) IsOfItsUser() bool {
	return !r.IsRoom() && r != BeginTime && r != InProlog && r != Cleaning && !strings.HasPrefix(string(r), notAvailable)
}
