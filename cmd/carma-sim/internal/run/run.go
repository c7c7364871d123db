// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"carma/cmd/carma-sim/internal/model"
	"carma/cmd/carma-sim/internal/replay"
	"carma/db/texttable"
	"carma/slurmbridge/version"
)

// Figures are a replay and what came of it, as --json prints it.
type Figures struct {
	Schema  string     `json:"schema"`
	Version string     `json:"version"`
	Trace   string     `json:"trace"`
	Jobs    int        `json:"jobs"`
	Skipped int        `json:"skipped"`
	Repeats int        `json:"repeats"`
	Seed    uint64     `json:"seed"`
	Config  configJSON `json:"config"`
	replay.Figures

	jobs []replay.JobResult // of the first run
}

// Run replays a workload under the configuration of the words in f. record keeps what
// became of each job of the first run.
func Run(in Input, k *Knobs, f *pflag.FlagSet, rep Repeats, record bool) (*Figures, error) {
	if err := rep.check(); err != nil {
		return nil, err
	}
	s, err := in.setup()
	if err != nil {
		return nil, err
	}
	if s, err = k.apply(f, s); err != nil {
		return nil, err
	}
	w, err := in.load(s.Model)
	if err != nil {
		return nil, err
	}
	s.Seed, s.Record = rep.Seed, record
	p := newProgress(rep.N)
	figures, first, err := replay.Repeat(s, w, rep.N, k.player(), p.step)
	p.end()
	if err != nil {
		return nil, err
	}
	return &Figures{
		Schema: "carma-sim.run/1", Version: version.String(), Trace: w.Name, Jobs: len(w.Trace), Skipped: w.Skipped,
		Repeats: rep.N, Seed: rep.Seed, Config: configOf(s, k.ideal), Figures: figures, jobs: first.Jobs,
	}, nil
}

// WriteSchedule writes what became of each job of the first run as CSV.
func (f *Figures) WriteSchedule(w io.Writer) error { return replay.WriteJobs(w, f.jobs) }

type configJSON struct {
	Mode      replay.Mode      `json:"mode"`
	Policy    string           `json:"policy"`
	Estimator replay.Estimator `json:"estimator"`
	Known     bool             `json:"known"`
	Share     string           `json:"share"`
	Queue     replay.Queue     `json:"queue"`
	Recovery  replay.Recovery  `json:"recovery"`
	Nodes     int              `json:"nodes"`
	GPUs      int              `json:"gpus"`
	GPUMemMiB int64            `json:"gpu_mem_mib"`
	SMActCap  float64          `json:"smact_cap_pct"`
	MaxJobs   int              `json:"max_jobs"`
	Slowdown  float64          `json:"max_slowdown"`
	MarginMiB int64            `json:"margin_mib"`
	MinFree   int64            `json:"min_free_mib"`
	WindowS   float64          `json:"window_s"`
	HoldS     float64          `json:"hold_after_s"`
	Law       string           `json:"law"`
}

func configOf(s replay.Setup, ideal bool) configJSON {
	share, policy := "mps", string(s.Policy)
	if s.Streams {
		share = "streams"
	}
	if ideal {
		policy = "ideal"
	}
	return configJSON{
		s.Mode, policy, s.Estimator, s.Known, share, s.Queue, s.Recovery, s.Nodes, s.GPUs, s.GPUMemMiB,
		s.Thresholds.SMActMaxPct, s.Thresholds.MaxJobs, s.Thresholds.MaxSlowdown,
		s.Thresholds.MarginMiB, s.MinFreeMiB, s.WindowS, s.HoldAfterS,
		s.Model.GPU.Law,
	}
}

// Print writes the figures as a table.
func (f *Figures) Print(out io.Writer) error {
	t := texttable.Table{Columns: texttable.Columns("", ">MEAN", ">SD", ">MIN", ">MAX")}
	for _, row := range []struct {
		title string
		s     replay.Spread
		per   float64
		dec   int
	}{
		{"makespan h", f.MakespanS, 3600, 2}, {"waiting min", f.WaitS, 60, 1}, {"execution min", f.ExecS, 60, 1},
		{"completion min", f.JCTS, 60, 1},
		{"p95 slowdown", f.P95Slowdown, 1, 2}, {"OOM", f.OOM, 1, 1}, {"failed", f.Failed, 1, 1},
		{"returned", f.GivenBack, 1, 1}, {"energy MJ", f.EnergyJ, 1e6, 2},
		{"SMACT %", f.SMActPct, 1, 1}, {"memory MiB", f.MemMiB, 1, 0},
	} {
		cells := []string{row.title}
		for _, v := range []float64{row.s.Mean, row.s.SD, row.s.Min, row.s.Max} {
			cells = append(cells, fmt.Sprintf("%.*f", row.dec, v/row.per))
		}
		if f.Repeats == 1 {
			cells[2], cells[3], cells[4] = "", "", ""
		}
		t.Rows = append(t.Rows, cells)
	}
	if f.Repeats == 1 {
		t.Columns[2].Title, t.Columns[3].Title, t.Columns[4].Title = "", "", ""
	}
	_, err := t.WriteTo(out)
	if n := model.MeasuredMixes(); err == nil && n > 0 {
		_, err = fmt.Fprintf(out, "interference: %d mixes measured on GPUs (contrib/gpucheck/data), the law for others\n", n)
	}
	return err
}
