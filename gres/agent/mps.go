// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"carma/gres"
	"carma/gres/lease"
)

// checkMPSEvery is how often a daemon that does not answer, or a server that has faulted, is
// noticed.
const checkMPSEvery = 10 * time.Second

// What is done about one daemon at one look has mpsDeadline, and the daemon askDeadline to answer.
const (
	mpsDeadline = 10 * time.Second
	askDeadline = 3 * time.Second
)

// mostSilent is how often a daemon may leave a question unanswered before another one replaces it.
const mostSilent = 2

// keptFree is for how long a daemon stays its user's whose last job there has ended, unless
// another job comes to one of its GPUs: the user's next job may follow at once.
const keptFree = 5 * time.Second

// serving is what is known of the MPS daemons. Each is looked after by itself, so that none
// waits for another one that does not answer.
type serving struct {
	work sync.WaitGroup
	lock sync.Mutex
	of   map[gres.Daemon]*served
}

// served is what is known of one daemon. Who has set busy uses what follows.
type served struct {
	due    atomic.Bool // it is to be asked how it is
	busy   atomic.Bool
	failed bool          // it did not start, since it was checked
	silent int           // questions in a row that it has not answered
	free   time.Duration // since when no lease names it; 0: one does, or none ever did
}

// serve does something about a daemon, unless something is being done. A check that is due then is
// made at the next look.
func (a *Agent) serve(ctx context.Context, d gres.Daemon, due bool, do func(context.Context, *served)) {
	a.mps.lock.Lock()
	s := a.mps.of[d]
	if s == nil {
		if a.mps.of == nil {
			a.mps.of = map[gres.Daemon]*served{}
		}
		s = &served{}
		a.mps.of[d] = s
	}
	a.mps.lock.Unlock()
	if due {
		s.due.Store(true)
	}
	if ctx.Err() != nil || !s.busy.CompareAndSwap(false, true) {
		return
	}
	a.mps.work.Add(1)
	go func() {
		defer a.mps.work.Done()
		defer s.busy.Store(false)
		ctx, cancel := context.WithTimeout(ctx, mpsDeadline)
		defer cancel()
		do(ctx, s)
	}()
}

// forget drops what is known of sets that have ended.
func (a *Agent) forget(known []gres.Daemon) {
	a.mps.lock.Lock()
	defer a.mps.lock.Unlock()
	for d, s := range a.mps.of {
		if !s.busy.Load() && !slices.Contains(known, d) {
			delete(a.mps.of, d)
		}
	}
}

// keepMPS looks after all daemons: at each look whose they are, and every so often how they are.
func (a *Agent) keepMPS(ctx context.Context, v view) {
	now := lease.Now()
	check := a.checked == 0 || now-a.checked >= checkMPSEvery
	if check {
		a.checked = now
	}
	a.checkMPS(ctx, v, check)
}

func (a *Agent) checkMPS(ctx context.Context, v view, check bool) {
	if a.MPS == nil {
		return
	}
	if check {
		err := a.MPS.Restricted()
		if err != nil && !a.closeFails {
			a.Log.Warn("restrict MPS pipe directories; logged once until it succeeds", "error", err)
		}
		a.closeFails = err != nil
		a.serve(ctx, "", false, func(ctx context.Context, _ *served) {
			if err := a.MPS.ClearEnded(ctx); err != nil {
				a.Log.Warn("stop the MPS daemon", "error", err)
			}
		})
	}
	sets, err := a.MPS.Sets()
	if err != nil {
		a.Log.Error("keep the MPS daemon up", "error", err)
	}
	used := slices.Clone(sets) // or started
	for _, d := range daemonsOf(v.snapshot.Leases) {
		if d.Many() && !slices.Contains(sets, d) {
			used = append(used, d)
		}
	}
	all := slices.Clone(used)
	for _, sample := range v.samples {
		if sample.Unreadable != "" || sample.MIG {
			continue
		}
		d := gres.Daemon(sample.UUID)
		all = append(all, d)
		a.serve(ctx, d, check, func(ctx context.Context, s *served) { a.keepGPU(ctx, s, sample, v.snapshot, sets) })
	}
	for _, d := range used {
		a.serve(ctx, d, check, func(ctx context.Context, s *served) { a.keepSet(ctx, s, d, v.snapshot) })
	}
	a.forget(all)
}

// faulted tells whether a GPU of the daemon's is in quarantine for its MPS server.
func faulted(d gres.Daemon, s lease.Snapshot) bool {
	of := func(r gres.Reading) bool { return r.Cause == gres.CauseMPS && d.Serves(r.UUID) }
	return slices.ContainsFunc(s.Readings, of)
}

// keepGPU looks after the daemon of one GPU.
func (a *Agent) keepGPU(ctx context.Context, s *served, sample gres.Sample, v lease.Snapshot, sets []gres.Daemon) {
	d := gres.Daemon(sample.UUID)
	due := s.due.Swap(false)
	if faulted(d, v) {
		if due {
			a.readmit(ctx, sample, daemonsOf(v.Leases))
		}
		return
	}
	if a.keepOne(ctx, s, d, v, due) && due {
		a.endLeftovers(ctx, sample, v.Leases, sets)
	}
}

