// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"carma/estimator"
	"carma/estimator/trace"
)

// tracedRuns are the runs of runs whose model has a trace MODEL.txt in dir, as
// timm_traces.py writes them; the trace takes the summary's place.
func tracedRuns(runs []run, dir string) ([]run, int, error) {
	texts := map[string][]byte{}
	var out []run
	for _, r := range runs {
		text, known := texts[r.model]
		if !known {
			var err error
			text, err = os.ReadFile(filepath.Join(dir, r.model+".txt"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, 0, err
			}
			texts[r.model] = text
		}
		if text != nil {
			r.spec.Summary = text
			out = append(out, r)
		}
	}
	models := 0
	for _, text := range texts {
		if text != nil {
			models++
		}
	}
	return out, models, nil
}

// constants are what is fitted for traces.
type constants struct {
	base    int64
	scratch trace.Scratch
}

// step is a constant's values to choose from.
type step struct {
	name   string
	values []int64
	of     func(*constants) *int64
}

var steps = []step{
	{"base", []int64{1690, 1700, 1709, 1720, 1730}, func(c *constants) *int64 { return &c.base }},
	{"forward", []int64{0, 4, 6, 9}, func(c *constants) *int64 { return &c.scratch.Forward }},
	{"data", []int64{4, 6, 8, 9, 12}, func(c *constants) *int64 { return &c.scratch.Data }},
	{"weight", []int64{0, 2, 4, 6, 9}, func(c *constants) *int64 { return &c.scratch.Weight }},
	{"few", []int64{2, 4, 6, 9}, func(c *constants) *int64 { return &c.scratch.Few }},
	{"grouped", []int64{0, 2, 4, 6}, func(c *constants) *int64 { return &c.scratch.Grouped }},
	{"patch", []int64{0, 4, 8, 12, 16}, func(c *constants) *int64 { return &c.scratch.Patch }},
	{"point", []int64{0, 2, 4}, func(c *constants) *int64 { return &c.scratch.Point }},
}

// traceFit estimates traces with any constants, each once.
type traceFit struct {
	runs []run
	made map[trace.Scratch][]float64 // MiB without the base, by run
}

func (f *traceFit) estimates(s trace.Scratch) ([]float64, error) {
	if have := f.made[s]; have != nil {
		return have, nil
	}
	out := make([]float64, len(f.runs))
	for i, r := range f.runs {
		e, err := estimator.RefitTrace(r.spec, s)
		if err != nil {
			return nil, fmt.Errorf("%s/%d: %w", r.model, r.batch, err)
		}
		out[i] = float64(e.MiB - e.Parts[0].MiB)
	}
	f.made[s] = out
	return out, nil
}

// loss is the mean error of the runs that are in, each cut at 50 % so that a
// few wild ones do not decide. Spikes say nothing of what a step needs.
func (f *traceFit) loss(c constants, in func(i int) bool) (float64, error) {
	est, err := f.estimates(c.scratch)
	if err != nil {
		return 0, err
	}
	sum, n := 0.0, 0
	for i, r := range f.runs {
		if in(i) && !r.spike {
			sum += min(math.Abs((est[i]+float64(c.base))/r.actualMiB-1), 0.5)
			n++
		}
	}
	return sum / float64(max(n, 1)), nil
}

// fit goes through the constants, one after the other, until none gets better. It begins with those of
// the estimator: from elsewhere it ends in a worse place.
func (f *traceFit) fit(in func(i int) bool) (constants, error) {
	c := constants{estimator.DefaultBase().CuDNNMiB, estimator.FittedScratch()}
	best, err := f.loss(c, in)
	for better := true; better && err == nil; {
		better = false
		for _, s := range steps {
			for _, v := range s.values {
				try := c
				*s.of(&try) = v
				l, e := f.loss(try, in)
				if err = e; err != nil {
					return c, err
				}
				if l < best-1e-9 {
					c, best, better = try, l, true
				}
			}
		}
	}
	return c, err
}

// tracedWithoutSummary are runs whose model's image size and parameters the data do not tell: the
// trace has both.
func tracedWithoutSummary(runs []run, dir string) ([]run, int, error) {
	runs, models, err := tracedRuns(runs, dir)
	if err != nil {
		return nil, 0, err
	}
	for i := range runs {
		r := &runs[i]
		e, err := estimator.Analytic(r.spec)
		if err != nil {
			return nil, 0, fmt.Errorf("%s/%d: %w", r.model, r.batch, err)
		}
		r.paramsMiB = float64(e.Params) * 4 / (1 << 20)
		r.neededMiB = needed(r.faketensorMiB, float64(e.Params))
	}
	markSpikes(runs)
	return runs, models, nil
}

// traceReport prints traces against truth: with the constants as they are, and
// with constants that never saw the family.
func traceReport(w io.Writer, timm, noSummary []run, dir string) error {
	runs, models, err := tracedRuns(timm, dir)
	if err != nil {
		return err
	}
	others, more, err := tracedWithoutSummary(noSummary, dir)
	if err != nil {
		return err
	}
	runs, models = append(runs, others...), models+more
	if len(runs) == 0 {
		fmt.Fprintf(w, "traces: none in %s: make them with contrib/bench/estimator/timm_traces.py\n", dir)
		return nil
	}
	rows, err := estimateAll(runs)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\ntraces of %d timm models, %d families\n", models, len(families(runs)))
	plain, _ := need(rows)
	printPath(w, "by trace, measured", rows)
	printPath(w, "by trace, need", plain)
	printPath(w, "trace sure", only(plain, estimator.Sure))
	printPath(w, "unsure", only(plain, estimator.Unsure))
	var summaries []run
	for _, r := range timm {
		for i := range runs {
			if runs[i].model == r.model && runs[i].batch == r.batch {
				summaries = append(summaries, r)
			}
		}
	}
	same, err := estimateAll(summaries)
	if err != nil {
		return err
	}
	plain, _ = need(same)
	printPath(w, "by summary, need", plain)
	if err := leaveFamiliesOut(w, runs); err != nil {
		return err
	}
	return nil
}

// realTraces prints the traces of the CARMA workloads, as real_traces.py writes them,
// against truth. A trace has one GPU: runs under DataParallel are left out.
func realTraces(w io.Writer, runs []run, dir string) error {
	runs = slices.DeleteFunc(slices.Clone(runs), func(r run) bool { return r.spec.Parallel == estimator.DP })
	runs, _, err := tracedRuns(runs, dir)
	if err != nil || len(runs) == 0 {
		return err
	}
	rows, err := estimateAll(runs)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "\ntraces of the real set, on one GPU")
	printPath(w, "by trace", rows)
	for _, o := range rows {
		printRow(w, &o)
	}
	return nil
}

