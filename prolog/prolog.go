// SPDX-License-Identifier: Apache-2.0

// Package prolog is the order of steps of Slurm's hooks on a GPU node: Prolog
// leases GPUs, TaskProlog tells the job which, Epilog judges how the job ended
// and gives the GPUs back. The steps themselves live elsewhere; here is what
// comes after what, and what a failure of each means.
//
// A hook never fails towards slurmd: a Prolog that exits with an error drains
// the node. What goes wrong is logged, and the job runs, waits or goes back to
// the queue.
package prolog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"carma/gres"
	"carma/gres/choose"
	"carma/gres/failpoint"
	"carma/gres/lease"
	"carma/gres/mps"
	"carma/prolog/userfile"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/tres"
)

// Ledger is what a Prolog needs of the node's ledger.
type Ledger interface {
	Snapshot(ctx context.Context) (lease.Snapshot, error)
	Oldest(ctx context.Context) (age time.Duration, ok bool, err error)
	PutReadings(ctx context.Context, readings []gres.Reading) error
	Acquire(ctx context.Context, job lease.Job, r gres.Request, choose lease.Choose) ([]lease.Granted, error)
	AddComeback(ctx context.Context, job uint32, delay time.Duration) error
	Hold(ctx context.Context, job, uid uint32, gpus int, mib int64, uuids []string) error
}

// Slurm is what the hooks ask of slurmctld, and only when a job has to go back.
type Slurm interface {
	Job(ctx context.Context, id uint32) (sctl.Job, error)
	RequeueIncomplete(ctx context.Context, target string) error
	RequeueHold(ctx context.Context, target string) error
	Requeueing(ctx context.Context, id uint32) (sctl.Requeueing, error)
	Partition(ctx context.Context, name string) (sctl.Partition, error)
	Update(ctx context.Context, target string, change sctl.Change) error
	Release(ctx context.Context, target string) error
	Waiting
}

// Node is what the hooks have at hand on a node.
type Node struct {
	Name       string // Slurm's
	Host       string // short host name
	Config     config.Config
	Thresholds choose.Thresholds
	RunDir     string
	Log        *slog.Logger

	// Sample reads the GPUs now, in a process of its own.
	Sample func(ctx context.Context) ([]gres.Reading, error)
	// AsUser looks into a file of the job's user.
	AsUser func(ctx context.Context, u userfile.User, ask userfile.Ask) (userfile.Reply, error)
	// Groups looks up the user's groups.
	Groups func(ctx context.Context, user string, gid uint32) []uint32
	// Group looks up a group by its name.
	Group func(ctx context.Context, name string) (gid uint32, ok bool)
	// Poke wakes the agent, if there is one.
	Poke func()
}

// About is what the Epilog needs to know of a job beyond its leases. The
// Prolog writes it into the ledger.
type About struct {
	User      string        `json:"user"`
	Partition string        `json:"partition"`
	Mode      string        `json:"mode"`
	Method    string        `json:"method"`
	EstMiB    int64         `json:"est_mib"`
	FullMiB   int64         `json:"full_mib"`
	Submit    time.Time     `json:"submit"`
	Start     time.Time     `json:"start"`
	StdErr    userfile.Mark `json:"stderr"`
}