// keepSet looks after a daemon of several GPUs, which ends with its tenure.
func (a *Agent) keepSet(ctx context.Context, s *served, d gres.Daemon, v lease.Snapshot) {
	due := s.due.Swap(false)
	user, _ := a.MPS.Tenant(d)
	if s.tenant(d, user, v.Leases, lease.Now()) == gres.Nobody {
		err := a.MPS.End(ctx, d, func() (bool, error) {
			s, err := a.Ledger.Snapshot(ctx)
			return slices.Contains(daemonsOf(s.Leases), d), err
		})
		if err != nil {
			a.Log.Warn("stop the MPS daemon", "error", err)
		}
		return
	}
	if !faulted(d, v) {
		a.keepOne(ctx, s, d, v, due)
	}
}

// tenant is who is to have a daemon, by the ledger, given who has it.
func (s *served) tenant(d gres.Daemon, has int64, leases []gres.Lease, now time.Duration) int64 {
	others := false
	for _, l := range leases {
		if l.Daemon == d {
			s.free = 0
			return int64(l.UID)
		}
		others = others || d.Serves(l.UUID)
	}
	if s.free == 0 {
		s.free = now
	}
	if others || now-s.free >= keptFree {
		return gres.Nobody
	}
	return has
}

// keepOne has a daemon run for whose it is now, and asks it, if that is due, whether its server
// has faulted. ok: it runs.
func (a *Agent) keepOne(ctx context.Context, s *served, d gres.Daemon, v lease.Snapshot, due bool) (ok bool) {
	has, runs := a.MPS.Tenant(d)
	if due {
		s.failed = false
	}
	if !runs && s.failed {
		return false
	}
	if due || !runs || has != s.tenant(d, has, v.Leases, lease.Now()) {
		s.failed = !a.keep(ctx, s, d)
	}
	if s.failed || !due && s.silent == 0 || !slices.Contains(daemonsOf(v.Leases), d) {
		return !s.failed
	}
	if a.ask(ctx, s, d, v.Leases); s.silent >= mostSilent {
		a.replace(ctx, s, d)
	}
	return s.silent == 0
}

// ask asks a daemon whether its server has faulted, and counts the questions that it has not answered.
func (a *Agent) ask(ctx context.Context, s *served, d gres.Daemon, leases []gres.Lease) {
	err := a.checkFault(ctx, d, leases)
	if errors.Is(err, context.DeadlineExceeded) {
		s.silent++
	} else if err == nil {
		s.silent = 0
	}
}

func (a *Agent) keep(ctx context.Context, s *served, d gres.Daemon) bool {
	err := a.MPS.Keep(ctx, d, func(has int64) (int64, error) {
		v, err := a.Ledger.Snapshot(ctx)
		return s.tenant(d, has, v.Leases, lease.Now()), err
	})
	if err != nil {
		a.Log.Error("keep the MPS daemon up", "error", err)
	}
	return err == nil
}

// replace has another daemon in place of one that does not answer, as when a client has connected
// and says nothing.
func (a *Agent) replace(ctx context.Context, s *served, d gres.Daemon) {
	a.Log.Warn("replace an MPS daemon that does not answer", "gpus", d)
	if err := a.MPS.Kill(ctx, d); err != nil {
		a.Log.Error("keep the MPS daemon up", "error", err)
		return
	}
	s.silent = 0
	s.failed = !a.keep(ctx, s, d)
}

// daemonsOf returns the daemons that jobs are clients of.
func daemonsOf(leases []gres.Lease) []gres.Daemon {
	var list []gres.Daemon
	for _, l := range leases {
		if l.Daemon != "" && !slices.Contains(list, l.Daemon) {
			list = append(list, l.Daemon)
		}
	}
	return list
}

// readmit opens a quarantined GPU again when its victims have gone.
func (a *Agent) readmit(ctx context.Context, sample gres.Sample, used []gres.Daemon) {
	uuid := sample.UUID
	if slices.ContainsFunc(used, func(d gres.Daemon) bool { return d.Serves(uuid) }) ||
		slices.ContainsFunc(sample.Processes, func(p gres.Process) bool { return p.MPS }) {
		return
	}
	// No job can come to the GPU before it is readmitted.
	if err := a.MPS.End(ctx, gres.Daemon(uuid), func() (bool, error) { return false, nil }); err != nil {
		a.Log.Error("restart a faulted MPS daemon", "error", err)
		return
	}
	if err := a.Ledger.Readmit(ctx, uuid); err != nil {
		a.Log.Error("end the quarantine of a GPU", "error", err)
		return
	}
	a.Log.Info("quarantine of a GPU ended", "gpu", uuid)
}

