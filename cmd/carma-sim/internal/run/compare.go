// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"carma/cmd/carma-sim/internal/chart"
	"carma/cmd/carma-sim/internal/replay"
	"carma/db/texttable"
	"carma/slurmbridge/version"
)

// usual are the configurations when none is named. They need no estimates in
// the job table.
var usual = []string{
	"exclusive: --mode paper-v1 --policy exclusive --estimator none",
	"paper-v1 magm: --mode paper-v1 --policy magm --estimator none --min-free 5G",
	"paper-v2 magm: --mode paper-v2 --policy magm --estimator none",
	"magm: --policy magm",
	"lug: --policy lug",
	"carma: --policy carma --smact-cap 100 --max-jobs 3",
	"carma, history: --policy carma --smact-cap 100 --max-jobs 3 --estimator history --known",
	"ideal packer: --ideal",
}

// outcome is one configuration and what came of it.
type outcome struct {
	Name    string     `json:"name"`
	Options string     `json:"options"`
	Config  configJSON `json:"config"`
	replay.Figures
	curves *replay.Curves
}

// Comparison is several configurations of one trace, as --json prints it.
type Comparison struct {
	Schema  string    `json:"schema"`
	Version string    `json:"version"`
	Trace   string    `json:"trace"`
	Jobs    int       `json:"jobs"`
	Skipped int       `json:"skipped"`
	Repeats int       `json:"repeats"`
	Seed    uint64    `json:"seed"`
	Configs []outcome `json:"configs"`
	Bound   struct {
		MakespanS float64 `json:"makespan_s"`
		EnergyJ   float64 `json:"energy_j"`
	} `json:"bound"`
	base replay.Setup
}

// Compare replays a workload under configurations: a name, a colon and options of
// carma-sim run each. record keeps the curves of the first runs.
func Compare(in Input, specs []string, rep Repeats, record bool) (*Comparison, error) {
	if err := rep.check(); err != nil {
		return nil, err
	}
	base, err := in.setup()
	if err != nil {
		return nil, err
	}
	w, err := in.load(base.Model)
	if err != nil {
		return nil, err
	}
	if len(specs) == 0 {
		specs = usual
	}
	c := &Comparison{base: base, Schema: "carma-sim.compare/1", Version: version.String(), Trace: w.Name,
		Jobs: len(w.Trace), Skipped: w.Skipped, Repeats: rep.N, Seed: rep.Seed}
	bound := replay.BoundOf(base, w)
	c.Bound.MakespanS, c.Bound.EnergyJ = bound.MakespanS, bound.EnergyJ
	setups := make([]replay.Setup, len(specs))
	words := make([]Knobs, len(specs))
	for i, spec := range specs {
		name, options, ok := strings.Cut(spec, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, fmt.Errorf("configuration %q: write \"NAME: OPTIONS\"; see carma-sim compare --help", spec)
		}
		f := pflag.NewFlagSet("carma-sim run", pflag.ContinueOnError)
		f.SetOutput(io.Discard)
		words[i].Flags(f)
		err := f.Parse(strings.Fields(options))
		if err == nil && f.NArg() > 0 {
			err = fmt.Errorf("unexpected argument %q", f.Arg(0))
		}
		if err == nil {
			setups[i], err = words[i].apply(f, base)
		}
		if err != nil {
			return nil, fmt.Errorf("configuration %q: %w", strings.TrimSpace(name), err)
		}
		c.Configs = append(c.Configs, outcome{Name: strings.TrimSpace(name), Options: strings.TrimSpace(options),
			Config: configOf(setups[i], words[i].ideal)})
	}
	p := newProgress(len(specs) * rep.N)
	defer p.end()
	for i, s := range setups {
		s.Seed, s.Record = rep.Seed, record
		figures, first, err := replay.Repeat(s, w, rep.N, words[i].player(), p.step)
		if err != nil {
			return nil, fmt.Errorf("configuration %q: %w", c.Configs[i].Name, err)
		}
		c.Configs[i].Figures, c.Configs[i].curves = figures, first.Curves
	}
	return c, nil
}

