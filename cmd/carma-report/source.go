// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"time"

	"carma/cmd/carma-report/internal/report"
	"carma/cmd/internal/cli"
	"carma/db"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
)

// open opens the databases that the flags or carma.toml name.
func (o *options) open(r *report.Report) (closeAll func(), err error) {
	if len(o.files) == 0 {
		c, err := cli.Config(o.conf)
		if err != nil {
			return func() {}, cli.Fail(cli.ExitUsage, "%w; name a database with --db", err)
		}
		o.files = []string{c.DBPath(sctl.ShortHost())}
	}
	notes, closeAll, err := r.Open(o.files, time.Now())
	for _, note := range notes {
		fmt.Fprintln(os.Stderr, "carma-report:", note)
	}
	for _, known := range []error{nil, db.ErrNewer, report.ErrPublic, os.ErrPermission} {
		if errors.Is(err, known) {
			return closeAll, err
		}
	}
	return closeAll, cli.Fail(cli.ExitUnavailable, "%w", err)
}

// slurmdbd reads what slurmdbd has. It has no samples of GPUs.
func (o *options) slurmdbd(ctx context.Context, r *report.Report) error {
	if r.View == report.GPUs {
		return cli.Fail(cli.ExitUsage, "slurmdbd has no samples of GPUs; read the nodes' databases")
	}
	c, err := config.Load(o.conf, os.ReadFile)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w; it says where sacct is", err)
	}
	// All that sacct says is kept, so that a bound would cost time and gain nothing.
	debug.SetGCPercent(100)
	debug.SetMemoryLimit(math.MaxInt64)
	client := sctl.For(c.Slurm, os.Getenv("SLURM_CONF"))
	left, err := r.ReadSlurmdbd(ctx, client)
	if left.Spoiled > 0 {
		fmt.Fprintf(os.Stderr, "carma-report: the records of %d jobs in slurmdbd are corrupt; "+
			"the nodes' databases have them\n", left.Spoiled)
	}
	if left.Refused > 0 {
		const text = "carma-report: %d records in slurmdbd are attached to the wrong jobs; they are left out\n"
		fmt.Fprintf(os.Stderr, text, left.Refused)
	}
	return err
}

func (o *options) writeHistory(ctx context.Context, r *report.Report) error {
	c, err := config.Load(o.conf, os.ReadFile)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	if c.History.File == "" {
		return cli.Fail(cli.ExitUsage, "%s has no history.file to write", o.conf)
	}
	return r.WriteHistory(ctx, c.History.File)
}
