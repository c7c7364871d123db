// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"carma/cmd/carma-sim/internal/replay"
	"carma/cmd/carma-sim/internal/run"
	"carma/cmd/internal/cli"
)

const runUsage = `usage: carma-sim run --trace T.csv --jobs J.csv [OPTIONS]

Replays a trace and prints the results: means over the repeats, with their spread.
`

func runRun(args []string, out io.Writer) error {
	f := cli.Flags("carma-sim run", runUsage, out)
	var in run.Input
	var k run.Knobs
	var rep run.Repeats
	in.Flags(f)
	k.Flags(f)
	rep.Flags(f, 1)
	schedule := f.String("schedule", "", "write times and attempts of each job of the first run to this CSV `FILE`")
	asJSON := f.Bool("json", false, "print JSON (docs/json.md)")
	if err := parse(f, args); err != nil {
		return err
	}
	r, err := run.Run(in, &k, f, rep, *schedule != "")
	if err != nil {
		return status(err)
	}
	noteSkipped(r.Skipped)
	if *schedule != "" {
		if err := writeFile(*schedule, r.WriteSchedule); err != nil {
			return err
		}
	}
	if *asJSON {
		return printJSON(out, r)
	}
	return r.Print(out)
}

const compareUsage = `usage: carma-sim compare --trace T.csv --jobs J.csv [OPTIONS] ["NAME: OPTIONS"]...

Replays a trace under several configurations, given as a name and options of
carma-sim run:

  carma-sim compare ... "exclusive: --policy exclusive" "magm: --policy magm"

Changes are relative to the first one. Without any, the reference system, this
project's policies and an ideal packer are compared.
`

func runCompare(args []string, out io.Writer) error {
	f := cli.Flags("carma-sim compare", compareUsage, out)
	var in run.Input
	var rep run.Repeats
	in.Flags(f)
	rep.Flags(f, 8)
	asJSON := f.Bool("json", false, "print JSON (docs/json.md)")
	page := f.String("html", "", "write a page with charts to this `FILE`")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	c, err := run.Compare(in, f.Args(), rep, *page != "")
	if err != nil {
		return status(err)
	}
	noteSkipped(c.Skipped)
	if *page != "" {
		if err := writeFile(*page, c.WriteHTML); err != nil {
			return err
		}
	}
	if *asJSON {
		return printJSON(out, c)
	}
	_, err = io.WriteString(out, c.Text())
	return err
}

const submitUsage = `usage: carma-sim submit --trace T.csv --jobs J.csv [OPTIONS]

Submits a trace to the development cluster that the environment names, as real
batch jobs with simjob, and compares the outcome with a simulation of the same
trace. The real time that scheduling, hooks and sampling take on the cluster is
measured first; the simulation uses it.

  contrib/devcluster/devcluster up DIR --nodes 1 --time-scale 120
  eval "$(contrib/devcluster/devcluster env DIR)"
  carma-sim submit --trace T.csv --jobs J.csv --time-scale 120
`

func runSubmit(args []string, out io.Writer) error {
	f := cli.Flags("carma-sim submit", submitUsage, out)
	var o run.Submit
	f.StringVar(&o.Trace, "trace", "", "submissions: CSV `FILE`")
	f.StringVar(&o.Jobs, "jobs", "", "what the jobs need: CSV `FILE`")
	f.StringVar(&o.Summaries, "summaries", "", "`DIR` with real_measured.csv and real_summaries/")
	f.StringVar(&o.Model, "model", "", "TOML `FILE` that replaces parts of the model")
	f.BoolVar(&o.SkipBad, "skip-bad", false, "leave out and count bad lines of the trace")
	estimator := f.String("estimator", string(replay.Analytic), "source of the jobs' mem=; any but history")
	f.Float64Var(&o.TimeScale, "time-scale", 0, "expected time scale of the cluster; 0: any")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of start-up times and run times, the same live and simulated")
	asJSON := f.Bool("json", false, "print JSON (docs/json.md)")
	if err := parse(f, args); err != nil {
		return err
	}
	o.Estimator = replay.Estimator(*estimator)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	s, err := o.Do(ctx)
	if err != nil {
		return status(err)
	}
	noteSkipped(s.Skipped)
	if *asJSON {
		return printJSON(out, s)
	}
	if err := s.Print(out); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "carma-sim: slurmctld takes %.2f s to look at a job on an idle node, "+
		"a launch takes %.2f s, real time\n", s.ScheduleS, s.LaunchS)
	return nil
}