// request derives from the environment what the job needs of this node. A job
// that job_submit did not annotate, or that runs in a partition that does not
// share, gets whole GPUs: so a slurmctld without libcarma puts nobody at risk.
func (n *Node) request(h jobenv.Hook) (gres.Request, lease.Job, About) {
	part, managed := n.Config.Partition[h.Partition]
	full := h.Carma.FullMiB // 0 if not annotated: any GPU will do
	exclusive := !h.Carma.Annotated || h.Carma.Mode != "shared" || !managed || !part.Share
	// With --exclusive slurmctld gives a job all GPUs of the node.
	exclusive = exclusive || n.Config.Placement.BySlurm() && len(h.Slots) > 1
	about := About{
		User: h.User, Partition: h.Partition, Mode: "exclusive", Method: "none",
		FullMiB: full, Submit: h.Carma.Submit, Start: time.Now(),
	}
	job := lease.Job{JobKey: h.JobKey, UID: h.UID}
	r := gres.Request{JobID: h.JobID, GPUs: len(h.Slots), Exclusive: exclusive, UID: h.UID, ReserveMiB: full, SMActPct: float64(h.Carma.SMActPct)}
	if h.Carma.Annotated {
		about.Mode, about.Method, about.EstMiB = h.Carma.Mode, h.Carma.Method, h.Carma.EstMiB
		if h.Carma.EstMiB > 0 { // min_free, booked without one, is margin enough
			r.MarginMiB = n.Config.Placement.MarginOf(h.Carma.Method)
		}
	}
	if !exclusive {
		r.ReserveMiB = h.Carma.ReserveMiB
	} else if about.Mode == "shared" {
		// Brought back after an OOM: the Epilog raised the booking to a
		// whole GPU; spank_job_env keeps what the first attempt asked for.
		alone(&r, &about)
	}
	return r, job, about
}

// Prolog leases GPUs for the job, waiting for them if need be. Without any it
// gives the job back to the queue.
func (n *Node) Prolog(ctx context.Context, h jobenv.Hook, ledger Ledger, slurm Slurm) error {
	if len(h.Slots) == 0 {
		return nil
	}
	started := time.Now()
	failpoint.Here("prolog.start")
	r, job, about := n.request(h)
	var j sctl.Job
	var retry string
	if h.Restart > 0 && h.Carma.Annotated {
		j, retry = n.again(ctx, h, &r, &about, slurm)
	}
	if !r.Exclusive && h.BatchHost {
		about.StdErr = n.markStdErr(ctx, h, j)
	}
	ledger = n.inTurn(h, j, ledger, slurm)
	if n.Config.Hooks.Strict {
		if err := n.fit(ctx, ledger); err != nil {
			return err
		}
	}
	granted, err := n.acquire(ctx, ledger, job, about, r, n.chooser(h), n.Config.Hooks.Wait.D())
	if err != nil && !errors.Is(err, lease.ErrNoFit) && n.Config.Hooks.Strict {
		return fmt.Errorf("%w: lease GPUs: %w", ErrNode, err)
	}
	if err != nil {
		err = n.giveBack(ctx, h, r, about, errors.Is(err, errOtherUsers), ledger, slurm)
		if err == nil {
			return nil
		}
		if errors.Is(err, sctl.ErrBatchOnly) {
			n.keep(ctx, h, r, ledger)
			granted, err = n.acquire(ctx, ledger, job, about, r, n.chooser(h), n.Config.Hooks.WaitInteractive.D())
		}
	}
	// A job that could neither get GPUs nor go back must at least see none:
	// the numbers that Slurm gave it are slots, not GPUs.
	task := newTaskFile(n, h, granted)
	task.RetryReason = retry
	if err := errors.Join(err, writeTaskFile(n.RunDir, h.JobKey, task)); err != nil {
		return fmt.Errorf("job %s runs without a GPU: %w", h.JobKey, err)
	}
	failpoint.Here("prolog.task-file-written")
	n.Poke()
	failpoint.Here("prolog.poked")
	n.awaitDaemon(ctx, h.JobKey, granted)
	for _, g := range granted {
		n.Log.Info("leased", "took", time.Since(started).Round(time.Microsecond), "job", h.JobKey, "user", h.User, "gpu", g.UUID, "reserve_mib", g.ReserveMiB, "exclusive", g.Exclusive, "mps", g.Daemon != "")
	}
	return nil
}

// daemonWait is how long a Prolog waits for a daemon of several GPUs. The agent
// looks at once when it is poked.
const daemonWait = 5 * time.Second

