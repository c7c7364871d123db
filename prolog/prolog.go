// SPDX-License-Identifier: Apache-2.0

// Package prolog is the order of steps of Slurm's hooks on a GPU node: Prolog
// leases GPUs, TaskProlog tells the job which, Epilog judges how the job ended
// and gives the GPUs back. The steps themselves live elsewhere; here are their
// order and the meaning of a failure of each.
//
// A hook never fails towards slurmd: a Prolog that exits with an error drains
// the node. Errors are logged, and the job runs, waits or returns to the queue.
package prolog

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"carma/db"
	"carma/estimator/method"
	"carma/gres"
	"carma/gres/choose"
	"carma/gres/confine"
	"carma/gres/lease"
	"carma/gres/mps"
	"carma/prolog/userfile"
	"carma/slurmbridge/config"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/tres"
)

// Node is the hooks' equipment on a node.
type Node struct {
	Name       string // Slurm's
	Host       string // short host name
	Config     config.Config
	Thresholds choose.Thresholds
	RunDir     string
	Log        *slog.Logger
	Until      time.Time  // a Prolog ends by then, or soon after
	Tags       extra.Tags // by which nodes' Extra names users

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
	// Admit has an MPS daemon ready for a user's job. Nil: there is no MPS.
	Admit func(ctx context.Context, d gres.Daemon, uid uint32) error
	// ServerFault reads the log of a daemon's servers. Nil: there is no MPS.
	ServerFault func(d gres.Daemon, from int64) (fault bool, to int64, err error)
	// Guard keeps tasks from GPUs that are not their job's; nil: nothing does. Where a
	// guard is required and could not be had, GuardErr says why.
	Guard    confine.Guard
	GuardErr error
}

// request derives the job's needs on this node from the environment. A job not
// annotated by job_submit, or in a partition that does not share, gets whole GPUs:
// so a slurmctld without libcarma puts nobody at risk.
func (n *Node) request(h jobenv.Hook) (gres.Request, lease.Job, jobMeta) {
	part, managed := n.Config.Partition[h.Partition]
	full := h.Carma.FullMiB // 0 if not annotated: any GPU will do
	if managed && h.Carma.Annotated {
		full = part.GPUMemMiB // a job that names several partitions books by the smallest
	}
	gpus := len(h.Slots)
	exclusive := !h.Carma.Annotated || h.Carma.Mode != jobenv.ModeShared || !managed || !part.Share ||
		h.Carma.ReserveMiB > full // the job was moved to smaller GPUs
	if h.Carma.Annotated && gpus > h.Carma.GPUs { // with --exclusive slurmctld gives a job all slots of the node
		gpus, exclusive = h.Carma.GPUs, true
	}
	about := jobMeta{Attempt: db.Attempt{
		JobID: h.JobID, Restart: h.Restart, Node: h.Node, Cluster: h.Cluster,
		User: h.User, UID: h.UID, Partition: h.Partition, Mode: jobenv.ModeExclusive, Method: method.None,
		FullMiB: full, Submit: h.Carma.Submit, Start: time.Now(), Unread: int64(h.Carma.UnreadLine),
	}}
	job := lease.Job{JobKey: h.JobKey, UID: h.UID}
	r := gres.Request{JobID: h.JobID, GPUs: gpus, Exclusive: exclusive, UID: h.UID, ReserveMiB: full,
		SMActPct: float64(h.Carma.SMActPct), MaxSlowdown: h.Carma.MaxSlowdown}
	if h.Carma.Annotated {
		about.Mode, about.Method, about.EstMiB = h.Carma.Mode, h.Carma.Method, h.Carma.EstMiB
		if h.Carma.EstMiB > 0 { // min_free, booked without one, is margin enough
			r.MarginMiB = n.Config.Placement.MarginMiB
		}
	}
	if !exclusive {
		r.ReserveMiB = h.Carma.ReserveMiB
	} else if about.Mode == jobenv.ModeShared {
		// Brought back after an OOM: the Epilog raised the booking to a whole GPU;
		// spank_job_env keeps the request of the first attempt.
		makeExclusive(&r, &about)
	}
	return r, job, about
}

