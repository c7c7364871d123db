// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"carma/db"
	"carma/gres/lease"
	"carma/gres/output"
	"carma/prolog/evidence"
	"carma/prolog/oomscan"
	"carma/prolog/userfile"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// verdict is the Epilog's findings on the end of a job.
type verdict struct {
	signature  string // of the OOM; empty: none
	note       string
	because    string // why the job is requeued without an OOM, as admincomment has it
	proven     bool   // NVML confirms the text: the job may have a place in the recovery partition
	requeuedTo string
	kept       bool     // GPUs are kept for the job, which is requeued with whole GPUs
	slotOver   bool     // the job is requeued unchanged, for its next time slot
	putBack    bool     // by somebody else
	gpuFault   bool     // its stderr tells of a fault on the GPU
	job        sctl.Job // filled in only if slurmctld was asked
}

// judge decides by all evidence (package evidence) whether the job ran out of memory of a shared GPU, and has
// the job requeued if so. Text alone proves nothing.
func (ep *epilog) judge(ctx context.Context) (v verdict) {
	shared := ep.about.Mode == jobenv.ModeShared
	failed := ep.hook.Exit.Failed() && shared
	inSlots := ep.hook.Carma.Requeue == jobenv.RequeueTimeout
	switch {
	case !ep.hook.BatchHost:
		return v
	case !ep.hook.Exit.Failed() && !inSlots:
		if shared {
			v.note = ep.noteOfSuccess(ctx)
		}
		return v
	case !failed && !inSlots:
		return v
	}
	var err error
	if v.job, err = ask(ctx, ep.hook, ep.slurm); err != nil {
		v.note = "slurmctld did not answer"
		ep.node.Log.Error("query an ended job", "job", ep.hook.JobKey, "error", err)
		return v
	}
	// Not the exit status tells: a job that ran out of time may end with 0.
	if inSlots && v.job.Reason == jobstate.TimeLimit {
		return ep.nextSlot(ctx, v)
	}
	if !failed {
		return v
	}
	reply := ep.scan(ctx, v.job, ep.nameOf(ctx))
	v.gpuFault = reply.State == userfile.StateOK && reply.Kind == oomscan.GPUFault
	past := ep.lately(ctx)
	e := ep.evidence(ctx, reply, past)
	outcome := e.Decide()
	ep.node.Log.Info("judged the end of a job", "job", ep.hook.JobKey, "outcome", outcome, "text", e.Text,
		"signature", reply.Signature, "offset", reply.Offset, "memory", e.Memory, "neighbour", e.Neighbour)
	switch outcome {
	case evidence.Proven, evidence.Said:
		v.signature, v.proven = reply.Signature, outcome == evidence.Proven
		if v.signature == "" {
			v.signature = bySight
		}
	case evidence.Beside:
		v.because = admincomment.Neighbour
	default:
		v.note = joined(noteOf(reply), e.Note())
		return ep.ofServerFault(ctx, v, reply, past)
	}
	v.note = e.Note()
	fraction := config.Fraction(booked(ep.held), ep.about.FullMiB)
	if advice := oomscan.Advice(reply.Signature, booked(ep.held), fraction); advice != "" {
		v.note += "; " + advice
	}
	if why := ep.full(past); v.proven && why != "" {
		v.proven, v.note = false, why+"; "+v.note
	} else if many := within(past, ep.hook.Partition, saidPerHour, "requeued"); !v.proven && many != "" {
		ep.node.Log.Info("a text alone says so, and too many jobs of the user were requeued within an hour", "job",
			ep.hook.JobKey)
		v.note = fmt.Sprintf("not requeued: no figure of its GPU's memory confirms it, and %s; book more with mem=; %s",
			many, v.note)
		return v
	}
	return ep.bringBack(ctx, v)
}

// full is why the job is given no place in the recovery partition, though there is evidence; empty: there is a place.
func (ep *epilog) full(past db.Happened) string {
	if many := within(past, ep.node.Config.Partition[ep.hook.Partition].Recovery, perHour, "in another"); many != "" {
		return "requeued in its own partition, as " + many
	}
	return ""
}

// within says that most or more jobs of the user were requeued to a partition within an hour, or that the records do
// not tell; empty: fewer were. Without an answer no job is requeued that a bound would stop.
func within(past db.Happened, partition string, most int, were string) string {
	switch {
	case past.Requeues == nil:
		return fmt.Sprintf("the records did not tell how many of its user's jobs were %s within an hour", were)
	case past.Requeues[partition] >= most:
		return fmt.Sprintf("%d of its user's jobs were %s within an hour", most, were)
	}
	return ""
}

// bySight is the signature of an OOM without a text.
const bySight = "nvml"

// How many jobs of a user are requeued within an hour: to the recovery partition, which may have a better place in
// the queue, and to their own, of which a text alone says why. Each gets a whole GPU.
const (
	perHour     = 10
	saidPerHour = 40
)

// joined puts sentences together.
func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// bringBack requeues the job, or says why not.
func (ep *epilog) bringBack(ctx context.Context, v verdict) verdict {
	if why := ep.mayNotRecover(); why != "" {
		v.note = why + "; " + v.note
		return v
	}
	to, kept, err := ep.recover(ctx, v)
	if err != nil {
		ep.notRequeued(ctx, v, err)
		v.note = err.Error() + "; " + v.note
		return v
	}
	v.requeuedTo, v.kept = to, kept
	return v
}

