// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"fmt"
	"strings"
	"time"

	"carma/db"
	"carma/gres/lease"
	"carma/gres/output"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
)

// Epilog judges how the job ended, requeues a job that ran out of memory of a
// shared GPU, writes its record and gives its GPUs back. Whatever fails, the
// GPUs are released; publish then tells slurmctld, before the job leaves
// COMPLETING.
func (n *Node) Epilog(ctx context.Context, h jobenv.Hook, ledger EpilogLedger, records Records, slurm Slurm,
	publish func(context.Context) error) error {
	ctx, cancel := n.part(ctx) // whatever time slurmctld took to tell how the job ended (ExitOf)
	defer cancel()
	held, ok, err := ledger.Find(ctx, h.JobKey)
	if err != nil {
		return err
	}
	if !ok {
		n.forgetUndecided(h) // a waiting task is ended by now
		return nil           // no GPUs, or returned to the queue by the Prolog, or the second run of an Epilog
	}
	ep := &epilog{n, h, held, n.metaOf(held), ledger, records, slurm}
	return ep.run(ctx, publish)
}

// epilog is the end of an attempt on the node, with whom its Epilog asks and tells.
type epilog struct {
	node    *Node
	hook    jobenv.Hook
	held    lease.Held
	about   jobMeta
	ledger  EpilogLedger
	records Records
	slurm   Slurm
}

func (ep *epilog) run(ctx context.Context, publish func(context.Context) error) error {
	lease.FailPoint("epilog.start")
	var v verdict
	if ep.held.Restart == ep.hook.Restart {
		ep.held.Fault, ep.held.Victim = ep.faultOf(ctx)
		v = ep.judge(ctx)
	} else {
		// Requeued already, by an operator or for a preemption: slurmctld counts the
		// restart before it starts the Epilog of the ending attempt
		// (src/slurmctld/job_mgr.c, 22.05.8).
		ep.hook.JobKey, v.putBack = ep.held.JobKey, true
	}
	n, h := ep.node, ep.hook
	// Whatever time the judgement took, even if it hung.
	ctx, cancel := n.part(ctx)
	defer cancel()
	if err := ep.records.Put(ctx, attempt(h, ep.held, ep.about, v, n.Config.Idle.After.D())); err != nil {
		n.Log.Error("write record", "job", h.JobKey, "error", err)
	}
	lease.FailPoint("epilog.recorded")
	ep.countFailure(ctx, v)
	// Whatever time the disk and slurmctld took.
	ctx, cancelRelease := n.part(ctx)
	defer cancelRelease()
	if v.requeuedTo != "" || v.slotOver {
		ep.scheduleRestart(ctx, v.kept)
	}
	// First: an attempt started by slurmd without its Prolog would read the file.
	if err := ForgetTask(n.RunDir, h.JobID); err != nil {
		n.Log.Warn("remove leases for TaskProlog", "job", h.JobKey, "error", err)
	}
	if err := ep.ledger.Release(ctx, h.JobKey); err != nil {
		return err
	}
	lease.FailPoint("epilog.released")
	if err := output.Drop(n.RunDir, h.JobKey); err != nil {
		n.Log.Warn("clean up", "job", h.JobKey, "error", err)
	}
	n.Log.Info("released", "job", h.JobKey, "exit_code", h.Exit.Code, "exit_signal", h.Exit.Signal)
	if err := publish(ctx); err != nil {
		n.Log.Warn("publish capacity; the agent will retry", "error", err)
	}
	n.Poke()
	return nil
}

// logWithin is how long the log of the MPS servers, on a disk, may take.
const logWithin = 2 * time.Second

// faultOf tells the fault behind a job's failure, and whether the job is a victim of others. An MPS server's fault
// ends its clients within milliseconds, so that the agent may not have read the server's log yet.
func (ep *epilog) faultOf(ctx context.Context) (string, bool) {
	known := !ep.hook.Exit.Failed() || ep.held.Fault != ""
	if ep.node.ServerFault == nil || known || len(ep.held.GPUs) == 0 || ep.held.GPUs[0].Daemon == "" {
		return ep.held.Fault, ep.held.Victim
	}
	ctx, cancel := context.WithTimeout(ctx, logWithin)
	defer cancel()
	d := ep.held.GPUs[0].Daemon
	_, _, err := ep.ledger.Follow(ctx, d, func(from int64) (bool, int64, error) {
		type answer struct {
			fault bool
			to    int64
			err   error
		}
		done := make(chan answer, 1)
		go func() {
			var a answer
			a.fault, a.to, a.err = ep.node.ServerFault(d, from)
			done <- a
		}()
		select {
		case a := <-done:
			return a.fault, a.to, a.err
		case <-ctx.Done():
			return false, from, ctx.Err()
		}
	})
	if err == nil {
		var again lease.Held
		if again, _, err = ep.ledger.Find(ctx, ep.hook.JobKey); err == nil {
			return again.Fault, again.Victim
		}
	}
	ep.node.Log.Warn("find a fault of the job's MPS server", "job", ep.hook.JobKey, "error", err)
	return ep.held.Fault, ep.held.Victim
}