// Prolog leases GPUs for the job, waiting for them if need be. Without any GPUs the Prolog
// returns the job to the queue. Where neither can be done in the hook's time, as the ledger
// is locked, a disk full, slurmctld away, or a job of srun cannot return to the queue, the
// job waits: the error is ErrUndecided, its tasks wait for Settle to finish, and Prolog has
// left word for them.
func (n *Node) Prolog(ctx context.Context, h jobenv.Hook, ledger Ledger, slurm Slurm) error {
	if len(h.Slots) == 0 {
		if h.OneNode && h.Carma.Annotated && h.Carma.GPUs > 0 && n.returnForgotten(ctx, h, ledger, slurm) {
			return nil
		}
		return n.shutOut(ctx, h, slurm)
	}
	lease.FailPoint("prolog.start")
	if err := n.confine(h, nil); err != nil { // until it has GPUs; tried again then
		n.Log.Error("confine the job", "job", h.JobKey, "error", err)
	}
	l := n.arrive(ctx, h, ledger, slurm)
	defer l.place.leave()
	l.fitNode(ctx)
	if n.Config.Hooks.Strict {
		if err := n.checkNode(ctx, ledger); err != nil {
			return err
		}
	}
	for until := n.Until; ; until = time.Now().Add(n.Config.Hooks.Longest()) {
		err := l.settle(ctx, until)
		if !errors.Is(err, ErrUndecided) {
			return err
		}
		if failed := n.markUndecided(h, l.told); failed == nil {
			return err
		} else { // then the job waits here
			n.Log.Error("have tasks wait", "job", h.JobKey, "error", failed)
		}
	}
}

// Settle goes on where Prolog could not decide, for as long as the job is there.
func (n *Node) Settle(ctx context.Context, h jobenv.Hook, ledger Ledger, slurm Slurm) error {
	if len(h.Slots) == 0 {
		return n.shutOutLate(ctx, h, slurm)
	}
	l := n.arrive(ctx, h, ledger, slurm)
	defer l.place.leave()
	l.fitNode(ctx)
	l.job.Late = true
	if t, err := readTaskFile(n.RunDir, h.JobID); err == nil && t.Restart == h.Restart {
		l.told = t.Told
	}
	return l.settle(ctx, time.Time{})
}

// launch is a job about to start on this node, with the ledger and the slurmctld that its
// Prolog talks to.
type launch struct {
	jobenv.Hook
	node    *Node
	ledger  Ledger
	slurm   Slurm
	request gres.Request
	job     lease.Job
	about   jobMeta
	retry   string // why the job runs again; empty: no second run
	started time.Time
	asked   bool // slurmctld may return the job to the queue: its answer was missing

	booking    *tres.List // as slurmctld has it; nil: nobody has asked
	kept       bool       // GPUs are kept for the job, or none are to be kept
	behind     time.Time  // when another job of the user was last seen to have waited for longer
	refused    time.Time  // when the log last said why no GPU fits
	told       bool       // the user has been told why the job waits
	stays      bool       // the job cannot return to the queue
	place      *place     // among the Prologs that wait
	yielding   yielding
	preemption preemption
}

// arrive finds out the job's needs here.
func (n *Node) arrive(ctx context.Context, h jobenv.Hook, ledger Ledger, slurm Slurm) *launch {
	l := &launch{Hook: h, node: n, ledger: ledger, slurm: slurm, started: time.Now(),
		place: n.takePlace(h.JobID, len(h.Slots))}
	l.request, l.job, l.about = n.request(h)
	var j sctl.Job
	var words sctl.Words
	if h.Restart > 0 && h.Carma.Annotated {
		j, words, l.retry = n.again(ctx, h, &l.request, &l.about, slurm)
	}
	if words.TresPerNode != "" {
		list := tres.Read(words.TresPerNode)
		l.booking = &list
	}
	if !l.request.Exclusive && h.BatchHost {
		l.about.StdErr = n.markStdErr(ctx, h, j, words.Name)
	}
	return l
}

// fitNode gives all GPUs to a job that job_submit has not annotated, and to which
// slurmctld has given more slots than there are GPUs, if the job has the node to
// itself.
func (l *launch) fitNode(ctx context.Context) {
	if l.Carma.Annotated || l.request.GPUs == 1 {
		return
	}
	node, _, _ := l.node.gpus(ctx, l.ledger)
	if node == 0 || l.request.GPUs <= node {
		return
	}
	ctx, cancel := l.node.part(ctx)
	defer cancel()
	if j, err := ask(ctx, l.Hook, l.slurm); err != nil {
		l.node.Log.Warn("query whether a job has the node exclusively", "job", l.JobKey, "error", err)
	} else {
		l.fit(ctx, j, node)
	}
}

