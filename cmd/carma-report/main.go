// SPDX-License-Identifier: Apache-2.0

// Command carma-report tells what jobs were estimated at, used and cost.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/pflag"

	"carma/cmd/carma-report/internal/report"
	"carma/cmd/internal/cli"
	"carma/cmd/internal/records"
	"carma/db"
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
	o := options{place: records.Place{Program: "carma-report"}, Options: report.Options{
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
	if !f.Changed("units") {
		o.Units = ""
	}
	r, err := report.New(o.Options, f.Args(), time.Now())
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w; see carma-report --help", err)
	}
	if r.View == report.History && o.write {
		if err := wholeHistory(f); err != nil {
			return err
		}
	}
	dbd, err := o.place.Slurmdbd()
	switch {
	case err != nil:
		return err
	case dbd:
		err = o.slurmdbd(ctx, r)
	default:
		var closeAll func()
		closeAll, err = o.open(r)
		defer closeAll()
	}
	switch {
	case err != nil:
		return status(err)
	case r.View == report.History && o.write:
		return status(o.writeHistory(ctx, r))
	}
	return status(r.Show(ctx, out))
}

// wholeHistory refuses to write what a part of the jobs teaches: the file would lose what
// all others have taught.
func wholeHistory(f *pflag.FlagSet) error {
	for _, name := range []string{"jobs", "user", "accounts", "clusters", "partition", "state", "nodelist", "name"} {
		if f.Changed(name) {
			return cli.Fail(cli.ExitUsage, "history --write with --%s would remove what other jobs have taught from "+
				"history.file: leave out --%s, or --write", name, name)
		}
	}
	return nil
}

// status gives an error of the report its exit status.
func status(err error) error {
	for _, kind := range []struct {
		is     error
		status int
	}{
		{report.ErrUsage, cli.ExitUsage}, {report.ErrNotFound, cli.ExitNotFound},
		{report.ErrUnavailable, cli.ExitUnavailable}, {db.ErrNewer, cli.ExitNewer},
		{report.ErrPublic, cli.ExitPermission},
	} {
		if errors.Is(err, kind.is) {
			return cli.Fail(kind.status, "%w", err)
		}
	}
	return err
}
