// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/tres"
)

// backOff is how long a job waits after the n-th return to the queue, counted from 0.
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
func (l *launch) giveBack(ctx context.Context, uncounted bool) (err error) {
	h, r := l.Hook, l.request
	node, works, lives := l.node.gpus(ctx, l.ledger)
	defer func() {
		if errors.Is(err, sctl.ErrBatchOnly) && node > 0 && r.GPUs > works {
			l.tellTooMany(ctx, works)
		}
	}()
	ctx, cancel := l.node.part(ctx) // whatever time the ledger took
	defer cancel()
	j, err := waiting(ctx, h, l.slurm)
	if errors.Is(err, errGone) && l.asked { // the agent looks whether the job is in the queue
		if err := l.ledger.AddPendingRestart(ctx, h.JobID, backOff(h.Restart)); err != nil {
			l.node.Log.Warn("the agent cannot set its start time", "job", h.JobKey, "error", err)
		}
	}
	if err != nil {
		return fmt.Errorf("return job %s to the queue: %w", h.JobKey, err)
	}
	l.fit(ctx, j, node)
	r = l.request
	if most := mostGPUs(l.node.Config, h.Partition); node > 0 && most > 0 && r.GPUs > max(node, most) {
		return l.tooMany(ctx, j, node)
	}
	if !j.Requeue { // --no-requeue, JobRequeue=0: the job waits here, like a job of srun
		return sctl.ErrBatchOnly
	}
	var change sctl.Change
	if l.node.overVetoLimit(int(h.Restart)) && h.Carma.Annotated {
		list, err := l.books(ctx, l.slurm)
		if err != nil {
			return fmt.Errorf("return job %s to the queue: %w", h.JobKey, err)
		}
		if !h.Carma.Counted || h.Carma.All && !h.OneNode {
			l.keep(ctx)
		}
		change = l.escalate(list, uncounted)
	}
	requeuing, cancelRequeue := l.node.part(ctx)
	defer cancelRequeue()
	// Not held: while this Prolog runs, slurmctld does not start the job again.
	if err := l.slurm.RequeueIncomplete(requeuing, j.Leader()); err != nil {
		l.asked = l.asked || sctl.Unanswered(err)
		return fmt.Errorf("return job %s to the queue: %w", h.JobKey, err)
	}
	if _, err := l.queue().change(ctx, j, h.Partition, change); err != nil {
		l.node.Log.Warn("change a job that was returned to the queue; it books what it booked", "job", h.JobKey, "error", err)
	}
	delay := backOff(h.Restart)
	l.node.Log.Info("returned to the queue", "job", h.JobKey, "waits", delay)
	ctx, cancelRest := l.node.part(ctx)
	defer cancelRest()
	l.node.awaitRevocation(ctx, h, l.slurm)
	ctx, cancelNote := l.node.part(ctx) // whatever time slurmctld took
	defer cancelNote()
	if err = l.ledger.AddPendingRestart(ctx, h.JobID, delay); err != nil {
		l.node.Log.Warn("the agent cannot set its start time", "job", h.JobKey, "error", err)
	}
	if err != nil || !lives {
		l.queue().setStart(ctx, h, j.Component(), delay)
	}
	return nil
}

// mostGPUs is how many GPUs a node has where a job of the partition runs, as carma.toml says; of a partition
// without an entry there, as many as in any entry. 0: carma.toml has no entry.
func mostGPUs(c config.Config, partition string) (most int) {
	if p, ok := c.Partition[partition]; ok {
		return p.GPUsPerNode
	}
	for _, p := range c.Partition {
		most = max(most, p.GPUsPerNode)
	}
	return most
}

