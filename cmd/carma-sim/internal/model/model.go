// SPDX-License-Identifier: Apache-2.0

// Package model is the world that carma-sim plays: how jobs start, how much
// memory jobs take, how they slow each other down and what power a GPU draws.
// Every parameter stands in model.toml with its source.
package model

import (
	_ "embed"
	"fmt"
	"os"

	"carma/slurmbridge/config"
)

//go:embed model.toml
var defaults string

// Model is a whole model.toml. Times are seconds, percentages 0 to 100.
type Model struct {
	Job        Job                `toml:"job"`
	GPU        GPU                `toml:"gpu"`
	SMActGuess map[string]float64 `toml:"smact_guess_pct"` // model name: percent
	PaperV1    PaperV1            `toml:"paper_v1"`
	PaperV2    PaperV2            `toml:"paper_v2"`
	Slurm      Slurm              `toml:"slurm"`
	Analytic   Analytic           `toml:"analytic"`
	History    History            `toml:"history"`
	Synth      map[string]Class   `toml:"synth"`
}

// Job holds the properties of a job that differ from run to run.
type Job struct {
	StartupS          Range   `toml:"startup_s"`
	SpikeS            Range   `toml:"spike_s"`
	RampS             float64 `toml:"ramp_s"`
	DurationJitterPct float64 `toml:"duration_jitter_pct"`
	PeakJitterPct     float64 `toml:"peak_jitter_pct"`
	SteadyShare       float64 `toml:"steady_share"`
}

// Range is an interval that values are drawn from, evenly.
type Range [2]float64

// At returns the value at share x of the range, x in [0, 1).
func (r Range) At(x float64) float64 { return r[0] + (r[1]-r[0])*x }

// GPU is one GPU.
type GPU struct {
	BaseMiB       int64     `toml:"base_mib"`
	Law           string    `toml:"law"`
	TableSlowdown []float64 `toml:"table_slowdown"`
	PowerSMActPct []float64 `toml:"power_smact_pct"`
	PowerWatts    []float64 `toml:"power_watts"`
}

// PaperV1 is the loop of the reference system's first version.
type PaperV1 struct {
	ScanS      float64 `toml:"scan_s"`
	WaitS      float64 `toml:"wait_s"`
	CollocateS float64 `toml:"collocate_s"`
	WindowS    float64 `toml:"window_s"`
	MinFreeMiB int64   `toml:"min_free_mib"`
}

// PaperV2 is the loop of its second version.
type PaperV2 struct {
	LoopS      float64 `toml:"loop_s"`
	WindowS    float64 `toml:"window_s"`
	SettleS    float64 `toml:"settle_s"`
	DeductMiB  int64   `toml:"deduct_mib"`
	MarginMiB  int64   `toml:"margin_mib"`
	MinFreeMiB int64   `toml:"min_free_mib"`
}

// Slurm is the time that the project's way through Slurm adds.
type Slurm struct {
	ScheduleS     float64 `toml:"schedule_s"`
	LaunchS       float64 `toml:"launch_s"`
	ReleaseS      float64 `toml:"release_s"`
	RequeueS      float64 `toml:"requeue_s"`
	BackOffS      Range   `toml:"back_off_s"`
	PublishS      float64 `toml:"publish_s"`
	PublishEveryS float64 `toml:"publish_every_s"`
	SampleS       float64 `toml:"sample_s"`
	HoldEveryS    float64 `toml:"hold_every_s"`
	Depth         int     `toml:"depth"`
	ExclusiveUser bool    `toml:"exclusive_user"`
	LeastLoaded   bool    `toml:"least_loaded"`
	MPSMultiGPU   bool    `toml:"mps_multi_gpu"`
}

// Analytic is the error of the analytic estimator where there is no summary to
// run it on.
type Analytic struct {
	SurePct     float64   `toml:"sure_pct"`
	UnsurePct   float64   `toml:"unsure_pct"`
	QuantilePct []float64 `toml:"quantile_pct"`
	SureRatio   []float64 `toml:"sure_ratio"`
	UnsureRatio []float64 `toml:"unsure_ratio"`
}

// History is the booking from earlier runs.
type History struct {
	MarginPct []int64 `toml:"margin_pct"` // after one run, two, ...; the last one for all more
}

// Class is what synthetic jobs of one size are drawn from.
type Class struct {
	Share    int   `toml:"share"` // of the trace, percent
	Minutes  Range `toml:"minutes"`
	MemMiB   Range `toml:"mem_mib"`
	SMActPct Range `toml:"smact_pct"`
	GPUs     []int `toml:"gpus"`
}

// Default returns the model of model.toml.
func Default() Model {
	var m Model
	if err := config.Decode(defaults, "", &m); err != nil {
		panic("cmd/carma-sim/internal/model: model.toml: " + err.Error())
	}
	return m
}

