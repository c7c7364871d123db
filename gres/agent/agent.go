// SPDX-License-Identifier: Apache-2.0

// Package agent is the node's daemon: the agent samples the GPUs, keeps the window of
// SM activity, measures each job, keeps the MPS daemons up and publishes capacity.
// Nothing depends on the agent at the moment of a choice: without an agent the Prolog
// samples by itself.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/gres"
	"carma/gres/capacity"
	"carma/gres/choose"
	"carma/gres/confine"
	"carma/gres/lease"
	"carma/gres/output"
	"carma/gres/resident"
	"carma/gres/window"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// Agent is the daemon of one node.
type Agent struct {
	Node   string
	Config config.Config
	// Thresholds are a GPU's conditions to take a job.
	Thresholds  choose.Thresholds
	RunDir      string
	Log         *slog.Logger
	Sample      func() []gres.Sample
	Owners      Owners
	Ledger      Ledger
	Publisher   Publisher
	Publishes   func(context.Context) (bool, error) // whether Slurm compares Extra; nil: yes
	Daemons     *Daemons                            // of MPS; nil: not used
	Jobs        Known
	Users       Users
	Records     Records
	Lost        func(lease.Held) db.Attempt // the record of an attempt without an Epilog
	Outputs     *output.Watch               // nil: only the batch script's stderr is known
	Steward     *Steward                    // nil: there is none
	Confinement *Confinement                // nil: no job is confined
	Limits      *MemoryLimits               // nil: there are none
	Unlimited   error                       // why
	Returned    *Returned
	Offers      *Offers
	Ends        *Ends
	Observer    *Observer                  // nil: hooks write ledger and records; else the parts that act are nil
	Export      func(lease.Snapshot) error // for other tools; nil: nothing
	Alive       func()                     // after each look at everything; nil: nobody asks

	// Each loop of Run has state of its own, but for fields with a lock. observe:
	known       map[int]output.Process // on shared GPUs, by pid
	gpus        map[string]*gpuState
	accounts    accounts
	looked      time.Duration
	exportFails bool

	unwritten unwritten // samples, from observe to keepSamples

	// publish:
	publishFails string        // as last said
	askedRelease time.Duration // when Publishes was asked

	// tellIdle:
	acted map[jobenv.JobKey]acted // jobs that use none of their GPUs

	publishing atomic.Bool // Publishes said so; publish tells compare and the steward
}

type gpuState struct {
	smact  *window.Window
	source figure.Source // as last said
	other  int           // looks in a row with another source
	worse  bool          // a worse source was told
	health health
}

// otherFor is for how many looks another source of SM activity must stay to be worth a
// line: a look may fall between two figures of DCGM.
const otherFor = 5

// tellSource says where the SM activity of a GPU comes from when that changes.
func (a *Agent) tellSource(st *gpuState, s gres.Sample) {
	switch {
	case s.Unreadable != "" || s.MIG || s.Source == st.source:
		st.other = 0
	case st.source == "":
		st.source = s.Source
	default:
		if st.other++; st.other < otherFor {
			return
		}
		worse := s.Source == figure.SourceNone || s.Source.Coarse() && st.source != figure.SourceNone
		if worse || st.worse { // dcgmi takes a while to start: nothing to say
			a.Log.Warn("SM activity comes from another source", "gpu", s.UUID, "from", s.Source, "before", st.source)
		}
		st.source, st.other, st.worse = s.Source, 0, worse
	}
}

// sampleDeadline is how long the driver may take to answer. A wedged driver
// blocks the calling thread for good; the others go on.
const sampleDeadline = 5 * time.Second

// apart is the least time between two looks: activity over less says nothing,
// and hooks may come in swarms.
const apart = 150 * time.Millisecond