// checkFault quarantines the GPUs of a daemon whose server says by its status that it has
// faulted. The error is DeadlineExceeded if the daemon does not answer.
func (a *Agent) checkFault(ctx context.Context, d gres.Daemon, leases []gres.Lease) error {
	asked, cancel := context.WithTimeout(ctx, askDeadline)
	faulted, err := a.MPS.Faulted(asked, d)
	late := ctx.Err() == nil && asked.Err() != nil
	cancel()
	if err != nil {
		a.Log.Warn("query the MPS daemon", "error", err)
		if late {
			return context.DeadlineExceeded
		}
		return err
	}
	if !faulted {
		return nil
	}
	for _, uuid := range d.UUIDs() {
		if slices.ContainsFunc(leases, func(l gres.Lease) bool { return l.UUID == uuid && l.Daemon != "" && l.Daemon != d }) {
			continue // none of its clients is there
		}
		victims, err := a.Ledger.Quarantine(ctx, uuid, lease.FaultedMPS)
		if err != nil {
			a.Log.Error("quarantine", "error", err)
			return nil
		}
		a.Log.Error("MPS server has faulted; GPU quarantined", "gpu", uuid, "victims", victims)
	}
	return nil
}

// endLeftovers ends MPS clients of jobs that hold the GPU no more: what a job
// left behind that Slurm killed.
func (a *Agent) endLeftovers(ctx context.Context, sample gres.Sample, leases []gres.Lease, sets []gres.Daemon) {
	for _, p := range sample.Processes {
		if !p.MPS {
			continue
		}
		o := a.Owners.Owner(p.PID)
		if o.Gone || o.MPSServer || o.JobID == 0 || ownerOf(o, leases, sample.UUID) != 0 {
			continue
		}
		a.Log.Warn("MPS client of a job that has ended", "gpu", sample.UUID, "pid", p.PID, "job", o.JobID)
		for _, d := range append([]gres.Daemon{gres.Daemon(sample.UUID)}, sets...) {
			if !d.Serves(sample.UUID) {
				continue
			}
			if err := a.MPS.Terminate(ctx, d, p.PID); err != nil {
				a.Log.Error("terminate an MPS client", "error", err)
			}
		}
	}
}

// stopMPS ends the daemons of GPUs that nobody holds. The others serve running
// jobs; the next agent finds them.
func (a *Agent) stopMPS() {
	if a.MPS == nil {
		return
	}
	sets, err := a.MPS.Sets()
	if err != nil {
		a.Log.Warn("stop the MPS daemon", "error", err)
	}
	for uuid := range a.gpus {
		sets = append(sets, gres.Daemon(uuid))
	}
	for _, d := range sets {
		a.serve(context.Background(), d, false, func(ctx context.Context, _ *served) {
			err := a.MPS.End(ctx, d, func() (bool, error) {
				s, err := a.Ledger.Snapshot(ctx)
				return slices.ContainsFunc(s.Leases, func(l gres.Lease) bool { return d.Serves(l.UUID) }), err
			})
			if err != nil {
				a.Log.Warn("stop the MPS daemon", "error", err)
			}
		})
	}
	a.mps.work.Wait()
}

// Logs are looked at often, for a client can make them grow, and read for faults every so often.
const (
	boundLogsEvery  = 200 * time.Millisecond
	followLogsEvery = 2 * time.Second
)

// boundLogs follows the daemons' logs and keeps them small until ctx ends. Nothing waits for
// it: they are on a disk, which may hang.
func (a *Agent) boundLogs(ctx context.Context) {
	tick := time.NewTicker(boundLogsEvery)
	defer tick.Stop()
	failed, followed := false, time.Duration(0)
	for {
		err := a.MPS.BoundLogs()
		if now := lease.Now(); now-followed >= followLogsEvery {
			followed = now
			err = errors.Join(err, a.followLogs(ctx))
		}
		if err != nil && !failed {
			a.Log.Warn("follow and truncate the MPS daemons' logs; logged once until it succeeds", "error", err)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// followLogs looks for faults in the logs of the daemons' servers: most have ended when
// somebody asks for the servers' status.
func (a *Agent) followLogs(ctx context.Context) error {
	s, err := a.Ledger.Snapshot(ctx)
	if err != nil {
		return err
	}
	daemons := daemonsOf(s.Leases)
	for _, r := range s.Readings { // also those that nobody uses yet: what is logged now is not of the next job
		if d := gres.Daemon(r.UUID); !r.MIG && !slices.Contains(daemons, d) {
			daemons = append(daemons, d)
		}
	}
	for _, d := range daemons {
		read := func(from int64) (bool, int64, error) { return a.MPS.ServerFault(d, from) }
		victims, fault, followErr := a.Ledger.Follow(ctx, d, read)
		err = errors.Join(err, followErr)
		if !fault {
			continue
		}
		if len(victims) > 0 { // else it was said, or the user writes such lines
			a.Log.Error("an MPS server has logged a fault", "gpus", d, "jobs", victims)
		}
		a.serve(ctx, d, false, func(ctx context.Context, now *served) {
			if now.silent == 0 { // else a user could have it asked all the time
				a.ask(ctx, now, d, s.Leases)
			}
		})
	}
	return err
}
