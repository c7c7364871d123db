// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/tres"
)

// backOff is how long a job waits after it was returned to the queue for the n-th time,
// counted from 0.
func backOff(n uint32) time.Duration {
	const first = 5 * time.Second
	return min(first<<min(n, 10), lease.LongestDelay)
}

// giveBack puts the job into the queue again. slurmctld takes the job back while this Prolog still runs, and slurmd
// then does not launch the job; exit status 0 keeps the node up. After hooks.vetoes returns a job is not sent around
// any more, but waits for something certain. A job returned for reasons in no node's Extra (choose.Uncounted) waits
// for idle GPUs, and shares them none the less. For a job on all GPUs of several nodes, and where nodes publish
// nothing of their GPUs (below Slurm 24.11), the node keeps GPUs. For a job with a need beyond its booking nothing is
// kept, however often the job is returned.
// A node with a lost GPU never has enough for a job on all GPUs: such a job is returned, and not held, as another node
// may take the job, or this node once mended.
func (n *Node) giveBack(ctx context.Context, l *launch, uncounted bool, ledger Ledger, slurm Slurm) (err error) {
	h, r := l.Hook, l.request
	node, works := n.gpus(ctx, ledger)
	defer func() {
		if errors.Is(err, sctl.ErrBatchOnly) && node > 0 && r.GPUs > works {
			n.tellTooMany(ctx, l, works, slurm)
		}
	}()
	ctx, cancel := n.part(ctx) // whatever the ledger took
	defer cancel()
	j, err := waiting(ctx, h, slurm)
	if errors.Is(err, errGone) && l.asked { // the agent looks whether it is in the queue
		if err := ledger.AddPendingRestart(ctx, h.JobID, backOff(h.Restart)); err != nil {
			n.Log.Warn("the agent cannot set its start time", "job", h.JobKey, "error", err)
		}
	}
	if err != nil {
		return fmt.Errorf("return job %s to the queue: %w", h.JobKey, err)
	}
	l.fit(j, node)
	r = l.request
	if most := n.mostGPUs(h.Partition); node > 0 && most > 0 && r.GPUs > max(node, most) {
		return n.tooMany(ctx, l, j, node, ledger, slurm)
	}
	if !j.Requeue { // --no-requeue, JobRequeue=0: it waits here, as a job of srun does
		return sctl.ErrBatchOnly
	}
	var change sctl.Change
	if n.overVetoLimit(h) && h.Carma.Annotated {
		list, err := l.books(ctx, slurm)
		if err != nil {
			return fmt.Errorf("return job %s to the queue: %w", h.JobKey, err)
		}
		if !h.Carma.Counted || h.Carma.All && !h.OneNode {
			n.keep(ctx, l, ledger, slurm)
		}
		change = n.escalate(l, list, uncounted)
	}
	requeuing, cancelRequeue := n.part(ctx)
	defer cancelRequeue()
	// Not held: while this Prolog runs, slurmctld does not start the job again.
	if err := slurm.RequeueIncomplete(requeuing, j.Leader()); err != nil {
		l.asked = l.asked || sctl.Unanswered(err)
		return fmt.Errorf("return job %s to the queue: %w", h.JobKey, err)
	}
	if _, err := n.change(ctx, j, h.Partition, change, slurm); err != nil {
		n.Log.Warn("change a job that was returned to the queue; it books what it booked", "job", h.JobKey, "error", err)
	}
	delay := backOff(h.Restart)
	n.Log.Info("returned to the queue", "job", h.JobKey, "waits", delay)
	ctx, cancelRest := n.part(ctx)
	defer cancelRest()
	n.awaitRevocation(ctx, h, slurm)
	if err := ledger.AddPendingRestart(ctx, h.JobID, delay); err != nil {
		n.Log.Warn("the agent cannot set its start time", "job", h.JobKey, "error", err)
		n.setStart(ctx, h, j.Component(), delay, slurm)
	}
	return nil
}