func printRow(w io.Writer, o *outcome) {
	fmt.Fprintf(w, "  %-36s %4d  measured %6.0f  estimate %6d  %+5.1f %%  %s\n",
		o.model, o.batch, o.actualMiB, o.est.MiB, 100*o.err(float64(o.est.MiB)), o.est.Confidence)
}

func families(runs []run) map[string]bool {
	out := map[string]bool{}
	for _, r := range runs {
		out[r.family] = true
	}
	return out
}

func printPath(w io.Writer, name string, rows []outcome) {
	s := figures(rows, func(o *outcome) float64 { return float64(o.est.MiB) })
	if s.n == 0 {
		return
	}
	booked := 0.0
	for i := range rows {
		booked += float64(rows[i].est.ReserveMiB) / rows[i].actualMiB
	}
	fmt.Fprintf(w, "%-22s %6d rows  median %5.2f %%  mape %5.2f %%  in 10 %% %5.1f  under 10 %% %4.1f  "+
		"above reserve %4.1f %%  reserve %.2f times the truth  worst %.2f times\n", name, s.n, 100*s.median, 100*s.mape,
		100*s.within10, 100*s.under10, 100*s.aboveReserve, booked/float64(s.n), worstOf(rows))
}

// leaveFamiliesOut fits on all families but one and judges on that one, in turn.
func leaveFamiliesOut(w io.Writer, runs []run) error {
	f := traceFit{runs: runs, made: map[trace.Scratch][]float64{}}
	all, err := f.fit(func(int) bool { return true })
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "fitted on all: %+v\n", all)
	picks := map[constants]int{}
	var held []outcome
	for name := range families(runs) {
		c, err := f.fit(func(i int) bool { return runs[i].family != name })
		if err != nil {
			return err
		}
		picks[c]++
		for _, r := range runs {
			if r.family == name {
				r.spec.Base.CuDNNMiB = c.base
				e, err := estimator.RefitTrace(r.spec, c.scratch)
				if err != nil {
					return fmt.Errorf("%s/%d: %w", r.model, r.batch, err)
				}
				held = append(held, outcome{run: r, est: e})
			}
		}
	}
	plain, _ := need(held)
	printPath(w, "families left out", plain)
	for c, n := range picks {
		fmt.Fprintf(w, "  %d of them pick %+v\n", n, c)
	}
	printMisses(w, plain)
	printSpikes(w, held)
	return nil
}
