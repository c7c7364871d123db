// SPDX-License-Identifier: Apache-2.0

// Package schedule holds slurmctld's schedule for the steward: jobs of the queue, nodes,
// and which jobs may preempt which. Package sctl asks for all three.
package schedule

import (
	"carma/slurmbridge/jobstate"
	"time"
)

// Job is a pending or running job as the steward sees jobs.
type Job struct {
	ID          uint32
	UID         uint32
	State       jobstate.State
	Partition   string
	Reason      jobstate.Reason
	Priority    int64
	Eligible    time.Time // earliest possible start
	Start       time.Time // start, or expected start
	End         time.Time // by its time limit; zero: unknown
	Nodes       string    // of the running job
	ReqNodes    string    // asked for
	Reservation string
	ArrayJobID  uint32 // 0: no array
	ArrayTask   uint32
	Features    string    // the user's words, as the next
	GPUs        int       // of a node at most
	MiB         int64     // booked on each GPU; 0: nothing
	Restarts    int       // number of returns to the queue
	Submitted   time.Time // or last return to the queue (batch_requeue_fini)
	NodeCount   int       // nodes of the job, or asked for
	QOS         string
}

// Unsplit tells whether a task of a job array has no record of its own yet: ID is
// then the array's, and all its waiting tasks share the ID.
func (j Job) Unsplit() bool { return j.ArrayJobID != 0 && j.ID == j.ArrayJobID }

// Node is a node as the steward sees nodes.
type Node struct {
	Name       string
	Partitions []string
	Lives      bool   // its agent can be counted on
	Up         bool   // and takes jobs
	GPUs       int    // as the node publishes (package extra); 0: none of ours
	Features   string // present now, separated by commas
	Extra      string
}
