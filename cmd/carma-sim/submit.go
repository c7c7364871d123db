// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"carma/cmd/internal/cli"
	"carma/contrib/sim/live"
	"carma/contrib/sim/replay"
	"carma/contrib/sim/workload"
	"carma/slurmbridge/version"
)

const submitUsage = `usage: carma-sim submit --trace T.csv --jobs J.csv [OPTIONS]

Submits a trace to the development cluster that the environment names, as real
batch jobs with simjob, and holds the outcome against the simulation of the same
trace. What takes real time on the cluster (scheduling, hooks, sampling) is
measured first and takes as long in the simulation.

  contrib/devcluster/devcluster up DIR --nodes 1 --time-scale 120
  eval "$(contrib/devcluster/devcluster env DIR)"
  carma-sim submit --trace T.csv --jobs J.csv --time-scale 120
`

// latencyRounds is how often the cluster's latency is measured.
const latencyRounds = 3

func runSubmit(args []string, out io.Writer) error {
	f := cli.Flags("carma-sim submit", submitUsage, out)
	in := input{nodes: 1}
	f.StringVar(&in.trace, "trace", "", "submissions: CSV `FILE`")
	f.StringVar(&in.jobs, "jobs", "", "what the jobs need: CSV `FILE`")
	f.StringVar(&in.summaries, "summaries", "", "`DIR` with real_measured.csv and real_summaries/")
	f.StringVar(&in.model, "model", "", "TOML `FILE` that replaces parts of the model")
	f.BoolVar(&in.skipBad, "skip-bad", false, "leave bad lines of the trace out and count them")
	estimator := f.String("estimator", string(replay.Analytic), "where the jobs' mem= comes from; not history")
	scale := f.Float64("time-scale", 0, "the cluster's time scale, to be sure that it is this one; 0: any")
	seed := f.Uint64("seed", 1, "of start-up times and run times, the same in both worlds")
	asJSON := f.Bool("json", false, "print JSON (docs/sim.md)")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Fail(cli.ExitUsage, "unexpected argument %q; see carma-sim submit --help", f.Arg(0))
	}
	if *estimator == string(replay.History) {
		return cli.Fail(cli.ExitUsage, "estimator history: jobs are submitted before any has ended")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	cluster, err := live.Open(ctx)
	if err != nil {
		return cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	if *scale != 0 && *scale != cluster.GPUs.TimeScale {
		return cli.Fail(cli.ExitUsage, "the cluster's time scale is %g, not %g", cluster.GPUs.TimeScale, *scale)
	}
	in.config, in.gpuMem = os.Getenv("CARMA_CONF"), fmt.Sprint(cluster.GPUs.List[0].TotalMiB)
	in.gpus = len(cluster.GPUs.List)
	s, err := in.setup()
	if err != nil {
		return err
	}
	s.Estimator, s.Seed = replay.Estimator(*estimator), *seed
	if err := s.Check(); err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	w, err := in.load(s.Model)
	if err != nil {
		return err
	}
	jobs, err := jobsOf(&s, w)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	got, latency, err := play(ctx, cluster, jobs)
	if err != nil {
		return cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	want, err := cluster.Simulate(s, latency, w)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	if *asJSON {
		return printJSON(out, submitted(w, cluster.GPUs.TimeScale, latency, got, want))
	}
	return printSubmitted(out, got, want, latency)
}

// jobsOf is the trace with this seed's draws and bookings.
func jobsOf(s *replay.Setup, w *workload.Workload) ([]live.Job, error) {
	booked, err := s.Bookings(w)
	if err != nil {
		return nil, err
	}
	var jobs []live.Job
	for i := range w.Trace {
		j := &w.Jobs[w.Trace[i].Job]
		jobs = append(jobs, live.Job{
			GPUs: j.GPUs, Exclusive: booked[i].Exclusive, ReserveMiB: booked[i].ReserveMiB, SMActPct: j.SMActPct, Draw: s.DrawOf(w, i),
		})
	}
	return jobs, nil
}

// play submits the jobs and waits for them. What was submitted is cancelled if
// that is interrupted.
func play(ctx context.Context, c *live.Cluster, jobs []live.Job) (replay.Result, live.Latency, error) {
	latency, err := c.Calibrate(ctx, latencyRounds)
	if err != nil {
		return replay.Result{}, latency, err
	}
	before, err := c.Look(ctx)
	if err != nil {
		return replay.Result{}, latency, err
	}
	p := newProgress(len(jobs))
	begun := time.Now()
	ids, err := c.Submit(ctx, jobs, func() {})
	if err == nil {
		err = c.Wait(ctx, func(left int) { p.set(len(jobs) - left) })
	}
	p.end()
	if err != nil {
		if e := c.Cancel(context.Background(), ids); e != nil {
			err = fmt.Errorf("%w; and jobs may be left in the queue: %w", err, e)
		}
		return replay.Result{}, latency, err
	}
	r, err := c.Collect(ctx, ids, jobs, begun, before)
	return r, latency, err
}

// submitJSON is what --json prints.
type submitJSON struct {
	Schema    string         `json:"schema"`
	Version   string         `json:"version"`
	Trace     string         `json:"trace"`
	Jobs      int            `json:"jobs"`
	TimeScale float64        `json:"time_scale"`
	ScheduleS float64        `json:"schedule_s"` // real
	LaunchS   float64        `json:"launch_s"`   // real
	Live      liveOutcome    `json:"live"`
	Simulated replay.Figures `json:"simulated"`
}

type liveOutcome struct {
	MakespanS float64 `json:"makespan_s"`
	WaitS     float64 `json:"wait_s"`
	ExecS     float64 `json:"exec_s"`
	JCTS      float64 `json:"jct_s"`
	EnergyJ   float64 `json:"energy_j"`
	OOM       int     `json:"oom"`
	Failed    int     `json:"failed"`
}

func submitted(w *workload.Workload, timeScale float64, l live.Latency, got replay.Result, want replay.Figures) submitJSON {
	return submitJSON{
		"carma-sim.submit/1", version.String(), w.Name, len(w.Trace), timeScale, l.Schedule.Seconds(), l.Launch.Seconds(),
		liveOutcome{got.MakespanS, got.WaitS, got.ExecS, got.JCTS, got.EnergyJ, got.OOM, got.Failed},
		want,
	}
}

func printSubmitted(out io.Writer, got replay.Result, want replay.Figures, l live.Latency) error {
	t := cli.Table{Columns: []cli.Column{{Title: ""}, {Title: "LIVE", Right: true}, {Title: "SIMULATED", Right: true}, {Title: "DIFFERENCE", Right: true}}}
	for _, row := range []struct {
		title    string
		got      float64
		want     replay.Spread
		per      float64
		decimals int
	}{
		{"makespan h", got.MakespanS, want.MakespanS, 3600, 2}, {"waiting min", got.WaitS, want.WaitS, 60, 1},
		{"execution min", got.ExecS, want.ExecS, 60, 1}, {"completion min", got.JCTS, want.JCTS, 60, 1},
		{"energy MJ", got.EnergyJ, want.EnergyJ, 1e6, 2}, {"OOM", float64(got.OOM), want.OOM, 1, 0}, {"failed", float64(got.Failed), want.Failed, 1, 0},
	} {
		diff := ""
		if row.per > 1 && row.want.Mean > 0 {
			diff = fmt.Sprintf("%+.1f %%", 100*(row.got/row.want.Mean-1))
		}
		t.Rows = append(t.Rows, []string{row.title, fmt.Sprintf("%.*f", row.decimals, row.got/row.per), spread(row.want, row.per, row.decimals), diff})
	}
	if _, err := t.WriteTo(out); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "carma-sim: slurmctld takes %.2f s to look at a job on an idle node, a launch takes %.2f s, real time\n", l.Schedule.Seconds(), l.Launch.Seconds())
	return nil
}