// Load reads a file that may replace values of the default model.
func Load(path string) (Model, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Model{}, fmt.Errorf("read model: %w", err)
	}
	m, err := parse(string(text))
	if err != nil {
		return Model{}, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// parse reads the text of such a file. The error names line and key.
func parse(text string) (Model, error) {
	m := Default()
	if err := config.Decode(text, "cmd/carma-sim/internal/model/model.toml lists them all", &m); err != nil {
		return Model{}, err
	}
	if err := m.check(); err != nil {
		err.Line = config.LineOf(text, err.Key)
		return Model{}, err
	}
	return m, nil
}

// check returns the first value that cannot be meant.
func (m *Model) check() *config.KeyError {
	bad := func(key, reason string) *config.KeyError { return &config.KeyError{Key: key, Reason: reason} }
	for _, r := range []struct {
		key string
		v   Range
	}{{"job.startup_s", m.Job.StartupS}, {"job.spike_s", m.Job.SpikeS}, {"slurm.back_off_s", m.Slurm.BackOffS}} {
		if !(r.v[0] >= 0 && r.v[0] <= r.v[1] && r.v[1] <= 1e6) {
			return bad(r.key, "must be two times from 0 up, the smaller first")
		}
	}
	for _, s := range []struct {
		key       string
		v         float64
		low, high float64
	}{
		{"job.ramp_s", m.Job.RampS, 0, 1e6},
		{"job.duration_jitter_pct", m.Job.DurationJitterPct, 0, 90},
		{"job.peak_jitter_pct", m.Job.PeakJitterPct, 0, 90},
		{"job.steady_share", m.Job.SteadyShare, 0.01, 1},
		{"paper_v1.scan_s", m.PaperV1.ScanS, 0.1, 1e6},
		{"paper_v1.wait_s", m.PaperV1.WaitS, 0, 1e6},
		{"paper_v1.collocate_s", m.PaperV1.CollocateS, 0, 1e6},
		{"paper_v1.window_s", m.PaperV1.WindowS, 0.1, 1e6},
		{"paper_v2.loop_s", m.PaperV2.LoopS, 0.1, 1e6},
		{"paper_v2.window_s", m.PaperV2.WindowS, 0.1, 1e6},
		{"paper_v2.settle_s", m.PaperV2.SettleS, 0, 1e6},
		{"slurm.schedule_s", m.Slurm.ScheduleS, 0, 1e6},
		{"slurm.launch_s", m.Slurm.LaunchS, 0, 1e6},
		{"slurm.release_s", m.Slurm.ReleaseS, 0, 1e6},
		{"slurm.requeue_s", m.Slurm.RequeueS, 0, 1e6},
		{"slurm.publish_s", m.Slurm.PublishS, 0, 1e6},
		{"slurm.publish_every_s", m.Slurm.PublishEveryS, 0, 1e6},
		{"slurm.sample_s", m.Slurm.SampleS, 0.01, 1e6},
		{"slurm.hold_every_s", m.Slurm.HoldEveryS, 0.1, 1e6},
		{"slurm.depth", float64(m.Slurm.Depth), 1, 1e6},
		{"analytic.sure_pct", m.Analytic.SurePct, 0, 100},
		{"analytic.unsure_pct", m.Analytic.UnsurePct, 0, 100 - m.Analytic.SurePct},
	} {
		if !(s.v >= s.low && s.v <= s.high) {
			return bad(s.key, fmt.Sprintf("must be between %g and %g", s.low, s.high))
		}
	}
	if laws[m.GPU.Law] == nil && m.GPU.Law != "table" {
		return bad("gpu.law", fmt.Sprintf("%q is not one of %s", m.GPU.Law, lawNames()))
	}
	if n := len(m.GPU.PowerSMActPct); n < 2 || n != len(m.GPU.PowerWatts) || m.GPU.PowerSMActPct[0] != 0 ||
		m.GPU.PowerSMActPct[n-1] != 100 || !rising(m.GPU.PowerSMActPct) {
		return bad("gpu.power_smact_pct", "must rise from 0 to 100, with as many watts")
	}
	if n := len(m.Analytic.QuantilePct); n < 2 || m.Analytic.QuantilePct[0] != 0 || m.Analytic.QuantilePct[n-1] != 100 ||
		!rising(m.Analytic.QuantilePct) {
		return bad("analytic.quantile_pct", "must rise from 0 to 100")
	}
	for key, ratios := range map[string][]float64{"analytic.sure_ratio": m.Analytic.SureRatio,
		"analytic.unsure_ratio": m.Analytic.UnsureRatio} {
		if len(ratios) != len(m.Analytic.QuantilePct) {
			return bad(key, "must have as many values as analytic.quantile_pct")
		}
	}
	if len(m.GPU.TableSlowdown) == 0 {
		return bad("gpu.table_slowdown", "must have at least one value")
	}
	for _, s := range m.GPU.TableSlowdown {
		if !(s >= 1) {
			return bad("gpu.table_slowdown", "must be 1 or more")
		}
	}
	if len(m.History.MarginPct) == 0 {
		return bad("history.margin_pct", "must have at least one value")
	}
	return nil
}

func rising(v []float64) bool {
	for i := 1; i < len(v); i++ {
		if !(v[i] > v[i-1]) {
			return false
		}
	}
	return true
}

// Interpolate reads a piecewise linear curve at x; beyond its ends the curve is
// flat.
func Interpolate(xs, ys []float64, x float64) float64 {
	if x <= xs[0] {
		return ys[0]
	}
	for i := 1; i < len(xs); i++ {
		if x <= xs[i] {
			return ys[i-1] + (ys[i]-ys[i-1])*(x-xs[i-1])/(xs[i]-xs[i-1])
		}
	}
	return ys[len(ys)-1]
}

// Watts is the power of a GPU at a combined activity of util, 0 to 1.
func (g GPU) Watts(util float64) float64 {
	return Interpolate(g.PowerSMActPct, g.PowerWatts, 100*util)
}
