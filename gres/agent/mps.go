// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"carma/gres"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
)

// checkMPSEvery is how often a silent daemon, or a faulted server, is noticed.
const checkMPSEvery = 10 * time.Second

// The work on a daemon at a look has mpsDeadline, and the daemon askDeadline to answer.
const (
	mpsDeadline = 10 * time.Second
	askDeadline = 3 * time.Second
)

// mostSilent is how often a daemon may leave a question unanswered before another replaces the
// daemon.
const mostSilent = 2

// keptFree is for how long a daemon stays its user's whose last job there has ended, unless
// another job comes to one of its GPUs: the user's next job may follow at once.
const keptFree = 5 * time.Second

// Daemons looks after the MPS daemons of a node, each alone: none waits for another one that does not
// answer.
type Daemons struct {
	MPS    MPS
	Leases Leases
	Faults Servers
	Owners Owners
	Log    *slog.Logger

	checked    time.Duration // when all were checked
	closeFails bool

	work sync.WaitGroup
	lock sync.Mutex
	of   map[gres.Daemon]*served
}

// look looks after all daemons: at each look whose they are, and every so often how they
// are.
func (m *Daemons) look(ctx context.Context, v view) {
	now := lease.Now()
	check := m.checked == 0 || now-m.checked >= checkMPSEvery
	if check {
		m.checked = now
	}
	m.check(ctx, v, check)
}

func (m *Daemons) check(ctx context.Context, v view, check bool) {
	if check {
		err := m.MPS.Restricted()
		if err != nil && !m.closeFails {
			m.Log.Warn("restrict MPS pipe directories; logged once until it succeeds", "error", err)
		}
		m.closeFails = err != nil
		m.serve(ctx, "", false, func(ctx context.Context, _ *served) {
			if err := m.MPS.ClearEnded(ctx); err != nil {
				m.Log.Warn("stop the MPS daemon", "error", err)
			}
		})
	}
	sets, err := m.MPS.Sets()
	if err != nil {
		m.Log.Error("keep the MPS daemon up", "error", err)
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
		m.attend(ctx, d, check, v.snapshot.Leases, func(ctx context.Context, s *served) {
			m.keepGPU(ctx, s, sample, v.snapshot, sets)
		})
	}
	for _, d := range used {
		m.attend(ctx, d, check, v.snapshot.Leases, func(ctx context.Context, s *served) { m.keepSet(ctx, s, d, v.snapshot) })
	}
	m.forget(all)
}

// faulted tells whether a GPU of the daemon's is in quarantine for its MPS server.
func faulted(d gres.Daemon, s lease.Snapshot) bool {
	of := func(r gres.Reading) bool { return r.Cause == gres.CauseMPS && d.Serves(r.UUID) }
	return slices.ContainsFunc(s.Readings, of)
}

// keepGPU looks after the daemon of one GPU.
func (m *Daemons) keepGPU(ctx context.Context, s *served, sample gres.Sample, v lease.Snapshot, sets []gres.Daemon) {
	d := gres.Daemon(sample.UUID)
	due := s.due.Swap(false)
	if faulted(d, v) {
		if due {
			m.readmit(ctx, sample, daemonsOf(v.Leases))
		}
		return
	}
	if m.keepOne(ctx, s, d, v, due) && due {
		m.endLeftovers(ctx, s, sample, v.Leases, sets)
	}
}

// keepSet looks after a daemon of several GPUs, which ends with its tenure.
func (m *Daemons) keepSet(ctx context.Context, s *served, d gres.Daemon, v lease.Snapshot) {
	due := s.due.Swap(false)
	user, _ := m.MPS.Tenant(d)
	if s.tenant(d, user, v.Leases, lease.Now()) == gres.Nobody {
		err := m.MPS.End(ctx, d, func() (bool, error) {
			s, err := m.Leases.Snapshot(ctx)
			return slices.Contains(daemonsOf(s.Leases), d), err
		})
		if err != nil {
			m.Log.Warn("stop the MPS daemon", "error", err)
		}
		return
	}
	if !faulted(d, v) {
		m.keepOne(ctx, s, d, v, due)
	}
}

// tenant is the user who is to have a daemon, by the ledger, given the user who has it now.
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

