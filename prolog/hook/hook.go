// SPDX-License-Identifier: Apache-2.0

// Package hook holds the programs that slurmd starts: Prolog, TaskProlog and Epilog
// with the real world around package prolog.
package hook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"carma/gres"
	"carma/gres/agent"
	"carma/gres/capacity"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/mps"
	"carma/gres/records"
	"carma/gres/resident"
	"carma/gres/sampler"
	"carma/prolog"
	"carma/prolog/userfile"
	"carma/slurmbridge/config"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

var owners = resident.Proc{Root: "/proc"}

// A hook ends with status 0 whatever happens: any other drains the node. Errors
// stand in the log. The only exception is a Prolog at a site that wants its
// node drained for a fault of its own (hooks.strict).

// Prolog is Slurm's Prolog. path is carma.toml's.
func Prolog(ctx context.Context, path string) error {
	return run(ctx, path, "prolog", func(ctx context.Context, n *prolog.Node, h jobenv.Hook, book *lease.Ledger,
		slurm sctl.Client) error {
		n.EndEarlier(ctx, h, book, &records.Records{Path: n.Config.DBPath(n.Name)})
		return n.Prolog(ctx, h, book, slurm)
	})
}

// Epilog is Slurm's Epilog.
func Epilog(ctx context.Context, path string) error {
	return run(ctx, path, "epilog", func(ctx context.Context, n *prolog.Node, h jobenv.Hook, book *lease.Ledger,
		slurm sctl.Client) error {
		ctx, cancel := context.WithTimeout(ctx, n.Config.Hooks.Deadline.D())
		defer cancel()
		if n.Config.Partition[h.Partition].Share && startedByStepd() {
			prolog.ExitOf(ctx, n.Log, &h, slurm)
		}
		p := capacity.For(n.Config, n.Name, book, slurm)
		return n.Epilog(ctx, h, book, &records.Records{Path: n.Config.DBPath(n.Name), Keep: n.Config.Accounting},
			slurm, func(ctx context.Context) error {
				if !h.Carma.Counted { // below Slurm 24.11 nodes say nothing; else the agent, which is woken, does
					return nil
				}
				n.RereadStale(ctx, book)
				if err := p.Publish(ctx); !errors.Is(err, capacity.ErrTooSoon) {
					return err
				}
				return nil
			})
	})
}

// startedByStepd tells whether slurmstepd started this hook and not slurmd, as with
// PrologFlags=RunInJob (24.05 and later).
func startedByStepd() bool {
	o := owners.Owner(os.Getpid())
	return o.JobID != 0 && !o.Claimed
}

// OneThread is for processes that do their work in sequence and end: a fifth of a
// Prolog's cost went into threads that look for work.
func OneThread() { runtime.GOMAXPROCS(1) }

// step is the work of a hook.
type step func(context.Context, *prolog.Node, jobenv.Hook, *lease.Ledger, sctl.Client) error

// run prepares the resources shared by the hooks, takes the step and swallows its
// error.
func run(ctx context.Context, path, name string, step step) (failed error) {
	OneThread()
	syscall.Umask(0o077)
	// Descriptors that slurmd left open are for no child of ours, least of all a
	// child that reads a user's text. An old kernel (before 5.11) has no such
	// call.
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("hook", name)
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic", "value", p)
		}
	}()
	h, err := jobenv.FromEnv(os.Getenv)
	if err != nil && os.Getenv("SLURM_JOB_ID") == "" {
		return err // started by hand: say so
	} else if err != nil {
		log.Error("cannot work", "error", err)
		return nil
	}
	c, err := config.Load(path, os.ReadFile)
	if err != nil {
		log.Error("cannot work", "job", h.JobKey, "error", err)
		return withoutConfig(ctx, path, name, h, log)
	}
	c = c.ForNode(h.Node)
	log = prolog.OpenLog(c.LogPath(h.Node)).With("hook", name)
	slurm := sctl.For(c.Slurm, h.Conf)
	n := NewNode(c, h.Node, log)
	if leftAlone(name, c, n.RunDir, h, log) {
		return nil
	}
	n.Guard, n.GuardErr = prolog.FindGuard(c, h.Node, h.Conf)
	if name == "epilog" {
		n.Shut(h)
		defer n.Left(h) // when its lease has ended
	}
	if name == "prolog" {
		n.ForgetEarlier(h)
		n.Until = time.Now().Add(c.Hooks.Longest())
	}
	defer func() {
		if name != "epilog" && failed == nil {
			n.Ready(h)
		}
	}()
	if len(h.Slots) == 0 {
		return ended(n, path, h, withoutGPUs(ctx, name, n, h, slurm))
	}
	book, err := ledgerFor(ctx, name, n, h, slurm)
	if book == nil {
		return ended(n, path, h, err)
	}
	defer book.Close()
	n.Sample = func(ctx context.Context) ([]gres.Reading, error) { return sampleElsewhere(ctx, path, book) }
	return ended(n, path, h, step(ctx, n, h, book, slurm))
}

