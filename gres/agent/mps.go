// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"time"

	"carma/gres"
	"carma/gres/lease"
)

// MPS keeps the daemons of the GPUs.
type MPS interface {
	Ensure(ctx context.Context, uuid string) error
	Faulted(ctx context.Context, uuid string) (bool, error)
	Terminate(ctx context.Context, uuid string, pid int) error
	Restart(ctx context.Context, uuid string) error
	Quit(ctx context.Context, uuid string) error
}

// checkMPSEvery is how often a daemon that has ended, or a server that has
// faulted, is noticed.
const checkMPSEvery = 10 * time.Second

// mpsDeadline bounds what is done about one GPU.
const mpsDeadline = 5 * time.Second

// checkMPS keeps the daemons up, quarantines GPUs whose server has faulted and
// readmits them when the victims have gone, and ends clients that a job left.
func (a *Agent) checkMPS(ctx context.Context, samples []gres.Sample, s lease.Snapshot) {
	if a.MPS == nil {
		return
	}
	quarantined := map[string]bool{}
	for _, r := range s.Readings {
		quarantined[r.UUID] = r.Quarantined != ""
	}
	for _, sample := range samples {
		if sample.Unreadable != "" || sample.MIG {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, mpsDeadline)
		a.checkDaemon(ctx, sample, s.Leases, quarantined[sample.UUID])
		cancel()
	}
}

func (a *Agent) checkDaemon(ctx context.Context, sample gres.Sample, leases []gres.Lease, quarantined bool) {
	uuid := sample.UUID
	used := slices.ContainsFunc(leases, func(l gres.Lease) bool { return l.UUID == uuid && l.MPS })
	if quarantined {
		if used || slices.ContainsFunc(sample.Processes, func(p gres.Process) bool { return p.MPS }) {
			return // its victims are still there
		}
		if err := a.MPS.Restart(ctx, uuid); err != nil {
			a.Log.Error("restart a faulted MPS daemon", "error", err)
			return
		}
		if err := a.Ledger.Readmit(ctx, uuid); err != nil {
			a.Log.Error("readmit a GPU", "error", err)
			return
		}
		a.Log.Info("GPU readmitted", "gpu", uuid)
		return
	}
	if err := a.MPS.Ensure(ctx, uuid); err != nil {
		a.Log.Error("keep the MPS daemon up", "error", err)
		return
	}
	a.endLeftovers(ctx, sample, leases)
	if !used {
		return // nobody to ask about: asking costs processes
	}
	faulted, err := a.MPS.Faulted(ctx, uuid)
	if err != nil {
		a.Log.Warn("ask the MPS daemon", "error", err)
		return
	}
	if faulted {
		victims, err := a.Ledger.Quarantine(ctx, uuid, "its MPS server has faulted")
		if err != nil {
			a.Log.Error("quarantine", "error", err)
			return
		}
		a.Log.Error("MPS server has faulted; GPU quarantined", "gpu", uuid, "victims", victims)
	}
}

// endLeftovers ends MPS clients of jobs that hold the GPU no more: what a job
// left behind that Slurm killed.
func (a *Agent) endLeftovers(ctx context.Context, sample gres.Sample, leases []gres.Lease) {
	for _, p := range sample.Processes {
		if !p.MPS {
			continue
		}
		o := a.Owners.Owner(p.PID)
		if o.Gone || o.MPSServer || o.JobID == 0 || ownerOf(o, leases, sample.UUID) != 0 {
			continue
		}
		a.Log.Warn("MPS client of a job that has ended", "gpu", sample.UUID, "pid", p.PID, "job", o.JobID)
		if err := a.MPS.Terminate(ctx, sample.UUID, p.PID); err != nil {
			a.Log.Error("end an MPS client", "error", err)
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
	for uuid := range a.gpus {
		if slices.ContainsFunc(s.Leases, func(l gres.Lease) bool { return l.UUID == uuid }) {
			continue
		}
		if err := a.MPS.Quit(ctx, uuid); err != nil {
			a.Log.Warn("stop the MPS daemon", "error", err)
		}
	}
}
