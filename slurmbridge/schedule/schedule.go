// SPDX-License-Identifier: Apache-2.0

// Package schedule is what slurmctld schedules, as the steward sees it: jobs of the queue,
// nodes, and who may preempt whom. Package sctl asks for them.
package schedule

import (
	"carma/slurmbridge/jobstate"
	"time"
)

// Job is a pending or running job as the steward looks at it.
type Job struct {
	ID          uint32
	UID         uint32
	State       jobstate.State
	Partition   string
	Reason      jobstate.Reason
	Priority    int64
	Eligible    time.Time // when it could have started first
	Start       time.Time // when it started, or is expected to
	End         time.Time // by its time limit; zero: unknown
	Nodes       string    // that it runs on
	ReqNodes    string    // that it asks for
	Reservation string
	ArrayJobID  uint32 // 0: no array
	ArrayTask   uint32
	Features    string    // the user's words, as the next
	GPUs        int       // of a node at most
	MiB         int64     // that it has booked on each of them; 0: nothing
	Restarts    int       // how often it has gone back into the queue
	Submitted   time.Time // or when it last returned to the queue (batch_requeue_fini)
	NodeCount   int       // that it has, or asks for
	QOS         string
}

// Unsplit tells whether a task of a job array has no record of its own yet: ID is
// then the array's, and all its waiting tasks have it.
func (j Job) Unsplit() bool { return j.ArrayJobID != 0 && j.ID == j.ArrayJobID }

// Node is a node as the steward looks at it.
type Node struct {
	Name       string
	Partitions []string
	Lives      bool   // its agent can be counted on
	Up         bool   // and it can be given jobs
	GPUs       int    // by what it publishes (package extra); 0: none of ours
	Features   string // that it has now, separated by commas
	Extra      string
}
