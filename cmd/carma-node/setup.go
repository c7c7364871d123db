// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"carma/cmd/internal/cli"
	"carma/gres"
	"carma/gres/doctor"
	"carma/slurmbridge/config"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/slurmconf"
)

const setupUsage = `usage: carma-node setup [--nodes LIST] [--partition NAME] [--placement MODE]

Prints the lines of slurm.conf, gres.conf, carma.toml and tmpfiles.d for a set
of nodes that are like this one, from slurmd -C, NVML and the existing
slurm.conf. It changes nothing. Run it as root on one of the nodes.
`

func runSetup(ctx context.Context, e env, args []string) error {
	f := cli.Flags("carma-node setup", setupUsage, os.Stdout)
	nodes := f.String("nodes", nodeName(e), "Slurm `LIST` of the nodes, as gpu[1-4]")
	partition := f.String("partition", "gpu", "`NAME` of the partition whose jobs may share GPUs")
	placement := f.String("placement", "carma",
		"`MODE` of placement: carma, the node chooses the GPU; or slurm, slurmctld does")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if *placement != "carma" && *placement != "slurm" {
		return cli.Fail(cli.ExitUsage, "%q is no placement; write carma or slurm", *placement)
	}
	if names, err := hostlist.Expand(*nodes); err != nil || len(names) == 0 || strings.ContainsAny(*nodes, " \t\n") {
		return cli.Fail(cli.ExitUsage, "%q is no node list; write gpu[1-4]", *nodes)
	}
	if *partition == "" || strings.ContainsAny(*partition, " \t\n,\"[]") {
		return cli.Fail(cli.ExitUsage, "%q is no name of a partition", *partition)
	}
	c, err := loadOrDefault(e.config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	s := doctor.Site{Nodes: *nodes, Partition: *partition, MaxJobs: c.Placement.MaxJobs, Placement: *placement,
		MarginMiB: c.Placement.MarginMiB}
	gpus, err := gpusOf(ctx, e)
	if err != nil {
		return err
	}
	s.GPUs, s.GPUMemMiB, s.Type, s.Cores = len(gpus), gpus[0].TotalMiB, typeOf(gpus), coresOf(gpus)
	slurm := slurmClient(c, os.Getenv("SLURM_CONF"))
	text, _ := slurm.ShowConfig(ctx) // slurmctld may be down
	running := slurmconf.Running(text)
	if s.SlurmConf, err = readSlurmConf(slurmConfPath(slurm, running)); err != nil {
		fmt.Fprintf(os.Stderr, "carma-node: %v; the lines are for a new slurm.conf\n", err)
	}
	if s.Hardware, err = hardwareOf(ctx, c); err != nil {
		return err
	}
	_, err = os.Stdout.WriteString(doctor.Setup(s))
	return err
}

// loadOrDefault is for what is asked before there is a carma.toml.
func loadOrDefault(path string) (config.Config, error) {
	c, err := config.Load(path, os.ReadFile)
	if errors.Is(err, fs.ErrNotExist) {
		return config.Default(), nil
	}
	return c, err
}

// gpusOf returns the GPUs of this machine, which must be alike.
func gpusOf(ctx context.Context, e env) ([]gres.Sample, error) {
	samples, err := sampleApartFrom(ctx, e)
	if err != nil {
		return nil, cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	for _, s := range samples {
		if s.Unreadable != "" {
			return nil, cli.Fail(cli.ExitUnavailable, "GPU %d cannot be read: %s", s.Index, s.Unreadable)
		}
		if first := samples[0]; !first.Whole(s.TotalMiB) {
			return nil, cli.Fail(cli.ExitUsage, "GPUs of %d and of %d MiB in one node: a partition's GPUs must be alike",
				first.TotalMiB, s.TotalMiB)
		}
	}
	if len(samples) == 0 {
		return nil, cli.Fail(cli.ExitUnavailable, "NVML shows no GPU here; run it on a GPU node")
	}
	return samples, nil
}

// typeOf is the GPUs' type; empty if they are of several models.
func typeOf(gpus []gres.Sample) string {
	for _, g := range gpus {
		if g.Model != gpus[0].Model {
			return ""
		}
	}
	return doctor.GPUType(gpus[0].Model)
}

// coresOf are the cores near each GPU, by minor number; nil where something is not known.
func coresOf(gpus []gres.Sample) []string {
	cpus, err := doctor.ReadCPUs("/sys/devices/system/cpu")
	if err != nil {
		return nil
	}
	list := make([]string, len(gpus))
	for _, g := range gpus {
		if g.Minor < 0 || g.Minor >= len(list) || g.MIG {
			return nil
		}
		list[g.Minor] = doctor.Cores(g.CPUs, cpus)
	}
	return list
}

// hardwareOf asks slurmd what it sees. slurmd stands beside Slurm's commands or in
// the sbin next to them.
func hardwareOf(ctx context.Context, c config.Config) (string, error) {
	for _, path := range []string{c.Slurm.Command("slurmd"), filepath.Join(filepath.Dir(c.Slurm.BinDir), "sbin",
		"slurmd")} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		out, err := exec.CommandContext(ctx, path, "-C").Output()
		if err != nil {
			return "", fmt.Errorf("%s -C: %w", path, err)
		}
		line, _, _ := strings.Cut(string(out), "\n")
		return line, nil
	}
	return "", cli.Fail(cli.ExitUnavailable, "no slurmd in %s or the sbin beside it; set slurm.bin_dir", c.Slurm.BinDir)
}
