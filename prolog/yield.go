// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"slices"
	"time"

	"carma/gres/choose"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
)

// yielding is how a job yields that needs more than it has booked: slurmctld starts such a job whatever the
// node's GPUs can give, ahead of all that wait for them.
type yielding struct {
	looked time.Time
	nobody bool      // waits that has booked what it needs, as far as is known
	free   time.Time // since when there are GPUs that the job could have
}

const (
	// yieldFor is how long GPUs must have been left by those who wait: the backfill scheduler looks at all of
	// them every 30 s (bf_interval).
	yieldFor = 40 * time.Second
	// slurmctld is asked again so often who waits, and given so long to answer.
	queueEvery    = 5 * time.Second
	queueDeadline = 3 * time.Second
)

// yields tells whether a job is known to need more than it has booked.
func (l *launch) yields() bool {
	return !l.Carma.Annotated || l.booking != nil && l.exceeds(*l.booking)
}

// leaves tells whether the job leaves to others what it could be given now.
func (y *yielding) leaves(d choose.Decision) bool {
	switch {
	case len(d.UUIDs) == 0:
		y.free, y.nobody = time.Time{}, false
		return false
	case y.free.IsZero():
		y.free = time.Now()
	}
	return !y.nobody && time.Since(y.free) < yieldFor
}

// until is when a job that yields need not wait any longer for GPUs that it could have; for others it does
// not wait here, in front of those who wait in the queue.
func (y *yielding) until() time.Time {
	if y.free.IsZero() {
		return time.Time{}
	}
	return y.free.Add(yieldFor + 2*retryEvery)
}

// look asks who waits, where the job could have GPUs, and tells whether it may have them. Without an answer nobody
// waits: the job is not to wait for a slurmctld that is away.
func (n *Node) look(ctx context.Context, l *launch, slurm Waiting) bool {
	y := &l.yielding
	if y.free.IsZero() || y.nobody || time.Since(y.looked) < queueEvery {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, queueDeadline)
	defer cancel()
	queue, err := slurm.Queue(ctx, n.Config.PartitionNames())
	if err != nil {
		n.Log.Warn("query jobs that wait for GPUs", "job", l.JobKey, "error", err)
	}
	if y.nobody = err != nil || !slices.ContainsFunc(queue, l.isBehind); !y.nobody && y.looked.IsZero() {
		n.Log.Info("has not booked what it needs, and leaves GPUs to jobs that wait for them", "job", l.JobKey)
	}
	y.looked = time.Now()
	return y.nobody
}

// isBehind tells whether a job that yields comes after another one, which waits for room that it has booked.
func (l *launch) isBehind(j schedule.Job) bool {
	return j.ID != l.JobID && j.State == jobstate.Pending && j.Reason.IsRoom() && j.MiB > 0 &&
		!j.Eligible.After(time.Now())
}
