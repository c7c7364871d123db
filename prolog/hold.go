// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"slices"

	"carma/gres/choose"
	"carma/gres/lease"
)

// keep keeps GPUs of this node for a job without a constraint on nodes' Extra, or that cannot return to the queue, as
// the steward does for jobs with such a constraint; not for a job with a need beyond its booking.
func (l *launch) keep(ctx context.Context) {
	if l.kept = l.kept || !l.Carma.Annotated; l.kept {
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
	if err := l.ledger.Hold(ctx, h.JobID, h.UID, r.GPUs, mib, uuids); err != nil {
		l.node.Log.Warn("hold GPUs for the job", "job", h.JobKey, "error", err)
		return
	}
	l.kept = true
	l.node.Log.Info("GPUs are held for the job", "job", h.JobKey, "gpus", uuids, "mib", mib)
}
