// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"carma/cmd/carma-node/internal/doctor"
	"carma/cmd/internal/cli"
	"carma/gres/agent"
	"carma/gres/capacity"
	"carma/gres/choose"
	"carma/gres/confine"
	"carma/gres/export"
	"carma/gres/lease"
	"carma/gres/mps"
	"carma/gres/nvml"
	"carma/gres/output"
	"carma/gres/records"
	"carma/gres/resident"
	"carma/gres/sampler"
	"carma/gres/sdnotify"
	"carma/gres/status"
	"carma/prolog"
	"carma/prolog/hook"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/slurmconf"
	"carma/slurmbridge/version"
)

func runAgent(ctx context.Context, e env, args []string) error {
	if err := plain("agent", "Samples GPUs, runs MPS daemons and publishes capacity, or observes, until SIGTERM",
		args); err != nil {
		return err
	}
	// The MPS daemons make sockets that their clients, the users, must reach.
	syscall.Umask(0o022)
	// The agent waits nearly always, and Go's runtime spends much on waking threads for the many loops: with 8 GPUs
	// at 1 Hz the agent takes 0.29 % of a core, and 0.35 to 0.45 % on two cores.
	runtime.GOMAXPROCS(1)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	c, err := configOf(e.config, os.Getenv("SLURM_CONF"))
	if err != nil {
		return err
	}
	node := sctl.NodeName(e.node)
	c = c.ForNode(node)
	runDir := c.RunDir(node)
	if err := prolog.Prepare(runDir); err != nil {
		return err
	}
	book, err := lease.Open(runDir, 5*time.Second)
	if err != nil {
		return err
	}
	defer book.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	n, err := nvml.Open(c.NVML.Library)
	if err != nil {
		return err
	}
	for _, err := range n.Lost {
		log.Error("a GPU is not used", "error", err)
	}
	n.SampleTwice(sampleApart) // GPM tells nothing at its first look, and an unknown value closes a GPU
	slurm := sctl.For(c.Slurm, os.Getenv("SLURM_CONF"))
	host := confine.ForNode(c, node, os.Getenv("SLURM_CONF"))
	settings, _ := slurmconf.Settings(host.SlurmConf) // an unreadable file names no directory
	proc := resident.Proc{Root: "/proc", Node: node, Spool: settings.SpoolDir(node, sctl.ShortHost())}
	r := &records.Records{Path: c.DBPath(node), Keep: c.Accounting, Log: log}
	a := &agent.Agent{
		Node: node, Config: c, Thresholds: choose.FromConfig(c), RunDir: runDir,
		Log:    log,
		Sample: sampler.Of(ctx, c, n.Sample, log), Owners: &resident.Recent{Proc: proc}, Ledger: book, Records: r,
	}
	a.Ends = &agent.Ends{Node: node, Config: &a.Config, Ledger: book, Jobs: sctl.Finder(slurm), Records: r, Log: log}
	if c.Observes() {
		observe(a, book, r, slurm, host.SlurmConf)
	} else {
		share(a, book, slurm, host)
	}
	if files := (export.Files{Export: c.Export, Ended: &r.Ended}); c.Export != (config.Export{}) {
		a.Export = func(s lease.Snapshot) error {
			// The files name no user, and a hanging directory service would stop the agent.
			unnamed := func(uint32) string { return "" }
			return files.Write(s.Readings, s.Leases, func() status.Node { return statusOf(c, node, s, unnamed) })
		}
	}
	if c.Accounting.Forward == "slurmdbd" {
		go records.Forward(ctx, c.DBPath(node), records.Slurmdbd{Accounting: sctl.Accounting(slurm), Log: log}, log)
	}
	go records.Publish(ctx, c.DBPath(node), slurm, log)
	systemd := sdnotify.New(os.Getenv)
	a.Alive = func() {
		if err := systemd.Alive(); err != nil {
			log.Warn("watchdog", "error", err)
		}
	}
	defer systemd.Stopping()
	a.Log.Info("agent started", "version", version.String(), "node", node, "config", e.config, "mode", c.Mode)
	return a.Run(ctx)
}

