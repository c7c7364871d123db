// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"carma/gres"
	"carma/gres/lease"
)

// checkMPSEvery is how often a daemon that has ended, or a server that has
// faulted, is noticed.
const checkMPSEvery = 10 * time.Second

// boundLogsEvery is how often the logs of the daemons are looked at.
const boundLogsEvery = 2 * time.Second

// boundLogs follows the daemons' logs and keeps them small until ctx ends. Nothing waits for
// it: they are on a disk, which may hang.
func (a *Agent) boundLogs(ctx context.Context) {
	tick := time.NewTicker(boundLogsEvery)
	defer tick.Stop()
	failed := false
	for {
		err := errors.Join(a.MPS.BoundLogs(), a.followLogs(ctx))
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
		within(ctx, func(ctx context.Context) { a.checkFault(ctx, d, s.Leases) })
	}
	return err
}

// mpsDeadline bounds what is done about one daemon.
const mpsDeadline = 5 * time.Second

// within runs f with that deadline.
func within(ctx context.Context, f func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, mpsDeadline)
	defer cancel()
	f(ctx)
}

// keepMPS starts daemons that jobs wait for, and looks after all of them every so often.
func (a *Agent) keepMPS(ctx context.Context, v view) {
	a.startUsed(ctx, v.snapshot.Leases)
	if now := lease.Now(); a.checked == 0 || now-a.checked >= checkMPSEvery {
		a.checked = now
		a.checkMPS(ctx, v.samples, v.snapshot)
	}
}

// startUsed starts the daemons whose jobs' Prologs wait for them: those of several GPUs,
// and any that has ended. One that does not start is left until all are checked.
func (a *Agent) startUsed(ctx context.Context, leases []gres.Lease) {
	if a.MPS == nil {
		return
	}
	for _, d := range daemonsOf(leases) {
		if !a.failed[d] {
			within(ctx, func(ctx context.Context) { a.failed[d] = !a.ensure(ctx, d) })
		}
	}
}

