// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"carma/cmd/internal/cli"
	"carma/contrib/sim/replay"
	"carma/slurmbridge/version"
)

const runUsage = `usage: carma-sim run --trace T.csv --jobs J.csv [OPTIONS]

Replays a trace and prints what came of it: means over the repeats, with spread.
`

func runRun(args []string, out io.Writer) error {
	f := cli.Flags("carma-sim run", runUsage, out)
	var in input
	var k knobs
	var rep repeats
	in.flags(f)
	k.flags(f)
	rep.flags(f, 1)
	schedule := f.String("schedule", "", "write what became of each job of the first run to this CSV `FILE`")
	asJSON := f.Bool("json", false, "print JSON (docs/sim.md)")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Fail(cli.ExitUsage, "unexpected argument %q; see carma-sim run --help", f.Arg(0))
	}
	if err := rep.check(); err != nil {
		return err
	}
	s, err := in.setup()
	if err != nil {
		return err
	}
	if s, err = k.apply(f, s); err != nil {
		return err
	}
	w, err := in.load(s.Model)
	if err != nil {
		return err
	}
	s.Seed, s.Record = rep.seed, *schedule != ""
	p := newProgress(rep.n)
	figures, first, err := replay.Repeat(s, w, rep.n, k.player(), p.step)
	p.end()
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	if *schedule != "" {
		if err := writeFile(*schedule, func(f io.Writer) error { return replay.WriteJobs(f, first.Jobs) }); err != nil {
			return err
		}
	}
	if *asJSON {
		return printJSON(out, runJSON{Schema: "carma-sim.run/1", Version: version.String(), Trace: w.Name, Jobs: len(w.Trace), Skipped: w.Skipped, Repeats: rep.n, Seed: rep.seed, Config: configOf(s, k.ideal), Figures: figures})
	}
	return printFigures(out, figures, rep.n)
}

// runJSON is what --json prints.
type runJSON struct {
	Schema  string     `json:"schema"`
	Version string     `json:"version"`
	Trace   string     `json:"trace"`
	Jobs    int        `json:"jobs"`
	Skipped int        `json:"skipped"`
	Repeats int        `json:"repeats"`
	Seed    uint64     `json:"seed"`
	Config  configJSON `json:"config"`
	replay.Figures
}

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
		s.Thresholds.SMActMaxPct, s.Thresholds.MaxJobs, s.Thresholds.MarginMiB, s.MinFreeMiB, s.WindowS, s.HoldAfterS, s.Model.GPU.Law,
	}
}

func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func printFigures(out io.Writer, f replay.Figures, n int) error {
	t := cli.Table{Columns: []cli.Column{{Title: ""}, {Title: "MEAN", Right: true}, {Title: "SD", Right: true}, {Title: "MIN", Right: true}, {Title: "MAX", Right: true}}}
	for _, row := range []struct {
		title string
		s     replay.Spread
		per   float64
		dec   int
	}{
		{"makespan h", f.MakespanS, 3600, 2}, {"waiting min", f.WaitS, 60, 1}, {"execution min", f.ExecS, 60, 1}, {"completion min", f.JCTS, 60, 1},
		{"p95 slowdown", f.P95Slowdown, 1, 2}, {"OOM", f.OOM, 1, 1}, {"failed", f.Failed, 1, 1}, {"given back", f.GivenBack, 1, 1}, {"energy MJ", f.EnergyJ, 1e6, 2},
		{"SMACT %", f.SMActPct, 1, 1}, {"memory MiB", f.MemMiB, 1, 0},
	} {
		cells := []string{row.title}
		for _, v := range []float64{row.s.Mean, row.s.SD, row.s.Min, row.s.Max} {
			cells = append(cells, fmt.Sprintf("%.*f", row.dec, v/row.per))
		}
		if n == 1 {
			cells[2], cells[3], cells[4] = "", "", ""
		}
		t.Rows = append(t.Rows, cells)
	}
	if n == 1 {
		t.Columns[2].Title, t.Columns[3].Title, t.Columns[4].Title = "", "", ""
	}
	_, err := t.WriteTo(out)
	return err
}

// writeFile writes a whole file or none.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".carma-sim-*")
	if err != nil {
		return fileError(err)
	}
	defer os.Remove(f.Name())
	err = write(f)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
