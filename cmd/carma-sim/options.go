// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"carma/cmd/internal/cli"
	"carma/contrib/sim/model"
	"carma/contrib/sim/replay"
	"carma/contrib/sim/workload"
	"carma/gres/choose"
	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
)

// input is where a workload and its world come from.
type input struct {
	trace, jobs, summaries, model, config string
	gpus, nodes                           int
	gpuMem                                string
	skipBad                               bool
}

func (in *input) flags(f *pflag.FlagSet) {
	f.StringVar(&in.trace, "trace", "", "submissions: CSV `FILE` with columns arrival_s and job")
	f.StringVar(&in.jobs, "jobs", "", "what the jobs need: CSV `FILE`; published tables are known by their columns")
	f.StringVar(&in.summaries, "summaries", "", "`DIR` with real_measured.csv and real_summaries/: summaries for the analytic estimator")
	f.IntVar(&in.gpus, "gpus", 4, "GPUs of one node")
	f.StringVar(&in.gpuMem, "gpu-mem", "40536", "memory of one GPU: `MIB` or a size such as 80G")
	f.IntVar(&in.nodes, "nodes", 1, "nodes")
	f.StringVar(&in.model, "model", "", "TOML `FILE` that replaces parts of the model (contrib/sim/model/model.toml)")
	f.StringVar(&in.config, "config", "", "take thresholds from this carma.toml `FILE`")
	f.BoolVar(&in.skipBad, "skip-bad", false, "leave bad lines of the trace out and count them")
}

// setup returns the setup before any word about the configuration.
func (in *input) setup() (replay.Setup, error) {
	m := model.Default()
	if in.model != "" {
		var err error
		if m, err = model.Load(in.model); err != nil {
			return replay.Setup{}, fileError(err)
		}
	}
	c := config.Default()
	if in.config != "" {
		var err error
		if c, err = config.Load(in.config); err != nil {
			return replay.Setup{}, fileError(err)
		}
	}
	s := replay.FromConfig(c, m)
	mib, err := parseMiB(in.gpuMem)
	if err != nil {
		return s, cli.Fail(cli.ExitUsage, "--gpu-mem: %w", err)
	}
	s.GPUs, s.Nodes, s.GPUMemMiB = in.gpus, in.nodes, mib
	return s, nil
}

func (in *input) table(m model.Model) ([]workload.Job, error) {
	if in.jobs == "" {
		return nil, cli.Fail(cli.ExitUsage, "no --jobs; which job table does the trace belong to?")
	}
	f, err := os.Open(in.jobs)
	if err != nil {
		return nil, fileError(err)
	}
	defer f.Close()
	jobs, err := workload.ReadJobs(in.jobs, f, m.SMActGuess, m.Job.SteadyShare)
	if err != nil {
		return nil, fileError(err)
	}
	if in.summaries != "" {
		if _, err := workload.AttachSummaries(jobs, in.summaries); err != nil {
			return nil, fileError(err)
		}
	}
	return jobs, nil
}

func (in *input) load(m model.Model) (*workload.Workload, error) {
	if in.trace == "" {
		return nil, cli.Fail(cli.ExitUsage, "no --trace; carma-sim synth makes one")
	}
	jobs, err := in.table(m)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(in.trace)
	if err != nil {
		return nil, fileError(err)
	}
	defer f.Close()
	w, err := workload.ReadTrace(in.trace, f, jobs, workload.Limits{GPUsPerNode: in.gpus, SkipBad: in.skipBad})
	if err != nil {
		return nil, fileError(err)
	}
	noteSkipped(w.Skipped)
	return &w, nil
}

func noteSkipped(n int) {
	if n > 0 {
		fmt.Fprintf(os.Stderr, "carma-sim: %d bad lines left out\n", n)
	}
}

// fileError gives an error about a file its exit status.
func fileError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return cli.Fail(cli.ExitNotFound, "%w", err)
	}
	if errors.Is(err, fs.ErrPermission) {
		return cli.Fail(cli.ExitPermission, "%w", err)
	}
	return cli.Fail(cli.ExitUsage, "%w", err)
}

func parseMiB(text string) (int64, error) {
	mib, err := directive.ParseMiB(text)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", text, err)
	}
	return mib, nil
}

// knobs are the words of one configuration.
type knobs struct {
	mode, policy, estimator, share, queue, recovery string
	minFree, margin                                 string
	smactCap, holdAfterS                            float64
	maxJobs                                         int
	known, ideal                                    bool
}

func (k *knobs) flags(f *pflag.FlagSet) {
	f.StringVar(&k.mode, "mode", string(replay.Slurm), "whose way of working: "+strings.Join(replay.Modes, ", "))
	f.StringVar(&k.policy, "policy", "", "placement: "+strings.Join(choose.Policies(), ", "))
	f.StringVar(&k.estimator, "estimator", string(replay.Analytic), "memory estimates: "+strings.Join(replay.Estimators, ", "))
	f.BoolVar(&k.known, "known", false, "history knows every job from earlier runs")
	f.StringVar(&k.share, "share", "mps", "how jobs share a GPU: mps, streams")
	f.Float64Var(&k.smactCap, "smact-cap", 0, "SM activity above which a GPU takes no further job, `PCT`; 100 switches it off")
	f.IntVar(&k.maxJobs, "max-jobs", 0, "jobs that may share one GPU")
	f.StringVar(&k.minFree, "min-free", "", "free memory for a job without an estimate, `SIZE`")
	f.StringVar(&k.margin, "margin", "", "memory kept free beyond an estimate, `SIZE`")
	f.StringVar(&k.queue, "queue", "", "waiting jobs: "+strings.Join(replay.Queues, ", "))
	f.StringVar(&k.recovery, "recovery", "", "after an OOM: "+strings.Join(replay.Recoveries, ", "))
	f.Float64Var(&k.holdAfterS, "hold-after", 0, "keep GPUs for a large request that has waited so long, `SECONDS`; 0: never")
	f.BoolVar(&k.ideal, "ideal", false, "the ideal packer instead: it knows all memory use and has no gate")
}

// apply puts what was said into s. f tells what was.
func (k *knobs) apply(f *pflag.FlagSet, s replay.Setup) (replay.Setup, error) {
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
		return s, cli.Fail(cli.ExitUsage, "share %q is not one of mps, streams", k.share)
	}
	if said("smact-cap") {
		s.Thresholds.SMActMaxPct = k.smactCap
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
			return s, cli.Fail(cli.ExitUsage, "--%s: %w", size.name, err)
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
		return s, cli.Fail(cli.ExitUsage, "%w", err)
	}
	return s, nil
}

// player is who plays the configuration.
func (k *knobs) player() func(replay.Setup, *workload.Workload) (replay.Result, error) {
	if k.ideal {
		return replay.Ideal
	}
	return replay.Run
}

// repeats are how often, and with which random numbers.
type repeats struct {
	n    int
	seed uint64
}

func (r *repeats) flags(f *pflag.FlagSet, n int) {
	f.IntVar(&r.n, "repeats", n, "runs, each with other start-up times")
	f.Uint64Var(&r.seed, "seed", 1, "of the first run; the same seed gives the same run")
}

func (r *repeats) check() error {
	if r.n < 1 || r.n > 100000 {
		return cli.Fail(cli.ExitUsage, "repeats %d: must be between 1 and 100000", r.n)
	}
	return nil
}
