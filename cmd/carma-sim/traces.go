// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"carma/cmd/internal/cli"
	"carma/contrib/sim/model"
	"carma/contrib/sim/workload"
)

const importUsage = `usage: carma-sim import sacct|philly|csv FILE --jobs J.csv [OPTIONS] > T.csv

Makes a trace of the jobs of another cluster. It knows when they came, on how
many GPUs they ran and how long, not what they did there: each becomes a job of
the table, by its size. "-" reads standard input.

  sacct -P -a -X -o JobID,User,Submit,ElapsedRaw,NNodes,AllocTRES -S ... | carma-sim import sacct - --jobs J.csv
`

func runImport(args []string, out io.Writer) error {
	f := cli.Flags("carma-sim import", importUsage, out)
	jobs := f.String("jobs", "", "job table: CSV `FILE`")
	mix := f.String("mix", "light=65,medium=27,heavy=8", "by GPU time, the smallest `PCT` become jobs of the first class, and so on")
	times := f.String("times", "", "run times of the \"trace\" or of the \"table\"; sacct and csv: trace, philly: table")
	from := f.String("from", "", "leave out what was submitted before this `TIME`")
	hours := f.Float64("hours", 0, "and what was submitted so many hours after it; 0: nothing")
	seed := f.Uint64("seed", 1, "of the choice among jobs of a class")
	skip := f.Bool("skip-bad", false, "leave bad lines out, and jobs that no job of the table stands for, and count them")
	c := workload.Columns{}
	f.StringVar(&c.Arrival, "arrival", "arrival_s", "csv: `COLUMN` of the time of submission")
	f.StringVar(&c.Duration, "duration", "duration_s", "csv: `COLUMN` of the run time in seconds")
	f.StringVar(&c.GPUs, "gpus", "", "csv: `COLUMN` of the number of GPUs; without it one each")
	f.StringVar(&c.User, "user", "user", "csv: `COLUMN` of the user")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() != 2 {
		return cli.Fail(cli.ExitUsage, "import takes a kind and a file; see carma-sim import --help")
	}
	m := workload.Mapping{WindowS: 3600 * *hours, Seed: *seed, Limits: workload.Limits{SkipBad: *skip}}
	var err error
	if m.Mix, err = workload.ParseMix(*mix); err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	if *from != "" {
		if m.FromS, err = workload.ParseTime(*from); err != nil {
			return cli.Fail(cli.ExitUsage, "--from: %w", err)
		}
	} else if *hours > 0 {
		return cli.Fail(cli.ExitUsage, "--hours needs --from")
	}
	kind, path := f.Arg(0), f.Arg(1)
	switch *times {
	case "trace", "table", "":
		m.KeepRunS = *times == "trace" || *times == "" && kind != "philly"
	default:
		return cli.Fail(cli.ExitUsage, "times %q is not one of trace, table", *times)
	}
	in := input{jobs: *jobs}
	table, err := in.table(model.Default())
	if err != nil {
		return err
	}
	records, bad, err := readRecords(kind, path, c, *skip)
	if err != nil {
		return err
	}
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	w, err := workload.Map(name, records, table, m)
	if err != nil {
		return fileError(err)
	}
	noteSkipped(bad + w.Skipped)
	return workload.WriteTrace(out, &w)
}

func readRecords(kind, path string, c workload.Columns, skip bool) ([]workload.Record, int, error) {
	f := os.Stdin
	if path != "-" {
		var err error
		if f, err = os.Open(path); err != nil {
			return nil, 0, fileError(err)
		}
		defer f.Close()
	}
	var records []workload.Record
	var bad int
	var err error
	switch kind {
	case "sacct":
		records, bad, err = workload.ReadSacct(path, f, skip)
	case "philly":
		records, bad, err = workload.ReadPhilly(path, f, skip)
	case "csv":
		records, bad, err = workload.ReadRecords(path, f, c, skip)
	default:
		return nil, 0, cli.Fail(cli.ExitUsage, "import %q is not one of sacct, philly, csv", kind)
	}
	if err != nil {
		return nil, bad, fileError(err)
	}
	return records, bad, nil
}

const synthUsage = `usage: carma-sim synth --out DIR [OPTIONS]

Makes a synthetic trace: DIR/trace.csv with the submissions and DIR/jobs.csv with
what the jobs need. With --jobs they are drawn from a table that there is.
`

func runSynth(args []string, out io.Writer) error {
	f := cli.Flags("carma-sim synth", synthUsage, out)
	dir := f.String("out", "", "write to this `DIR`")
	jobs := f.String("jobs", "", "draw from this job table `FILE` instead of a synthetic one")
	kinds := f.Int("kinds", 30, "kinds of jobs in a synthetic table")
	mix := f.String("mix", "light=65,medium=27,heavy=8", "classes and their shares in `PCT`")
	modelFile := f.String("model", "", "TOML `FILE` whose [synth] says what classes are like")
	s := workload.Synthetic{}
	f.IntVar(&s.Submissions, "submissions", 90, "jobs of the trace")
	f.Float64Var(&s.MeanGapS, "gap", 300, "mean time between two submissions, `SECONDS`")
	f.IntVar(&s.Users, "users", 1, "users who submit them")
	arrivals := f.String("arrivals", string(workload.Poisson), strings.Join(workload.ArrivalNames, ", "))
	f.Uint64Var(&s.Seed, "seed", 1, "the same seed gives the same files")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 || *dir == "" {
		return cli.Fail(cli.ExitUsage, "synth takes --out DIR and no argument; see carma-sim synth --help")
	}
	s.Arrivals = workload.Arrivals(*arrivals)
	var err error
	if s.Mix, err = workload.ParseMix(*mix); err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	m := model.Default()
	if *modelFile != "" {
		if m, err = model.Load(*modelFile); err != nil {
			return fileError(err)
		}
	}
	var table []workload.Job
	if *jobs != "" {
		in := input{jobs: *jobs}
		table, err = in.table(m)
	} else if table, err = workload.SynthesiseJobs(*kinds, m.Synth, s.Mix, m.Job.SteadyShare, s.Seed); err != nil {
		err = cli.Fail(cli.ExitUsage, "%w", err)
	}
	if err != nil {
		return err
	}
	w, err := workload.Synthesise("synthetic", s, table)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return fmt.Errorf("make the folder for the trace: %w", err)
	}
	if err := writeFile(filepath.Join(*dir, "trace.csv"), func(f io.Writer) error { return workload.WriteTrace(f, &w) }); err != nil {
		return err
	}
	return writeFile(filepath.Join(*dir, "jobs.csv"), func(f io.Writer) error { return workload.WriteJobs(f, table) })
}
