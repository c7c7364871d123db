// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"time"

	"carma/db"
	"carma/gres"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// Ledger is a Prolog's view of the node's ledger.
type Ledger interface {
	Readings
	Leases
	Returned
}

// Readings are the ledger's data on the node.
type Readings interface {
	Snapshot(ctx context.Context) (lease.Snapshot, error)
	Oldest(ctx context.Context) (age time.Duration, ok bool, err error)
	PutReadings(ctx context.Context, readings []gres.Reading) error
}

// Leases gives and takes GPUs.
type Leases interface {
	Acquire(ctx context.Context, job lease.Job, r gres.Request, choose lease.Choose) ([]lease.Granted, error)
	Release(ctx context.Context, key jobenv.JobKey) error
}

// Returned is where jobs that return to the queue are noted, and the GPUs kept for
// them.
type Returned interface {
	AddPendingRestart(ctx context.Context, job uint32, delay time.Duration) error
	Hold(ctx context.Context, job, uid uint32, gpus int, mib int64, uuids []string) error
	Held
}

// Held is where jobs are noted that may be held because slurmctld's answer is missing.
type Held interface {
	AddPerhapsHeld(ctx context.Context, key jobenv.JobKey, uid uint32) error
	DropPerhapsHeld(ctx context.Context, key jobenv.JobKey) error
}

// EpilogLedger is an Epilog's view of the node's ledger.
type EpilogLedger interface {
	Ending
	Returned
	Faults
	Sharers
}

// Sharers are who holds which GPU now.
type Sharers interface {
	Snapshot(ctx context.Context) (lease.Snapshot, error)
}

// Ending finds and ends the leases of a job.
type Ending interface {
	Find(ctx context.Context, key jobenv.JobKey) (lease.Held, bool, error)
	Release(ctx context.Context, key jobenv.JobKey) error
}

// Faults are the verdict of a job's end on its GPUs and their MPS servers.
type Faults interface {
	Follow(ctx context.Context, d gres.Daemon, read lease.ReadLog) (victims []uint32, fault bool, err error)
	JobEnded(ctx context.Context, job, uid uint32, uuids []string, failed bool) (closed, unsure []string, err error)
	CloseFailing(ctx context.Context, uuids []string, waiting []uint32) (closed []string, err error)
}

// Records is where accounting goes, and tells of jobs that have ended.
type Records interface {
	Put(ctx context.Context, a db.Attempt) error
	Lately(ctx context.Context, q db.Lately) (db.Happened, error)
}

// LostRecords is where the record of an attempt without an Epilog goes.
type LostRecords interface {
	PutLost(ctx context.Context, a db.Attempt) error
}

// Slurm is what the hooks ask of slurmctld, and only when a job has to return to the queue, or may have booked
// nothing.
type Slurm interface {
	Jobs
	Requeuing
	Changing
	Preempting
	Sending
	Waiting
}

// Jobs tells of jobs and of where they may run.
type Jobs interface {
	Job(ctx context.Context, id uint32) (sctl.Job, error)
	Words(ctx context.Context, id uint32) (sctl.Words, error)
	Partition(ctx context.Context, name string) (sctl.Partition, error)
}

// Requeuing puts jobs into the queue again.
type Requeuing interface {
	RequeueIncomplete(ctx context.Context, t sctl.Target) error
	RequeueHold(ctx context.Context, t sctl.Target) error
	Release(ctx context.Context, t sctl.Target) error
	Scrontab
}

// Scrontab tells jobs of scrontab, which slurmctld lets nobody change.
type Scrontab interface {
	CheckCron(ctx context.Context, t sctl.Target) error
}

// Changing changes jobs in the queue, and speaks to running jobs.
type Changing interface {
	Update(ctx context.Context, t sctl.Target, change sctl.Change) error
	SafeStart(ctx context.Context) (time.Duration, error)
	Notify(ctx context.Context, job uint32, text string) error
}

// Preempting is a Prolog's requests to slurmctld where its job may preempt others.
type Preempting interface {
	Preemption(ctx context.Context) (schedule.Preemption, error)
	Warn(ctx context.Context, t sctl.Target) error
	Cancel(ctx context.Context, t sctl.Target) error
}

// Sending tells whether a job was sent to the node to preempt others.
type Sending interface {
	Node(ctx context.Context, node string) (extra string, err error)
}

// Waiting tells who waits in the partitions of the node, and how many of the node's slots are given out.
type Waiting interface {
	PartitionsOf(ctx context.Context, node string) ([]string, error)
	Queue(ctx context.Context, partitions []string) ([]schedule.Job, error)
	SlotsInUse(ctx context.Context, node string) (int, error)
}