// Run works until ctx ends. Work that may hang has a loop of its own, so as to delay
// nothing else: the driver, the MPS daemons, the records' disk, and slurmctld for each kind of question. The
// loops share no state without a lock: each gets the last look as a value.
func (a *Agent) Run(ctx context.Context) error {
	a.gpus = map[string]*gpuState{}
	poke, err := listen(a.RunDir)
	if err != nil {
		return err
	}
	interval, compare := a.Config.NVML.Interval.D(), a.Config.Capacity.Compare.D()
	var work sync.WaitGroup
	tell := []latest[lease.Snapshot]{every(ctx, &work, compare, slurmDeadline, a.tellIdle)}
	if a.Records != nil {
		tell = append(tell, every(ctx, &work, 0, 0, a.keepSamples))
	}
	if a.Observer != nil {
		a.Observer.first(ctx)
		a.findJobs(ctx)
		tell = append(tell, every(ctx, &work, 0, slurmDeadline, func(ctx context.Context, _ lease.Snapshot) {
			a.Ends.complete(ctx, lease.Now())
		}))
	} else {
		acting, err := a.act(ctx, &work)
		if err != nil {
			return err
		}
		tell = append(tell, acting...)
	}
	seen := make(chan struct{}, 1)
	work.Add(1)
	if c := a.Confinement; c != nil {
		c.guards = make(latest[confine.Guard], 1)
		work.Add(1)
		go func() {
			defer work.Done()
			c.keepShut(ctx, c.guards)
		}()
	}
	go func() {
		defer work.Done()
		a.share(ctx, seen, tell)
	}()
	views := make(latest[view], 1)
	if a.Daemons != nil {
		views = every(ctx, &work, 0, 0, a.Daemons.look)
		go a.Daemons.boundLogs(ctx)
	} else if a.Observer != nil {
		views = every(ctx, &work, 0, slurmDeadline, a.Observer.look)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if v, ok := a.observe(ctx); ok {
			views.put(v)
		}
		select {
		case seen <- struct{}{}:
		default: // the last one is still waiting
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-poke:
			// Room left by a job is seen, and offered, at once.
			if wait := apart - (lease.Now() - a.looked); wait > 0 {
				time.Sleep(wait)
			}
		}
	}
	work.Wait()
	if a.Daemons != nil {
		a.Daemons.work.Wait()
	}
	a.closeSamples()
	if a.Daemons != nil {
		a.Daemons.stop(maps.Keys(a.gpus))
	}
	return nil
}

// act starts the loops that change anything outside of the node's ledger and records.
func (a *Agent) act(ctx context.Context, work *sync.WaitGroup) ([]latest[lease.Snapshot], error) {
	compare := a.Config.Capacity.Compare.D()
	tell := []latest[lease.Snapshot]{
		every(ctx, work, 0, publishDeadline, a.publish),
		every(ctx, work, 0, slurmDeadline, a.askOfJobs),
		every(ctx, work, compare, slurmDeadline, a.compare),
	}
	if s := a.Steward; s != nil {
		s.publishing = &a.publishing
		tell = append(tell,
			every(ctx, work, compare, slurmDeadline, func(ctx context.Context, _ lease.Snapshot) { s.keep(ctx, lease.Now()) }),
			every(ctx, work, waitsEvery, slurmDeadline, func(ctx context.Context, _ lease.Snapshot) {
				s.sendPreemptors(ctx, lease.Now())
			}))
	}
	var driver sync.WaitGroup // nobody waits for driver: a call may hang with the driver
	if a.Limits == nil {
		return tell, confine.SetUnlimited(a.RunDir, a.Unlimited)
	}
	return append(tell, every(ctx, &driver, 0, 0, a.Limits.keep)), nil
}