// leftAlone does a hook's work for a job on a node that is none of CARMA's, and tells whether the node is
// none.
func leftAlone(name string, c config.Config, runDir string, h jobenv.Hook, log *slog.Logger) bool {
	switch {
	case name == "prolog" && prolog.Elsewhere(c, h.Node, h.Conf):
		if err := prolog.LeaveAlone(runDir, h); err != nil {
			log.Error("the job starts without a visible GPU", "job", h.JobKey, "error", err)
		}
	case name == "epilog" && prolog.LeftAlone(runDir, h): // whatever the configuration says by now
		if err := prolog.ForgetTask(runDir, h.JobID); err != nil {
			log.Warn("remove leases for TaskProlog", "job", h.JobKey, "error", err)
		}
	default:
		return false
	}
	return true
}

// withoutConfig does what is possible on a node without a usable carma.toml: a job with GPUs
// returns to the queue, for here the job would see none. Where slurmctld does not answer, its tasks
// wait.
func withoutConfig(ctx context.Context, path, name string, h jobenv.Hook, log *slog.Logger) error {
	c := config.Default()
	n := NewNode(c, h.Node, log)
	if leftAlone(name, c, n.RunDir, h, log) {
		return nil
	}
	if name == "epilog" {
		n.Left(h)
		return nil
	}
	if name == "prolog" {
		n.ForgetEarlier(h)
	}
	if len(h.Slots) == 0 {
		return nil
	}
	if name == "prolog" {
		n.Until = time.Now().Add(c.Hooks.Longest())
	}
	if err := prolog.Prepare(n.RunDir); err != nil {
		log.Warn("have tasks wait", "job", h.JobKey, "error", err)
	}
	err := n.ReturnSurely(ctx, h, sctl.For(c.Slurm, h.Conf))
	if errors.Is(err, prolog.ErrUndecided) {
		return ended(n, path, h, err)
	} else if err != nil {
		log.Error("the job starts without a visible GPU", "job", h.JobKey, "error", err)
	}
	return nil
}

// NewNode gives the hooks the real world.
func NewNode(c config.Config, name string, log *slog.Logger) *prolog.Node {
	runDir := c.RunDir(name)
	n := &prolog.Node{
		Name:       name,
		Host:       sctl.ShortHost(),
		Config:     c,
		Thresholds: choose.FromConfig(c),
		RunDir:     runDir,
		Log:        log,
		AsUser:     userfile.Run,
		Groups:     prolog.Groups,
		Group:      prolog.Group,
		Poke:       func() { agent.Poke(runDir) },
	}
	var err error
	if n.Tags, err = extra.ReadTags(c.Slurm.UserKey, os.ReadFile); err != nil { // then jobs wait for what anybody may have
		log.Error("name users to Slurm", "error", err)
	}
	if c.MPS.Enabled {
		control := mps.Control{Program: c.MPS.Control, RunDir: runDir, LogDir: c.MPSLogDir(name)}
		n.Admit, n.ServerFault = control.Admit, control.ServerFault
	}
	return n
}

// sampleElsewhere reads the GPUs where the agent has not.
func sampleElsewhere(ctx context.Context, config string, book *lease.Ledger) ([]gres.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	samples, err := sampler.InChild(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("sample GPUs: %w", err)
	}
	s, err := book.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	readings := make([]gres.Reading, len(samples))
	for i := range samples {
		readings[i] = agent.Reading(samples[i], s.Leases, owners)
	}
	return readings, nil
}

// TaskProlog is Slurm's TaskProlog, which runs as the job's user.
func TaskProlog(_ context.Context, path string) error {
	OneThread()
	if prolog.Told(os.Getenv) {
		return nil
	}
	c, err := config.Load(path, os.ReadFile)
	if err != nil {
		// The job's lease may stand in the default place. If not, the task sees no
		// GPU: the numbers that Slurm gave it are slots.
		fmt.Fprintln(os.Stderr, "carma-node: task-prolog:", err)
		c = config.Default()
	}
	node := os.Getenv("SLURMD_NODENAME")
	runDir := c.RunDir(node)
	if prolog.Unheard(runDir, os.Getenv) && prolog.Elsewhere(c, node, os.Getenv("SLURM_CONF")) {
		return nil
	}
	if err := prolog.Task(os.Stdout, runDir, os.Getenv); err != nil {
		fmt.Fprintln(os.Stderr, "carma-node: task-prolog:", err)
	} else if err := prolog.Variables(os.Stdout, runDir, os.LookupEnv); err != nil {
		fmt.Fprintln(os.Stderr, "carma-node: task-prolog:", err)
	}
	return nil
}
