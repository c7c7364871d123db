// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/tres"
)

// recover requeues the job, with whole GPUs or a rung up the ladder. It
// returns the partition and whether the job will be alone, or why it stays
// failed. The job is COMPLETING, so it cannot start before this Epilog ends.
func (n *Node) recover(ctx context.Context, h jobenv.Hook, held lease.Held, about JobMeta, v verdict, ledger Held,
	slurm Slurm) (partition string, alone bool, err error) {
	if !v.job.Requeue {
		return "", false, errNoRequeue
	}
	ctx, cancelQuery := n.part(ctx) // whatever the look into stderr took
	defer cancelQuery()
	words, err := slurm.Words(ctx, h.JobID)
	if err != nil {
		return "", false, fmt.Errorf("slurmctld did not answer: %s", reason(err))
	}
	if v.signature == "" && admincomment.Retried(words.AdminComment, v.because) {
		return "", false, errFaultAgain
	}
	mib, alone := about.FullMiB, true
	if v.signature != "" {
		mib, alone = n.nextBooking(held, about)
	}
	if alone && v.proven {
		partition = n.recoveryPartition(ctx, h, words.Account, slurm)
	}
	ctx, cancel, err := n.turn(ctx)
	if err != nil {
		return "", false, err
	}
	defer cancel()
	change := n.rebooked(h, tres.Read(words.TresPerNode), mib)
	change.Partition = partition
	change.AdminComment = admincomment.With(words.AdminComment, v.token("from", h.Partition))
	if partition, err = n.putBack(ctx, v.job, h.Partition, change, ledger, slurm); err != nil {
		return "", false, err
	}
	n.Log.Info("requeued after OOM", "job", h.JobKey, "reason", v.reason(), "partition", partition, "books_mib", mib)
	return partition, alone, nil
}

var errFaultAgain = errors.New("it was requeued for that before")

var errNoRequeue = errors.New("the job may not be requeued (--no-requeue, JobRequeue=0, or a federation)")

// ladderStepMiB is the paper authors' looser recovery: 5 GiB more each time.
const ladderStepMiB = 5 << 10

// nextBooking is what the job books per GPU when it is requeued.
func (n *Node) nextBooking(held lease.Held, about JobMeta) (mib int64, alone bool) {
	if n.Config.Recovery.Retry != "ladder" {
		return about.FullMiB, true
	}
	for _, g := range held.GPUs {
		mib = max(mib, g.PeakMiB, g.ReserveMiB)
	}
	mib = max(mib, about.EstMiB) + ladderStepMiB
	if mib+n.Config.Placement.MarginMiB > about.FullMiB {
		return about.FullMiB, true
	}
	return mib, false
}

// recoveryPartition is where the job is requeued; empty: where it was. A job
// that books whole GPUs is alone there too.
func (n *Node) recoveryPartition(ctx context.Context, h jobenv.Hook, account string, slurm Jobs) string {
	name := n.Config.Partition[h.Partition].Recovery
	if name == "" {
		return ""
	}
	p, err := slurm.Partition(ctx, name)
	if err != nil || !p.Up {
		n.Log.Warn("recovery partition is missing or down; the job is requeued in its own partition", "job", h.JobKey,
			"partition", name, "error", err)
		return ""
	}
	// slurmctld takes the change all the same, unless EnforcePartLimits is set, and
	// the job would wait there for ever (job_mgr.c, _valid_job_part, 23.02 and later).
	if !n.inGroups(ctx, h, p.AllowGroups) || !p.Admits(account) {
		n.Log.Warn("recovery partition is closed to this user; the job is requeued in its own partition", "job", h.JobKey,
			"partition", name, "user", h.User, "account", account)
		return ""
	}
	return name
}

// inGroups tells whether the job's user is in one of the groups; no groups: all are.
func (n *Node) inGroups(ctx context.Context, h jobenv.Hook, names []string) bool {
	if len(names) == 0 {
		return true
	}
	own := n.Groups(ctx, h.User, h.GID)
	return slices.ContainsFunc(names, func(name string) bool {
		gid, ok := n.Group(ctx, name)
		return ok && slices.Contains(own, gid)
	})
}

// scheduleRestart has the job's start set and, if it is requeued alone, its GPUs kept.
func (n *Node) scheduleRestart(ctx context.Context, h jobenv.Hook, held lease.Held, alone bool, ledger Returned) {
	var uuids []string
	for _, g := range held.GPUs {
		uuids = append(uuids, g.UUID)
	}
	if alone {
		if err := ledger.Hold(ctx, h.JobID, h.UID, max(h.Carma.GPUs, len(uuids)), 0, uuids); err != nil {
			n.Log.Warn("hold the GPUs of a requeued job", "job", h.JobKey, "error", err)
		}
	}
	if err := ledger.AddPendingRestart(ctx, h.JobID, 0); err != nil {
		n.Log.Warn("the requeued job starts after slurmctld's delay", "job", h.JobKey, "error", err)
	}
}

