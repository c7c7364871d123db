// SPDX-License-Identifier: Apache-2.0

// Package schedule is what slurmctld schedules, as the steward sees it: jobs of the
// queue, nodes, and which jobs may preempt which. Package sctl asks for them.
package schedule

import (
	"carma/slurmbridge/jobstate"
	"time"
)

// Job is a pending or running job as the steward sees it.
type Job struct {
	ID          uint32
	UID         uint32
	State       jobstate.State
	Partition   string
	Reason      jobstate.Reason
	Priority    int64
	Eligible    time.Time // when the job could have started first
	Start       time.Time // when the job started, or is expected to
	End         time.Time // by its time limit; zero: unknown
	Nodes       string    // that the job runs on
	ReqNodes    string    // that the job asks for
	Reservation string
	ArrayJobID  uint32 // 0: no array
	ArrayTask   uint32
	Features    string    // the user's words, as the next
	GPUs        int       // of a node at most
	MiB         int64     // that the job has booked on each GPU; 0: nothing
	Restarts    int       // how often the job has gone back into the queue
	Submitted   time.Time // or when the job last returned to the queue (batch_requeue_fini)
	NodeCount   int       // that the job has, or asks for
	QOS         string
}

// Unsplit tells whether a task of a job array has no record of its own yet: ID is
// then the array's, and all its waiting tasks have it.
func (j Job) Unsplit() bool { return j.ArrayJobID != 0 && j.ID == j.ArrayJobID }

// Node is a node as the steward sees it.
type Node struct {
	Name       string
	Partitions []string
	Lives      bool   // its agent can be counted on
	Up         bool   // and can be given jobs
	GPUs       int    // as the node publishes (package extra); 0: none of ours
	Features   string // that the node has now, separated by commas
	Extra      string
}
