// SPDX-License-Identifier: Apache-2.0

// Package live submits a trace to a development cluster as real batch jobs
// whose training process is simjob, so that the results of carma-sim can be
// compared with Slurm, the hooks and the agent.
package live

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"carma/cmd/carma-sim/internal/model"
	"carma/cmd/carma-sim/internal/replay"
	"carma/cmd/carma-sim/internal/workload"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
)

// Cluster is a development cluster of one node (contrib/devcluster).
type Cluster struct {
	Config config.Config
	GPUs   GPUs // when the cluster was opened

	dir   string // of the cluster
	state string // of the simulated GPUs
	user  string
}

// GPUs are the simulated GPUs at a moment. Times and energy are simulated.
type GPUs struct {
	NowS      float64 `json:"now_s"`
	TimeScale float64 `json:"time_scale"` // simulated seconds in a real one
	List      []GPU   `json:"gpus"`
}

// GPU is a simulated GPU.
type GPU struct {
	TotalMiB   int64   `json:"memory_total_mib"`
	PowerWatts float64 `json:"power_w"`
	EnergyJ    float64 `json:"energy_j"`
}

// energyJ is the sum of the counters.
func (g *GPUs) energyJ() (sum float64) {
	for _, x := range g.List {
		sum += x.EnergyJ
	}
	return sum
}

func (g *GPUs) watts() (sum float64) {
	for _, x := range g.List {
		sum += x.PowerWatts
	}
	return sum
}

// Open finds the cluster named in the environment.
func Open(ctx context.Context) (*Cluster, error) {
	c := &Cluster{dir: os.Getenv("CARMA_DEVCLUSTER")}
	user, _, _ := strings.Cut(os.Getenv("CARMA_USERS"), " ")
	if c.dir == "" || user == "" {
		return nil, errors.New("no development cluster in the environment; start one with contrib/devcluster/devcluster " +
			"up DIR --nodes 1 --time-scale 120 and run eval \"$(devcluster env DIR)\"")
	}
	c.user = user
	var err error
	if c.Config, err = config.Load(os.Getenv("CARMA_CONF"), os.ReadFile); err != nil {
		return nil, fmt.Errorf("read the cluster's carma.toml: %w", err)
	}
	states, err := filepath.Glob(filepath.Join(c.dir, "simgpu", "*"))
	if err != nil || len(states) != 1 {
		return nil, fmt.Errorf("%s has %d nodes; carma-sim submit takes a cluster of one (devcluster up --nodes 1)", c.dir,
			len(states))
	}
	c.state = states[0]
	c.GPUs, err = c.Look(ctx)
	return c, err
}

// Look reads the simulated GPUs.
func (c *Cluster) Look(ctx context.Context) (GPUs, error) {
	var g GPUs
	out, err := output(ctx, c.dir, []string{"SIMGPU_STATE=" + c.state}, "simgpu", "show", "--json")
	if err != nil {
		return g, err
	}
	if err := json.Unmarshal(out, &g); err != nil {
		return g, fmt.Errorf("read what simgpu show says: %w", err)
	}
	return g, nil
}

// output runs a program and returns its output; the program's error messages
// are in the error.
func output(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(errs.String()))
	}
	return out.Bytes(), nil
}

// setup is the simulation of this cluster: what takes real time there takes
// TimeScale times as long in the simulated world.
func (c *Cluster) setup(s replay.Setup, l Latency) replay.Setup {
	x := c.GPUs.TimeScale
	s.Nodes, s.GPUs, s.GPUMemMiB = 1, len(c.GPUs.List), c.GPUs.List[0].TotalMiB
	s.WindowS *= x
	s.HoldAfterS *= x
	s.HoldTimeoutS *= x
	s.PrologWaitS *= x
	s.Thresholds.Settle = time.Duration(float64(s.Thresholds.Settle) * x)
	p := &s.Model.Slurm
	p.ScheduleS, p.LaunchS, p.ReleaseS, p.RequeueS = l.Schedule.Seconds()*x, l.Launch.Seconds()*x, 0,
		l.Requeue.Seconds()*x
	p.PublishS, p.PublishEveryS = p.PublishS*x, p.PublishEveryS*x
	p.BackOffS = model.Range{p.BackOffS[0] * x, p.BackOffS[1] * x}
	p.SampleS, p.HoldEveryS = c.Config.NVML.Interval.D().Seconds()*x, c.Config.Capacity.Compare.D().Seconds()*x
	return s
}

// Simulate plays the same jobs with the same draws. A few tenths of a second at
// one start can send everything after it another way, on the cluster as here, and
// the latency is known no better: so the simulated latency is a quarter less to a
// quarter more than was measured, and the figures cover all runs.
func (c *Cluster) Simulate(s replay.Setup, l Latency, w *workload.Workload) (replay.Figures, error) {
	const runs = 25
	run := 0
	f, _, err := replay.Repeat(s, w, runs, func(_ replay.Setup, w *workload.Workload) (replay.Result, error) {
		x := 0.75 + 0.5*float64(run)/(runs-1)
		run++
		return replay.Run(c.setup(s, Latency{times(l.Schedule, x), times(l.Launch, x), l.Requeue}), w)
	}, func() {})
	return f, err
}

// Latency is how long the cluster takes around a job, in real time.
type Latency struct {
	Schedule time.Duration // from submission until slurmctld starts the job on an idle node
	Launch   time.Duration // from then, or from the end of the job on whose GPUs it waited, to the script's first line
	Requeue  time.Duration // from a requeue until the job may start again
}

// told is after how long slurmctld counts the GPUs of a job that has ended: the
// agent speaks about once a second. A launch before that would wait for it.
const told = 2 * time.Second

// Calibrate measures the latency with jobs that do nothing: one on an idle
// node, and one that waits for it on whole GPUs, which slurmctld looks at as soon as
// that has ended. It takes the median of rounds.
func (c *Cluster) Calibrate(ctx context.Context, rounds int) (Latency, error) {
	var schedules, launches []time.Duration
	for range rounds {
		select {
		case <-time.After(told):
		case <-ctx.Done():
			return Latency{}, ctx.Err()
		}
		job := Job{GPUs: len(c.GPUs.List), Exclusive: true, body: "sleep 1"}
		submitted := time.Now()
		first, err := c.submit(ctx, job)
		if err != nil {
			return Latency{}, err
		}
		second, err := c.submit(ctx, job)
		if err != nil {
			return Latency{}, err
		}
		if err := c.Wait(ctx, nil); err != nil {
			return Latency{}, err
		}
		a, err := c.attempts(first)
		if err != nil {
			return Latency{}, err
		}
		b, err := c.attempts(second)
		if err != nil {
			return Latency{}, err
		}
		launch := b[0].begin.Sub(a[0].end)
		launches = append(launches, launch)
		schedules = append(schedules, max(a[0].begin.Sub(submitted)-launch, 0))
	}
	slices.Sort(schedules)
	slices.Sort(launches)
	requeue, err := sctl.Client{BinDir: c.Config.Slurm.BinDir,
		Conf: cmp.Or(c.Config.Slurm.Conf, os.Getenv("SLURM_CONF"))}.SafeStart(ctx)
	if err != nil {
		return Latency{}, err
	}
	return Latency{schedules[rounds/2], launches[rounds/2], requeue}, nil
}

func times(d time.Duration, x float64) time.Duration { return time.Duration(float64(d) * x) }
