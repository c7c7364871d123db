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
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
)

// keepEvery is the pause before a job asks again whether another job of its user still waits in a Prolog: each question
// has slurmctld list the queue.
const keepEvery = 20 * time.Second

// keep keeps GPUs of this node for a job without a constraint on nodes' Extra, or that cannot return to the queue, as
// the steward does for jobs with such a constraint: on all nodes for one job of a user at a time; not for a job with a
// need beyond its booking.
func (l *launch) keep(ctx context.Context) {
	if l.kept = l.kept || !l.Carma.Annotated; l.kept || time.Since(l.behind) < keepEvery {
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

// waitsLongest is the job of the user that has waited for GPUs for longest, on any node: this one, or one in a Prolog
// that started before, or an older one that Prologs have returned to the queue so often that GPUs are kept for the
// job. Else a user's jobs of all GPUs, one on each node, would keep the cluster from everybody.
func (l *launch) waitsLongest(ctx context.Context) (first uint32, err error) {
	queue, err := l.slurm.Queue(ctx, l.node.Config.PartitionNames())
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(queue, func(j schedule.Job) bool { return j.ID == l.JobID })
	if i < 0 { // in a partition that carma.toml does not name
		return l.JobID, nil
	}
	self := queue[i]
	i = slices.IndexFunc(queue, func(j schedule.Job) bool {
		switch {
		case j.UID != l.UID:
			return false
		case j.Reason == jobstate.InProlog && j.State.MayBeInProlog():
			return cmp.Or(j.Start.Compare(self.Start), cmp.Compare(j.ID, self.ID)) < 0
		}
		often := l.node.overVetoLimit(jobenv.Hook{JobKey: jobenv.JobKey{Restart: uint32(j.Restarts)}})
		return j.State == jobstate.Pending && j.Priority > 0 && often && j.ID < self.ID
	})
	if i < 0 {
		return l.JobID, nil
	}
	return queue[i].ID, nil
}
