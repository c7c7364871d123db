// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"carma/cmd/internal/cli"
	"carma/gres"
	"carma/gres/lease"
	"carma/prolog"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/version"
)

const gpusUsage = `usage: carma-node [--node NAME] gpus JOBID [--json] [--parsable2]

Prints the GPUs that a job has on this node: index, UUID and minor number (N of
/dev/nvidiaN). SLURM_JOB_GPUS of Prolog and Epilog has numbers of slots; a hook
of the site's, or jobstats, asks here. Everybody may ask from the end of the
job's Prolog to the beginning of its Epilog, root until its GPUs are released.
It exits with status 2 if the job has no GPU here.
`

func runGPUs(ctx context.Context, e env, args []string) error {
	f := cli.Flags("carma-node gpus", gpusUsage, os.Stdout)
	asJSON := f.Bool("json", false, "print JSON (docs/json.md)")
	parsable := f.Bool("parsable2", false, "print index|uuid|minor, without a header")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return cli.Fail(cli.ExitUsage, "one job id is needed; see carma-node gpus --help")
	}
	id, err := strconv.ParseUint(f.Arg(0), 10, 32)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%q is not a job id", f.Arg(0))
	}
	c, err := config.Load(e.config, os.ReadFile)
	if err != nil {
		return err
	}
	node := sctl.NodeName(e.node)
	gpus, err := gpusOf(ctx, c.ForNode(node).RunDir(node), uint32(id))
	if err != nil {
		return cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	if len(gpus) == 0 {
		return cli.Fail(cli.ExitNotFound, "job %d has no GPU on %s", id, node)
	}
	return printGPUs(os.Stdout, uint32(id), gpus, *asJSON, *parsable)
}

// gpusOf reads what the Prolog has left, and where there is nothing the ledger, which root
// can open.
func gpusOf(ctx context.Context, runDir string, job uint32) ([]prolog.GPU, error) {
	gpus, err := prolog.GPUsOf(runDir, job)
	if err != nil || len(gpus) > 0 || os.Geteuid() != 0 {
		return gpus, err
	}
	if _, err := os.Stat(runDir); err != nil {
		return nil, fmt.Errorf("find the job's GPUs: %w; has the agent run?", err)
	}
	book, err := lease.Open(runDir, 5*time.Second)
	if err != nil {
		return nil, err
	}
	defer book.Close()
	s, err := book.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	var leased []gres.GPU
	for _, r := range s.Readings {
		if slices.ContainsFunc(s.Leases, func(l gres.Lease) bool { return l.Job.JobID == job && l.UUID == r.UUID }) {
			leased = append(leased, r.GPU)
		}
	}
	return prolog.Numbers(leased), nil
}

func printGPUs(w io.Writer, job uint32, gpus []prolog.GPU, asJSON, parsable bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(map[string]any{"schema": "carma.leases/1", "version": version.String(), "job": job, "gpus": gpus})
	}
	format := "%-5d  %-40s  %d\n"
	if parsable {
		format = "%d|%s|%d\n"
	} else {
		fmt.Fprintf(w, "%-5s  %-40s  %s\n", "INDEX", "UUID", "MINOR")
	}
	for _, g := range gpus {
		if _, err := fmt.Fprintf(w, format, g.Index, g.UUID, g.Minor); err != nil {
			return err
		}
	}
	return nil
}
