// SPDX-License-Identifier: Apache-2.0

// Package agent is the node's daemon: it samples the GPUs, keeps the window of
// SM activity, measures what each job does, keeps the MPS daemons up and
// publishes capacity. Nothing depends on it at the moment of a choice: without
// it the Prolog samples by itself.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"carma/db"
	"carma/gres"
	"carma/gres/capacity"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/output"
	"carma/gres/resident"
	"carma/gres/steward"
	"carma/gres/window"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
)

// Ledger is what the agent needs of the node's ledger.
type Ledger interface {
	Snapshot(ctx context.Context) (lease.Snapshot, error)
	Measure(ctx context.Context, readings []gres.Reading, usages []lease.Usage) error
	Release(ctx context.Context, key gres.JobKey) error
	DropComeback(ctx context.Context, job uint32) error
	Ended(ctx context.Context, n int) ([]lease.Ended, error)
	EndedSince(ctx context.Context, at time.Duration) ([]lease.Ended, error)
	DropEnded(ctx context.Context, key gres.JobKey) error
	Guard
	FiguresOf(ctx context.Context, key gres.JobKey) (map[string]gres.Figures, error)
	Cancelled(ctx context.Context, key gres.JobKey, why string) error
}

// Publisher tells slurmctld what the node can take.
type Publisher interface {
	// PublishIf publishes if s, which may be a moment old, says that there is
	// something to publish.
	PublishIf(ctx context.Context, s lease.Snapshot) error
	Compare(ctx context.Context) (comment string, err error)
}

// Jobs asks slurmctld about single jobs.
type Jobs interface {
	Job(ctx context.Context, id uint32) (sctl.Job, error)
	Words(ctx context.Context, id uint32) (sctl.Words, error)
	Eligibility(ctx context.Context, id uint32) (sctl.Eligibility, error)
	SetStart(ctx context.Context, t sctl.Target, at time.Time) error
	SafeStart(ctx context.Context) (time.Duration, error)
}

// Records is where accounting goes.
type Records interface {
	SetEnd(ctx context.Context, e db.End) error
	Meters(ctx context.Context) ([]db.Meter, error)
	AddSamples(ctx context.Context, samples []db.Sample, meters []db.Meter) error
	Tidy(ctx context.Context) error
}

// Agent is the daemon of one node.
type Agent struct {
	Node   string
	Config config.Config
	// Thresholds are what a GPU must hold to take a job.
	Thresholds choose.Thresholds
	RunDir     string
	Log        *slog.Logger
	Sample     func() []gres.Sample
	Owners     Owners
	Ledger     Ledger
	Publisher  Publisher
	MPS        MPS // nil: not used
	Jobs       Jobs
	Users      Users
	Records    Records
	Outputs    *output.Watch              // nil: only the batch script's stderr is known
	Cluster    Cluster                    // nil: no steward
	Export     func(lease.Snapshot) error // for other tools; nil: nothing
	Alive      func()                     // after each look at everything; nil: nobody asks

	// What observe alone uses.
	known       map[int]output.Process // on shared GPUs, by pid
	sets        map[gres.Daemon]bool   // MPS daemons of several GPUs, since they were last checked
	gpus        map[string]*gpuState
	accounts    accounts
	looked      time.Duration
	checked     time.Duration // MPS daemons
	exportFails bool

	// What talk alone uses.
	acted       map[gres.JobKey]acted // jobs that use none of their GPUs
	waits       steward.Waits
	compared    time.Duration
	reaped      time.Duration
	askedEnd    time.Duration            // how jobs ended, in vain; 0: slurmctld answered
	askAt       map[uint32]time.Duration // when slurmctld is asked again about jobs that GPUs are ready for
	silentUntil time.Duration            // it did not answer
	rank        int                      // of this node among those that may have the steward
	ranked      time.Duration
	preemptors  preemptors
}

type gpuState struct {
	smact, smocc, dram *window.Window
}

// sampleDeadline is how long the driver may take to answer. A wedged driver
// blocks the calling thread for good; the others go on.
const sampleDeadline = 5 * time.Second

