// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"carma/cmd/carma-node/internal/doctor"
	"carma/cmd/carma-node/internal/doctor/facts"
	"carma/cmd/internal/cli"
	"carma/slurmbridge/config"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/sctl"
)

const setupUsage = `usage: carma-node setup [--nodes LIST] [--partition NAME]

Prints the lines of slurm.conf, gres.conf, carma.toml and tmpfiles.d for a set
of nodes that are like this one, from slurmd -C, NVML and the existing
slurm.conf. It changes nothing. Run it as root on one of the nodes.
`

func runSetup(ctx context.Context, e env, args []string) error {
	f := cli.Flags("carma-node setup", setupUsage, os.Stdout)
	nodes := f.String("nodes", sctl.NodeName(e.node), "Slurm `LIST` of the nodes, such as gpu[1-4]")
	partition := f.String("partition", "gpu", "`NAME` of the partition whose jobs may share GPUs")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if names, err := hostlist.Expand(*nodes); err != nil || len(names) == 0 || strings.ContainsAny(*nodes, " \t\n") {
		return cli.Fail(cli.ExitUsage, "%q is not a node list; write gpu[1-4]", *nodes)
	}
	if *partition == "" || strings.ContainsAny(*partition, " \t\n,\"[]") {
		return cli.Fail(cli.ExitUsage, "%q is not a partition name", *partition)
	}
	c, err := loadOrDefault(e.config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	s := doctor.Site{Nodes: *nodes, Partition: *partition, MaxJobs: c.Placement.MaxJobs}
	s, note, err := facts.OfSite(ctx, e.config, c, s)
	if note != nil {
		fmt.Fprintf(os.Stderr, "carma-node: %v; the lines are for a new slurm.conf\n", note)
	}
	if errors.Is(err, facts.ErrMixed) {
		return cli.Fail(cli.ExitUsage, "%w", err)
	} else if err != nil {
		return cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	_, err = os.Stdout.WriteString(doctor.Setup(s))
	return err
}

// loadOrDefault is for commands that may run before there is a carma.toml.
func loadOrDefault(path string) (config.Config, error) {
	c, err := config.Load(path, os.ReadFile)
	if errors.Is(err, fs.ErrNotExist) {
		return config.Default(), nil
	}
	return c, err
}