// share hands the ledger's state after each look to the loops that talk to slurmctld, and in a while
// also if a look hangs. Readings of before the agent's last stop may be too old to be published. Where the agent
// observes, nobody waits for its words.
func (a *Agent) share(ctx context.Context, seen <-chan struct{}, tell []latest[lease.Snapshot]) {
	select {
	case <-ctx.Done():
	case <-seen:
	case <-time.After(2 * sampleDeadline):
	}
	tick := time.NewTicker(a.Config.NVML.Interval.D())
	defer tick.Stop()
	for ctx.Err() == nil {
		s, err := a.Ledger.Snapshot(ctx)
		if err != nil && ctx.Err() == nil {
			a.Log.Error("read ledger", "error", err)
		}
		if err == nil && len(s.Readings) > 0 { // else nothing has been seen yet
			for _, to := range tell {
				to.put(s)
			}
		}
		if a.Observer != nil {
			select {
			case <-ctx.Done():
			case <-time.After(observeGap):
			}
		}
		select {
		case <-ctx.Done():
		case <-seen:
		case <-tick.C:
		}
	}
}

// view is one look at the GPUs.
type view struct {
	samples  []gres.Sample
	snapshot lease.Snapshot // a little older
	owners   Owners         // of the samples' processes
}

// observe reads the GPUs and puts the readings into the ledger. Errors are logged and
// the next time tries again.
func (a *Agent) observe(ctx context.Context) (v view, ok bool) {
	if a.Alive != nil {
		defer a.Alive()
	}
	return a.read(ctx)
}

// findJobs has the ledger know the running jobs before the agent says that it is ready: else the first carma-node
// status would show processes of no job.
func (a *Agent) findJobs(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, observeEvery)
	defer cancel()
	if v, ok := a.read(ctx); ok {
		a.Observer.look(ctx, v)
	}
}

// read is observe without a word to systemd.
func (a *Agent) read(ctx context.Context) (v view, ok bool) {
	samples, ok := a.sampleInTime(ctx)
	if !ok {
		return v, false
	}
	s, err := a.holders(ctx)
	if err != nil {
		a.keepXids(samples)
		a.Log.Error("read ledger", "error", err)
		return v, false
	}
	// The last snapshot is a little older than the last look.
	ended, err := a.Ledger.EndedSince(ctx, a.looked-sampleDeadline)
	if err != nil {
		a.keepXids(samples)
		a.Log.Error("read ledger", "error", err)
		return v, false
	}
	now := lease.Now()
	interval := now - a.looked
	if a.looked == 0 {
		interval = apart // the first look tells of the moment before
	}
	a.looked = now
	a.accounts.begin(ctx, a, s.Readings, ended)
	owners := once{a.Owners, map[int]resident.Owner{}}
	readings, usages := a.measure(samples, s.Leases, owners, now, interval)
	a.watchHealth(ctx, samples)
	// Also where the agent ends now: the next agent goes on from this look.
	if err := a.Ledger.Measure(context.WithoutCancel(ctx), readings, usages); err != nil {
		a.Log.Error("write ledger", "error", err)
		a.accounts.tellAgain()
		return v, false
	}
	a.flushSamples()
	a.export(s)
	a.watchOutputs(samples, s.Leases)
	return view{samples, s, owners}, true
}

// holders reads the ledger for a look. An agent that observes needs the leases alone, once the first look has read
// how far an earlier agent came.
func (a *Agent) holders(ctx context.Context) (lease.Snapshot, error) {
	if a.Observer == nil || a.Export != nil || !a.accounts.loaded {
		return a.Ledger.Snapshot(ctx)
	}
	leases, err := a.Ledger.Leases()
	return lease.Snapshot{Leases: leases}, err
}

// askOfJobs asks slurmctld the urgent questions about jobs, at each look.
func (a *Agent) askOfJobs(ctx context.Context, s lease.Snapshot) {
	now := lease.Now()
	a.Returned.setStarts(ctx, s.PendingRestarts)
	a.Returned.releaseHeld(ctx, s.PerhapsHeld, now)
	a.Returned.wakeScheduler(ctx)
	a.Ends.complete(ctx, now)
	a.Offers.openHolds(ctx, s, now)
}