// apart is the least time between two looks: activity over less says nothing,
// and hooks may come in swarms.
const apart = 150 * time.Millisecond

// Run works until ctx ends. It looks at the GPUs in one loop and talks to
// slurmctld in another: a slurmctld that is slow, or away, must not make the
// readings old.
func (a *Agent) Run(ctx context.Context) error {
	a.gpus, a.sets = map[string]*gpuState{}, map[gres.Daemon]bool{}
	poke, err := listen(a.RunDir)
	if err != nil {
		return err
	}
	interval := a.Config.NVML.Interval.D()
	seen := make(chan struct{}, 1)
	var talks sync.WaitGroup
	talks.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for ctx.Err() == nil {
			a.talk(ctx)
			select {
			case <-ctx.Done():
			case <-seen:
			case <-tick.C:
			}
		}
	})
	if a.MPS != nil {
		go a.boundLogs(ctx)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		a.observe(ctx)
		select {
		case seen <- struct{}{}:
		default: // it has not come to the last one yet
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-poke:
			// What a job leaves is seen, and offered, at once.
			if wait := apart - (lease.Now() - a.looked); wait > 0 {
				time.Sleep(wait)
			}
		}
	}
	talks.Wait()
	a.accounts.close(a)
	a.stopMPS()
	return nil
}

// observe reads the GPUs and puts what it sees into the ledger. Errors are logged
// and the next time tries again.
func (a *Agent) observe(ctx context.Context) {
	if a.Alive != nil {
		defer a.Alive()
	}
	samples, ok := a.sampleInTime(ctx)
	if !ok {
		return
	}
	s, err := a.Ledger.Snapshot(ctx)
	if err != nil {
		a.Log.Error("read ledger", "error", err)
		return
	}
	// The last snapshot is a little older than the last look.
	ended, err := a.Ledger.EndedSince(ctx, a.looked-sampleDeadline)
	if err != nil {
		a.Log.Error("read ledger", "error", err)
		return
	}
	now := lease.Now()
	interval := now - a.looked
	if a.looked == 0 {
		interval = 0
	}
	a.looked = now
	a.startSets(ctx, s.Leases)
	a.accounts.begin(ctx, a, ended)
	readings, usages := a.measure(samples, s.Leases, now, interval)
	if err := a.Ledger.Measure(ctx, readings, usages); err != nil {
		a.Log.Error("write ledger", "error", err)
		return
	}
	a.accounts.flush(ctx, a)
	a.export(s)
	a.watchOutputs(samples, s.Leases)
	if a.checked == 0 || now-a.checked >= checkMPSEvery {
		a.checked = now
		a.checkMPS(ctx, samples, s)
	}
}

// talk tells slurmctld what the node can take, and then asks what it must know
// of jobs.
func (a *Agent) talk(ctx context.Context) {
	s, err := a.Ledger.Snapshot(ctx)
	if err != nil {
		a.Log.Error("read ledger", "error", err)
		return
	}
	if len(s.Readings) == 0 {
		return // nothing has been seen yet
	}
	now := lease.Now()
	due := a.compared == 0 || now-a.compared >= a.Config.Capacity.Compare.D()
	if !due {
		a.publish(ctx, s)
	}
	a.setStarts(ctx, s.Comebacks)
	a.complete(ctx, now)
	a.openHolds(ctx, s, now)
	a.sendPreemptors(ctx, now)
	if !due {
		return
	}
	a.compared = now
	comment, err := a.Publisher.Compare(ctx)
	if err != nil {
		a.Log.Warn("compare capacity with slurmctld", "error", err)
		return
	}
	if now-a.reaped >= reapAge { // it looks at every process of the machine
		a.reaped = now
		a.reap(ctx, s)
	}
	a.tellIdle(ctx, s)
	a.followHolds(ctx, s)
	a.followComment(ctx, comment, s)
	a.keepSteward(ctx, now)
}

