// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"carma/db"
	"carma/gres"
	"carma/gres/capacity"
	"carma/gres/failpoint"
	"carma/gres/lease"
	"carma/prolog/userfile"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/tres"
)

// EpilogLedger is what an Epilog needs of the node's ledger.
type EpilogLedger interface {
	Find(ctx context.Context, key gres.JobKey) (lease.Held, bool, error)
	Release(ctx context.Context, key gres.JobKey) error
	AddComeback(ctx context.Context, job uint32, delay time.Duration) error
	Hold(ctx context.Context, job uint32, uuids []string) error
}

// Records is where accounting goes.
type Records interface {
	Put(ctx context.Context, a db.Attempt) error
}

// scanDeadline bounds the look into stderr. While an Epilog runs, its node
// takes no new job.
const scanDeadline = 2 * time.Second

// verdict is what the Epilog finds out about the end of a job.
type verdict struct {
	signature  string // of the OOM; empty: none
	note       string
	requeuedTo string
	job        sctl.Job // filled in only for jobs that had to be asked about
}

// Epilog judges how the job ended, brings it back if it died of GPU memory
// that it shared, writes its record and gives its GPUs back. Whatever fails,
// the GPUs are given back; publish then tells slurmctld, before the job leaves
// COMPLETING.
func (n *Node) Epilog(ctx context.Context, h jobenv.Hook, ledger EpilogLedger, records Records, slurm Slurm, publish func(context.Context) error) error {
	held, ok, err := ledger.Find(ctx, h.JobKey)
	if err != nil {
		return err
	}
	if !ok {
		return nil // no GPUs, or given back by the Prolog, or an Epilog that runs twice
	}
	var about About
	if err := json.Unmarshal(held.About, &about); err != nil {
		n.Log.Error("read the ledger's note of the job", "job", h.JobKey, "error", err)
	}
	failpoint.Here("epilog.start")
	v := n.judge(ctx, h, about, slurm)
	if err := records.Put(ctx, attempt(h, held, about, v)); err != nil {
		n.Log.Error("write record", "job", h.JobKey, "error", err)
	}
	failpoint.Here("epilog.recorded")
	if v.requeuedTo != "" {
		n.expect(ctx, h, held, ledger)
	}
	if err := ledger.Release(ctx, h.JobKey); err != nil {
		return err
	}
	failpoint.Here("epilog.released")
	if err := os.Remove(taskPath(n.RunDir, h.JobID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.Log.Warn("remove leases for TaskProlog", "job", h.JobKey, "error", err)
	}
	n.Log.Info("released", "job", h.JobKey, "exit_code", h.Exit.Code, "exit_signal", h.Exit.Signal)
	if err := publish(ctx); err != nil && !errors.Is(err, capacity.ErrTooSoon) {
		n.Log.Warn("publish capacity; the agent will", "error", err)
	}
	n.Poke()
	return nil
}

// judge decides whether the job died of GPU memory: a signature in its own
// stderr, and a failed exit, and a shared GPU. Text alone proves nothing.
func (n *Node) judge(ctx context.Context, h jobenv.Hook, about About, slurm Slurm) (v verdict) {
	if !h.Exit.Failed() || about.Mode != "shared" || !h.BatchHost {
		return v
	}
	var err error
	if v.job, err = slurm.Job(ctx, h.JobID); err != nil {
		v.note = "slurmctld did not answer"
		n.Log.Error("ask about a failed job", "job", h.JobKey, "error", err)
		return v
	}
	reply := n.scan(ctx, h, about, v.job)
	if reply.State != userfile.StateOK {
		v.note = "stderr: " + string(reply.State)
	}
	if reply.Signature == "" {
		return v
	}
	v.signature = reply.Signature
	n.Log.Info("out of GPU memory", "job", h.JobKey, "signature", reply.Signature, "offset", reply.Offset)
	v.requeuedTo, v.note = n.recover(ctx, h, about, v.job, slurm)
	return v
}

func (n *Node) scan(ctx context.Context, h jobenv.Hook, about About, j sctl.Job) userfile.Reply {
	ctx, cancel := context.WithTimeout(ctx, scanDeadline)
	defer cancel()
	path := output(h, j).Path(h.StdErr, h.StdOut)
	reply, err := n.AsUser(ctx, n.user(ctx, h), userfile.Ask{Op: userfile.OpScan, Path: path, From: about.StdErr})
	if err != nil {
		n.Log.Warn("look into stderr", "job", h.JobKey, "error", err)
		return userfile.Reply{State: userfile.StateError}
	}
	return reply
}

// recover puts the job back to run alone. It returns the partition, or why
// not. The job is COMPLETING, so it cannot start before this Epilog ends.
func (n *Node) recover(ctx context.Context, h jobenv.Hook, about About, j sctl.Job, slurm Slurm) (partition, note string) {
	partition = n.Config.Partition[h.Partition].Recovery
	switch {
	case !n.Config.Recovery.Enabled:
		return "", "recovery is off"
	case partition == "":
		return "", "partition has no recovery partition"
	}
	if err := n.putAlone(ctx, j, partition, about.FullMiB, slurm); err != nil {
		n.Log.Error("bring back", "job", h.JobKey, "error", err)
		return "", err.Error()
	}
	n.Log.Info("brought back", "job", h.JobKey, "partition", partition)
	return partition, ""
}

// expect keeps the job's GPUs for it and has its start set.
func (n *Node) expect(ctx context.Context, h jobenv.Hook, held lease.Held, ledger EpilogLedger) {
	var uuids []string
	for _, g := range held.GPUs {
		uuids = append(uuids, g.UUID)
	}
	if err := ledger.Hold(ctx, h.JobID, uuids); err != nil {
		n.Log.Warn("keep its GPUs for a job that comes back", "job", h.JobKey, "error", err)
	}
	if err := ledger.AddComeback(ctx, h.JobID, 0); err != nil {
		n.Log.Warn("the job starts only after slurmctld's delay", "job", h.JobKey, "error", err)
	}
}

// putAlone puts a running or completing job back into the queue, to run in the
// recovery partition with whole GPUs. What fails on the way leaves it held,
// never half moved.
func (n *Node) putAlone(ctx context.Context, j sctl.Job, partition string, fullMiB int64, slurm Slurm) error {
	target := j.Target()
	if err := slurm.RequeueHold(ctx, target); err != nil {
		return fmt.Errorf("requeue refused: %s", reason(err))
	}
	if err := n.move(ctx, target, partition, whole(j.TresPerNode, fullMiB), slurm); err != nil {
		return fmt.Errorf("held: %s", reason(err))
	}
	if err := slurm.Release(ctx, target); err != nil {
		return fmt.Errorf("held: %s", reason(err))
	}
	return nil
}

// moveTries: slurmctld 25.11 and later now and then answers "Resource
// temporarily unavailable" while a job is COMPLETING.
const moveTries = 5

func (n *Node) move(ctx context.Context, target, partition, tresPerNode string, slurm Slurm) error {
	for try := 1; ; try++ {
		err := slurm.Move(ctx, target, partition, tresPerNode)
		if err == nil || try == moveTries || ctx.Err() != nil || !strings.Contains(err.Error(), "temporarily") {
			return err
		}
		time.Sleep(time.Duration(try) * 100 * time.Millisecond)
	}
}

// whole returns a job's GRES list with its booking raised to whole GPUs.
func whole(tresPerNode string, fullMiB int64) string {
	k, _ := tres.Booking(tresPerNode)
	if k == 0 {
		return tresPerNode
	}
	rest, _ := tres.Without(tresPerNode)
	prefix := "gres:"
	if strings.Contains(tresPerNode, "gres/") {
		prefix = "gres/"
	}
	return tres.Add(rest, fmt.Sprintf("%s%s:%d", prefix, tres.Name(k), fullMiB))
}

// reason shortens an error of a Slurm command to what Slurm said.
func reason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	return fmt.Sprintf("%.80s", text)
}