// Text is the comparison as a table: means, and the spread of what spreads.
func (c *Comparison) Text() string {
	t := texttable.Table{Columns: texttable.Columns("CONFIGURATION", ">MAKESPAN h", ">", ">COMPLETION min", ">",
		">WAITING min", ">ENERGY MJ", ">", ">SMACT %", ">P95 SLOWDOWN", ">OOM")}
	first := &c.Configs[0].Figures
	for i := range c.Configs {
		f := &c.Configs[i].Figures
		t.Rows = append(t.Rows, []string{
			c.Configs[i].Name,
			spread(f.MakespanS, 3600, 2), change(f.MakespanS.Mean, first.MakespanS.Mean, i),
			spread(f.JCTS, 60, 0), change(f.JCTS.Mean, first.JCTS.Mean, i),
			fmt.Sprintf("%.0f", f.WaitS.Mean/60),
			spread(f.EnergyJ, 1e6, 2), change(f.EnergyJ.Mean, first.EnergyJ.Mean, i),
			fmt.Sprintf("%.1f", f.SMActPct.Mean), fmt.Sprintf("%.2f", f.P95Slowdown.Mean),
			fmt.Sprintf("%.1f", f.OOM.Mean),
		})
	}
	t.Rows = append(t.Rows, []string{
		"no schedule beats", fmt.Sprintf("%.2f", c.Bound.MakespanS/3600),
		change(c.Bound.MakespanS, first.MakespanS.Mean, 1), "", "", "",
		fmt.Sprintf("%.2f", c.Bound.EnergyJ/1e6), change(c.Bound.EnergyJ, first.EnergyJ.Mean, 1), "", "", "",
	})
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d jobs, means of %d runs, %s of one\n\n", c.Trace, c.Jobs, c.Repeats,
		"± standard deviation")
	t.WriteTo(&b)
	return b.String()
}

func spread(s replay.Spread, per float64, decimals int) string {
	return fmt.Sprintf("%.*f ±%.*f", decimals, s.Mean/per, decimals, s.SD/per)
}

func change(v, base float64, i int) string {
	if i == 0 || base == 0 {
		return ""
	}
	return fmt.Sprintf("%+.1f %%", 100*(v/base-1))
}

// WriteHTML writes the comparison with charts.
func (c *Comparison) WriteHTML(w io.Writer) error {
	_, err := io.WriteString(w, c.html())
	return err
}

func (c *Comparison) html() string {
	var mem, smact, watts []chart.Line
	for i, o := range c.Configs {
		if o.curves == nil { // of an ideal packer there is no one run
			continue
		}
		mem = append(mem, chart.Line{Name: o.Name, Colour: i, StepS: o.curves.StepS, Y: o.curves.MemMiB})
		smact = append(smact, chart.Line{Name: o.Name, Colour: i, StepS: o.curves.StepS, Y: o.curves.SMActPct})
		watts = append(watts, chart.Line{Name: o.Name, Colour: i, StepS: o.curves.StepS, Y: o.curves.Watts})
	}
	bars := func(title, unit string, per float64, of func(*replay.Figures) replay.Spread) string {
		var list []chart.Bar
		for i := range c.Configs {
			s := of(&c.Configs[i].Figures)
			list = append(list, chart.Bar{Name: c.Configs[i].Name, Mean: s.Mean / per, Min: s.Min / per,
				Max: s.Max / per})
		}
		return chart.Bars(title, unit, list)
	}
	lead := fmt.Sprintf("%d × %d GPUs of %d MiB. Bars are means of %d runs, with the least and the most; "+
		"curves are means over the GPUs (power: the sum) in the run with seed %d.",
		c.base.Nodes, c.base.GPUs, c.base.GPUMemMiB, c.Repeats, c.Seed)
	return chart.Page("carma-sim: "+c.Trace, lead, c.Text(),
		bars("Makespan", "hours", 3600, func(f *replay.Figures) replay.Spread { return f.MakespanS }),
		bars("Mean completion time", "minutes", 60, func(f *replay.Figures) replay.Spread { return f.JCTS }),
		bars("Energy of the GPUs", "MJ", 1e6, func(f *replay.Figures) replay.Spread { return f.EnergyJ }),
		bars("Slowdown of the 95th percentile", "times", 1,
			func(f *replay.Figures) replay.Spread { return f.P95Slowdown }),
		bars("Out of memory", "attempts", 1, func(f *replay.Figures) replay.Spread { return f.OOM }),
		chart.Legend(mem),
		chart.Lines("GPU memory used", "MiB", mem),
		chart.Lines("SM activity", "percent", smact),
		chart.Lines("Power", "watts", watts),
	)
}