// keepOne has a daemon run for its present user, and asks, if due, whether a server of the daemon has faulted.
// ok: the daemon runs.
func (m *Daemons) keepOne(ctx context.Context, s *served, d gres.Daemon, v lease.Snapshot, due bool) (ok bool) {
	has, runs := m.MPS.Tenant(d)
	if due {
		s.failed = false
	}
	if !runs && s.failed {
		return false
	}
	if wants := s.tenant(d, has, v.Leases, lease.Now()); due || !runs || has != wants {
		if has != wants { // the next user's daemon has not been asked yet
			s.silent = 0
		}
		s.failed = !m.keep(ctx, s, d)
	}
	if s.failed || !due && s.silent == 0 || !slices.Contains(daemonsOf(v.Leases), d) {
		return !s.failed
	}
	if m.ask(ctx, s, d, v.Leases); s.silent >= mostSilent {
		m.replace(ctx, s, d)
	}
	return s.silent == 0
}

// ask asks a daemon whether a server has faulted, and counts unanswered questions.
func (m *Daemons) ask(ctx context.Context, s *served, d gres.Daemon, leases []gres.Lease) {
	err := m.checkFault(ctx, s, d, leases)
	if errors.Is(err, context.DeadlineExceeded) {
		s.silent++
	} else if err == nil {
		s.silent = 0
	}
}

func (m *Daemons) keep(ctx context.Context, s *served, d gres.Daemon) bool {
	err := m.MPS.Keep(ctx, d, func(has int64) (int64, error) {
		v, err := m.Leases.Snapshot(ctx)
		return s.tenant(d, has, v.Leases, lease.Now()), err
	})
	if err != nil {
		m.Log.Error("keep the MPS daemon up", "error", err)
	}
	return err == nil
}

