// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"slices"
	"time"

	"carma/gres"
	"carma/gres/choose"
	"carma/gres/steward"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// preemption is a Prolog's work for a job that has started here whatever the node's GPUs can
// give, and may preempt others (docs/adr/0014): slurmctld cannot see the memory of its GPUs
// come with the other jobs' end, so slurmctld preempts for processors and slots, and not for
// memory.
type preemption struct {
	asked  time.Time
	sent   bool // the steward has sent the job here to preempt
	rules  schedule.Preemption
	self   schedule.Preemptible
	looked time.Time
	warned map[jobenv.JobKey]time.Time
	ended  map[jobenv.JobKey]bool
	uuids  []string // the GPUs that are to come free
}

const (
	preemptEvery = time.Second
	rightsFor    = time.Minute // after which the rights are asked for again
	// evictionTakes is the time of a job's end beyond KillWait: its Epilog, and for
	// memory to be seen as free.
	evictionTakes = 15 * time.Second
	// preemptionTakes bounds the whole preemption where nothing else does.
	preemptionTakes = 10 * time.Minute
)

// preempt ends jobs on the node that this job may preempt, if the job fits then, and
// returns until when the ended jobs may take to go; zero without any. A job with time to
// go on beyond latest is left alone: the Prolog has gone by then.
func (l *launch) preempt(ctx context.Context, latest time.Time) (until time.Time) {
	p := &l.preemption
	if p.looked.IsZero() {
		p.looked = time.Now() // most waits last a moment
	}
	if time.Since(p.looked) < preemptEvery {
		return time.Time{}
	}
	p.looked = time.Now()
	ctx, cancel := l.node.part(ctx)
	defer cancel()
	if time.Since(p.asked) >= rightsFor {
		p.asked, p.rules = time.Now(), schedule.Preemption{}
		if err := l.mayPreempt(ctx); err != nil {
			l.node.Log.Warn("query which jobs a job may preempt", "job", l.JobKey, "error", err)
		}
	}
	if !p.rules.Preempts(p.self) {
		return time.Time{}
	}
	s, err := l.ledger.Snapshot(ctx)
	if err != nil {
		l.node.Log.Warn("look for jobs to preempt", "job", l.JobKey, "error", err)
		return time.Time{}
	}
	closeStale(s.Readings, l.node.Config) // or jobs would be ended for GPUs not leased to this job
	found := map[jobenv.JobKey]victim{}
	leaving := func(g *gres.Lease) choose.Leaving {
		v, known := found[g.Job]
		if !known {
			v = l.victim(ctx, g)
			_, told := p.warned[g.Job]
			if v.leaving == choose.Yields && !told && v.Grace > 0 && time.Until(latest) < v.Grace+2*preemptEvery {
				l.node.Log.Info("is not preempted: its GraceTime is longer than this Prolog may take; raise hooks.wait_interactive",
					"job", g.Job, "by", l.JobKey, "grace", v.Grace)
				v.leaving = choose.Stays
			}
			found[g.Job] = v
		}
		return v.leaving
	}
	in := choose.Input{Leases: s.Leases, Request: l.request, Thresholds: l.node.Thresholds}
	for _, r := range s.Readings { // once chosen they stay: the jobs of others are none of ours
		if len(p.uuids) == 0 || slices.Contains(p.uuids, r.UUID) {
			in.Readings = append(in.Readings, r)
		}
	}
	uuids, jobs := choose.Evict(l.node.policy(l.Hook), in, leaving)
	if len(jobs) == 0 {
		return time.Time{}
	}
	// Nobody is ended for a job that has gone, as its user may cancel it at any time.
	if _, err := waiting(ctx, l.Hook, l.slurm); err != nil {
		l.node.Log.Warn("query which jobs a job may preempt", "job", l.JobKey, "error", err)
		return time.Time{}
	}
	if len(p.uuids) == 0 {
		// The GPUs left would go to others.
		if err := keepForPreemptor(ctx, l, uuids, l.ledger); err != nil {
			l.node.Log.Warn("hold GPUs for a job that preempts", "job", l.JobKey, "error", err)
			return time.Time{}
		}
		p.uuids = uuids
	}
	var grace time.Duration
	for _, job := range jobs {
		v := found[job]
		grace = max(grace, v.Grace)
		l.evict(ctx, job, v)
	}
	return time.Now().Add(grace + p.rules.KillWait + evictionTakes)
}