func attempt(h jobenv.Hook, held lease.Held, about About, v verdict) db.Attempt {
	a := db.Attempt{
		JobID: h.JobID, Restart: h.Restart, Node: h.Node, Cluster: h.Cluster,
		ArrayJobID: v.job.ArrayJobID, ArrayTask: v.job.ArrayTask,
		User: about.User, UID: h.UID, Partition: about.Partition,
		Submit: about.Submit, Start: about.Start, End: time.Now(),
		State: state(h.Exit, v), ExitCode: h.Exit.Code, ExitSignal: h.Exit.Signal,
		Mode: about.Mode, Method: about.Method, EstMiB: about.EstMiB,
		Neighbours: held.Neighbours, OOM: v.signature, OOMNote: v.note, RequeuedTo: v.requeuedTo,
	}
	if a.OOMNote == "" && h.Exit.Failed() {
		a.OOMNote = held.Fault
	}
	for _, g := range held.GPUs {
		a.ReserveMiB = max(a.ReserveMiB, g.ReserveMiB)
		a.GPUs = append(a.GPUs, db.AttemptGPU{UUID: g.UUID, PeakMiB: g.PeakMiB, SMActPct: gres.Measured(g.SMActPct), SMActMax: gres.Measured(g.SMActMax), EnergyJ: gres.Measured(g.EnergyJ)})
	}
	return a
}

// state names the end in sacct's words as far as an exit status tells.
func state(e jobenv.Exit, v verdict) string {
	switch {
	case v.requeuedTo != "":
		return "REQUEUED"
	case v.signature != "":
		return "OUT_OF_MEMORY"
	case e.Code == 0 && (e.Signal == int(syscall.SIGTERM) || e.Signal == int(syscall.SIGKILL)):
		return "CANCELLED" // or over its time limit: both end so
	case e.Failed():
		return "FAILED"
	}
	return "COMPLETED"
}