// replace has another daemon in place of a silent one, as when a client has connected
// and says nothing.
func (m *Daemons) replace(ctx context.Context, s *served, d gres.Daemon) {
	m.Log.Warn("replace an MPS daemon that does not answer", "gpus", d)
	if err := m.MPS.Kill(ctx, d); err != nil {
		m.Log.Error("keep the MPS daemon up", "error", err)
		return
	}
	s.silent = 0
	s.failed = !m.keep(ctx, s, d)
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
func (m *Daemons) readmit(ctx context.Context, sample gres.Sample, used []gres.Daemon) {
	uuid := sample.UUID
	if slices.ContainsFunc(used, func(d gres.Daemon) bool { return d.Serves(uuid) }) ||
		slices.ContainsFunc(sample.Processes, func(p gres.Process) bool { return p.MPS }) {
		return
	}
	// No job can come to the GPU before its readmission.
	if err := m.MPS.End(ctx, gres.Daemon(uuid), func() (bool, error) { return false, nil }); err != nil {
		m.Log.Error("restart a faulted MPS daemon", "error", err)
		return
	}
	if err := m.Faults.Readmit(ctx, uuid); err != nil {
		m.Log.Error("end the quarantine of a GPU", "error", err)
		return
	}
	m.Log.Info("quarantine of a GPU ended", "gpu", uuid)
}

// checkFault quarantines the GPUs of a daemon whose server reports by its status that it
// has faulted. The error is DeadlineExceeded if the daemon does not answer.
func (m *Daemons) checkFault(ctx context.Context, s *served, d gres.Daemon, leases []gres.Lease) error {
	asked, over := m.question(ctx, s, d)
	faulted, err := m.MPS.Faulted(asked, d)
	ended := asked.Err()
	over()
	switch {
	case err == nil:
	case errors.Is(ended, context.Canceled): // by a look, or with the agent
		return ended
	default:
		m.Log.Warn("query the MPS daemon", "error", err)
		if ctx.Err() == nil && ended != nil {
			return ended
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
		victims, err := m.Faults.Quarantine(ctx, uuid, lease.FaultedMPS)
		if err != nil {
			m.Log.Error("quarantine", "error", err)
			return nil
		}
		m.Log.Error("MPS server has faulted; GPU quarantined", "gpu", uuid, "victims", victims)
	}
	return nil
}

// endLeftovers ends MPS clients of jobs that hold the GPU no more: what a job left
// behind that Slurm killed.
func (m *Daemons) endLeftovers(ctx context.Context, s *served, sample gres.Sample, leases []gres.Lease,
	sets []gres.Daemon) {
	for _, p := range sample.Processes {
		if !p.MPS {
			continue
		}
		o := m.Owners.Owner(p.PID)
		if o.Gone || o.MPSServer || o.JobID == 0 || ownerOf(o, leases, sample.UUID) != 0 {
			continue
		}
		m.Log.Warn("MPS client of a job that has ended", "gpu", sample.UUID, "pid", p.PID, "job", o.JobID)
		for _, d := range append([]gres.Daemon{gres.Daemon(sample.UUID)}, sets...) {
			if !d.Serves(sample.UUID) {
				continue
			}
			asked, over := m.question(ctx, s, d)
			err := m.MPS.Terminate(asked, d, p.PID)
			over()
			if err != nil {
				m.Log.Error("terminate an MPS client", "error", err)
			}
		}
	}
}

// stop ends the daemons of GPUs that nobody holds. The others serve running
// jobs; the next agent finds them.
func (m *Daemons) stop(uuids iter.Seq[string]) {
	sets, err := m.MPS.Sets()
	if err != nil {
		m.Log.Warn("stop the MPS daemon", "error", err)
	}
	for uuid := range uuids {
		sets = append(sets, gres.Daemon(uuid))
	}
	for _, d := range sets {
		m.serve(context.Background(), d, true, func(ctx context.Context, _ *served) {
			err := m.MPS.End(ctx, d, func() (bool, error) {
				s, err := m.Leases.Snapshot(ctx)
				return slices.ContainsFunc(s.Leases, func(l gres.Lease) bool { return d.Serves(l.UUID) }), err
			})
			if err != nil {
				m.Log.Warn("stop the MPS daemon", "error", err)
			}
		})
	}
	m.work.Wait()
}

// Logs are looked at often, for a client can make them grow, and read for faults every so often.
const (
	boundLogsEvery  = 200 * time.Millisecond
	followLogsEvery = 2 * time.Second
)

// boundLogs follows the daemons' logs and keeps the logs small until ctx ends. Nothing waits for
// boundLogs: the logs are on a disk, which may hang.
func (m *Daemons) boundLogs(ctx context.Context) {
	tick := time.NewTicker(boundLogsEvery)
	defer tick.Stop()
	failed, followed := false, time.Duration(0)
	for {
		err := m.MPS.BoundLogs()
		if now := lease.Now(); now-followed >= followLogsEvery {
			followed = now
			err = errors.Join(err, m.followLogs(ctx))
		}
		if err != nil && !failed {
			m.Log.Warn("follow and truncate the MPS daemons' logs; logged once until it succeeds", "error", err)
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
func (m *Daemons) followLogs(ctx context.Context) error {
	s, err := m.Leases.Snapshot(ctx)
	if err != nil {
		return err
	}
	daemons := daemonsOf(s.Leases)
	for _, r := range s.Readings { // also unused ones: lines logged now are not the next job's
		if d := gres.Daemon(r.UUID); !r.MIG && !slices.Contains(daemons, d) {
			daemons = append(daemons, d)
		}
	}
	for _, d := range daemons {
		read := func(from int64) (bool, int64, error) { return m.MPS.ServerFault(d, from) }
		victims, fault, followErr := m.Faults.Follow(ctx, d, read)
		err = errors.Join(err, followErr)
		if !fault {
			continue
		}
		if len(victims) > 0 { // else already said, or the user writes such lines
			m.Log.Error("an MPS server has logged a fault", "gpus", d, "jobs", victims)
		}
		m.serve(ctx, d, false, func(ctx context.Context, now *served) {
			if now.silent == 0 { // else a user could have the daemon asked all the time
				m.ask(ctx, now, d, s.Leases)
			}
		})
	}
	return err
}

// endClients has the MPS servers let go of a job's processes before signals end them, where
// other jobs are clients of the same servers: the effect on the others of a client that
// dies by a signal is not defined (NVIDIA's MPS guide, terminate_client). The job ends all
// the same if endClients fails.
func (m *Daemons) endClients(ctx context.Context, key jobenv.JobKey, s lease.Snapshot) {
	done := map[gres.Daemon]bool{}
	for _, l := range s.Leases {
		d := l.Daemon
		others := func(o gres.Lease) bool { return o.Daemon == d && o.Job.JobID != key.JobID }
		if l.Job != key || d == "" || done[d] || !slices.ContainsFunc(s.Leases, others) {
			continue
		}
		done[d] = true
		if err := m.endClientsOf(ctx, d, key, l.UID); err != nil {
			m.Log.Warn("end the MPS clients of a job that is cancelled", "job", key, "error", err)
		}
	}
}

func (m *Daemons) endClientsOf(ctx context.Context, d gres.Daemon, key jobenv.JobKey, uid uint32) error {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	clients, err := m.MPS.Clients(ctx, d)
	for _, pid := range clients {
		if m.Owners.Owner(pid).Of(key.JobID, uid) {
			err = errors.Join(err, m.MPS.Terminate(ctx, d, pid))
		}
	}
	return err
}