// awaitDaemon waits until the job's MPS daemon has come up. The agent keeps those of
// single GPUs up; one of several comes with the first job that needs it.
func (n *Node) awaitDaemon(ctx context.Context, key gres.JobKey, granted []lease.Granted) {
	if !n.Config.MPS.Enabled || len(granted) == 0 || !granted[0].Daemon.Many() {
		return
	}
	for until := time.Now().Add(daemonWait); !mps.Listens(n.RunDir, granted[0].Daemon); time.Sleep(20 * time.Millisecond) {
		if ctx.Err() != nil || time.Now().After(until) {
			n.Log.Warn("the job's MPS daemon does not come up; it runs without", "job", key, "gpus", granted[0].Daemon)
			return
		}
	}
}

// policy is the node's, or the one that the user asks for if jobs may.
func (n *Node) policy(h jobenv.Hook) choose.Policy {
	if slices.Contains(n.Config.Placement.AllowPolicies, h.Carma.Policy) {
		return choose.Policy(h.Carma.Policy)
	}
	return choose.Policy(n.Config.Placement.Policy)
}

// retryEvery is the pause between two looks while no GPU fits.
const retryEvery = 100 * time.Millisecond

// errOtherUsers means that no GPU fits, and that other users' jobs are on some.
var errOtherUsers = fmt.Errorf("%w: other users' jobs are there", lease.ErrNoFit)

// acquire tries until GPUs fit or wait is over.
func (n *Node) acquire(ctx context.Context, ledger Ledger, job lease.Job, about About, r gres.Request, decide func(choose.Input) choose.Decision, wait time.Duration) ([]lease.Granted, error) {
	var err error
	if job.About, err = json.Marshal(about); err != nil {
		return nil, fmt.Errorf("describe job %s: %w", job.JobKey, err)
	}
	var last choose.Decision
	pick := func(readings []gres.Reading, leases []gres.Lease, given string) ([]string, gres.Daemon) {
		last = decide(choose.Input{Readings: readings, Leases: leases, Request: r, Thresholds: n.Thresholds, Last: given})
		return last.UUIDs, last.Daemon
	}
	until := time.Now().Add(wait)
	for {
		if err := n.refresh(ctx, ledger); err != nil {
			n.Log.Warn("read GPUs; deciding on what was seen last", "job", job.JobKey, "error", err)
		}
		failpoint.Here("prolog.refreshed")
		granted, err := ledger.Acquire(ctx, job, r, pick)
		failpoint.Here("lease.committed")
		switch {
		case err == nil:
			return granted, nil
		case !errors.Is(err, lease.ErrNoFit):
			n.Log.Error("lease GPUs", "job", job.JobKey, "error", err)
			return nil, err
		case ctx.Err() != nil || !time.Now().Before(until):
			n.logRefusals(job.JobKey, r, last)
			if last.OtherUsers() {
				err = errOtherUsers
			}
			return nil, err
		}
		time.Sleep(retryEvery)
	}
}

// refresh replaces readings that are too old to decide on, as when the agent
// does not run.
func (n *Node) refresh(ctx context.Context, ledger Ledger) error {
	age, ok, err := ledger.Oldest(ctx)
	if err != nil || ok && age <= n.staleAfter() {
		return err
	}
	readings, err := n.Sample(ctx)
	if err != nil {
		return err
	}
	return ledger.PutReadings(ctx, readings)
}

func (n *Node) staleAfter() time.Duration {
	return max(3*n.Config.NVML.Interval.D(), 3*time.Second)
}

func (n *Node) logRefusals(key gres.JobKey, r gres.Request, d choose.Decision) {
	n.Log.Warn("no GPU fits", "job", key, "gpus", r.GPUs, "reserve_mib", r.ReserveMiB, "exclusive", r.Exclusive)
	for _, refusal := range d.Refusals {
		n.Log.Warn("passed over", "job", key, "gpu", refusal.UUID, "reason", refusal.Reason.String())
	}
}

// backOff is how long a job waits after it was given back for the n-th time,
// counted from 0.
func backOff(n uint32) time.Duration {
	const first = 5 * time.Second
	return min(first<<min(n, 10), lease.LongestDelay)
}