// mostGPUs is how many GPUs a node has where a job of the partition runs, as carma.toml says; of a partition
// without an entry there, as many as in any entry. 0: carma.toml has no entry.
func (n *Node) mostGPUs(partition string) (most int) {
	if p, ok := n.Config.Partition[partition]; ok {
		return p.GPUsPerNode
	}
	for _, p := range n.Config.Partition {
		most = max(most, p.GPUsPerNode)
	}
	return most
}

// tooMany holds a job that asks for more GPUs than the node has: the job would come back for ever. A job that cannot
// return to the queue is ended, or would have slots and processors of the node for nothing. A job of scrontab, which
// nobody else could release or end, waits until the user ends the job.
func (n *Node) tooMany(ctx context.Context, l *launch, j sctl.Job, node int, ledger Held, slurm Slurm) error {
	n.Log.Error("job requests more GPUs than the node has", "job", l.JobKey, "gpus", l.request.GPUs, "node_has", node)
	err := sctl.ErrBatchOnly
	if j.Requeue {
		if err := slurm.CheckCron(ctx, j.Component()); errors.Is(err, sctl.ErrCron) {
			return sctl.ErrBatchOnly
		} else if err != nil { // a job of scrontab would be held for ever
			return err
		}
		ctx, cancel := n.part(ctx)
		defer cancel()
		if failed := ledger.DropPerhapsHeld(ctx, l.JobKey); failed != nil { // the agent is not to release it
			n.Log.Warn("record a job that is held while it is requeued", "job", l.JobKey, "error", failed)
		}
		if err = slurm.RequeueHold(ctx, j.Leader()); err == nil {
			n.comment(ctx, j, admincomment.Note(tooManyText(l, node)), slurm)
		}
	}
	if !errors.Is(err, sctl.ErrBatchOnly) {
		return err
	}
	n.tellTooMany(ctx, l, node, slurm)
	ctx, cancel := n.part(ctx)
	defer cancel()
	if err := slurm.Cancel(ctx, j.Leader()); err != nil {
		return fmt.Errorf("end job %s, which asks for more GPUs than the node has: %w", l.JobKey, err)
	}
	return nil
}

func tooManyText(l *launch, node int) string {
	return fmt.Sprintf("the job asks for %d GPUs on node %s, which has %d", l.request.GPUs, l.Node, node)
}

// tellTooMany tells a job that waits here for more GPUs than the node has, or has left.
func (n *Node) tellTooMany(ctx context.Context, l *launch, node int, slurm Slurm) {
	if l.told {
		return
	}
	l.told = true
	ctx, cancel := n.part(ctx)
	defer cancel()
	text := fmt.Sprintf("carma: %s, and cannot start; end it and ask for at most %d", tooManyText(l, node), node)
	if failed := slurm.Notify(ctx, l.JobID, text); failed != nil {
		n.Log.Warn("notify a job that it cannot start", "job", l.JobKey, "error", failed)
	}
}

// setStart lets a job that was returned to the queue start as soon as is safe, and not sooner than
// after delay, where the agent will not.
func (n *Node) setStart(ctx context.Context, h jobenv.Hook, t sctl.Target, delay time.Duration, slurm Changing) {
	ctx, cancel := n.part(ctx)
	defer cancel()
	safe, err := slurm.SafeStart(ctx)
	if err == nil {
		err = n.update(ctx, t, sctl.Change{StartIn: max(safe, delay)}, slurm)
	}
	if err != nil {
		n.Log.Warn("set the start time of a requeued job", "job", h.JobKey, "error", err)
	}
}

// lookAtLedger is how long a ledger may take to tell what a job that returns to the queue would
// be better off for; a return to the queue does not hang on it.
const lookAtLedger = time.Second

// gpus is how many GPUs the node is known to have, and how many of them are not lost; 0: that is
// not known now.
func (n *Node) gpus(ctx context.Context, ledger Readings) (all, works int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookAtLedger)
	defer cancel()
	s, err := ledger.Snapshot(ctx)
	if err != nil {
		return 0, 0
	}
	for _, r := range s.Readings {
		if !lost().MatchString(r.Unreadable) {
			works++
		}
	}
	return len(s.Readings), works
}