// tooMany holds a job that asks for more GPUs than the node has: the job would come back for ever. A job that cannot
// return to the queue is ended, or would have slots and processors of the node for nothing. A job of scrontab, which
// nobody else could release or end, waits until the user ends the job.
func (l *launch) tooMany(ctx context.Context, j sctl.Job, node int) error {
	l.node.Log.Error("job requests more GPUs than the node has", "job", l.JobKey, "gpus", l.request.GPUs, "node_has", node)
	err := sctl.ErrBatchOnly
	if j.Requeue {
		if err := l.slurm.CheckCron(ctx, j.Component()); errors.Is(err, sctl.ErrCron) {
			return sctl.ErrBatchOnly
		} else if err != nil { // a job of scrontab would be held for ever
			return err
		}
		ctx, cancel := l.node.part(ctx)
		defer cancel()
		if failed := l.ledger.DropPerhapsHeld(ctx, l.JobKey); failed != nil { // the agent is not to release the job
			l.node.Log.Warn("record a job that is held while it is requeued", "job", l.JobKey, "error", failed)
		}
		if err = l.slurm.RequeueHold(ctx, j.Leader()); err == nil {
			l.queue().comment(ctx, j, admincomment.Note(tooManyText(l, node)))
		}
	}
	if !errors.Is(err, sctl.ErrBatchOnly) {
		return err
	}
	l.tellTooMany(ctx, node)
	ctx, cancel := l.node.part(ctx)
	defer cancel()
	if err := l.slurm.Cancel(ctx, j.Leader()); err != nil {
		return fmt.Errorf("end job %s, which asks for more GPUs than the node has: %w", l.JobKey, err)
	}
	return nil
}

func tooManyText(l *launch, node int) string {
	return fmt.Sprintf("the job asks for %d GPUs on node %s, which has %d", l.request.GPUs, l.Node, node)
}

// tellTooMany tells a job that waits here for more GPUs than the node has, or has left.
func (l *launch) tellTooMany(ctx context.Context, node int) {
	l.tell(ctx, fmt.Sprintf("carma: %s, and cannot start; end it and ask for at most %d", tooManyText(l, node), node))
}

// tell writes to the terminal of a waiting job, once.
func (l *launch) tell(ctx context.Context, text string) {
	if l.told {
		return
	}
	l.told = true
	notify(ctx, l.node, l.Hook, l.slurm, text)
}

// notify writes to the terminal of a job that waits on the node.
func notify(ctx context.Context, n *Node, h jobenv.Hook, slurm Changing, text string) {
	ctx, cancel := n.part(ctx)
	defer cancel()
	if err := slurm.Notify(ctx, h.JobID, text); err != nil {
		n.Log.Warn("notify a job that waits here", "job", h.JobKey, "error", err)
	}
}

// waitsForNode is the text for the user of a job that waits for a node which cannot do something now.
func waitsForNode(h jobenv.Hook, what string) string {
	return fmt.Sprintf("carma: the job waits on node %s, which cannot %s now; if that lasts, tell an administrator",
		h.Node, what)
}

// lookAtLedger is how long a ledger may take to tell what would help a job that returns to
// the queue; a return to the queue does not hang on it.
const lookAtLedger = time.Second

// gpus is how many GPUs the node is known to have, and how many of them are not lost; 0: not
// known now. lives tells whether an agent looks at them.
func (n *Node) gpus(ctx context.Context, ledger Readings) (all, works int, lives bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookAtLedger)
	defer cancel()
	s, err := ledger.Snapshot(ctx)
	if err != nil {
		return 0, 0, false
	}
	for _, r := range s.Readings {
		if !lost().MatchString(r.Unreadable) {
			works++
		}
	}
	return len(s.Readings), works, s.AgentAge <= choose.ReadAgainAfter(n.Config)
}

// errGone means that the job is no longer here: cancelled, or in the queue again.
var errGone = errors.New("the job has gone")

// waiting asks about the job whose Prolog waits; errGone if the job has gone, or is
// at a later attempt, perhaps on another node.
func waiting(ctx context.Context, h jobenv.Hook, slurm Jobs) (sctl.Job, error) {
	j, err := ask(ctx, h, slurm)
	if err == nil && (!j.State.MayBeInProlog() || j.Restarts != int(h.Restart)) {
		err = errGone
	}
	return j, err
}

