// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"time"

	"carma/cmd/carma-report/internal/report"
	"carma/cmd/internal/cli"
	"carma/slurmbridge/config"
)

// open reads the databases that the flags or carma.toml name.
func (o *options) open(r *report.Report) (closeAll func(), err error) {
	bases, closeAll, err := o.place.Open(time.Now())
	if err == nil {
		err = r.Databases(bases)
	}
	return closeAll, err
}

// slurmdbd reads what slurmdbd has. It has no samples of GPUs.
func (o *options) slurmdbd(ctx context.Context, r *report.Report) error {
	if r.View == report.GPUs {
		return cli.Fail(cli.ExitUsage, "slurmdbd has no samples of GPUs; read the nodes' databases")
	}
	// All that sacct says is kept, so that a bound would cost time and gain nothing.
	debug.SetGCPercent(100)
	debug.SetMemoryLimit(math.MaxInt64)
	src, err := o.place.Ask(ctx, r.Filter())
	if err == nil {
		r.Read(src)
	}
	return err
}

func (o *options) writeHistory(ctx context.Context, r *report.Report) error {
	c, err := config.Load(o.place.Config, os.ReadFile)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	if c.History.File == "" {
		return cli.Fail(cli.ExitUsage, "%s has no history.file to write", o.place.Config)
	}
	return r.WriteHistory(ctx, c.History.File)
}
