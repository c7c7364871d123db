// SPDX-License-Identifier: Apache-2.0

// Command carma-report tells what jobs were estimated at, used and cost.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"carma/cmd/internal/cli"
	"carma/db"
	"carma/slurmbridge/config"
)

const usage = `usage: carma-report [-j JOBS] [--json] [--db FILE]...

Shows the jobs that ran on GPUs under CARMA: what was booked and what they
used, with whom they shared, whether they ran out of GPU memory and came back.
`

func main() {
	cli.Exit("carma-report", run(context.Background(), os.Args[1:], os.Stdout))
}

func run(ctx context.Context, args []string, out io.Writer) error {
	f := cli.Flags("carma-report", usage, out)
	jobs := f.StringP("jobs", "j", "", "only these job `IDS`, separated by commas")
	asJSON := f.Bool("json", false, "print JSON (docs/json.md)")
	files := f.StringArray("db", nil, "read this database `FILE`; may be given several times (default: paths.db of carma.toml)")
	conf := f.String("config", cli.ConfigPath(), "`FILE` to read the configuration from")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Fail(cli.ExitUsage, "unexpected argument %q; see carma-report --help", f.Arg(0))
	}
	ids, err := jobIDs(*jobs)
	if err != nil {
		return err
	}
	if len(*files) == 0 {
		path, err := configured(*conf)
		if err != nil {
			return err
		}
		*files = []string{path}
	}
	var attempts []db.Attempt
	for _, path := range *files {
		a, err := read(ctx, path, ids)
		if err != nil {
			return err
		}
		attempts = append(attempts, a...)
	}
	report := merge(attempts)
	if len(ids) > 0 && len(report) == 0 {
		return cli.Fail(cli.ExitNotFound, "no record of job %s", *jobs)
	}
	if *asJSON {
		return printJSON(out, report)
	}
	return printTable(out, report)
}

func configured(path string) (string, error) {
	c, err := config.Load(path)
	if err != nil {
		return "", cli.Fail(cli.ExitUsage, "%w; name a database with --db", err)
	}
	host, _ := os.Hostname()
	short, _, _ := strings.Cut(host, ".")
	return c.DBPath(short), nil
}

func read(ctx context.Context, path string, ids []uint32) ([]db.Attempt, error) {
	d, err := db.OpenRead(path)
	switch {
	case errors.Is(err, db.ErrNewer):
		return nil, cli.Fail(cli.ExitNewer, "%w", err)
	case errors.Is(err, os.ErrPermission):
		return nil, cli.Fail(cli.ExitPermission, "%w", err)
	case err != nil:
		return nil, cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	defer d.Close()
	attempts, err := d.Attempts(ctx, ids)
	if err != nil {
		return nil, cli.Fail(cli.ExitUnavailable, "%s: %w", path, err)
	}
	return attempts, nil
}

func jobIDs(list string) ([]uint32, error) {
	var ids []uint32
	for word := range strings.SplitSeq(list, ",") {
		if word == "" {
			continue
		}
		id, err := strconv.ParseUint(word, 10, 32)
		if err != nil || id == 0 {
			return nil, cli.Fail(cli.ExitUsage, "-j %s: %q is no job id", list, word)
		}
		ids = append(ids, uint32(id))
	}
	return ids, nil
}
