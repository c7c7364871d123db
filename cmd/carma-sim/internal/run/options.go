// SPDX-License-Identifier: Apache-2.0

// Package run is what the commands of carma-sim do: replay a trace, compare replays,
// submit a trace to a cluster, and make traces.
package run

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"carma/cmd/carma-sim/internal/model"
	"carma/cmd/carma-sim/internal/replay"
	"carma/cmd/carma-sim/internal/workload"
	"carma/gres/choose"
	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
	"carma/slurmbridge/policy"
)

// Input is where a workload and its world come from.
type Input struct {
	Trace, Jobs, Summaries, Model, Config string
	GPUs, Nodes                           int
	GPUMem                                string // MiB, or a size such as 80G
	SkipBad                               bool
}

// Flags are the words of the input.
func (in *Input) Flags(f *pflag.FlagSet) {
	f.StringVar(&in.Trace, "trace", "", "submissions: CSV `FILE` with columns arrival_s and job")
	f.StringVar(&in.Jobs, "jobs", "", "what the jobs need: CSV `FILE`; published tables are recognised by their columns")
	f.StringVar(&in.Summaries, "summaries", "",
		"`DIR` with real_measured.csv and real_summaries/: summaries for the analytic estimator")
	f.IntVar(&in.GPUs, "gpus", 4, "GPUs of one node")
	f.StringVar(&in.GPUMem, "gpu-mem", "40536", "memory of one GPU: `MIB` or a size such as 80G")
	f.IntVar(&in.Nodes, "nodes", 1, "nodes")
	f.StringVar(&in.Model, "model", "", "TOML `FILE` that replaces parts of the model (cmd/carma-sim/internal/model/model.toml)")
	f.StringVar(&in.Config, "config", "", "take thresholds from this carma.toml `FILE`")
	f.BoolVar(&in.SkipBad, "skip-bad", false, "leave out and count bad lines of the trace")
}

// setup returns the setup before any word about the configuration.
func (in *Input) setup() (replay.Setup, error) {
	m := model.Default()
	if in.Model != "" {
		var err error
		if m, err = model.Load(in.Model); err != nil {
			return replay.Setup{}, err
		}
	}
	c := config.Default()
	if in.Config != "" {
		var err error
		if c, err = config.Load(in.Config, os.ReadFile); err != nil {
			return replay.Setup{}, err
		}
	}
	s := replay.FromConfig(c, m)
	mib, err := parseMiB(in.GPUMem)
	if err != nil {
		return s, fmt.Errorf("--gpu-mem: %w", err)
	}
	s.GPUs, s.Nodes, s.GPUMemMiB = in.GPUs, in.Nodes, mib
	return s, nil
}

// table reads the job table.
func (in *Input) table(m model.Model) ([]workload.Job, error) {
	if in.Jobs == "" {
		return nil, errors.New("no --jobs; which job table does the trace belong to?")
	}
	f, err := os.Open(in.Jobs)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	jobs, err := workload.ReadJobs(in.Jobs, f, m.SMActGuess, m.Job.SteadyShare)
	if err != nil {
		return nil, err
	}
	if in.Summaries != "" {
		if _, err := workload.AttachSummaries(jobs, in.Summaries); err != nil {
			return nil, err
		}
	}
	return jobs, nil
}

// load reads the trace and its job table.
func (in *Input) load(m model.Model) (*workload.Workload, error) {
	if in.Trace == "" {
		return nil, errors.New("no --trace; carma-sim synth makes one")
	}
	jobs, err := in.table(m)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(in.Trace)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w, err := workload.ReadTrace(in.Trace, f, jobs, workload.Limits{GPUsPerNode: in.GPUs, SkipBad: in.SkipBad})
	if err != nil {
		return nil, err
	}
	return &w, nil
}

func parseMiB(text string) (int64, error) {
	mib, err := directive.ParseMiB(text)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", text, err)
	}
	return mib, nil
}

// Knobs are the words of one configuration.
type Knobs struct {
	mode, policy, estimator, share, queue, recovery string
	minFree, margin                                 string
	smactCap, holdAfterS, maxSlowdown               float64
	maxJobs                                         int
	known, ideal                                    bool
}

