// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/gres"
	"carma/gres/confine"
	"carma/gres/lease"
	"carma/gres/resident"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// Ledger is the agent's view of the node's ledger: a port for each part.
type Ledger interface {
	Looks
	Holders
	Lost
	Health
	Cancelled(ctx context.Context, key jobenv.JobKey, why string) error
}

// Looks is for observe.
type Looks interface {
	Snapshot(ctx context.Context) (lease.Snapshot, error)
	Measure(ctx context.Context, readings []gres.Reading, usages []lease.Usage) error
	EndedSince(ctx context.Context, at time.Duration) ([]lease.Ended, error)
}

// Holders is for looks of an agent that observes.
type Holders interface {
	Leases() ([]gres.Lease, error)
}

// Leases tell the holders of GPUs.
type Leases interface {
	Snapshot(ctx context.Context) (lease.Snapshot, error)
}

// Finished is for complete: attempts whose record is not whole yet.
type Finished interface {
	Ended(ctx context.Context, n int) ([]lease.Ended, error)
	FiguresOf(ctx context.Context, key jobenv.JobKey) (map[string]figure.Figures, error)
	DropEnded(ctx context.Context, key jobenv.JobKey) error
}

// Lost is for reap: leases whose job has ended without an Epilog.
type Lost interface {
	Find(ctx context.Context, key jobenv.JobKey) (lease.Held, bool, error)
	Release(ctx context.Context, key jobenv.JobKey) error
}

// Observed is for the Observer: leases that no Prolog has made and no Epilog ends.
type Observed interface {
	Leases
	Lost
	Observe(ctx context.Context, job lease.Job, claims []lease.Claim) error
}

// Pending drops notes of work on jobs.
type Pending interface {
	DropPendingRestart(ctx context.Context, job uint32) error
	DropPerhapsHeld(ctx context.Context, key jobenv.JobKey) error
}

// Holds keeps GPUs for jobs.
type Holds interface {
	Hold(ctx context.Context, job, uid uint32, gpus int, mib int64, uuids []string) error
	OpenHold(ctx context.Context, job uint32, in time.Duration) error
	DropHold(ctx context.Context, job uint32) error
}

// Servers keeps GPUs from jobs whose MPS servers have faulted.
type Servers interface {
	Follow(ctx context.Context, d gres.Daemon, read lease.ReadLog) (victims []uint32, fault bool, err error)
	Quarantine(ctx context.Context, uuid, reason string) (victims []uint32, err error)
	Readmit(ctx context.Context, uuid string) error
}

// Health keeps broken GPUs from jobs.
type Health interface {
	SetFault(ctx context.Context, uuid string, cause gres.Cause, reason string, lasts time.Duration,
	) (holders []uint32, fresh bool, err error)
	EndFault(ctx context.Context, uuid string, cause gres.Cause) (ended bool, err error)
}

// Publisher tells slurmctld the node's capacity, and writes in the node's Extra.
type Publisher interface {
	// PublishIf publishes if s, which may be a moment old, has something to publish.
	PublishIf(ctx context.Context, s lease.Snapshot) error
	// CompareIf compares the node's Extra, if due on a cluster of so many nodes, not sooner than
	// after the pause.
	CompareIf(ctx context.Context, s lease.Snapshot, pause time.Duration, nodes int) (text string, asked bool,
		err error)
	SetWords(ctx context.Context, words map[string]string) error
}

// Finds asks slurmctld for the jobs on a node and their GPUs.
type Finds interface {
	OnNode(ctx context.Context, node string) ([]sctl.Job, error)
	GPUs(ctx context.Context, j sctl.Job, node string) ([]int, error)
}

// EndedJobs asks slurmctld about ended jobs. A job that slurmctld does not know is missing in the answer; so
// is, with an error, a job without an answer.
type EndedJobs interface {
	Describe(ctx context.Context, ids []uint32) (map[uint32]sctl.Description, error)
}

// ReturnedJobs asks slurmctld about jobs returned to the queue, and has them start.
type ReturnedJobs interface {
	Known
	Release(ctx context.Context, t sctl.Target) error
	Starts
}

// Known tells of a job.
type Known interface {
	Job(ctx context.Context, id uint32) (sctl.Job, error)
}