// fit gives a job that has a whole node, and has all slots of the node for that reason, the node's GPUs. Of a job that
// job_submit has annotated the number of GPUs is known (request). A job with a request beyond the node's GPUs is given
// none. From 26.05 on squeue calls each job without --oversubscribe alone on the nodes; slurmd knows better.
func (l *launch) fit(ctx context.Context, j sctl.Job, node int) {
	if !j.WholeNode || l.Beside || l.Carma.Annotated || node == 0 || l.request.GPUs <= node {
		return
	}
	words, _ := l.slurm.Words(ctx, l.JobID) // without an answer nothing was asked for
	asked := tres.Read(words.TresPerNode).GPUs
	if l.OneNode {
		asked = max(asked, tres.Read(words.TresPerJob).GPUs)
	}
	l.request.GPUs = min(l.request.GPUs, max(node, int(asked)))
}

// finish tells the job which GPUs it was leased.
func (l *launch) finish(ctx context.Context, granted []lease.Granted) error {
	gpus, err := l.granted(ctx, granted)
	if err == nil {
		err = l.node.confine(l.Hook, minors(gpus))
	}
	if err != nil {
		return err
	}
	l.node.Poke()
	lease.FailPoint("prolog.poked")
	task := newTaskFile(l.node, l.Hook, granted)
	if !l.awaitDaemon(ctx, granted) {
		task.PipeDir = "" // the daemon is still another user's
	}
	task.RetryReason = l.retry
	task.Ordinals, task.GPUs = l.ordinals(gpus, granted), Numbers(gpus)
	task.Together = l.node.Config.Devices.Names == "auto"
	if err := writeTaskFile(l.node.RunDir, l.JobKey, task); err != nil {
		return err
	}
	lease.FailPoint("prolog.task-file-written")
	for _, g := range granted {
		l.node.Log.Info("leased", "took", time.Since(l.started).Round(time.Microsecond), "job", l.JobKey, "user", l.User,
			"gpu", g.UUID, "reserve_mib", g.ReserveMiB, "exclusive", g.Exclusive, "mps", g.Daemon != "")
	}
	return nil
}

// daemonWait is how long a Prolog waits for the job's MPS daemon and its server. The agent
// looks at once when poked.
const daemonWait = 5 * time.Second

// awaitDaemon has the MPS daemon ready for the job, if possible. theirs: the job may be told
// where to connect.
func (l *launch) awaitDaemon(ctx context.Context, granted []lease.Granted) (theirs bool) {
	if l.node.Admit == nil || len(granted) == 0 || granted[0].Daemon == "" {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, daemonWait)
	defer cancel()
	err := l.node.Admit(ctx, granted[0].Daemon, l.UID)
	if err != nil {
		l.node.Log.Warn("the job's MPS daemon is not ready; the job may run without MPS", "job", l.JobKey, "error", err)
	}
	return !errors.Is(err, mps.ErrNotGiven)
}

// policy is the node's, or the user's choice if jobs may choose.
func (n *Node) policy(h jobenv.Hook) choose.Policy {
	if slices.Contains(n.Config.Placement.AllowPolicies, h.Carma.Policy) {
		return choose.Policy(h.Carma.Policy)
	}
	return choose.Policy(n.Config.Placement.Policy)
}

// markStdErr remembers where the job's stderr ends now. A missing mark costs no
// more than reading an old message once more.
func (n *Node) markStdErr(ctx context.Context, h jobenv.Hook, j sctl.Job, name string) userfile.Mark {
	path := n.outputOf(h, j, name).Path(h.StdErr, h.StdOut)
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
func (n *Node) outputOf(h jobenv.Hook, j sctl.Job, name string) jobenv.Output {
	id := h.JobID
	if h.HetJobID != 0 {
		id = h.HetJobID
	}
	// %N is the host's name (fname.c), from 25.11 on Slurm's name of the node
	// (print_fields.c); since 25.11 jobs have a SLUID, too.
	node := n.Host
	if h.SLUID != "" {
		node = h.Node
	}
	return jobenv.Output{
		JobID: id, ArrayJobID: j.ArrayJobID, ArrayTask: j.Task(),
		Name: name, User: h.User, Node: node, WorkDir: h.WorkDir, SLUID: h.SLUID, Restart: h.Restart,
	}
}
