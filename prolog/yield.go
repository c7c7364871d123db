// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"slices"
	"time"

	"carma/gres/choose"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
)

// yielding is how a job with a need beyond its booking yields: slurmctld starts such a job whatever the node's GPUs
// can give, ahead of all jobs in the queue for these GPUs.
type yielding struct {
	looked time.Time
	nobody bool      // with a full booking waits, as far as is known
	clear  bool      // nobody waited at the last look
	last   bool      // the GPUs in reach are the last for such a job
	free   time.Time // since when there are GPUs for the job
}

// yieldFor is how long the queue must have left GPUs alone: the backfill scheduler looks at all waiting jobs every 30 s
// (bf_interval). Tests have less.
var yieldFor = 40 * time.Second

const (
	// slurmctld is asked for the queue so often, and given so long to answer.
	queueEvery    = 5 * time.Second
	queueDeadline = 3 * time.Second
)

// confirmAfter is when the last GPUs are taken if a second look finds nobody either: a job that has left the queue a
// moment ago has no place yet among the Prologs that wait (order.go). Tests have less.
var confirmAfter = 2 * time.Second

// yields tells whether a job is known to need more than its booking.
func (l *launch) yields() bool {
	return !l.Carma.Annotated || l.booking != nil && l.exceeds(*l.booking)
}

// leaves tells whether the job leaves GPUs to others now.
func (y *yielding) leaves(d choose.Decision) bool {
	switch {
	case len(d.UUIDs) == 0:
		y.free, y.nobody, y.clear = time.Time{}, false, false
		return false
	case y.free.IsZero():
		y.free = time.Now()
	}
	return !y.nobody && time.Since(y.free) < yieldFor
}

// awaits tells whether GPUs are in reach, and will be the job's once the queue has left them alone for long enough.
func (y *yielding) awaits() bool { return !y.free.IsZero() }

// until is when a yielding job need not wait any longer for GPUs in reach. For other GPUs the job does not wait here,
// in front of the jobs in the queue.
func (y *yielding) until() time.Time {
	if !y.awaits() {
		return time.Time{}
	}
	return y.free.Add(yieldFor + 2*retryEvery)
}

// look asks for jobs waiting for the node, where GPUs are in reach, and tells whether the job may have the GPUs. A
// question that fails at once delays no job. A slurmctld that does not answer within queueDeadline is slow, by a user's
// many questions, say, or away: squeue tries for MessageTimeout. Jobs may wait behind a slow slurmctld, so the job
// leaves the GPUs until yieldFor has passed.
func (l *launch) look(ctx context.Context, p *place) bool {
	y, pause := &l.yielding, queueEvery
	if y.clear {
		pause = confirmAfter
	}
	if !y.awaits() || y.nobody || time.Since(y.looked) < pause {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, queueDeadline)
	defer cancel()
	waits, err := l.somebodyWaits(ctx)
	if err == nil && !waits && y.last {
		var jobs []uint32
		jobs, _, err = p.others()
		waits = len(jobs) > 0
	}
	if err != nil {
		l.node.Log.Warn("query jobs that wait for GPUs", "job", l.JobKey, "error", err)
		waits = ctx.Err() != nil
	}
	if waits && y.looked.IsZero() {
		l.node.Log.Info("has not booked what it needs, and leaves GPUs to jobs that wait for them", "job", l.JobKey)
	}
	y.nobody, y.clear = !waits && (y.clear || !y.last), !waits
	y.looked = time.Now()
	return y.nobody
}

// somebodyWaits tells whether a yielding job comes after another one.
func (l *launch) somebodyWaits(ctx context.Context) (bool, error) {
	queue, err := queued(ctx, l.node, l.slurm)
	return slices.ContainsFunc(queue, l.isBehind) || l.yielding.last && slices.ContainsFunc(queue, l.isStarting), err
}

// queued are the jobs of the queue that may run on the node: jobs in partitions without the node wait for other nodes.
func queued(ctx context.Context, n *Node, slurm Waiting) ([]schedule.Job, error) {
	partitions, err := slurm.PartitionsOf(ctx, n.Name)
	if err != nil {
		return nil, err
	}
	ours := slices.DeleteFunc(n.Config.PartitionNames(),
		func(p string) bool { return !slices.Contains(partitions, p) })
	if len(ours) == 0 { // squeue would list all partitions
		return nil, nil
	}
	queue, err := slurm.Queue(ctx, ours)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(queue, func(j schedule.Job) bool { return !mayWaitFor(j, n.Name) }), nil
}

// isBehind tells whether a yielding job comes after another one: a pending job with a booking, for want of room.
func (l *launch) isBehind(j schedule.Job) bool {
	return j.ID != l.JobID && j.State == jobstate.Pending && j.Reason.IsRoom() && j.MiB > 0 &&
		!j.Eligible.After(time.Now())
}

// isStarting tells whether slurmctld has started a job with a booking on the node and the job's Prolog has not ended.
// Until the Prolog begins, the job has left the queue and has no place yet (order.go). A job on several nodes counts
// until the last node's Prolog has ended, and two jobs that both need more than their bookings count for each other:
// for yieldFor at most.
func (l *launch) isStarting(j schedule.Job) bool {
	return j.ID != l.JobID && j.Reason == jobstate.InProlog && j.State.MayBeInProlog() && j.MiB > 0 &&
		hostlist.Contains(j.Nodes, l.node.Name)
}

// mayWaitFor tells whether a job of one of the node's partitions may run there: the user has named no nodes, has named
// this node, or wants more nodes than named.
func mayWaitFor(j schedule.Job, node string) bool {
	named, err := hostlist.Expand(j.ReqNodes)
	return err != nil || len(named) == 0 || len(named) < j.NodeCount || slices.Contains(named, node)
}
