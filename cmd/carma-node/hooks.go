// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
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
	"carma/prolog"
	"carma/prolog/userfile"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// A hook ends with status 0 whatever happens: any other drains the node. What
// went wrong stands in the log. The one exception is a Prolog at a site that
// wants its node drained for a fault of its own (hooks.strict).

func runProlog(ctx context.Context, e env, _ []string) error {
	return hook(ctx, e, "prolog", func(ctx context.Context, n *prolog.Node, h jobenv.Hook, book *lease.Ledger,
		slurm sctl.Client) error {
		n.EndEarlier(ctx, h, book, &records.Records{Path: n.Config.DBPath(n.Name)})
		return n.Prolog(ctx, h, book, slurm)
	})
}

func runEpilog(ctx context.Context, e env, _ []string) error {
	return hook(ctx, e, "epilog", func(ctx context.Context, n *prolog.Node, h jobenv.Hook, book *lease.Ledger,
		slurm sctl.Client) error {
		ctx, cancel := context.WithTimeout(ctx, n.Config.Hooks.Deadline.D())
		defer cancel()
		if n.Config.Partition[h.Partition].Share && startedByStepd() {
			prolog.ExitOf(ctx, n.Log, &h, slurm)
		}
		p := publisher(n.Config, n.Name, book, slurm)
		return n.Epilog(ctx, h, book, &records.Records{Path: n.Config.DBPath(n.Name), Keep: n.Config.Accounting},
			slurm, p.Publish)
	})
}

// startedByStepd tells whether slurmstepd started this hook and not slurmd, as with
// PrologFlags=RunInJob (24.05 and later).
func startedByStepd() bool {
	o := owners.Owner(os.Getpid())
	return o.JobID != 0 && !o.Claimed
}

// oneThread is for processes that do one thing after the other and end: a fifth of
// what a Prolog costs went into threads that look for work.
func oneThread() { runtime.GOMAXPROCS(1) }

// hook prepares what Prolog and Epilog share, runs step and swallows its error.
func hook(ctx context.Context, e env, name string, step func(context.Context, *prolog.Node, jobenv.Hook, *lease.Ledger,
	sctl.Client) error) (failed error) {
	oneThread()
	syscall.Umask(0o077)
	// What slurmd left open is for no child of ours, least of all one that reads
	// what a user wrote. An old kernel (before 5.11) has no such call.
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
	c, err := config.Load(e.config, os.ReadFile)
	if err != nil {
		log.Error("cannot work", "job", h.JobKey, "error", err)
		return withoutConfig(ctx, name, h, log)
	}
	c = c.ForNode(h.Node)
	log = prolog.OpenLog(c.LogPath(h.Node)).With("hook", name)
	slurm := slurmClient(c, h.Conf)
	n := hookNode(c, h.Node, log)
	n.Guard, n.GuardErr = guard(c, h.Node, h.Conf)
	if name == "epilog" {
		n.Shut(h)
		defer n.Left(h) // when its GPUs are given back
	}
	if name == "prolog" {
		n.Until = time.Now().Add(c.Hooks.Longest())
	}
	defer func() {
		if name != "epilog" && failed == nil {
			n.Ready(h)
		}
	}()
	if len(h.Slots) == 0 {
		return ended(n, e, h, withoutGPUs(ctx, name, n, h, slurm))
	}
	book, err := ledgerFor(ctx, name, n, h, slurm)
	if book == nil {
		return ended(n, e, h, err)
	}
	defer book.Close()
	n.Sample = func(ctx context.Context) ([]gres.Reading, error) { return sampleElsewhere(ctx, e, book) }
	return ended(n, e, h, step(ctx, n, h, book, slurm))
}

// withoutConfig does what a Prolog can on a node without a usable carma.toml: a job
// with GPUs goes back to the queue, for here it would see none.
func withoutConfig(ctx context.Context, name string, h jobenv.Hook, log *slog.Logger) error {
	if name != "prolog" || len(h.Slots) == 0 {
		return nil
	}
	c := config.Default()
	if err := hookNode(c, h.Node, log).Return(ctx, h, slurmClient(c, h.Conf)); err != nil {
		log.Error("the job starts without a visible GPU", "job", h.JobKey, "error", err)
	}
	return nil
}