// Places tells of a job, and whether the job may run on a node when everybody else has gone.
type Places interface {
	Known
	MayRun(ctx context.Context, id uint32, node string) (bool, error)
}

// OwnNode writes in the Extra of the agent's own node.
type OwnNode interface {
	SetWords(ctx context.Context, words map[string]string) error
}

// Starts sets when jobs start.
type Starts interface {
	SetStart(ctx context.Context, t sctl.Target, at time.Time) error
	SafeStart(ctx context.Context) (time.Duration, error)
}

// Users is how the agent reaches the users of jobs.
type Users interface {
	Notify(ctx context.Context, job uint32, text string) error
	Cancel(ctx context.Context, t sctl.Target) error
}

// Members are the nodes of the cluster: all facts about each, or the names alone, which cost
// slurmctld less.
type Members interface {
	Nodes(ctx context.Context, partitions []string) ([]schedule.Node, error)
	NodeNames(ctx context.Context, partitions []string) ([]string, error)
}

// Cluster is for the steward's looks and words.
type Cluster interface {
	Queue(ctx context.Context, partitions []string) ([]schedule.Job, error)
	Members
	Preemption(ctx context.Context) (schedule.Preemption, error)
	Steering
	Releasing
}

// Steering is for the steward's words.
type Steering interface {
	Node(ctx context.Context, node string) (extra string, err error)
	SetNodeExtra(ctx context.Context, node, text string) error
	Split(ctx context.Context, j schedule.Job) (id uint32, err error)
}

// Releasing ends slurmctld's holds for BadConstraints.
type Releasing interface {
	ReleaseBad(ctx context.Context, j schedule.Job) error
}

// Records is where accounting goes.
type Records interface {
	LostRecords
	Tidy(ctx context.Context) error
	Meters
}

// LostRecords is where the records of attempts without an Epilog go.
type LostRecords interface {
	PutLost(ctx context.Context, a db.Attempt) error
}

// Completing is where the end of an attempt goes.
type Completing interface {
	SetEnd(ctx context.Context, e db.End) error
}

// Meters is where the figures of GPUs go.
type Meters interface {
	Meters(ctx context.Context) ([]db.Meter, error)
	AddSamples(ctx context.Context, samples []db.Sample, meters []db.Meter) error
	Series(ctx context.Context, uuid string, from, to time.Time) ([]db.Sample, error)
}

// MPS keeps the daemons.
type MPS interface {
	Tenures
	Remains
	Clients
	Logs
	Sets() ([]gres.Daemon, error)
	Tenant(d gres.Daemon) (user int64, runs bool)
	// Restricted is an error where a daemon cannot be kept to one user.
	Restricted() error
}

// Tenures starts and ends them.
type Tenures interface {
	// Keep has a daemon run for a user, or for the next to come (gres.Nobody).
	Keep(ctx context.Context, d gres.Daemon, user func(now int64) (int64, error)) error
	// Kill ends a silent daemon, for Keep to start another.
	Kill(ctx context.Context, d gres.Daemon) error
	// End ends an unused daemon, with everything that the user has or keeps of the
	// daemon.
	End(ctx context.Context, d gres.Daemon, used func() (bool, error)) error
}

// Remains are the leftovers of tenures whose end did not succeed.
type Remains interface {
	ClearEnded(ctx context.Context) error
}

// Clients are the clients of a daemon's servers.
type Clients interface {
	Faulted(ctx context.Context, d gres.Daemon) (bool, error)
	Clients(ctx context.Context, d gres.Daemon) ([]int, error)
	Terminate(ctx context.Context, d gres.Daemon, pid int) error
}

// Logs are the servers'.
type Logs interface {
	ServerFault(d gres.Daemon, from int64) (fault bool, to int64, err error)
	BoundLogs() error
}

// Owners tells whose a process is.
type Owners interface {
	Owner(pid int) resident.Owner
	Stepds() (map[uint32]bool, error)
}

// Cgroups are the cgroups of jobs, by confine.Host.
type Cgroups interface {
	Scope() (string, error)
	Groups(job uint32) ([]confine.Group, error)
}

// Limits holds cgroups to an amount of memory of a GPU, in MiB; 0: to none.
type Limits interface {
	Set(group, uuid string, mib int64) error
}