// giveBack puts the job into the queue again. slurmctld takes the job back
// while this Prolog still runs and slurmd then does not launch it; exit status
// 0 keeps the node up. A job that was given back hooks.vetoes times, and now for
// others, the jobs of other users, waits for idle GPUs instead of being sent
// around: slurmctld counts users in parts, and not one by one. It shares them none
// the less. One that names its nodes does not wait for capacity: the node keeps
// GPUs for it.
func (n *Node) giveBack(ctx context.Context, h jobenv.Hook, r gres.Request, about About, others bool, ledger Ledger, slurm Slurm) error {
	j, err := slurm.Job(ctx, h.JobID)
	if err != nil {
		return fmt.Errorf("give job %s back: %w", h.JobKey, err)
	}
	if s, err := ledger.Snapshot(ctx); err == nil && len(s.Readings) > 0 && r.GPUs > len(s.Readings) {
		// It would come back for ever: the node has fewer GPUs than slots.
		n.Log.Error("job asks for more GPUs than the node has; held", "job", h.JobKey, "gpus", r.GPUs, "node_has", len(s.Readings))
		return slurm.RequeueHold(ctx, j.Target())
	}
	if k, _, anywhere := tres.Booking(j.TresPerNode); n.tired(h) && k > 0 && !anywhere {
		n.keep(ctx, h, r, ledger)
	}
	if change := n.instead(ctx, h, r, j, about, others, slurm); change != (sctl.Change{}) {
		if _, err := n.putBack(ctx, j.Target(), j.Target(), h.Partition, change, slurm); err != nil {
			return fmt.Errorf("give job %s back: %w", h.JobKey, err)
		}
	} else if err := slurm.RequeueIncomplete(ctx, j.Target()); err != nil {
		return fmt.Errorf("give job %s back: %w", h.JobKey, err)
	} else if err := n.update(ctx, j.Target(), sctl.Change{StartIn: comebackAtMost}, slurm); err != nil {
		n.Log.Warn("set the start of a job that comes back", "job", h.JobKey, "error", err)
	}
	delay := backOff(h.Restart)
	n.Log.Info("given back to the queue", "job", h.JobKey, "waits", delay)
	if err := ledger.AddComeback(ctx, h.JobID, delay); err != nil {
		n.Log.Warn("the agent will not set its start", "job", h.JobKey, "error", err)
	}
	n.awaitRevocation(ctx, h, slurm)
	return nil
}

// tired tells whether the job was given back hooks.vetoes times.
func (n *Node) tired(h jobenv.Hook) bool {
	return n.Config.Hooks.Vetoes > 0 && int(h.Restart) >= n.Config.Hooks.Vetoes
}

// instead is what a job that was given back too often asks for from now on; the
// zero value if that would not help it.
func (n *Node) instead(ctx context.Context, h jobenv.Hook, r gres.Request, j sctl.Job, about About, others bool, slurm Slurm) sctl.Change {
	_, _, anywhere := tres.Booking(j.TresPerNode)
	switch {
	case !n.tired(h) || r.Exclusive:
	case n.Config.Placement.BySlurm() && n.Config.Partition[h.Partition].Recovery != "":
		partition := n.recoveryPartition(ctx, h, j.Account, slurm)
		n.Log.Warn("given back too often; asks for whole GPUs now", "job", h.JobKey, "partition", partition)
		return sctl.Change{Partition: partition, TresPerNode: n.booked(j.TresPerNode, about.FullMiB, about.FullMiB)}
	case others && anywhere:
		n.Log.Info("given back often; waits for idle GPUs now", "job", h.JobKey)
		return sctl.Change{TresPerNode: tres.AwaitIdle(j.TresPerNode, about.FullMiB)}
	}
	return sctl.Change{}
}

