// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"carma/cmd/carma-sim/internal/run"
	"carma/cmd/carma-sim/internal/workload"
	"carma/cmd/internal/cli"
)

const importUsage = `usage: carma-sim import sacct|philly|csv FILE --jobs J.csv [OPTIONS] > T.csv

Makes a trace from the jobs of another cluster. Their submission times, numbers of
GPUs and run times are known, but not what they did on the GPUs: each is replaced by
a job of similar size from the table. "-" reads standard input.

  sacct -P -a -X -o JobID,User,Submit,ElapsedRaw,NNodes,AllocTRES -S ... | carma-sim import sacct - --jobs J.csv
`

func runImport(args []string, out io.Writer) error {
	f := cli.Flags("carma-sim import", importUsage, out)
	var o run.Import
	f.StringVar(&o.Jobs, "jobs", "", "job table: CSV `FILE`")
	f.StringVar(&o.Mix, "mix", "light=65,medium=27,heavy=8",
		"share of each of these `CLASSES` in percent: of the jobs sorted by GPU time, the first become the first class, and so on")
	f.StringVar(&o.Times, "times", "",
		"run times of the \"trace\" or of the \"table\" (default: sacct and csv: trace, philly: table)")
	f.StringVar(&o.From, "from", "", "leave out what was submitted before this `TIME`")
	f.Float64Var(&o.Hours, "hours", 0, "and what was submitted more than this many hours after it; 0: no limit")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the choice among jobs of a class")
	f.BoolVar(&o.SkipBad, "skip-bad", false,
		"leave out and count bad lines, and jobs for which the table has no replacement")
	f.StringVar(&o.Columns.Arrival, "arrival", "arrival_s", "csv: `COLUMN` of the time of submission")
	f.StringVar(&o.Columns.Duration, "duration", "duration_s", "csv: `COLUMN` of the run time in seconds")
	f.StringVar(&o.Columns.GPUs, "gpus", "", "csv: `COLUMN` of the number of GPUs; without it each job has one")
	f.StringVar(&o.Columns.User, "user", "user", "csv: `COLUMN` of the user")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() != 2 {
		return cli.Fail(cli.ExitUsage, "import takes a kind and a file; see carma-sim import --help")
	}
	o.Kind, o.Path = f.Arg(0), f.Arg(1)
	w, err := o.Make()
	if err != nil {
		return status(err)
	}
	noteSkipped(w.Skipped)
	return workload.WriteTrace(out, w)
}

const synthUsage = `usage: carma-sim synth --out DIR [OPTIONS]

Makes a synthetic trace: DIR/trace.csv with the submissions and DIR/jobs.csv with
what the jobs need. With --jobs they are drawn from an existing table.
`

func runSynth(args []string, out io.Writer) error {
	f := cli.Flags("carma-sim synth", synthUsage, out)
	var o run.Synth
	dir := f.String("out", "", "write to this `DIR`")
	f.StringVar(&o.Jobs, "jobs", "", "draw from this job table `FILE` instead of a synthetic one")
	f.IntVar(&o.Kinds, "kinds", 30, "kinds of jobs in a synthetic table")
	f.StringVar(&o.Mix, "mix", "light=65,medium=27,heavy=8", "classes and their shares in `PCT`")
	f.StringVar(&o.Model, "model", "", "TOML `FILE` whose [synth] describes the classes")
	f.IntVar(&o.Submissions, "submissions", 90, "jobs of the trace")
	f.Float64Var(&o.MeanGapS, "gap", 300, "mean number of `SECONDS` between two submissions")
	f.IntVar(&o.Users, "users", 1, "users who submit them")
	f.StringVar(&o.Arrivals, "arrivals", string(workload.Poisson), strings.Join(workload.ArrivalNames, ", "))
	f.Uint64Var(&o.Seed, "seed", 1, "the same seed gives the same files")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 || *dir == "" {
		return cli.Fail(cli.ExitUsage, "synth takes --out DIR and no argument; see carma-sim synth --help")
	}
	w, table, err := o.Make()
	if err != nil {
		return status(err)
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return fmt.Errorf("make the folder for the trace: %w", err)
	}
	err = writeFile(filepath.Join(*dir, "trace.csv"), func(f io.Writer) error { return workload.WriteTrace(f, w) })
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(*dir, "jobs.csv"), func(f io.Writer) error { return workload.WriteJobs(f, table) })
}
