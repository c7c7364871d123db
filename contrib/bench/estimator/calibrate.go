// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"go/format"
	"io"
	"maps"
	"math"
	"slices"
	"sort"

	"carma/estimator"
	"carma/estimator/graph"
	"carma/estimator/summary"
)

// tally counts by name of a class or pattern, and by family, what was measured.
type tally map[string]map[string]estimator.Evidence

// evidence counts the runs by the classes of their modules.
func evidence(rows []outcome) (tally, error) {
	t := tally{}
	names := map[string][]string{} // by text
	for i := range rows {
		o := &rows[i]
		text := string(o.spec.Summary)
		if names[text] == nil {
			m, err := summary.Parse(o.spec.Summary)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", o.model, err)
			}
			names[text] = namesOf(m)
		}
		for _, n := range names[text] {
			if t[n] == nil {
				t[n] = map[string]estimator.Evidence{}
			}
			v := t[n][o.family]
			v.Runs++
			if math.Abs(o.err(float64(o.est.MiB))) <= 0.10 {
				v.Within++
			}
			t[n][o.family] = v
		}
	}
	return t, nil
}

// namesOf lists the classes of a model and their patterns, each once.
func namesOf(m *summary.Model) []string {
	seen := map[string]bool{}
	for i := range m.Rows {
		seen[m.Rows[i].Kind] = true
		seen[graph.Pattern(m.Rows[i].Kind)] = true
	}
	return slices.Collect(maps.Keys(seen))
}

// without is the evidence that families other than one give.
func (t tally) without(family string) func(string) estimator.Evidence {
	return func(name string) estimator.Evidence {
		v := estimator.Evidence{Name: name}
		for f, c := range t[name] {
			if f != family {
				if 100*c.Within >= estimator.RightPct*c.Runs {
					v.Families++
				}
				v.Runs += c.Runs
				v.Within += c.Within
			}
		}
		return v
	}
}

// leftOut judges every run by what other families have shown.
func leftOut(rows []outcome, t tally) ([]outcome, error) {
	out := slices.Clone(rows)
	for i := range out {
		o := &out[i]
		e, err := estimator.Rejudge(o.spec, t.without(o.family))
		if err != nil {
			return nil, fmt.Errorf("%s/%d: %w", o.model, o.batch, err)
		}
		o.est = e
	}
	return out, nil
}

// abovePct is how many measured runs in a hundred may need more than is booked. For sure
// estimates far less than is promised: families that nobody here has seen do worse than
// those among which rules were found.
var abovePct = map[estimator.Confidence]float64{estimator.Sure: 0.75, estimator.Unsure: 4}

// marginOf is the least percentage, on top of estimate and the fixed part, that no
// more than abovePct of the runs of other families exceed.
func marginOf(rows []outcome, c estimator.Confidence, family string) int64 {
	var need []float64
	for i := range rows {
		if o := &rows[i]; o.est.Confidence == c && o.family != family {
			need = append(need, 100*((o.actualMiB-estimator.MarginMiB)/float64(o.est.MiB)-1))
		}
	}
	if len(need) == 0 {
		return 0
	}
	sort.Float64s(need)
	k := len(need) - 1 - int(float64(len(need))*abovePct[c]/100)
	return max(int64(math.Ceil(need[k]-1e-6)), 0)
}

// judgeLeftOut gives the timm runs as they come out with evidence and margins of other
// families alone, and the list to ship, which is from all.
func judgeLeftOut(timm, others []outcome) (rows []outcome, list []byte, err error) {
	t, err := evidence(slices.Concat(timm, others))
	if err != nil {
		return nil, nil, err
	}
	if rows, err = leftOut(timm, t); err != nil {
		return nil, nil, err
	}
	list, err = measuredList(t, marginOf(rows, estimator.Sure, ""), marginOf(rows, estimator.Unsure, ""))
	if err != nil {
		return nil, nil, err
	}
	margins := map[estimator.Confidence]map[string]int64{}
	for c := range abovePct {
		margins[c] = map[string]int64{}
		for f := range families(runsOf(rows)) {
			margins[c][f] = marginOf(rows, c, f)
		}
	}
	for i := range rows {
		o := &rows[i]
		pct := margins[o.est.Confidence][o.family]
		o.est.ReserveMiB = o.est.MiB + o.est.MiB*pct/100 + estimator.MarginMiB
	}
	return rows, list, nil
}