// keep keeps GPUs of this node for a job that names it, or cannot go back, as the
// steward does for one that waits for capacity; not where slurmctld has picked the
// GPU.
func (n *Node) keep(ctx context.Context, h jobenv.Hook, r gres.Request, ledger Ledger) {
	if n.Config.Placement.BySlurm() {
		return
	}
	s, err := ledger.Snapshot(ctx)
	if err != nil || slices.ContainsFunc(s.Holds, func(held lease.Hold) bool { return held.JobID == h.JobID }) {
		return
	}
	mib := r.ReserveMiB
	if r.Exclusive || n.Thresholds.BookSMAct { // as the agent has it
		mib, r.Exclusive = 0, true
	}
	uuids := choose.Soonest(n.policy(h), s.Readings, s.Leases, r, n.Thresholds)
	if uuids == nil {
		n.Log.Warn("keep GPUs for the job", "job", h.JobKey, "error", "too few GPUs here that take jobs")
		return
	}
	if err := ledger.Hold(ctx, h.JobID, h.UID, r.GPUs, mib, uuids); err != nil {
		n.Log.Warn("keep GPUs for the job", "job", h.JobKey, "error", err)
		return
	}
	n.Log.Info("GPUs are kept for the job", "job", h.JobKey, "gpus", uuids, "mib", mib)
}

// Return puts a job back on a node that can do nothing for it, as its ledger
// cannot be opened: it could be given no GPU, and would fail. slurmctld lets it
// wait before it starts again, here or on a better node.
func (n *Node) Return(ctx context.Context, h jobenv.Hook, slurm Slurm) error {
	j, err := slurm.Job(ctx, h.JobID)
	if err == nil {
		err = slurm.RequeueIncomplete(ctx, j.Target())
	}
	if err != nil {
		return fmt.Errorf("job %s runs without a GPU: give it back: %w", h.JobKey, err)
	}
	if err := n.update(ctx, j.Target(), sctl.Change{StartIn: comebackAtMost}, slurm); err != nil {
		n.Log.Warn("set the start of a job that comes back", "job", h.JobKey, "error", err)
	}
	n.Log.Error("given back: this node can lease no GPU", "job", h.JobKey)
	n.awaitRevocation(ctx, h, slurm)
	return nil
}

// awaitRevocation stays until slurmd must have seen that the job was taken back.
func (n *Node) awaitRevocation(ctx context.Context, h jobenv.Hook, slurm Slurm) {
	for range 10 {
		j, err := slurm.Job(ctx, h.JobID)
		if err != nil || j.State != "RUNNING" && j.State != "CONFIGURING" || ctx.Err() != nil {
			return
		}
		time.Sleep(retryEvery)
	}
}

// markStdErr remembers where the job's stderr ends now. Not to know it costs
// no more than reading an old message once more.
func (n *Node) markStdErr(ctx context.Context, h jobenv.Hook, j sctl.Job) userfile.Mark {
	path := n.outputOf(h, j).Path(h.StdErr, h.StdOut)
	reply, err := n.AsUser(ctx, n.user(ctx, h), userfile.Ask{Op: userfile.OpMark, Files: []userfile.File{{Path: path}}})
	if err != nil {
		n.Log.Warn("mark stderr", "job", h.JobKey, "error", err)
	}
	return reply.Mark
}

func (n *Node) user(ctx context.Context, h jobenv.Hook) userfile.User {
	return userfile.User{UID: h.UID, GID: h.GID, Groups: n.Groups(ctx, h.User, h.GID)}
}

// outputOf names the batch script's output; all components of a heterogeneous
// job have the leader's.
func (n *Node) outputOf(h jobenv.Hook, j sctl.Job) jobenv.Output {
	id := h.JobID
	if h.HetJobID != 0 {
		id = h.HetJobID
	}
	// %N is the host's name (fname.c), from 25.11 on Slurm's name of the node
	// (print_fields.c); that is also when jobs got a SLUID.
	node := n.Host
	if h.SLUID != "" {
		node = h.Node
	}
	return jobenv.Output{
		JobID: id, ArrayJobID: j.ArrayJobID, ArrayTask: j.ArrayTask,
		Name: j.Name, User: h.User, Node: node, WorkDir: h.WorkDir, SLUID: h.SLUID, Restart: h.Restart,
	}
}
