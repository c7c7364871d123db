// SPDX-License-Identifier: Apache-2.0

// Command carma-report tells what jobs were estimated at, used and cost.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"time"

	"carma/cmd/internal/cli"
	"carma/db/report"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
)

func main() {
	bound()
	cli.Exit("carma-report", run(context.Background(), os.Args[1:], os.Stdout))
}

// bound is for a short life with much to read: garbage is collected when it is in the way.
func bound() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(120 << 20)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o := options{Options: report.Options{
		TimeFormat: os.Getenv("SLURM_TIME_FORMAT"), DefaultFormat: os.Getenv("CARMA_REPORT_FORMAT"),
	}}
	f := o.flags(out)
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if o.helpFormat {
		report.HelpFormat(out)
		return nil
	}
	r, err := report.New(o.Options, f.Args(), time.Now())
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w; see carma-report --help", err)
	}
	switch o.source {
	case "slurmdbd":
		err = o.slurmdbd(ctx, r)
	case "sqlite":
		var closeAll func()
		closeAll, err = o.open(r)
		defer closeAll()
	default:
		err = cli.Fail(cli.ExitUsage, "--from=%s: must be sqlite or slurmdbd", o.source)
	}
	switch {
	case err != nil:
		return status(err)
	case r.View == report.History && o.write:
		return status(o.writeHistory(ctx, r))
	}
	return status(r.Show(ctx, out))
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
	client := sctl.Client{BinDir: c.Slurm.BinDir, Conf: cmp.Or(c.Slurm.Conf, os.Getenv("SLURM_CONF"))}
	left, err := r.ReadSlurmdbd(ctx, client)
	if left.Spoiled > 0 {
		fmt.Fprintf(os.Stderr, "carma-report: the records of %d jobs in slurmdbd are corrupt; "+
			"the nodes' databases have them\n", left.Spoiled)
	}
	if left.Refused > 0 {
		const text = "carma-report: %d records in slurmdbd stand at jobs that they are not of; they are left out\n"
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

// status gives an error of the report its exit status.
func status(err error) error {
	for _, kind := range []struct {
		is     error
		status int
	}{
		{report.ErrUsage, cli.ExitUsage}, {report.ErrNotFound, cli.ExitNotFound},
		{report.ErrUnavailable, cli.ExitUnavailable},
	} {
		if errors.Is(err, kind.is) {
			return cli.Fail(kind.status, "%w", err)
		}
	}
	return err
}
