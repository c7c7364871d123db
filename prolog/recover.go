// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/tres"
)

// recover requeues the job, with whole GPUs or a rung up the ladder. It returns
// the partition and whether GPUs are to be kept for the job, or why the job stays failed.
// The job is COMPLETING, so it cannot start before this Epilog ends.
func (ep *epilog) recover(ctx context.Context, v verdict) (partition string, kept bool, err error) {
	switch {
	case ep.hook.Carma.Requeue == jobenv.RequeueNo:
		return "", false, errStaysFailed
	case !v.job.Requeue:
		return "", false, errNoRequeue
	}
	ctx, cancelQuery := ep.node.part(ctx) // whatever the look into stderr took
	defer cancelQuery()
	words, err := ep.slurm.Words(ctx, ep.hook.JobID)
	if err != nil {
		return "", false, fmt.Errorf("slurmctld did not answer: %s", reason(err))
	}
	if v.signature == "" && admincomment.Retried(words.AdminComment, v.because) {
		return "", false, errFaultAgain
	}
	mib, alone := ep.about.FullMiB, true
	if v.signature != "" {
		mib, alone = ep.nextBooking()
	}
	if alone && v.proven {
		partition = ep.recoveryPartition(ctx, words.Account)
	}
	ctx, cancel, err := ep.node.turn(ctx)
	if err != nil {
		return "", false, err
	}
	defer cancel()
	change := rebooked(ep.hook, tres.Read(words.TresPerNode), mib, ep.node.Tags)
	change.Partition = partition
	change.AdminComment = admincomment.With(words.AdminComment, v.token("from", ep.hook.Partition))
	if partition, err = ep.queue().putBack(ctx, v.job, ep.hook.Partition, change, ep.ledger); err != nil {
		return "", false, err
	}
	ep.node.Log.Info("requeued after OOM", "job", ep.hook.JobKey, "reason", v.reason(), "partition", partition,
		"books_mib", mib)
	return partition, alone && v.proven && ep.mayHold(ctx), nil
}

var errFaultAgain = errors.New("it was requeued for that before")

var errStaysFailed = errors.New("the job says requeue=no")

var errNoRequeue = errors.New("the job may not be requeued (--no-requeue, JobRequeue=0, or a federation)")

// ladderStepMiB is the paper authors' looser recovery: 5 GiB more each time.
const ladderStepMiB = 5 << 10

// nextBooking is the requeued job's booking per GPU.
func (ep *epilog) nextBooking() (mib int64, alone bool) {
	if ep.node.Config.Recovery.Retry != "ladder" {
		return ep.about.FullMiB, true
	}
	for _, g := range ep.held.GPUs {
		mib = max(mib, g.PeakMiB, g.ReserveMiB)
	}
	mib = max(mib, ep.about.EstMiB) + ladderStepMiB
	if mib+ep.node.Config.Placement.MarginMiB > ep.about.FullMiB {
		return ep.about.FullMiB, true
	}
	return mib, false
}

// recoveryPartition is where the job is requeued; empty: in its own partition.
// A job that books whole GPUs is alone there too.
func (ep *epilog) recoveryPartition(ctx context.Context, account string) string {
	name := ep.node.Config.Partition[ep.hook.Partition].Recovery
	if name == "" {
		return ""
	}
	p, err := ep.slurm.Partition(ctx, name)
	if err != nil || !p.Up {
		ep.node.Log.Warn("recovery partition is missing or down; the job is requeued in its own partition", "job",
			ep.hook.JobKey, "partition", name, "error", err)
		return ""
	}
	// slurmctld takes the change all the same, unless EnforcePartLimits is set, and
	// the job would wait there for ever (job_mgr.c, _valid_job_part, 23.02 and later).
	if !ep.inGroups(ctx, p.AllowGroups) || !p.Admits(account) {
		ep.node.Log.Warn("recovery partition is closed to this user; the job is requeued in its own partition", "job",
			ep.hook.JobKey, "partition", name, "user", ep.hook.User, "account", account)
		return ""
	}
	return name
}

// inGroups tells whether the job's user is in one of the groups; no groups: all are.
func (ep *epilog) inGroups(ctx context.Context, names []string) bool {
	if len(names) == 0 {
		return true
	}
	own := ep.node.Groups(ctx, ep.hook.User, ep.hook.GID)
	return slices.ContainsFunc(names, func(name string) bool {
		gid, ok := ep.node.Group(ctx, name)
		return ok && slices.Contains(own, gid)
	})
}

// scheduleRestart has the job's start set and, if so decided, GPUs kept for the job.
func (ep *epilog) scheduleRestart(ctx context.Context, kept bool) {
	var uuids []string
	for _, g := range ep.held.GPUs {
		uuids = append(uuids, g.UUID)
	}
	if kept {
		if err := ep.ledger.Hold(ctx, ep.hook.JobID, ep.hook.UID, max(ep.hook.Carma.GPUs, len(uuids)), 0, uuids); err != nil {
			ep.node.Log.Warn("hold the GPUs of a requeued job", "job", ep.hook.JobKey, "error", err)
		}
	}
	if err := ep.ledger.AddPendingRestart(ctx, ep.hook.JobID, 0); err != nil {
		ep.node.Log.Warn("the requeued job starts after slurmctld's delay", "job", ep.hook.JobKey, "error", err)
	}
}

// short is an error of a Slurm command in Slurm's words alone.
type short struct{ error }

func shorter(err error) error { return short{err} }

func (s short) Error() string { return reason(s.error) }

func (s short) Unwrap() error { return s.error }

// errHeld says that the job is in the queue again and waits there for its
// release.
var errHeld = errors.New("held")

// reason shortens an error of a Slurm command to Slurm's own words.
func reason(err error) string {
	text := strings.TrimRight(err.Error(), ": ") // a killed command has printed nothing
	if i := strings.LastIndex(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	return fmt.Sprintf("%.80s", text)
}