// overVetoLimit tells whether the job was returned to the queue hooks.vetoes times.
func (n *Node) overVetoLimit(restarts int) bool {
	return n.Config.Hooks.Vetoes > 0 && restarts >= n.Config.Hooks.Vetoes
}

// escalate is the new request of a job that was returned to the queue too often; the zero
// value if nothing would help.
func (l *launch) escalate(list tres.List, uncounted bool) sctl.Change {
	fullMiB := l.about.FullMiB
	switch {
	case !list.Books():
	case l.request.Exclusive && list.Each(l.Carma.GPUs) < fullMiB: // the booking is by a smaller GPU, or to share
		l.node.Log.Info("returned often; books whole GPUs of this size now", "job", l.JobKey, "mib", fullMiB)
		return rebooked(l.Hook, list, fullMiB, l.node.Tags)
	case uncounted && !l.request.Exclusive, l.Carma.All: // something in no node's Extra is in the way
		if ask := awaiting(l.Hook, fullMiB, l.node.Tags); ask != "" {
			l.node.Log.Info("returned often; waits for idle GPUs now", "job", l.JobKey)
			return sctl.Change{Extra: ask}
		}
	}
	return sctl.Change{}
}

// returnJob returns a job to the queue on a node unable to help, as its ledger cannot be
// opened: the job would get no GPU, and fail. slurmctld lets the job wait before the
// next start, here or on a better node.
func (n *Node) returnJob(ctx context.Context, h jobenv.Hook, slurm Slurm) error {
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
	n.queue(slurm).setStart(ctx, h, j.Component(), backOff(h.Restart))
	n.Log.Error("returned: this node cannot lease any GPU", "job", h.JobKey)
	n.awaitRevocation(ctx, h, slurm)
	return nil
}

// ReturnSurely is Return for a hook that can do nothing else, as carma.toml cannot be used. The
// attempts go on until slurmctld has answered, or Until has come: then the job's tasks wait for
// another process to go on, and the error is ErrUndecided.
func (n *Node) ReturnSurely(ctx context.Context, h jobenv.Hook, slurm Slurm) error {
	defer n.heartbeat(h)()
	for {
		err := n.returnJob(ctx, h, slurm)
		if errors.Is(err, sctl.ErrBatchOnly) || errors.Is(err, fs.ErrNotExist) { // Slurm is elsewhere
			n.forgetUndecided(h) // its tasks start: no process goes on for the job
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
			if failed := n.markUndecided(h, false); failed != nil {
				return errors.Join(err, failed)
			}
			return ErrUndecided
		}
		time.Sleep(settlePause)
	}
}

// returnForgotten returns a job that requests GPUs and was allocated none: a freshly started
// slurmctld counts the GPUs of a node before the node has told which GPUs these are, and allocates
// some without their numbers (22.05.8; gres.c). The job would see no GPU, and fail. A job that
// cannot return, or was returned often, as an operator has taken its GPUs away, runs without GPUs.
// The agent looks after the start of a returned job: a slurmctld that has just taken over may not
// start the job by itself.
func (n *Node) returnForgotten(ctx context.Context, h jobenv.Hook, ledger Returned, slurm Slurm) bool {
	n.Log.Error("slurmctld allocated no GPU to a job that requests some", "job", h.JobKey)
	if h.Restart >= mostForgotten || n.overVetoLimit(int(h.Restart)) {
		return false
	}
	for {
		err := n.returnJob(ctx, h, slurm)
		switch {
		case err == nil && ledger == nil: // the ledger could not be opened
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

// awaitRevocation stays until slurmd must have seen the job taken back.
func (n *Node) awaitRevocation(ctx context.Context, h jobenv.Hook, slurm Jobs) {
	for range 10 {
		j, err := slurm.Job(ctx, h.JobID)
		if err != nil || !j.State.MayBeInProlog() || ctx.Err() != nil {
			return
		}
		time.Sleep(retryEvery)
	}
}