// putBack puts a completing job into the queue again and returns the partition that it is
// then in. A change that slurmctld refuses leaves the job held, never half moved; where its answer is
// missing, or it does not release the job, the agent does (lease.PerhapsHeld). All components of a
// heterogeneous job are requeued, and the job's own is changed. home is its partition so far.
// Each call has a deadline of its own: slurmctld may take seconds for each.
func (n *Node) putBack(ctx context.Context, j sctl.Job, home string, change sctl.Change, ledger Held,
	slurm Slurm) (partition string, err error) {
	target := j.Leader()
	asking, cancel := n.part(ctx)
	defer cancel()
	if err := slurm.CheckCron(asking, j.Component()); errors.Is(err, sctl.ErrCron) {
		return "", err
	} else if err != nil { // a job of scrontab would be held for ever
		return "", fmt.Errorf("slurmctld did not answer: %w", shorter(err))
	}
	requeuing, cancelRequeue := n.part(ctx)
	defer cancelRequeue()
	key := jobenv.JobKey{JobID: j.ID, Restart: uint32(j.Restarts) + 1}
	if err := ledger.AddPerhapsHeld(requeuing, key, j.UID); err != nil {
		n.Log.Warn("record a job that is held while it is requeued", "job", j.ID, "error", err)
	}
	defer func() {
		final := errors.Is(err, errHeld) || errors.Is(err, sctl.ErrBatchOnly)
		if err != nil && !final { // it may be held, now or later
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookAtLedger) // else the agent looks once
		defer cancel()
		if err := ledger.DropPerhapsHeld(ctx, key); err != nil {
			n.Log.Warn("record a job that is held while it is requeued", "job", j.ID, "error", err)
		}
	}()
	if err := slurm.RequeueHold(requeuing, target); sctl.Unanswered(err) {
		return "", fmt.Errorf("slurmctld did not answer whether it is requeued: %w", shorter(err))
	} else if err != nil {
		return "", fmt.Errorf("requeue refused: %w", shorter(err))
	}
	if change.Partition, err = n.change(ctx, j, home, change, slurm); sctl.Unanswered(err) {
		return "", fmt.Errorf("slurmctld did not answer whether it is changed: %w", shorter(err))
	} else if err != nil {
		return "", fmt.Errorf("%w: %s", errHeld, reason(err))
	}
	releasing, cancelRelease := n.part(ctx)
	defer cancelRelease()
	if err := slurm.Release(releasing, target); sctl.Unanswered(err) {
		return "", fmt.Errorf("slurmctld did not answer whether it is released: %w", shorter(err))
	} else if err != nil { // the change is complete
		return "", fmt.Errorf("requeued, held until the agent releases it: %w", shorter(err))
	}
	return change.Partition, nil
}

// change changes a job that is in the queue again, and returns the partition that it is in. It starts
// after latestStart at the latest.
func (n *Node) change(ctx context.Context, j sctl.Job, home string, change sctl.Change,
	slurm Changing) (string, error) {
	ctx, cancel := n.part(ctx)
	defer cancel()
	change.StartIn = latestStart
	err := n.update(ctx, j.Component(), change, slurm)
	if err != nil && change.Partition != "" && !sctl.Unanswered(err) {
		// The partition may not be for this user, account or QOS: whole
		// GPUs are whole GPUs where the job was, too. slurmctld reports
		// that after it has set the partition, so it is set back (22.05,
		// job_mgr.c, _update_job).
		n.Log.Warn("cannot move the job; it is requeued in its own partition", "target", j.Component(), "partition",
			change.Partition, "error", err)
		change.Partition = home
		err = n.update(ctx, j.Component(), change, slurm)
	}
	return cmp.Or(change.Partition, home), err
}

// short is an error of a Slurm command in Slurm's words alone.
type short struct{ error }

func shorter(err error) error { return short{err} }

func (s short) Error() string { return reason(s.error) }

func (s short) Unwrap() error { return s.error }

// latestStart is after how long a job that was requeued starts at the latest,
// if GPUs are free. The agent lets it start as soon as that is safe; slurmctld's
// own time is not on 22.05, where slurmd may then still know the job's last run
// and skip its Prolog (gres/agent/after.go).
const latestStart = 10 * time.Minute

// errHeld says that the job is in the queue again and waits there for somebody
// to release it.
var errHeld = errors.New("held")

// Where a user has no association (accounting is off, or does not ask for one),
// slurmctld fails a change of partition with whatever errno the thread has left from
// something else (job_mgr.c, _update_job: error_code = errno, 23.11 to 26.05). On
// 25.11.7 that is EAGAIN, "Resource temporarily unavailable", 4 of 5 times; never on
// 23.11.11, whose threads do not read without blocking. Another try meets another
// thread.
const (
	updateTries = 40
	updatePause = 20 * time.Millisecond
)

func (n *Node) update(ctx context.Context, target sctl.Target, change sctl.Change, slurm Changing) error {
	for try := 1; ; try++ {
		err := slurm.Update(ctx, target, change)
		if err == nil || try == updateTries || ctx.Err() != nil || !strings.Contains(err.Error(), "temporarily") {
			return err
		}
		time.Sleep(updatePause)
	}
}

// reason shortens an error of a Slurm command to what Slurm said.
func reason(err error) string {
	text := strings.TrimRight(err.Error(), ": ") // a command that was ended has printed nothing
	if i := strings.LastIndex(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	return fmt.Sprintf("%.80s", text)
}