// sampleInTime samples in a goroutine of its own. If the driver hangs, GPUs
// stay as last read and grow stale; Prologs then see for themselves.
func (a *Agent) sampleInTime(ctx context.Context) ([]gres.Sample, bool) {
	done := make(chan []gres.Sample, 1)
	go func() { done <- a.Sample() }()
	select {
	case s := <-done:
		return s, true
	case <-ctx.Done():
		return nil, false
	case <-time.After(sampleDeadline):
		a.Log.Error("NVML does not answer; waiting for it")
		select {
		case s := <-done:
			return s, true
		case <-ctx.Done():
			return nil, false
		}
	}
}

func (a *Agent) publish(ctx context.Context, s lease.Snapshot) {
	err := a.Publisher.PublishIf(ctx, s)
	if err != nil && !errors.Is(err, capacity.ErrTooSoon) {
		a.Log.Warn("publish capacity", "error", err)
	}
}

func (a *Agent) export(s lease.Snapshot) {
	if a.Export == nil {
		return
	}
	err := a.Export(s)
	if err != nil && !a.exportFails {
		a.Log.Warn("write for other tools; not said again until it works", "error", err)
	}
	a.exportFails = err != nil
}

// measure turns samples into readings for the next choice and into usages of
// the jobs that hold the GPUs.
func (a *Agent) measure(samples []gres.Sample, leases []gres.Lease, now, interval time.Duration) ([]gres.Reading, []lease.Usage) {
	var readings []gres.Reading
	var usages []lease.Usage
	owners := once{a.Owners, map[int]resident.Owner{}}
	for _, s := range samples {
		st := a.gpus[s.UUID]
		if st == nil {
			length := a.Config.SMAct.Window.D()
			st = &gpuState{smact: window.New(length), smocc: window.New(length), dram: window.New(length)}
			a.gpus[s.UUID] = st
		}
		r := Reading(s, leases, owners)
		for _, f := range []struct {
			w   *window.Window
			pct gres.Measured
			to  *float64
		}{{st.smact, s.SMActPct, &r.SMActPct}, {st.smocc, s.SMOccPct, &r.SMOccPct}, {st.dram, s.DRAMPct, &r.DRAMPct}} {
			f.w.Add(now, interval, float64(f.pct))
			*f.to = f.w.Value(now, window.Statistic(a.Config.SMAct.Statistic))
		}
		readings = append(readings, r)
		usages = append(usages, a.account(s, leases, owners, now)...)
	}
	return readings, usages
}

// reapAge is how old a lease must be before its job is looked for: a job has no
// slurmstepd while its Prolog runs.
const reapAge = time.Minute

// reap releases what jobs hold that have ended without an Epilog, as after a
// slurmd that was killed. slurmctld has the last word.
func (a *Agent) reap(ctx context.Context, s lease.Snapshot) {
	var stepds map[uint32]bool
	looked := map[gres.JobKey]bool{} // a job may have several GPUs
	for _, j := range s.Leases {
		if j.Age < reapAge || looked[j.Job] {
			continue
		}
		looked[j.Job] = true
		if stepds == nil {
			var err error
			if stepds, err = a.Owners.Stepds(); err != nil {
				a.Log.Error("look for leases without a job", "error", err)
				return
			}
		}
		if stepds[j.Job.JobID] {
			continue
		}
		job, err := a.Jobs.Job(ctx, j.Job.JobID)
		if err != nil && !errors.Is(err, sctl.ErrNoJob) {
			a.Log.Warn("look for leases without a job", "job", j.Job, "error", err)
			continue
		}
		if err == nil && holdsNode(job.State) {
			continue
		}
		a.Log.Warn("lease without a job released", "job", j.Job, "state", job.State)
		if err := a.Ledger.Release(ctx, j.Job); err != nil {
			a.Log.Error("release", "job", j.Job, "error", err)
		}
		os.Remove(filepath.Join(a.RunDir, "jobs", gres.JobKey{JobID: j.Job.JobID}.String()+".json"))
	}
}

// holdsNode tells whether a job in this state (squeue's long form) has nodes.
func holdsNode(state string) bool {
	switch state {
	case "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT":
		return true
	}
	return false
}