func (a *Agent) ensure(ctx context.Context, d gres.Daemon) bool {
	err := a.MPS.Ensure(ctx, d)
	if err != nil {
		a.Log.Error("keep the MPS daemon up", "error", err)
	}
	return err == nil
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

// checkMPS keeps the daemons up, quarantines GPUs whose server has faulted and
// readmits them when the victims have gone, and ends clients that a job left.
func (a *Agent) checkMPS(ctx context.Context, samples []gres.Sample, s lease.Snapshot) {
	if a.MPS == nil {
		return
	}
	sets, err := a.MPS.Sets()
	if err != nil {
		a.Log.Error("keep the MPS daemon up", "error", err)
	}
	clear(a.failed)
	bad := map[string]bool{}
	for _, r := range s.Readings {
		bad[r.UUID] = r.Cause == gres.CauseMPS
	}
	used := daemonsOf(s.Leases)
	for _, sample := range samples {
		if sample.Unreadable != "" || sample.MIG {
			continue
		}
		within(ctx, func(ctx context.Context) {
			if bad[sample.UUID] {
				a.readmit(ctx, sample, used)
			} else if a.ensure(ctx, gres.Daemon(sample.UUID)) {
				a.endLeftovers(ctx, sample, s.Leases, sets)
			} else {
				a.failed[gres.Daemon(sample.UUID)] = true
			}
		})
	}
	for _, d := range used {
		if slices.ContainsFunc(d.UUIDs(), func(uuid string) bool { return bad[uuid] }) {
			continue
		}
		within(ctx, func(ctx context.Context) { a.checkUsed(ctx, d, s.Leases) })
	}
	for _, d := range sets {
		if !slices.Contains(used, d) {
			within(ctx, func(ctx context.Context) { a.quitSet(ctx, d) })
		}
	}
	a.closeUnused(ctx, samples, sets)
}

// closeUnused closes the pipe directories of daemons to users whose jobs have ended.
func (a *Agent) closeUnused(ctx context.Context, samples []gres.Sample, daemons []gres.Daemon) {
	for _, sample := range samples {
		daemons = append(daemons, gres.Daemon(sample.UUID))
	}
	err := a.MPS.Close(daemons, func() (map[gres.Daemon]uint32, error) {
		s, err := a.Ledger.Snapshot(ctx)
		users := map[gres.Daemon]uint32{}
		for _, l := range s.Leases {
			if l.Daemon != "" {
				users[l.Daemon] = l.UID
			}
		}
		return users, err
	})
	if err != nil && !a.closeFails {
		a.Log.Warn("restrict MPS pipe directories; logged once until it succeeds", "error", err)
	}
	a.closeFails = err != nil
}

// readmit opens a quarantined GPU again when its victims have gone.
func (a *Agent) readmit(ctx context.Context, sample gres.Sample, used []gres.Daemon) {
	uuid := sample.UUID
	if slices.ContainsFunc(used, func(d gres.Daemon) bool { return d.Serves(uuid) }) ||
		slices.ContainsFunc(sample.Processes, func(p gres.Process) bool { return p.MPS }) {
		return
	}
	if err := a.MPS.Restart(ctx, gres.Daemon(uuid)); err != nil {
		a.Log.Error("restart a faulted MPS daemon", "error", err)
		return
	}
	if err := a.Ledger.Readmit(ctx, uuid); err != nil {
		a.Log.Error("end the quarantine of a GPU", "error", err)
		return
	}
	a.Log.Info("quarantine of a GPU ended", "gpu", uuid)
}

// checkUsed looks after a daemon that jobs are clients of; asking the others
// would only cost processes.
func (a *Agent) checkUsed(ctx context.Context, d gres.Daemon, leases []gres.Lease) {
	if d.Many() { // the others have been started
		a.failed[d] = !a.ensure(ctx, d)
	}
	if !a.failed[d] {
		a.checkFault(ctx, d, leases)
	}
}

// checkFault quarantines the GPUs of a daemon whose server says by its status that it has
// faulted.
func (a *Agent) checkFault(ctx context.Context, d gres.Daemon, leases []gres.Lease) {
	faulted, err := a.MPS.Faulted(ctx, d)
	if err != nil {
		a.Log.Warn("query the MPS daemon", "error", err)
		return
	}
	if !faulted {
		return
	}
	for _, uuid := range d.UUIDs() {
		if slices.ContainsFunc(leases, func(l gres.Lease) bool { return l.UUID == uuid && l.Daemon != "" && l.Daemon != d }) {
			continue // none of its clients is there
		}
		victims, err := a.Ledger.Quarantine(ctx, uuid, lease.FaultedMPS)
		if err != nil {
			a.Log.Error("quarantine", "error", err)
			return
		}
		a.Log.Error("MPS server has faulted; GPU quarantined", "gpu", uuid, "victims", victims)
	}
}

// quitSet stops a daemon of several GPUs that no job uses, by the ledger: what the agent has seen
// may be older, as each daemon takes its time. A Prolog may come in between all the same: its
// job's daemon is started again at once.
func (a *Agent) quitSet(ctx context.Context, d gres.Daemon) {
	s, err := a.Ledger.Snapshot(ctx)
	if err == nil && slices.Contains(daemonsOf(s.Leases), d) {
		return
	}
	if err == nil {
		if err := a.MPS.Quit(ctx, d); err != nil {
			a.Log.Warn("stop the MPS daemon", "error", err)
			return
		}
		s, err = a.Ledger.Snapshot(ctx)
	}
	if err != nil {
		a.Log.Error("read ledger", "error", err)
		return
	}
	a.startUsed(ctx, s.Leases)
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
	ctx, cancel := context.WithTimeout(context.Background(), mpsDeadline)
	defer cancel()
	s, err := a.Ledger.Snapshot(ctx)
	if err != nil {
		a.Log.Error("read ledger", "error", err)
		return
	}
	daemons, err := a.MPS.Sets()
	if err != nil {
		a.Log.Warn("stop the MPS daemon", "error", err)
	}
	for uuid := range a.gpus {
		daemons = append(daemons, gres.Daemon(uuid))
	}
	for _, d := range daemons {
		if slices.ContainsFunc(s.Leases, func(l gres.Lease) bool { return d.Serves(l.UUID) }) {
			continue
		}
		if err := a.MPS.Quit(ctx, d); err != nil {
			a.Log.Warn("stop the MPS daemon", "error", err)
		}
	}
}