// share wires the parts that act: capacity, holds, MPS, confinement, the steward.
func share(a *agent.Agent, book *lease.Ledger, slurm sctl.Client, host confine.Host) {
	c, node, log := a.Config, a.Node, a.Log
	a.Publisher, a.Jobs, a.Users = capacity.For(c, node, book, slurm), slurm, slurm
	a.Publishes = func(ctx context.Context) (bool, error) {
		release, err := slurm.Version(ctx)
		return err == nil && release.Publishes(), err
	}
	a.Lost = hook.NewNode(c, node, log).Lost
	a.Outputs = &output.Watch{RunDir: a.RunDir, Proc: "/proc", Log: log}
	a.Returned = &agent.Returned{Ledger: book, Jobs: slurm, Log: log}
	a.Offers = &agent.Offers{Config: &a.Config, Thresholds: a.Thresholds, Ledger: book, Jobs: slurm, Own: a.Publisher,
		Returned: a.Returned, Node: node, Log: log}
	a.Confinement = &agent.Confinement{Wanted: c.Devices.Confine != "none", RunDir: a.RunDir, Ledger: book, Jobs: slurm,
		Owners: a.Owners, Log: log,
		Guard: func() (confine.Guard, error) {
			if !runsProlog(host.SlurmConf) {
				return nil, nil
			}
			return prolog.FindGuard(c, node, os.Getenv("SLURM_CONF"))
		}}
	a.Steward = &agent.Steward{Node: node, Config: &a.Config, Log: log, Cluster: slurm, Jobs: slurm, Own: a.Publisher}
	limits, err := nvml.FindMemoryLimits(c.NVML.Library)
	switch {
	case c.Devices.Confine == "none":
		err = errors.New("devices.confine is \"none\"")
	case err == nil:
		a.Limits = &agent.MemoryLimits{Driver: limits, Cgroups: host, RunDir: a.RunDir, Log: log}
	}
	a.Unlimited = err
	if c.MPS.Enabled {
		control := mps.Control{Program: c.MPS.Control, RunDir: a.RunDir, LogDir: c.MPSLogDir(node)}
		if groups, err := host.Servers(); err != nil {
			log.Warn("MPS servers have no cgroup", "error", err)
		} else {
			control.Groups = groups
		}
		a.Daemons = &agent.Daemons{MPS: control, Leases: book, Faults: book, Owners: a.Owners, Log: log}
	}
}

// runsProlog tells whether slurm.conf names a Prolog, which the site's own script may call. Without one every job would
// come unconfined, and a guard would close the GPUs to all: an agent may start before slurm.conf has CARMA's lines.
func runsProlog(slurmConf string) bool {
	s, err := slurmconf.Settings(slurmConf)
	return err != nil || s.Setting("Prolog") != ""
}

// observe wires the part that finds jobs without hooks. Nothing here changes anything in Slurm, on a GPU or for a job.
func observe(a *agent.Agent, book *lease.Ledger, r *records.Records, slurm sctl.Client, slurmConf string) {
	site, _ := slurmconf.Read(slurmConf)
	named := func(ctx context.Context) (string, error) { // where the file is slurmctld's alone (configless)
		text, err := slurm.ShowConfig(ctx)
		return strings.ToLower(slurmconf.Running(text)["clustername"]), err
	}
	nodes := func(ctx context.Context) (int, error) {
		names, err := slurm.NodeNames(ctx, nil)
		return len(names), err
	}
	record := prolog.Recorder{Node: hook.NewNode(a.Config, a.Node, a.Log), Ledger: book, Records: r, User: prolog.UserOf}
	present, err := confine.ForNode(a.Config, a.Node, slurmConf).Present()
	if err != nil {
		a.Log.Warn("find the cgroups of jobs; a job without a process on its GPU is found by squeue alone", "error", err)
	}
	a.Outputs = &output.Watch{RunDir: a.RunDir, Proc: "/proc", Log: a.Log}
	a.Observer = &agent.Observer{Node: a.Node, Cluster: strings.ToLower(site.Setting("ClusterName")), Named: named,
		Nodes: nodes, Ledger: book, Jobs: slurm, Found: sctl.Finder(slurm), Records: r,
		Record: record.Record, User: userName, Present: present.Jobs, Log: a.Log}
}

// configOf reads the configuration. A node without a carma.toml whose slurm.conf names CARMA has lost the file, and is
// no node to observe.
func configOf(path, slurmConf string) (config.Config, error) {
	c, err := cli.Config(path)
	if _, lost := os.Stat(path); err != nil || lost == nil {
		return c, err
	}
	s, _ := slurmconf.Settings(confine.ForNode(c, "", slurmConf).SlurmConf) // unreadable: no line of CARMA's
	if line := doctor.ActsBy(s.Setting); line != "" {
		return c, fmt.Errorf("read configuration: there is no %s, and slurm.conf has %s: restore the file, or take "+
			"CARMA's lines out of slurm.conf to observe", path, line)
	}
	return c, nil
}