// errGone means that the job is not here any more: cancelled, or in the queue again.
var errGone = errors.New("the job has gone")

// waiting asks about the job whose Prolog waits; errGone if that has gone, or is at a
// later attempt, perhaps on another node.
func waiting(ctx context.Context, h jobenv.Hook, slurm Jobs) (sctl.Job, error) {
	j, err := ask(ctx, h, slurm)
	if err == nil && (!j.State.MayBeInProlog() || j.Restarts != int(h.Restart)) {
		err = errGone
	}
	return j, err
}

// overVetoLimit tells whether the job was returned to the queue hooks.vetoes times.
func (n *Node) overVetoLimit(h jobenv.Hook) bool {
	return n.Config.Hooks.Vetoes > 0 && int(h.Restart) >= n.Config.Hooks.Vetoes
}

// escalate is what a job that was returned to the queue too often asks for from now on; the
// zero value if nothing would help.
func (n *Node) escalate(l *launch, list tres.List, uncounted bool) sctl.Change {
	fullMiB := l.about.FullMiB
	switch {
	case !list.Books():
	case l.request.Exclusive && list.Each(l.Carma.GPUs) < fullMiB: // the booking is by a smaller GPU, or to share
		n.Log.Info("returned often; books whole GPUs of this size now", "job", l.JobKey, "mib", fullMiB)
		return n.rebooked(l.Hook, list, fullMiB)
	case uncounted && !l.request.Exclusive, l.Carma.All: // something in no node's Extra is in the way
		if ask := n.awaiting(l.Hook, fullMiB); ask != "" {
			n.Log.Info("returned often; waits for idle GPUs now", "job", l.JobKey)
			return sctl.Change{Extra: ask}
		}
	}
	return sctl.Change{}
}

// keep keeps GPUs of this node for a job without a constraint on nodes' Extra, or that cannot return to the queue, as
// the steward does for jobs with such a constraint; not for a job with a need beyond its booking.
func (n *Node) keep(ctx context.Context, l *launch, ledger Ledger, slurm Jobs) {
	if l.kept = l.kept || !l.Carma.Annotated; l.kept {
		return
	}
	ctx, cancel := n.part(ctx)
	defer cancel()
	list, err := l.books(ctx, slurm)
	if err != nil { // the next round tries again
		n.Log.Warn("hold GPUs for the job", "job", l.JobKey, "error", err)
		return
	}
	if l.exceeds(list) {
		l.kept = true
		n.Log.Warn("hold GPUs for the job", "job", l.JobKey, "error", "it needs more than it has booked")
		return
	}
	h, r := l.Hook, l.request
	s, err := ledger.Snapshot(ctx)
	if err != nil {
		n.Log.Warn("hold GPUs for the job", "job", h.JobKey, "error", err)
		return
	}
	if l.kept = slices.ContainsFunc(s.Holds, func(held lease.Hold) bool { return held.JobID == h.JobID }); l.kept {
		return
	}
	n.closeStale(s.Readings)
	mib := r.ReserveMiB
	if r.Exclusive || n.Thresholds.MaxSlowdown > 0 || r.MaxSlowdown > 0 { // as the agent has it
		mib, r.Exclusive = 0, true
	}
	uuids := choose.Soonest(n.policy(h), s.Readings, s.Leases, r, n.Thresholds)
	if uuids == nil {
		n.Log.Warn("hold GPUs for the job", "job", h.JobKey, "error", "too few GPUs here accept jobs")
		return
	}
	if err := ledger.Hold(ctx, h.JobID, h.UID, r.GPUs, mib, uuids); err != nil {
		n.Log.Warn("hold GPUs for the job", "job", h.JobKey, "error", err)
		return
	}
	l.kept = true
	n.Log.Info("GPUs are held for the job", "job", h.JobKey, "gpus", uuids, "mib", mib)
}

