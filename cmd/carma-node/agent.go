// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"carma/cmd/internal/cli"
	"carma/cmd/internal/sdnotify"
	"carma/db/figure"
	"carma/db/report/texttable"
	"carma/gres"
	"carma/gres/agent"
	"carma/gres/confine"
	"carma/gres/dcgm"
	"carma/gres/export"
	"carma/gres/lease"
	"carma/gres/mps"
	"carma/gres/nvml"
	"carma/gres/output"
	"carma/gres/records"
	"carma/gres/resident"
	"carma/prolog"
	"carma/slurmbridge/config"
	"carma/slurmbridge/version"
)

var owners = resident.Proc{Root: "/proc"}

func runAgent(ctx context.Context, e env, args []string) error {
	if err := plain("agent", "samples GPUs, keeps MPS daemons up and publishes capacity until SIGTERM",
		args); err != nil {
		return err
	}
	// The MPS daemons make sockets that their clients, who are users, must reach.
	syscall.Umask(0o022)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	c, err := config.Load(e.config, os.ReadFile)
	if err != nil {
		return err
	}
	node := nodeName(e)
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
	n.SampleTwice(sampleApart) // GPM tells nothing at its first look, and what is not known closes a GPU
	slurm := slurmClient(c, os.Getenv("SLURM_CONF"))
	r := &records.Records{Path: c.DBPath(node), Keep: c.Accounting, Log: log}
	a := &agent.Agent{
		Node: node, Config: c, Thresholds: thresholds(c), RunDir: runDir,
		Log:    log,
		Sample: sampler(ctx, c, n, log), Owners: &resident.Recent{Proc: owners}, Ledger: book,
		Publisher: publisher(c, node, book, slurm), Jobs: slurm, Users: slurm, Records: r,
		Lost:    hookNode(c, node, log).Lost,
		Outputs: &output.Watch{RunDir: runDir, Proc: "/proc", Log: log},
	}
	if !c.Placement.BySlurm() { // else slurmctld plans starts for large requests
		a.Cluster = slurm
		a.Guard = func() (confine.Guard, error) { return guard(c, node, os.Getenv("SLURM_CONF")) }
	}
	if c.MPS.Enabled {
		a.MPS = mps.Control{Program: c.MPS.Control, RunDir: runDir, LogDir: c.MPSLogDir(node)}
	}
	a.Export = exporter(c, node, &r.Ended)
	if c.Accounting.Forward == "slurmdbd" {
		go records.Forward(ctx, c.DBPath(node), records.Slurmdbd{Client: slurm, Log: log}, log)
	}
	go records.Publish(ctx, c.DBPath(node), slurm, log)
	systemd := sdnotify.New(os.Getenv)
	a.Alive = func() {
		if err := systemd.Alive(); err != nil {
			log.Warn("watchdog", "error", err)
		}
	}
	defer systemd.Stopping()
	a.Log.Info("agent started", "version", version.String(), "node", node, "config", e.config)
	return a.Run(ctx)
}

// textfileEvery is how often the metrics are written: more often than they are
// looked at.
const textfileEvery = 10 * time.Second

// exporter writes what carma.toml says; nil: nothing.
func exporter(c config.Config, node string, ended *export.Ended) func(lease.Snapshot) error {
	if c.Export == (config.Export{}) {
		return nil
	}
	var written time.Time
	return func(s lease.Snapshot) error {
		var err1, err2 error
		if dir := c.Export.DCGMJobDir; dir != "" {
			err1 = export.WriteJobs(dir, s.Readings, s.Leases)
		}
		if path := c.Export.Textfile; path != "" && time.Since(written) >= textfileEvery {
			written = time.Now()
			err2 = export.WriteText(path, statusOf(c, node, s), ended)
		}
		return errors.Join(err1, err2)
	}
}

// sampler reads NVML and, where it is to and can, DCGM for SM activity.
func sampler(ctx context.Context, c config.Config, n *nvml.NVML, log *slog.Logger) func() []gres.Sample {
	want := figure.Source(c.SMAct.Source)
	if want == "auto" {
		if _, err := os.Stat(c.SMAct.DCGMI); err == nil {
			want = figure.SourceDCGM
		}
	}
	if want != figure.SourceDCGM {
		return n.Sample
	}
	m := &dcgm.Monitor{Program: c.SMAct.DCGMI, Interval: c.NVML.Interval.D(), Log: log}
	go m.Run(ctx)
	return func() []gres.Sample {
		samples := n.Sample()
		m.Overlay(samples)
		return samples
	}
}

// nodeName is Slurm's name of this node: what slurmd says, what the user says,
// or the host name, as slurmd -C would have it.
func nodeName(e env) string {
	if e.node != "" {
		return e.node
	}
	if n := os.Getenv("SLURMD_NODENAME"); n != "" {
		return n
	}
	return shortHost()
}

// shortHost is the host name up to the first dot.
func shortHost() string {
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	short, _, _ := strings.Cut(host, ".")
	return short
}

// plain parses the arguments of a command that takes none.
func plain(name, does string, args []string) error {
	f := cli.Flags("carma-node "+name, "usage: carma-node "+name+"\n\n"+does+".\n", os.Stdout)
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Fail(cli.ExitUsage, "%s takes no arguments", name)
	}
	return nil
}

// sampleApart is the interval over which a single sample measures SM activity.
const sampleApart = 200 * time.Millisecond

func runSample(_ context.Context, e env, args []string) error {
	if err := plain("sample", "reads the GPUs once, over 200 ms, and prints JSON", args); err != nil {
		return err
	}
	c, err := loadOrDefault(e.config)
	if err != nil {
		return err
	}
	n, err := nvml.Open(c.NVML.Library)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(n.SampleTwice(sampleApart))
}

func runCheck(_ context.Context, e env, args []string) error {
	if err := plain("check", "reads the configuration and says what is wrong with it", args); err != nil {
		return err
	}
	c, err := config.Load(e.config, os.ReadFile)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	fmt.Printf("%s: fine\n", e.config)
	t := texttable.Table{Columns: texttable.Columns("VARIABLE FOR JOBS", "SHARING", "LEARNING", "OTHERS")}
	for _, name := range c.FrameworkNames() {
		if v := c.Frameworks[name]; v != (config.Variable{}) {
			t.Rows = append(t.Rows, []string{name, orDash(v.Of(config.Sharing)), orDash(v.Of(config.Learning)),
				orDash(v.All)})
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	_, err = t.WriteTo(os.Stdout)
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
