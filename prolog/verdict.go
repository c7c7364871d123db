// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"strings"

	"carma/estimator/history"
	"carma/gres/lease"
	"carma/gres/output"
	"carma/prolog/oomscan"
	"carma/prolog/userfile"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// verdict is what the Epilog finds out about the end of a job.
type verdict struct {
	signature  string // of the OOM; empty: none
	note       string
	requeuedTo string
	alone      bool     // it is requeued with whole GPUs
	slotOver   bool     // it is requeued as it was, for its next time slot
	putBack    bool     // by somebody else
	gpuFault   bool     // its stderr tells of a fault on the GPU
	job        sctl.Job // filled in only for jobs that had to be asked about
}

// judge decides whether the job died of GPU memory: a signature in its own
// stderr, and a failed exit, and a shared GPU. Text alone proves nothing.
func (n *Node) judge(ctx context.Context, h jobenv.Hook, held lease.Held, about JobMeta, ledger Held,
	slurm Slurm) (v verdict) {
	failed := h.Exit.Failed() && about.Mode == jobenv.ModeShared
	if !h.BatchHost || !failed && !h.Carma.Requeue {
		return v
	}
	var err error
	if v.job, err = ask(ctx, h, slurm); err != nil {
		v.note = "slurmctld did not answer"
		n.Log.Error("query an ended job", "job", h.JobKey, "error", err)
		return v
	}
	// Not the exit status tells: a job that ran out of time may end with 0.
	if h.Carma.Requeue && v.job.Reason == jobstate.TimeLimit {
		return n.nextSlot(ctx, h, v, ledger, slurm)
	}
	if !failed {
		return v
	}
	reply := n.scan(ctx, h, about, v.job, n.nameOf(ctx, h, slurm))
	v.note, v.gpuFault = noteOf(reply), reply.State == userfile.StateOK && reply.Kind == oomscan.GPUFault
	if reply.Kind != oomscan.GPUMemory {
		return n.ofServerFault(ctx, h, held, about, v, ledger, slurm)
	}
	seen := nearBooking(held)
	if reply.BackOff && (!seen || preallocated(held, about.FullMiB)) {
		n.Log.Info("backed off to less GPU memory, and ended for another reason", "job", h.JobKey, "signature",
			reply.Signature, "offset", reply.Offset)
		return n.ofServerFault(ctx, h, held, about, v, ledger, slurm)
	}
	v.signature = reply.Signature
	advice := oomscan.Advice(reply.Signature, booked(held), config.Fraction(booked(held), about.FullMiB))
	v.note = advice
	because := func(reason string) {
		v.note = reason
		if advice != "" {
			v.note += "; " + advice
		}
	}
	n.Log.Info("out of GPU memory", "job", h.JobKey, "signature", reply.Signature, "offset", reply.Offset, "seen_by_nvml",
		seen)
	switch why := n.mayNotRecover(h); {
	case why != "":
		because(why)
		return v
	default:
		v.requeuedTo, v.alone, err = n.recover(ctx, h, held, about, v, ledger, slurm)
		if err == nil {
			return v
		}
		because(err.Error())
	}
	n.notRequeued(ctx, h, v, err, slurm)
	return v
}

// mayNotRecover is why the node requeues no job of the partition; empty: it does.
func (n *Node) mayNotRecover(h jobenv.Hook) string {
	if n.Config.Partition[h.Partition].Recovery == "" {
		return "partition has no recovery partition"
	}
	return ""
}

func (n *Node) notRequeued(ctx context.Context, h jobenv.Hook, v verdict, err error, slurm Slurm) {
	n.Log.Error("not requeued", "job", h.JobKey, "reason", v.note)
	if errors.Is(err, errHeld) {
		n.comment(ctx, v.job, v.token("refused", v.note), slurm)
	}
}

// ofServerFault requeues a job that failed with its MPS server, once. Nothing tells which of
// the server's clients caused the fault (NVIDIA's MPS guide, error containment), so the job
// runs exclusively then: if it was the cause, it takes no other job with it again.
func (n *Node) ofServerFault(ctx context.Context, h jobenv.Hook, held lease.Held, about JobMeta, v verdict,
	ledger Held, slurm Slurm) verdict {
	if !held.Victim {
		return v
	}
	v.note = held.Fault
	if why := n.mayNotRecover(h); why != "" {
		v.note += "; " + why
		return v
	}
	to, alone, err := n.recover(ctx, h, held, about, v, ledger, slurm)
	if err != nil {
		v.note += "; " + err.Error()
		n.notRequeued(ctx, h, v, err, slurm)
		return v
	}
	v.requeuedTo, v.alone = to, alone
	return v
}