// Return returns a job to the queue on a node that can do nothing for it, as its ledger
// cannot be opened: it could be given no GPU, and would fail. slurmctld lets it
// wait before it starts again, here or on a better node.
func (n *Node) Return(ctx context.Context, h jobenv.Hook, slurm Slurm) error {
	ctx, cancel := n.part(ctx)
	defer cancel()
	j, err := waiting(ctx, h, slurm)
	if err == nil && !j.Requeue {
		err = sctl.ErrBatchOnly
	}
	if err == nil {
		err = slurm.RequeueIncomplete(ctx, j.Leader())
	}
	if errors.Is(err, sctl.ErrNoJob) || errors.Is(err, errGone) {
		return nil // cancelled, or in the queue again
	} else if err != nil {
		return fmt.Errorf("return job %s to the queue: %w", h.JobKey, err)
	}
	n.setStart(ctx, h, j.Component(), backOff(h.Restart), slurm)
	n.Log.Error("returned: this node cannot lease any GPU", "job", h.JobKey)
	n.awaitRevocation(ctx, h, slurm)
	return nil
}

// ReturnSurely is Return for a hook that can do nothing else, as carma.toml cannot be used. It tries
// until slurmctld has answered, or Until has come: then the job's tasks wait for another
// process to go on, and the error is ErrUndecided.
func (n *Node) ReturnSurely(ctx context.Context, h jobenv.Hook, slurm Slurm) error {
	defer n.Heartbeat(h)()
	for {
		err := n.Return(ctx, h, slurm)
		if errors.Is(err, sctl.ErrBatchOnly) || errors.Is(err, fs.ErrNotExist) { // Slurm is elsewhere
			n.forgetUndecided(h) // its tasks start: nobody goes on for it
			return err
		} else if err == nil {
			return nil
		}
		n.Log.Warn("not returned; retrying", "job", h.JobKey, "error", err)
		switch {
		case n.Until.IsZero() && !n.undecided(h):
			n.Log.Info("the job no longer waits", "job", h.JobKey)
			return nil
		case !n.Until.IsZero() && time.Until(n.Until) < n.Config.Hooks.Deadline.D():
			if failed := n.Undecided(h); failed != nil {
				return errors.Join(err, failed)
			}
			return ErrUndecided
		}
		time.Sleep(settlePause)
	}
}

// returnForgotten returns a job that requests GPUs and was allocated none: a slurmctld that has
// just started counts the GPUs of a node before the node has told it which they are, and allocates
// some without their numbers (22.05.8; gres.c). The job would see no GPU, and fail. One
// that cannot return, or was returned often, as an operator has taken its GPUs from it, runs so.
// The agent looks after its start: a slurmctld that has just taken over may not start it by itself.
func (n *Node) returnForgotten(ctx context.Context, h jobenv.Hook, ledger Returned, slurm Slurm) bool {
	n.Log.Error("slurmctld allocated no GPU to a job that requests some", "job", h.JobKey)
	if h.Restart >= mostForgotten || n.overVetoLimit(h) {
		return false
	}
	for {
		err := n.Return(ctx, h, slurm)
		switch {
		case err == nil && ledger == nil: // it could not be opened
			return true
		case err == nil:
			if err := ledger.AddPendingRestart(ctx, h.JobID, backOff(h.Restart)); err != nil {
				n.Log.Warn("the agent cannot set its start time", "job", h.JobKey, "error", err)
			}
			return true
		case errors.Is(err, sctl.ErrBatchOnly) || time.Until(n.Until) < n.Config.Hooks.Wait.D():
			n.Log.Error("not returned: the job runs without a GPU", "job", h.JobKey, "error", err)
			return false
		}
		n.Log.Warn("not returned; retrying", "job", h.JobKey, "error", err)
		time.Sleep(settlePause)
	}
}

// mostForgotten is after how many restarts a job without GPUs runs so, whatever hooks.vetoes says.
const mostForgotten = 5

// awaitRevocation stays until slurmd must have seen that the job was taken back.
func (n *Node) awaitRevocation(ctx context.Context, h jobenv.Hook, slurm Jobs) {
	for range 10 {
		j, err := slurm.Job(ctx, h.JobID)
		if err != nil || !j.State.MayBeInProlog() || ctx.Err() != nil {
			return
		}
		time.Sleep(retryEvery)
	}
}