// hookNode gives the hooks the real world.
func hookNode(c config.Config, name string, log *slog.Logger) *prolog.Node {
	runDir := c.RunDir(name)
	n := &prolog.Node{
		Name:       name,
		Host:       shortHost(),
		Config:     c,
		Thresholds: thresholds(c),
		RunDir:     runDir,
		Log:        log,
		AsUser:     userfile.Run,
		Groups:     prolog.Groups,
		Group:      prolog.Group,
		Poke:       func() { agent.Poke(runDir) },
	}
	if c.MPS.Enabled {
		control := mps.Control{Program: c.MPS.Control, RunDir: runDir, LogDir: c.MPSLogDir(name)}
		n.Admit, n.ServerFault = control.Admit, control.ServerFault
	}
	return n
}

// sampleElsewhere reads the GPUs in a process of its own: a call into a wedged
// driver never returns, and the hook must.
func sampleElsewhere(ctx context.Context, e env, book *lease.Ledger) ([]gres.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	cmd := exec.Command("/proc/self/exe", "--config", e.config, "sample")
	cmd.Dir = "/"
	out, err := outputWithin(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("sample GPUs: %w", err)
	}
	var samples []gres.Sample
	if err := json.Unmarshal(out, &samples); err != nil {
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

// outputWithin is cmd.Output with a way out for a process that cannot be killed.
func outputWithin(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := cmd.Output()
		done <- result{out, err}
	}()
	select {
	case r := <-done:
		return r.out, r.err
	case <-ctx.Done():
		if cmd.Process != nil {
			cmd.Process.Kill()
		}
		return nil, ctx.Err()
	}
}

func runTaskProlog(_ context.Context, e env, _ []string) error {
	oneThread()
	if prolog.Told(os.Getenv) {
		return nil
	}
	c, err := config.Load(e.config, os.ReadFile)
	if err != nil {
		// The job's lease may stand where it does by default. If not, the task sees no
		// GPU: the numbers that Slurm gave it are slots.
		fmt.Fprintln(os.Stderr, "carma-node: task-prolog:", err)
		c = config.Default()
	}
	runDir := c.RunDir(os.Getenv("SLURMD_NODENAME"))
	if err := prolog.Task(os.Stdout, runDir, os.Getenv); err != nil {
		fmt.Fprintln(os.Stderr, "carma-node: task-prolog:", err)
	} else if err := prolog.Variables(os.Stdout, runDir, os.LookupEnv); err != nil {
		fmt.Fprintln(os.Stderr, "carma-node: task-prolog:", err)
	}
	return nil
}

func thresholds(c config.Config) choose.Thresholds {
	return choose.Thresholds{
		SMActMaxPct:  c.SMAct.MaxPct,
		CoarseMaxPct: c.SMAct.CoarseMaxPct,
		MarginMiB:    c.Placement.MarginMiB,
		SMOccMaxPct:  c.SMAct.SMOccMaxPct,
		DRAMMaxPct:   c.SMAct.DRAMMaxPct,
		MaxJobs:      c.Placement.MaxJobs,
		MaxClients:   c.MPS.MaxClients,
		Settle:       c.Placement.Settle.D(),
		CrossUser:    c.Placement.CrossUser == "timeslice",
		Streams:      !c.MPS.Enabled,
		BookSMAct:    c.Placement.SMActBooking,
	}
}

// capacityPublisher is what the agent and the Epilog publish with.
type capacityPublisher interface {
	agent.Publisher
	Publish(ctx context.Context) error
}

// publisher tells slurmctld what the node can take. One that picks GPUs itself
// counts shards and need not be told.
func publisher(c config.Config, node string, book *lease.Ledger, slurm capacity.Slurm) capacityPublisher {
	if c.Placement.BySlurm() {
		return capacity.NoPublisher{}
	}
	p := &capacity.Publisher{
		Node: node, RunDir: c.RunDir(node), Slurm: slurm, Book: book,
		Policy: choose.Policy(c.Placement.Policy), IdleOnly: c.Placement.IdleOnly(), Thresholds: thresholds(c),
		Floor: !c.Capacity.Anchor,
	}
	for _, name := range c.PartitionNames() {
		p.FullMiB = append(p.FullMiB, c.Partition[name].GPUMemMiB)
	}
	return p
}

func slurmClient(c config.Config, conf string) sctl.Client {
	if c.Slurm.Conf != "" {
		conf = c.Slurm.Conf
	}
	return sctl.Client{BinDir: c.Slurm.BinDir, Conf: conf}
}
