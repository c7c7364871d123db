// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
)

// keepPause is the pause of a job, by the time waited, before the next question whether another job of the user has
// waited for longer: each question has slurmctld list the queue, and a user can have many jobs wait in Prologs.
func keepPause(waited time.Duration) time.Duration {
	return min(max(waited/4, 20*time.Second), 2*time.Minute)
}

// keep keeps GPUs of this node for a job without a constraint on nodes' Extra, or that cannot return to the queue, as
// the steward does for jobs with a constraint: on all nodes for a single job of a user at a time; not for a job with a
// need beyond the booking.
func (l *launch) keep(ctx context.Context) {
	if l.kept = l.kept || !l.Carma.Annotated; l.kept || time.Since(l.behind) < keepPause(time.Since(l.started)) {
		return
	}
	ctx, cancel := l.node.part(ctx)
	defer cancel()
	list, err := l.books(ctx, l.slurm)
	if err != nil { // the next round tries again
		l.node.Log.Warn("hold GPUs for the job", "job", l.JobKey, "error", err)
		return
	}
	if l.exceeds(list) {
		l.kept = true
		l.node.Log.Warn("hold GPUs for the job", "job", l.JobKey, "error", "it needs more than it has booked")
		return
	}
	h, r := l.Hook, l.request
	s, err := l.ledger.Snapshot(ctx)
	if err != nil {
		l.node.Log.Warn("hold GPUs for the job", "job", h.JobKey, "error", err)
		return
	}
	if l.kept = slices.ContainsFunc(s.Holds, func(held lease.Hold) bool { return held.JobID == h.JobID }); l.kept {
		return
	}
	closeStale(s.Readings, l.node.Config)
	mib := r.ReserveMiB
	if r.Exclusive || l.node.Thresholds.MaxSlowdown > 0 || r.MaxSlowdown > 0 { // as the agent has it
		mib, r.Exclusive = 0, true
	}
	uuids := choose.Soonest(l.node.policy(h), s.Readings, s.Leases, r, l.node.Thresholds)
	if uuids == nil {
		l.node.Log.Warn("hold GPUs for the job", "job", h.JobKey, "error", "too few GPUs here accept jobs")
		return
	}
	if first, err := l.waitsLongest(ctx); err != nil || first != l.JobID {
		l.behind = time.Now()
		if err == nil {
			err = fmt.Errorf("job %d of the same user has waited for longer", first)
		}
		l.node.Log.Info("no GPUs are held for the job yet", "job", h.JobKey, "reason", err)
		return
	}
	if err := l.ledger.Hold(ctx, h.JobID, h.UID, r.GPUs, mib, uuids); err != nil {
		l.node.Log.Warn("hold GPUs for the job", "job", h.JobKey, "error", err)
		return
	}
	l.kept = true
	l.node.Log.Info("GPUs are held for the job", "job", h.JobKey, "gpus", uuids, "mib", mib)
}

// waitsLongest is the user's job with the longest wait for GPUs, on any node: the job here, a job in a Prolog, or a job
// in the queue again, returned by Prologs so often that GPUs are kept for that job, also while its user holds it. Else
// a user's jobs of all GPUs, a job on each node, would keep the cluster from everybody.
func (l *launch) waitsLongest(ctx context.Context) (first uint32, err error) {
	queue, err := l.slurm.Queue(ctx, l.node.Config.PartitionNames())
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(queue, func(j schedule.Job) bool { return j.ID == l.JobID })
	if i < 0 { // in a partition without an entry in carma.toml
		return l.JobID, nil
	}
	self := queue[i]
	i = slices.IndexFunc(queue, func(j schedule.Job) bool {
		inProlog := j.Reason == jobstate.InProlog && j.State.MayBeInProlog()
		waits := inProlog || j.State == jobstate.Pending && l.node.overVetoLimit(j.Restarts)
		return j.UID == l.UID && waits &&
			cmp.Or(l.waitsSince(j).Compare(l.waitsSince(self)), cmp.Compare(j.ID, self.ID)) < 0
	})
	if i < 0 {
		return l.JobID, nil
	}
	return queue[i].ID, nil
}

// waitsSince is since when GPUs may be kept for a job: in a Prolog, or from the last return to the queue on. While GPUs
// are kept for a job the time stays, and no user can make it earlier.
func (l *launch) waitsSince(j schedule.Job) time.Time {
	if l.node.overVetoLimit(j.Restarts) {
		return j.Submitted
	}
	return j.Start
}

// mayHold tells whether GPUs are kept for the job, requeued with whole GPUs: if no other such job of the user waits, on
// whatever node an Epilog has requeued the other one. Else a user's jobs out of memory, a job on each node, would keep
// the cluster from everybody. A job with whole GPUs that a Prolog has returned cannot be told from such a job. Of two
// Epilogs at once at least one sees the other's job: both ask after their jobs' release.
func (ep *epilog) mayHold(ctx context.Context) bool {
	ctx, cancel := ep.node.part(ctx)
	defer cancel()
	queue, err := ep.slurm.Queue(ctx, ep.node.Config.PartitionNames())
	i := slices.IndexFunc(queue, func(j schedule.Job) bool {
		waits := j.State != jobstate.Running || j.Reason == jobstate.InProlog
		whole := j.MiB > 0 && j.MiB >= ep.node.Config.Partition[j.Partition].GPUMemMiB
		return j.UID == ep.hook.UID && j.ID != ep.hook.JobID && waits && j.Priority > 0 && j.Restarts > 0 && whole
	})
	if err == nil && i >= 0 {
		err = fmt.Errorf("job %d of the same user is in the queue again, too", queue[i].ID)
	}
	if err != nil {
		ep.node.Log.Info("no GPUs are held for the job yet", "job", ep.hook.JobKey, "reason", err)
	}
	return err == nil
}