// Flags are the words of the configuration.
func (k *Knobs) Flags(f *pflag.FlagSet) {
	f.StringVar(&k.mode, "mode", string(replay.Slurm), "system to simulate: "+strings.Join(replay.Modes, ", "))
	f.StringVar(&k.policy, "policy", "", "placement: "+strings.Join(policy.Names(), ", "))
	f.StringVar(&k.estimator, "estimator", string(replay.Analytic),
		"memory estimates: "+strings.Join(replay.Estimators, ", "))
	f.BoolVar(&k.known, "known", false, "every job has run before, so history knows it")
	f.StringVar(&k.share, "share", "mps", "how jobs share a GPU: mps, streams")
	f.Float64Var(&k.smactCap, "smact-cap", 0,
		"`PCT` of SM activity above which a GPU takes no further job; 100 switches it off")
	f.IntVar(&k.maxJobs, "max-jobs", 0, "jobs that may share one GPU")
	f.Float64Var(&k.maxSlowdown, "max-slowdown", 0,
		"bound on the slowdown of a job, `TIMES` its run time alone; 0: none")
	f.StringVar(&k.minFree, "min-free", "", "free memory of this `SIZE` for a job without an estimate")
	f.StringVar(&k.margin, "margin", "", "memory of this `SIZE` kept free beyond an estimate")
	f.StringVar(&k.queue, "queue", "", "waiting jobs: "+strings.Join(replay.Queues, ", "))
	f.StringVar(&k.recovery, "recovery", "", "after an OOM: "+strings.Join(replay.Recoveries, ", "))
	f.Float64Var(&k.holdAfterS, "hold-after", 0,
		"keep GPUs for a large request that has waited this many `SECONDS`; 0: never")
	f.BoolVar(&k.ideal, "ideal", false, "the ideal packer instead: it knows all memory use and has no gate")
}

// apply puts what was said into s. f tells what was.
func (k *Knobs) apply(f *pflag.FlagSet, s replay.Setup) (replay.Setup, error) {
	s = s.As(replay.Mode(k.mode))
	s.Estimator, s.Known = replay.Estimator(k.estimator), k.known
	said := f.Changed
	if said("policy") {
		s.Policy = choose.Policy(k.policy)
	}
	switch k.share {
	case "mps", "streams":
		s.Streams = k.share == "streams"
	default:
		return s, fmt.Errorf("share %q is not one of mps, streams", k.share)
	}
	if said("smact-cap") {
		s.Thresholds.SMActMaxPct = k.smactCap
	}
	if said("max-slowdown") {
		s.Thresholds.MaxSlowdown = k.maxSlowdown
	}
	if said("max-jobs") {
		s.Thresholds.MaxJobs = k.maxJobs
	}
	for _, size := range []struct {
		name, text string
		to         *int64
	}{{"min-free", k.minFree, &s.MinFreeMiB}, {"margin", k.margin, &s.Thresholds.MarginMiB}} {
		if !said(size.name) {
			continue
		}
		mib, err := parseMiB(size.text)
		if err != nil {
			return s, fmt.Errorf("--%s: %w", size.name, err)
		}
		*size.to = mib
	}
	if said("queue") {
		s.Queue = replay.Queue(k.queue)
	}
	if said("recovery") {
		s.Recovery = replay.Recovery(k.recovery)
	}
	if said("hold-after") {
		s.HoldAfterS = k.holdAfterS
	}
	if k.ideal {
		s = s.As(replay.Slurm)
	}
	if err := s.Check(); err != nil {
		return s, err
	}
	return s, nil
}

// player is who plays the configuration.
func (k *Knobs) player() func(replay.Setup, *workload.Workload) (replay.Result, error) {
	if k.ideal {
		return replay.Ideal
	}
	return replay.Run
}

// Repeats are how often, and with which random numbers.
type Repeats struct {
	N    int
	Seed uint64
}

// Flags are the words of the repeats.
func (r *Repeats) Flags(f *pflag.FlagSet, n int) {
	f.IntVar(&r.N, "repeats", n, "number of runs, each with its own start-up times")
	f.Uint64Var(&r.Seed, "seed", 1, "seed of the first run; the same seed gives the same run")
}

func (r *Repeats) check() error {
	if r.N < 1 || r.N > 100000 {
		return fmt.Errorf("repeats %d: must be between 1 and 100000", r.N)
	}
	return nil
}