// mayNotRecover is why the node requeues no job of the partition; empty: jobs are requeued.
func (ep *epilog) mayNotRecover() string {
	if ep.node.Config.Partition[ep.hook.Partition].Recovery == "" {
		return "partition has no recovery partition"
	}
	return ""
}

func (ep *epilog) notRequeued(ctx context.Context, v verdict, err error) {
	ep.node.Log.Error("not requeued", "job", ep.hook.JobKey, "reason", err)
	if errors.Is(err, errHeld) {
		ep.queue().comment(ctx, v.job, v.token("refused", err.Error()))
	}
}

// ofServerFault requeues a job that failed with its MPS server, once. Nothing tells which of
// the server's clients caused the fault (NVIDIA's MPS guide, error containment), so the job
// runs exclusively then: if the job was the cause, no other job fails with it again.
//
// The end of a client with queued kernels can bring a fault to the other clients: seen on an H200 with driver 580,
// after SIGTERM, SIGKILL and exit alike (contrib/gpucheck/data). If the ended job's lease has gone when the log tells
// the fault, the ledger finds a single victim.
func (ep *epilog) ofServerFault(ctx context.Context, v verdict, r userfile.Reply, past db.Happened) verdict {
	ended := ep.endBefore(r, past)
	switch {
	case ep.hook.Exit.Stopped(), v.job.Reason == jobstate.TimeLimit: // no restart is wanted
		return v
	case !ep.held.Victim && ended == "":
		return v
	}
	if ep.held.Fault != "" {
		v.note = ep.held.Fault
	}
	if ended != "" {
		v.note = joined(v.note, ended+" it failed")
	}
	// The servers' log is evidence, as NVML's figures are, and gives no more places within an hour.
	v.because = admincomment.MPSFault
	if why := ep.mayNotRecover(); why != "" {
		v.note += "; " + why
		return v
	}
	full := ""
	if ep.held.Victim {
		full = ep.full(past)
	} else if many := within(past, ep.hook.Partition, saidPerHour, "requeued"); many != "" {
		v.note += "; not requeued: " + many
		return v
	}
	v.proven = ep.held.Victim && full == ""
	to, kept, err := ep.recover(ctx, v)
	if err != nil {
		v.note += "; " + err.Error()
		ep.notRequeued(ctx, v, err)
		return v
	}
	v.note = joined(v.note, full)
	v.requeuedTo, v.kept = to, kept
	return v
}

// endBefore names the co-located job, a client of the same MPS daemon, whose end may have brought the job's fault;
// empty: there is none, or neither the servers' log nor the job's text tells a fault. Not a job with the same fault.
func (ep *epilog) endBefore(r userfile.Reply, past db.Happened) string {
	fault := false
	switch ep.held.Fault {
	case lease.FaultedMPS:
		fault = r.Kind != oomscan.HostMemory && !r.OtherEnd
	case "":
		fault = r.State == userfile.StateOK && (r.Kind == oomscan.GPUFault || r.Kind == oomscan.MPS)
	}
	if !fault || len(ep.held.GPUs) == 0 || ep.held.GPUs[0].Daemon == "" {
		return ""
	}
	return endedBeside(ep.held, past, time.Now(), lease.FaultedMPS, endedByMPS, faultOnGPU)
}

// nameOf asks for the job's name if the name of its output may hold it (%x).
func (ep *epilog) nameOf(ctx context.Context) string {
	if !strings.Contains(ep.hook.StdErr+ep.hook.StdOut, "%") || !strings.Contains(ep.hook.StdErr+ep.hook.StdOut, "x") {
		return ""
	}
	words, err := ep.slurm.Words(ctx, ep.hook.JobID)
	if err != nil {
		ep.node.Log.Warn("query the name of an ended job", "job", ep.hook.JobKey, "error", err)
	}
	return words.Name
}

// booked is the job's booking of each GPU.
func booked(held lease.Held) (mib int64) {
	for _, g := range held.GPUs {
		mib = max(mib, g.ReserveMiB)
	}
	return mib
}

// scan looks into the batch script's stderr and into the files that the agent
// saw the job's processes write to.
func (ep *epilog) scan(ctx context.Context, j sctl.Job, name string) userfile.Reply {
	batch := ep.node.outputOf(ep.hook, j, name).Path(ep.hook.StdErr, ep.hook.StdOut)
	ask := userfile.Ask{Op: userfile.OpScan, Files: []userfile.File{{Path: batch, From: ep.about.StdErr}}}
	seen, err := output.Read(ep.node.RunDir, ep.hook.JobKey)
	if err != nil {
		ep.node.Log.Warn("scan stderr of the batch script only", "job", ep.hook.JobKey, "error", err)
	}
	ask.Files = append(ask.Files, written(seen, batch)...)
	reply, err := ep.node.AsUser(ctx, ep.node.user(ctx, ep.hook), ask)
	if err != nil {
		ep.node.Log.Warn("scan stderr", "job", ep.hook.JobKey, "error", err)
		return userfile.Reply{State: userfile.StateError}
	}
	return reply
}

// reason is why the job is requeued.
func (v verdict) reason() string {
	if v.signature != "" {
		return admincomment.OOM
	}
	return v.because
}

// token is AdminComment's word on a requeued job.
func (v verdict) token(key, value string) string {
	return admincomment.Retry(v.reason(), v.signature, key, value)
}