// soon is the longest run of a job that fails soon.
const soon = time.Minute

// countFailure tells the ledger what the end of a job says of its GPUs: they may be
// broken, or they work. Most ends say neither.
func (ep *epilog) countFailure(ctx context.Context, v verdict) {
	failed := v.gpuFault && v.because == "" && ep.held.Fault == "" && ep.held.Age < soon
	var uuids []string
	for _, g := range ep.held.GPUs {
		if failed || g.Seen && (!ep.hook.Exit.Failed() || ep.held.Age >= soon) {
			uuids = append(uuids, g.UUID)
		}
	}
	if uuids == nil {
		return
	}
	closed, unsure, err := ep.ledger.JobEnded(ctx, ep.hook.JobID, ep.hook.UID, uuids, failed)
	if err != nil {
		ep.node.Log.Error("count a job that failed on its GPUs", "job", ep.hook.JobKey, "error", err)
	}
	for _, uuid := range append(closed, ep.closeForNobody(ctx, unsure)...) {
		ep.node.Log.Error("jobs fail on a GPU; quarantined", "job", ep.hook.JobKey, "gpu", uuid, "for", lease.FailingFor)
	}
}

// closeForNobody closes GPUs on which jobs fail of users whose word has no more weight, if no other user waits: two
// users who lie together would keep GPUs from the others. Without an answer the GPUs stay open.
func (ep *epilog) closeForNobody(ctx context.Context, uuids []string) (closed []string) {
	if len(uuids) == 0 {
		return nil
	}
	ctx, cancel := ep.node.part(ctx)
	defer cancel()
	queue, err := queued(ctx, ep.node, ep.slurm)
	if err == nil {
		var users []uint32
		for _, j := range queue {
			waits := j.Reason == jobstate.InProlog || j.State == jobstate.Pending && !j.Reason.IsOfItsUser()
			if waits && j.GPUs > 0 {
				users = append(users, j.UID)
			}
		}
		closed, err = ep.ledger.CloseFailing(ctx, uuids, users)
	}
	if err != nil {
		ep.node.Log.Warn("find out who waits for a GPU on which jobs fail", "job", ep.hook.JobKey, "gpus", uuids,
			"error", err)
	}
	return closed
}

// clockJump is longer than any Prolog takes (hooks.wait is five minutes at most,
// hooks.deadline one).
const clockJump = 7 * time.Minute

func attempt(h jobenv.Hook, held lease.Held, about jobMeta, v verdict, idleAfter time.Duration) db.Attempt {
	a := about.Attempt
	a.ArrayJobID, a.ArrayTask, a.End = v.job.ArrayJobID, v.job.Task(), time.Now()
	a.State, a.ExitCode, a.ExitSignal = state(h.Exit, v), h.Exit.Code, h.Exit.Signal
	a.Neighbours, a.OOM, a.OOMNote, a.RequeuedTo = held.Neighbours, v.signature, v.note, v.requeuedTo
	if h.Carma.Key != 0 {
		a.Key = h.Carma.Key.String()
	}
	// The lease knows how long, by a clock that nobody sets; the Prolog may have waited.
	if before := a.End.Sub(a.Start) - held.Age; before < 0 || before > clockJump {
		a.Start = a.End.Add(-held.Age)
	}
	if h.Exit.Failed() && v.signature == "" && !strings.HasPrefix(v.note, held.Fault) {
		a.OOMNote = held.Fault // rather than the job's own message
	}
	if a.OOMNote == "" {
		a.OOMNote = held.Cancelled
	}
	for _, g := range held.GPUs {
		a.ReserveMiB = max(a.ReserveMiB, g.ReserveMiB)
		if a.OOMNote == "" && g.Idle >= idleAfter {
			a.OOMNote = fmt.Sprintf("one of its GPUs was not used for %s", g.Idle.Round(time.Second))
		}
		if a.OOMNote == "" && g.Slowed > 0 {
			a.OOMNote = fmt.Sprintf("it was slowed %.2f times, beyond its bound, for a long time", g.Slowed)
		}
		a.GPUs = append(a.GPUs, db.AttemptGPU{UUID: g.UUID, Model: g.Model, Figures: g.Figures})
	}
	return a
}

// state names the end in sacct's words as far as an exit status tells.
func state(e jobenv.Exit, v verdict) string {
	switch {
	case v.requeuedTo != "", v.slotOver, v.putBack:
		return jobstate.Requeued
	case v.signature != "":
		return jobstate.OutOfMemory
	case e.Cancelled():
		return jobstate.Cancelled // or over its time limit: both end so
	case e.Failed():
		return jobstate.Failed
	}
	return jobstate.Completed
}