func runsOf(rows []outcome) []run {
	out := make([]run, len(rows))
	for i := range rows {
		out[i] = rows[i].run
	}
	return out
}

// calibration prints what was promised and what was found, and the worst runs.
func calibration(w io.Writer, rows []outcome) {
	fmt.Fprintf(w, "calibration, path summary, every family left out in turn: evidence, margins\n")
	fmt.Fprintf(w, "%-8s %6s %7s %8s %14s %16s %15s\n",
		"said", "rows", "share%", "median%", "in10% (prom.)", ">resv% (prom.)", "worst (prom.)")
	for _, c := range []estimator.Confidence{estimator.Sure, estimator.Unsure, estimator.Bound} {
		printSaid(w, c.String(), only(rows, c), len(rows), promises[c])
	}
	printSaid(w, "all", rows, len(rows), promise{"82", "-", "3.00"})
	printWorst(w, rows)
}

type promise struct{ in10, above, worst string }

var promises = map[estimator.Confidence]promise{
	estimator.Sure: {"93", "2", "1.50"}, estimator.Unsure: {"-", "5", "-"}, estimator.Bound: {"-", "-", "-"},
}

func printSaid(w io.Writer, name string, rows []outcome, all int, p promise) {
	s := figures(rows, methods[0].of)
	if s.n == 0 {
		return
	}
	above := fmt.Sprintf("%.1f (%s)", 100*s.aboveReserve, p.above)
	if name == "all" || name == estimator.Bound.String() {
		above = "-"
	}
	fmt.Fprintf(w, "%-8s %6d %7.1f %8.2f %14s %16s %15s\n", name, s.n, 100*float64(s.n)/float64(all), 100*s.median,
		fmt.Sprintf("%.1f (%s)", 100*s.within10, p.in10), above, fmt.Sprintf("%.2f (%s)", worstOf(rows), p.worst))
}

// factor is how many times an estimate is off.
func (o *outcome) factor() float64 {
	f := float64(o.est.MiB) / o.actualMiB
	return max(f, 1/f)
}

func worstOf(rows []outcome) (most float64) {
	for i := range rows {
		most = max(most, rows[i].factor())
	}
	return most
}

const worstRows = 20

func printWorst(w io.Writer, rows []outcome) {
	for _, c := range []estimator.Confidence{estimator.Sure, estimator.Unsure, estimator.Bound} {
		worst := only(rows, c)
		sort.Slice(worst, func(a, b int) bool { return worst[a].factor() > worst[b].factor() })
		fmt.Fprintf(w, "worst %s:\n", c)
		for i := range worst[:min(len(worst), worstRows)] {
			o := &worst[i]
			fmt.Fprintf(w, "  %-36s %4d  measured %6.0f  estimate %6d  %+6.1f %%\n",
				o.model, o.batch, o.actualMiB, o.est.MiB, 100*o.err(float64(o.est.MiB)))
		}
	}
}

// measuredList writes estimator/measured.go.
func measuredList(t tally, surePct, unsurePct int64) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("// SPDX-License-Identifier: Apache-2.0\n\n" +
		"// Code generated by contrib/bench/estimator; DO NOT EDIT.\n\npackage estimator\n\n")
	b.WriteString("// Margins on top of the estimate, by confidence: quantiles of measured runs of families\n" +
		"// that were left out.\n")
	fmt.Fprintf(&b, "const (\n\tsureMarginPct = %d\n\tunsureMarginPct = %d\n)\n\n", surePct, unsurePct)
	b.WriteString("// measured counts the runs behind each class of modules and each naming pattern.\n" +
		"var measured = [...]Evidence{\n")
	for _, name := range slices.Sorted(maps.Keys(t)) {
		v := t.without("")(name)
		fmt.Fprintf(&b, "\t{%q, %d, %d, %d},\n", v.Name, v.Families, v.Runs, v.Within)
	}
	b.WriteString("}\n")
	src, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("format the list of what was measured: %w", err)
	}
	return src, nil
}