// nameOf asks for the job's name if the name of its output may hold it (%x).
func (n *Node) nameOf(ctx context.Context, h jobenv.Hook, slurm Jobs) string {
	if !strings.Contains(h.StdErr+h.StdOut, "%") || !strings.Contains(h.StdErr+h.StdOut, "x") {
		return ""
	}
	words, err := slurm.Words(ctx, h.JobID)
	if err != nil {
		n.Log.Warn("query the name of an ended job", "job", h.JobKey, "error", err)
	}
	return words.Name
}

// noteOf says of a scan stderr what is worth a note in the record.
func noteOf(r userfile.Reply) string {
	switch {
	case r.State != userfile.StateOK:
		return "stderr: " + string(r.State)
	case r.Kind == oomscan.HostMemory:
		return "out of the node's memory"
	case r.Kind == oomscan.MPS:
		return "ended or not served by MPS"
	case r.Kind == oomscan.GPUFault:
		return "fault of a program on the GPU"
	}
	return ""
}

// nearBooking tells whether NVML saw the job use 90 % of what it booked on one
// of its GPUs: evidence beyond what the job itself printed.
func nearBooking(held lease.Held) bool {
	for _, g := range held.GPUs {
		if g.PeakMiB*10 >= g.ReserveMiB*9 && g.PeakMiB > 0 {
			return true
		}
	}
	return false
}

// preallocated tells whether one of the job's peaks is what a framework takes at its
// start: no evidence of what the job needed.
func preallocated(held lease.Held, fullMiB int64) bool {
	for _, g := range held.GPUs {
		if history.Preallocated(g.PeakMiB, g.ReserveMiB, fullMiB) != "" {
			return true
		}
	}
	return false
}

// booked is what the job booked of each GPU.
func booked(held lease.Held) (mib int64) {
	for _, g := range held.GPUs {
		mib = max(mib, g.ReserveMiB)
	}
	return mib
}

// scan looks into the batch script's stderr and into what the agent saw the
// job's processes write to.
func (n *Node) scan(ctx context.Context, h jobenv.Hook, about JobMeta, j sctl.Job, name string) userfile.Reply {
	batch := n.outputOf(h, j, name).Path(h.StdErr, h.StdOut)
	ask := userfile.Ask{Op: userfile.OpScan, Files: []userfile.File{{Path: batch, From: about.StdErr}}}
	seen, err := output.Read(n.RunDir, h.JobKey)
	if err != nil {
		n.Log.Warn("scan stderr of the batch script only", "job", h.JobKey, "error", err)
	}
	for _, f := range seen {
		if path := string(f.Path); path != batch {
			ask.Files = append(ask.Files, userfile.File{Path: path, From: userfile.Mark{Exists: true, Dev: f.Dev, Ino: f.Ino,
				Size: f.Size}})
		}
	}
	reply, err := n.AsUser(ctx, n.user(ctx, h), ask)
	if err != nil {
		n.Log.Warn("scan stderr", "job", h.JobKey, "error", err)
		return userfile.Reply{State: userfile.StateError}
	}
	return reply
}

// token is what AdminComment says of a job that is requeued.
func (v verdict) token(key, value string) string {
	reason := admincomment.OOM
	if v.signature == "" {
		reason = admincomment.MPSFault
	}
	return admincomment.Retry(reason, v.signature, key, value)
}

// comment adds a token to the AdminComment of a job in the queue, for people.
// slurmctld takes none for a job that has finished; accounting forwards the
// note of such a job to slurmdbd.
func (n *Node) comment(ctx context.Context, j sctl.Job, token string, slurm Slurm) {
	ctx, cancel := n.part(ctx)
	defer cancel()
	w, err := slurm.Words(ctx, j.ID)
	if err == nil {
		err = slurm.Update(ctx, j.Component(), sctl.Change{AdminComment: admincomment.With(w.AdminComment, token)})
	}
	if err != nil {
		n.Log.Warn("write to AdminComment why a job is held", "job", j.ID, "error", err)
	}
}
