// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"carma/cmd/internal/cli"
	"carma/contrib/sim/chart"
	"carma/contrib/sim/replay"
	"carma/contrib/sim/workload"
	"carma/slurmbridge/version"
)

const compareUsage = `usage: carma-sim compare --trace T.csv --jobs J.csv [OPTIONS] ["NAME: OPTIONS"]...

Replays a trace under several configurations, given as a name and options of
carma-sim run:

  carma-sim compare ... "exclusive: --policy exclusive" "magm: --policy magm"

Changes are against the first one. Without any, the reference system, this
project's policies and an ideal packer are compared.
`

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

// comparison is what --json prints.
type comparison struct {
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
}

func runCompare(args []string, out io.Writer) error {
	f := cli.Flags("carma-sim compare", compareUsage, out)
	var in input
	var rep repeats
	in.flags(f)
	rep.flags(f, 8)
	asJSON := f.Bool("json", false, "print JSON (docs/sim.md)")
	page := f.String("html", "", "write a page with charts to this `FILE`")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if err := rep.check(); err != nil {
		return err
	}
	base, err := in.setup()
	if err != nil {
		return err
	}
	specs := f.Args()
	if len(specs) == 0 {
		specs = usual
	}
	w, err := in.load(base.Model)
	if err != nil {
		return err
	}
	c, err := compare(specs, base, w, rep, *page != "")
	if err != nil {
		return err
	}
	if *page != "" {
		if err := writeFile(*page, func(f io.Writer) error { _, err := io.WriteString(f, c.html(base)); return err }); err != nil {
			return err
		}
	}
	if *asJSON {
		return printJSON(out, c)
	}
	_, err = io.WriteString(out, c.text())
	return err
}

func compare(specs []string, base replay.Setup, w *workload.Workload, rep repeats, record bool) (*comparison, error) {
	c := &comparison{Schema: "carma-sim.compare/1", Version: version.String(), Trace: w.Name, Jobs: len(w.Trace), Skipped: w.Skipped, Repeats: rep.n, Seed: rep.seed}
	bound := replay.BoundOf(base, w)
	c.Bound.MakespanS, c.Bound.EnergyJ = bound.MakespanS, bound.EnergyJ
	setups := make([]replay.Setup, len(specs))
	words := make([]knobs, len(specs))
	for i, spec := range specs {
		name, options, ok := strings.Cut(spec, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, cli.Fail(cli.ExitUsage, "configuration %q: write \"NAME: OPTIONS\"; see carma-sim compare --help", spec)
		}
		f := cli.Flags("carma-sim run", runUsage, io.Discard)
		words[i].flags(f)
		err := f.Parse(strings.Fields(options))
		if err == nil && f.NArg() > 0 {
			err = fmt.Errorf("unexpected argument %q", f.Arg(0))
		}
		if err == nil {
			setups[i], err = words[i].apply(f, base)
		}
		if err != nil {
			return nil, cli.Fail(cli.ExitUsage, "configuration %q: %w", strings.TrimSpace(name), err)
		}
		c.Configs = append(c.Configs, outcome{Name: strings.TrimSpace(name), Options: strings.TrimSpace(options), Config: configOf(setups[i], words[i].ideal)})
	}
	p := newProgress(len(specs) * rep.n)
	defer p.end()
	for i, s := range setups {
		s.Seed, s.Record = rep.seed, record
		figures, first, err := replay.Repeat(s, w, rep.n, words[i].player(), p.step)
		if err != nil {
			return nil, cli.Fail(cli.ExitUsage, "configuration %q: %w", c.Configs[i].Name, err)
		}
		c.Configs[i].Figures, c.Configs[i].curves = figures, first.Curves
	}
	return c, nil
}

// text is the comparison as a table: means, and the spread of what spreads.
func (c *comparison) text() string {
	t := cli.Table{Columns: []cli.Column{
		{Title: "CONFIGURATION"}, {Title: "MAKESPAN h", Right: true}, {Title: "", Right: true},
		{Title: "COMPLETION min", Right: true}, {Title: "", Right: true}, {Title: "WAITING min", Right: true}, {Title: "ENERGY MJ", Right: true}, {Title: "", Right: true},
		{Title: "SMACT %", Right: true}, {Title: "P95 SLOWDOWN", Right: true}, {Title: "OOM", Right: true},
	}}
	first := &c.Configs[0].Figures
	for i := range c.Configs {
		f := &c.Configs[i].Figures
		t.Rows = append(t.Rows, []string{
			c.Configs[i].Name,
			spread(f.MakespanS, 3600, 2), change(f.MakespanS.Mean, first.MakespanS.Mean, i),
			spread(f.JCTS, 60, 0), change(f.JCTS.Mean, first.JCTS.Mean, i),
			fmt.Sprintf("%.0f", f.WaitS.Mean/60),
			spread(f.EnergyJ, 1e6, 2), change(f.EnergyJ.Mean, first.EnergyJ.Mean, i),
			fmt.Sprintf("%.1f", f.SMActPct.Mean), fmt.Sprintf("%.2f", f.P95Slowdown.Mean), fmt.Sprintf("%.1f", f.OOM.Mean),
		})
	}
	t.Rows = append(t.Rows, []string{
		"no schedule beats", fmt.Sprintf("%.2f", c.Bound.MakespanS/3600), change(c.Bound.MakespanS, first.MakespanS.Mean, 1), "", "", "",
		fmt.Sprintf("%.2f", c.Bound.EnergyJ/1e6), change(c.Bound.EnergyJ, first.EnergyJ.Mean, 1), "", "", "",
	})
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d jobs, means of %d runs, %s of one\n\n", c.Trace, c.Jobs, c.Repeats, "± standard deviation")
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

// html is the comparison with charts.
func (c *comparison) html(base replay.Setup) string {
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
			list = append(list, chart.Bar{Name: c.Configs[i].Name, Mean: s.Mean / per, Min: s.Min / per, Max: s.Max / per})
		}
		return chart.Bars(title, unit, list)
	}
	lead := fmt.Sprintf("%d × %d GPUs of %d MiB. Bars are means of %d runs, with the least and the most; curves are means over the GPUs (power: the sum) in the run with seed %d.",
		base.Nodes, base.GPUs, base.GPUMemMiB, c.Repeats, c.Seed)
	return chart.Page("carma-sim: "+c.Trace, lead, c.text(),
		bars("Makespan", "hours", 3600, func(f *replay.Figures) replay.Spread { return f.MakespanS }),
		bars("Mean completion time", "minutes", 60, func(f *replay.Figures) replay.Spread { return f.JCTS }),
		bars("Energy of the GPUs", "MJ", 1e6, func(f *replay.Figures) replay.Spread { return f.EnergyJ }),
		bars("Slowdown of the 95th percentile", "times", 1, func(f *replay.Figures) replay.Spread { return f.P95Slowdown }),
		bars("Out of memory", "attempts", 1, func(f *replay.Figures) replay.Spread { return f.OOM }),
		chart.Legend(mem),
		chart.Lines("GPU memory used", "MiB", mem),
		chart.Lines("SM activity", "percent", smact),
		chart.Lines("Power", "watts", watts),
	)
}