// compare compares the node's Extra with slurmctld's last word from here, and looks after the jobs
// in the ledger and the Extra.
func (a *Agent) compare(ctx context.Context, s lease.Snapshot) {
	guard := a.Confinement.guard()
	a.Confinement.reopen(ctx, guard, s)
	text, asked, err := a.compareExtra(ctx, s)
	if err != nil {
		a.Log.Warn("compare capacity with slurmctld", "error", err)
		if sctl.Unanswered(err) { // a lasting fault, as an unreadable key, stops nothing else
			return
		}
	}
	a.reap(ctx, guard, s)
	said := a.Offers.followHolds(ctx, s)
	if asked {
		a.Offers.followExtra(ctx, text, s, said)
	}
	a.Confinement.reapConfined(ctx, guard)
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
		a.Log.Error("NVML does not answer; waiting")
		select {
		case s := <-done:
			return s, true
		case <-ctx.Done():
			return nil, false
		}
	}
}

func (a *Agent) compareExtra(ctx context.Context, s lease.Snapshot) (text string, asked bool, err error) {
	if !a.publishing.Load() {
		return "", false, nil
	}
	nodes := 0 // not known
	if a.Steward != nil {
		nodes = int(a.Steward.nodes.Load())
	}
	return a.Publisher.CompareIf(ctx, s, a.Config.Capacity.Compare.D(), nodes)
}

// releaseEvery is how often a Slurm that compares nothing is asked again: an agent goes on while the packages of
// its node are brought up to date.
const releaseEvery = 5 * time.Minute

// publishes tells whether slurmctld compares nodes' Extra.
func (a *Agent) publishes(ctx context.Context) bool {
	first, now := a.askedRelease == 0, lease.Now()
	switch {
	case a.publishing.Load():
		return true
	case a.Publishes == nil:
		a.publishing.Store(true)
		return true
	case !first && now-a.askedRelease < releaseEvery:
		return false
	}
	a.askedRelease = now
	yes, err := a.Publishes(ctx)
	if err != nil {
		a.Log.Warn("query Slurm's release; nothing is published until it is known", "error", err)
	} else if !yes && first {
		a.Log.Info("Slurm before 24.11 compares no counts of nodes: nothing is published, and Prologs wait or return jobs")
	}
	a.publishing.Store(yes)
	return yes
}

func (a *Agent) publish(ctx context.Context, s lease.Snapshot) {
	if !a.publishes(ctx) {
		return
	}
	err := a.Publisher.PublishIf(ctx, s)
	if errors.Is(err, capacity.ErrTooSoon) {
		return
	}
	if says := reason(err); says != a.publishFails {
		a.publishFails = says
		if err != nil {
			a.Log.Warn("publish capacity", "error", err)
		}
	}
}

func (a *Agent) export(s lease.Snapshot) {
	if a.Export == nil {
		return
	}
	err := a.Export(s)
	if err != nil && !a.exportFails {
		a.Log.Warn("write files for other tools; logged once until it succeeds", "error", err)
	}
	a.exportFails = err != nil
}

// measure turns samples into readings for the next choice and into usages of the GPUs'
// holders.
func (a *Agent) measure(samples []gres.Sample, leases []gres.Lease, owners Owners, now, interval time.Duration) (
	[]gres.Reading, []lease.Usage) {
	var readings []gres.Reading
	var usages []lease.Usage
	for _, s := range samples {
		st := a.stateOf(s.UUID)
		a.tellSource(st, s)
		r := Reading(s, leases, owners)
		st.smact.Add(now, interval, float64(s.SMActPct))
		r.SMActPct = st.smact.Value(now, window.Statistic(a.Config.SMAct.Statistic))
		readings = append(readings, r)
		usages = append(usages, a.account(s, leases, owners, now)...)
	}
	return readings, usages
}

// stateOf is the knowledge of a GPU from earlier looks.
func (a *Agent) stateOf(uuid string) *gpuState {
	st := a.gpus[uuid]
	if st == nil {
		st = &gpuState{smact: window.New(a.Config.SMAct.Window.D())}
		a.gpus[uuid] = st
	}
	return st
}
