// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"carma/cmd/carma-sim/internal/live"
	"carma/cmd/carma-sim/internal/replay"
	"carma/cmd/carma-sim/internal/workload"
	"carma/db/texttable"
	"carma/slurmbridge/version"
)

// latencyRounds is how often the cluster's latency is measured.
const latencyRounds = 3

// Unavailable is an error of the cluster.
type Unavailable struct{ error }

func (u Unavailable) Unwrap() error { return u.error }

// Submit says which trace to submit to the cluster that the environment names, and to
// simulate.
type Submit struct {
	Input
	Estimator replay.Estimator
	TimeScale float64 // the cluster's; 0: any
	Seed      uint64
}

// Do submits the trace, waits and simulates it.
func (o Submit) Do(ctx context.Context) (*Submission, error) {
	if o.Estimator == replay.History {
		return nil, errors.New("estimator history: jobs are submitted before any has ended")
	}
	cluster, err := live.Open(ctx)
	if err != nil {
		return nil, Unavailable{err}
	}
	if o.TimeScale != 0 && o.TimeScale != cluster.GPUs.TimeScale {
		return nil, fmt.Errorf("the cluster's time scale is %g, not %g", cluster.GPUs.TimeScale, o.TimeScale)
	}
	o.Config, o.GPUMem = os.Getenv("CARMA_CONF"), fmt.Sprint(cluster.GPUs.List[0].TotalMiB)
	o.GPUs, o.Nodes = len(cluster.GPUs.List), 1
	s, err := o.setup()
	if err != nil {
		return nil, err
	}
	s.Estimator, s.Seed = o.Estimator, o.Seed
	if err := s.Check(); err != nil {
		return nil, err
	}
	w, err := o.load(s.Model)
	if err != nil {
		return nil, err
	}
	jobs, err := jobsOf(&s, w)
	if err != nil {
		return nil, err
	}
	got, latency, err := play(ctx, cluster, jobs)
	if err != nil {
		return nil, Unavailable{err}
	}
	want, err := cluster.Simulate(s, latency, w)
	if err != nil {
		return nil, err
	}
	return submitted(w, cluster.GPUs.TimeScale, latency, got, want), nil
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
			GPUs: j.GPUs, Exclusive: booked[i].Exclusive, ReserveMiB: booked[i].ReserveMiB, SMActPct: j.SMActPct,
			Draw: s.DrawOf(w, i),
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

// Submission is a trace on a cluster and in the simulation, as --json prints it.
type Submission struct {
	Schema    string         `json:"schema"`
	Version   string         `json:"version"`
	Trace     string         `json:"trace"`
	Jobs      int            `json:"jobs"`
	TimeScale float64        `json:"time_scale"`
	ScheduleS float64        `json:"schedule_s"` // real
	LaunchS   float64        `json:"launch_s"`   // real
	Live      liveOutcome    `json:"live"`
	Simulated replay.Figures `json:"simulated"`

	Skipped int `json:"-"` // bad lines of the trace
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

func submitted(w *workload.Workload, timeScale float64, l live.Latency, got replay.Result,
	want replay.Figures) *Submission {
	return &Submission{
		"carma-sim.submit/1", version.String(), w.Name, len(w.Trace), timeScale, l.Schedule.Seconds(),
		l.Launch.Seconds(),
		liveOutcome{got.MakespanS, got.WaitS, got.ExecS, got.JCTS, got.EnergyJ, got.OOM, got.Failed},
		want, w.Skipped,
	}
}

// Print writes both outcomes as a table.
func (s *Submission) Print(out io.Writer) error {
	got, want := s.Live, s.Simulated
	t := texttable.Table{Columns: texttable.Columns("", ">LIVE", ">SIMULATED", ">DIFFERENCE")}
	for _, row := range []struct {
		title    string
		got      float64
		want     replay.Spread
		per      float64
		decimals int
	}{
		{"makespan h", got.MakespanS, want.MakespanS, 3600, 2}, {"waiting min", got.WaitS, want.WaitS, 60, 1},
		{"execution min", got.ExecS, want.ExecS, 60, 1}, {"completion min", got.JCTS, want.JCTS, 60, 1},
		{"energy MJ", got.EnergyJ, want.EnergyJ, 1e6, 2}, {"OOM", float64(got.OOM), want.OOM, 1, 0},
		{"failed", float64(got.Failed), want.Failed, 1, 0},
	} {
		diff := ""
		if row.per > 1 && row.want.Mean > 0 {
			diff = fmt.Sprintf("%+.1f %%", 100*(row.got/row.want.Mean-1))
		}
		t.Rows = append(t.Rows, []string{row.title, fmt.Sprintf("%.*f", row.decimals, row.got/row.per),
			spread(row.want, row.per, row.decimals), diff})
	}
	_, err := t.WriteTo(out)
	return err
}