// mayPreempt asks slurmctld about the job and its rights. A job started by slurmctld by the nodes' word on
// their GPUs has come for free GPUs, unless the steward has sent the job here to preempt others.
func (l *launch) mayPreempt(ctx context.Context) error {
	if !l.Carma.Annotated {
		return nil
	}
	list, err := l.books(ctx, l.slurm)
	if err != nil || l.exceeds(list) {
		return err
	}
	rules, err := l.slurm.Preemption(ctx)
	if err != nil {
		return err
	}
	j, err := ask(ctx, l.Hook, l.slurm)
	if err != nil || l.node.Config.RecoveryOf(j.Partition) || j.HetJobID != 0 {
		return err // a recovery partition's tier is for the order in the queue
	}
	p, self := &l.preemption, preemptible(j)
	if !rules.Preempts(self) {
		return nil
	}
	if l.Carma.Counted && !p.sent { // the steward need not say so for ever
		text, err := l.slurm.Node(ctx, l.node.Name)
		if err != nil {
			return err
		}
		h, ok := steward.HoldIn(text)
		if p.sent = ok && h.JobID == l.JobID && h.Preempts != ""; !p.sent {
			return nil
		}
	}
	p.rules, p.self = rules, self
	if p.ended == nil {
		p.warned, p.ended = map[jobenv.JobKey]time.Time{}, map[jobenv.JobKey]bool{}
	}
	return nil
}

func preemptible(j sctl.Job) schedule.Preemptible {
	return schedule.Preemptible{Partition: j.Partition, QOS: j.QOS, Start: j.Start, Reservation: j.Reservation}
}

// victim is a job that holds GPUs of the node.
type victim struct {
	schedule.Eviction
	job     sctl.Job
	leaving choose.Leaving
}

func (l *launch) victim(ctx context.Context, g *gres.Lease) (v victim) {
	p := &l.preemption
	j, err := l.slurm.Job(ctx, g.Job.JobID)
	if err != nil || j.ID != g.Job.JobID || j.UID != g.UID || j.Restarts != int(g.Job.Restart) {
		if p.ended[g.Job] { // the job goes, or is not the ledger's
			v.leaving = choose.Leaves
		}
		return v
	}
	now, yields := time.Now(), false
	v.job = j
	v.Eviction, yields = p.rules.May(p.self, preemptible(j), now)
	switch {
	case j.State == jobstate.Completing && !p.rules.Hangs(j.End, now), p.ended[g.Job]:
		v.leaving = choose.Leaves
	case j.HetJobID != 0, j.Federated(): // all components or none; by the cluster that took it
	case yields && j.State == jobstate.Running:
		v.leaving = choose.Yields
	}
	return v
}

// keepForPreemptor keeps the GPUs for the job: the preempted jobs are requeued.
func keepForPreemptor(ctx context.Context, l *launch, uuids []string, ledger Returned) error {
	mib := l.request.ReserveMiB
	if l.request.Exclusive {
		mib = 0
	}
	return ledger.Hold(ctx, l.JobID, l.UID, l.request.GPUs, mib, uuids)
}

// evict ends a job, once: by requeue, or for good, after its time to end. The agent lets a requeued job start
// once safe: slurmctld's start time is a few seconds too early for slurmd 22.05, which then may start the job
// without its Prolog.
func (l *launch) evict(ctx context.Context, job jobenv.JobKey, v victim) {
	p := &l.preemption
	if p.ended[job] || v.job.State != jobstate.Running {
		return
	}
	warned, told := p.warned[job]
	if v.Grace > 0 && !told {
		p.warned[job] = time.Now()
		l.node.Log.Info("is to be preempted", "job", job, "by", l.JobKey, "in", v.Grace)
		if err := l.slurm.Warn(ctx, v.job.Target()); err != nil {
			l.node.Log.Warn("warn a job that is to be preempted", "job", job, "error", err)
		}
		return
	}
	if v.Grace > 0 && time.Since(warned) < v.Grace {
		return
	}
	how, err := "requeue", sctl.ErrBatchOnly
	if !v.Cancel && v.job.Requeue {
		// incomplete: a job ended meanwhile, or back in the queue, stays so.
		err = l.slurm.RequeueIncomplete(ctx, v.job.Leader())
	}
	if errors.Is(err, sctl.ErrBatchOnly) { // Slurm's way with a job that cannot be requeued
		how = "cancel"
		now, askErr := l.slurm.Job(ctx, job.JobID)
		if err = askErr; err == nil && now.State == jobstate.Running && now.UID == v.job.UID &&
			now.Restarts == v.job.Restarts {
			err = l.slurm.Cancel(ctx, v.job.Leader())
		}
	}
	if err != nil { // the next look tries again
		l.node.Log.Warn("preempt a job", "job", job, "by", l.JobKey, "how", how, "error", err)
		return
	}
	p.ended[job] = true
	if how == "requeue" {
		if err := l.ledger.AddPendingRestart(ctx, job.JobID, 0); err != nil {
			l.node.Log.Warn("the agent cannot set its start time", "job", job, "error", err)
		}
	}
	l.node.Log.Info("preempted", "job", job, "by", l.JobKey, "how", how)
}
