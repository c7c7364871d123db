// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"strings"

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

// verdict is what the Epilog finds out about the end of a job.
type verdict struct {
	signature  string // of the OOM; empty: none
	note       string
	because    string // why the job is requeued without an OOM, as admincomment has it
	proven     bool   // NVML saw what the text says: the job may have a place in the recovery partition
	requeuedTo string
	alone      bool     // GPUs are kept for it: it is requeued with whole ones
	slotOver   bool     // it is requeued as it was, for its next time slot
	putBack    bool     // by somebody else
	gpuFault   bool     // its stderr tells of a fault on the GPU
	job        sctl.Job // filled in only for jobs that had to be asked about
}

// judge decides by all evidence (package evidence) whether the job ran out of GPU memory that it shared, and has
// it requeued if it did. Text alone proves nothing.
func (n *Node) judge(ctx context.Context, h jobenv.Hook, held lease.Held, about JobMeta, ledger EpilogLedger,
	records Records, slurm Slurm) (v verdict) {
	shared := about.Mode == jobenv.ModeShared
	failed := h.Exit.Failed() && shared
	switch {
	case !h.BatchHost:
		return v
	case !h.Exit.Failed() && !h.Carma.Requeue:
		if shared {
			v.note = n.noteOfSuccess(ctx, h, about)
		}
		return v
	case !failed && !h.Carma.Requeue:
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
	v.gpuFault = reply.State == userfile.StateOK && reply.Kind == oomscan.GPUFault
	past := n.lately(ctx, h, held, records)
	e := n.evidence(ctx, h, held, about, reply, past, ledger)
	outcome := e.Decide()
	n.Log.Info("judged the end of a job", "job", h.JobKey, "outcome", outcome, "text", e.Text,
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
		return n.ofServerFault(ctx, h, held, about, v, past, ledger, slurm)
	}
	v.note = e.Note()
	fraction := config.Fraction(booked(held), about.FullMiB)
	if advice := oomscan.Advice(reply.Signature, booked(held), fraction); advice != "" {
		v.note += "; " + advice
	}
	if why := n.full(h, past); v.proven && why != "" {
		v.proven, v.note = false, why+"; "+v.note
	} else if many := within(past, h.Partition, saidPerHour, "requeued"); !v.proven && many != "" {
		n.Log.Info("a text alone says so, and too many jobs of the user were requeued within an hour", "job", h.JobKey)
		v.note = fmt.Sprintf("not requeued: no figure of its GPU's memory confirms it, and %s; book more with mem=; %s",
			many, v.note)
		return v
	}
	return n.bringBack(ctx, h, held, about, v, ledger, slurm)
}

// full is why the job is given no place in the recovery partition, though there is evidence; empty: there is a place.
func (n *Node) full(h jobenv.Hook, past db.Happened) string {
	if many := within(past, n.Config.Partition[h.Partition].Recovery, perHour, "in another"); many != "" {
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

// bySight is the signature of an OOM of which no text tells.
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
func (n *Node) bringBack(ctx context.Context, h jobenv.Hook, held lease.Held, about JobMeta, v verdict, ledger Held,
	slurm Slurm) verdict {
	if why := n.mayNotRecover(h); why != "" {
		v.note = why + "; " + v.note
		return v
	}
	to, alone, err := n.recover(ctx, h, held, about, v, ledger, slurm)
	if err != nil {
		n.notRequeued(ctx, h, v, err, slurm)
		v.note = err.Error() + "; " + v.note
		return v
	}
	v.requeuedTo, v.alone = to, alone && v.proven
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
	n.Log.Error("not requeued", "job", h.JobKey, "reason", err)
	if errors.Is(err, errHeld) {
		n.comment(ctx, v.job, v.token("refused", err.Error()), slurm)
	}
}

// ofServerFault requeues a job that failed with its MPS server, once. Nothing tells which of
// the server's clients caused the fault (NVIDIA's MPS guide, error containment), so the job
// runs exclusively then: if it was the cause, it takes no other job with it again.
func (n *Node) ofServerFault(ctx context.Context, h jobenv.Hook, held lease.Held, about JobMeta, v verdict,
	past db.Happened, ledger Held, slurm Slurm) verdict {
	if !held.Victim {
		return v
	}
	// The servers' log is evidence, as NVML's figures are, and gives no more places within an hour.
	v.note, v.because = held.Fault, admincomment.MPSFault
	if why := n.mayNotRecover(h); why != "" {
		v.note += "; " + why
		return v
	}
	full := n.full(h, past)
	v.proven = full == ""
	to, alone, err := n.recover(ctx, h, held, about, v, ledger, slurm)
	if err != nil {
		v.note += "; " + err.Error()
		n.notRequeued(ctx, h, v, err, slurm)
		return v
	}
	v.note = joined(v.note, full)
	v.requeuedTo, v.alone = to, alone && v.proven
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

// reason is why the job is requeued.
func (v verdict) reason() string {
	if v.signature != "" {
		return admincomment.OOM
	}
	return v.because
}

// token is what AdminComment says of a job that is requeued.
func (v verdict) token(key, value string) string {
	return admincomment.Retry(v.reason(), v.signature, key, value)
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
