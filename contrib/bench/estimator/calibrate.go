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

const (
	// rightPct of a family's runs must be within 10 % for the family to count.
	rightPct = 80
	// mostBelowOfSure is how many times the estimate no run of such a family needs more.
	mostBelowOfSure = 1.3
	// fewFamilies must have shown a naming pattern before it counts as measured.
	fewFamilies = 2
)

// tallied counts measured runs.
type tallied struct {
	runs, within int // within 10 % of the truth
	below        int // whose truth is more than mostBelowOfSure times the estimate
}

// right tells whether the estimates of a family's runs are good enough to count.
func (c tallied) right() bool { return 100*c.within >= rightPct*c.runs && c.below == 0 }

// tally counts by name of a class or naming pattern, and by family, the measured runs.
type tally map[string]map[string]tallied

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
				t[n] = map[string]tallied{}
			}
			v := t[n][o.family]
			v.runs++
			if math.Abs(o.err(float64(o.est.MiB))) <= 0.10 {
				v.within++
			}
			if o.actualMiB > mostBelowOfSure*float64(o.est.MiB) {
				v.below++
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

// families counts the families with right estimates that have a class or show a naming
// pattern, all but the given family.
func (t tally) families(name, but string) (n int) {
	for f, c := range t[name] {
		if f != but && c.right() {
			n++
		}
	}
	return n
}

// without tells what counts as measured when a family is left out.
func (t tally) without(family string) func(kind string) bool {
	return func(kind string) bool {
		return t.families(kind, family) > 0 || t.families(graph.Pattern(kind), family) >= fewFamilies
	}
}

// listed is the content of measured.go: the naming patterns that count, and the classes
// that count without such a pattern.
func (t tally) listed() []string {
	patterns := map[string]bool{}
	for name := range t {
		patterns[graph.Pattern(name)] = true
	}
	var list []string
	for name := range t {
		n, byPattern := t.families(name, ""), t.families(graph.Pattern(name), "") >= fewFamilies
		if patterns[name] && n >= fewFamilies || !patterns[name] && n > 0 && !byPattern {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
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

// abovePct is how many measured runs in a hundred may need more than is booked: less than is
// promised, for families that nobody here has seen do worse than those among which rules were found.
var abovePct = map[estimator.Confidence]float64{estimator.Sure: 0.5, estimator.Unsure: 3}

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

// judgeLeftOut gives the results of the timm runs with evidence and margins of other
// families alone, and the list to ship, which is from all. Spikes are no evidence.
func judgeLeftOut(timm, others []outcome) (rows []outcome, list []byte, err error) {
	plain, _ := need(timm)
	t, err := evidence(slices.Concat(plain, others))
	if err != nil {
		return nil, nil, err
	}
	if rows, err = leftOut(timm, t); err != nil {
		return nil, nil, err
	}
	plain, _ = need(rows)
	list, err = measuredList(t, marginOf(plain, estimator.Sure, ""), marginOf(plain, estimator.Unsure, ""))
	if err != nil {
		return nil, nil, err
	}
	margins := map[estimator.Confidence]map[string]int64{}
	for c := range abovePct {
		margins[c] = map[string]int64{}
		for f := range families(runsOf(rows)) {
			margins[c][f] = marginOf(plain, c, f)
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

// calibration prints the promised and the found accuracy for the need of a step, and the worst
// runs; shipped are the runs by evidence and margins of all families, their own too.
func calibration(w io.Writer, all, shipped []outcome) {
	rows, _ := need(all)
	fmt.Fprintf(w, "calibration of need, path summary, every family left out in turn: evidence, margins\n")
	fmt.Fprintf(w, "%-8s %6s %7s %8s %14s %16s %15s\n",
		"said", "rows", "share%", "median%", "in10% (prom.)", ">resv% (prom.)", "below (prom.)")
	for _, c := range []estimator.Confidence{estimator.Sure, estimator.Unsure, estimator.Bound} {
		printSaid(w, c.String(), only(rows, c), len(rows), promises[c])
	}
	printSaid(w, "all", rows, len(rows), promise{"82", "-", "3.00"})
	printSaid(w, "measured", all, len(all), promise{"-", "-", "-"})
	shipped, _ = need(shipped)
	printSaid(w, "shipped", only(shipped, estimator.Sure), len(shipped), promises[estimator.Sure])
	printMisses(w, rows)
	printSpikes(w, all)
}

type promise struct{ in10, above, below string }

var promises = map[estimator.Confidence]promise{
	estimator.Sure: {"93", "1", "1.30"}, estimator.Unsure: {"-", "5", "-"}, estimator.Bound: {"-", "-", "-"},
}

func printSaid(w io.Writer, name string, rows []outcome, all int, p promise) {
	s := figures(rows, methods[0].of)
	if s.n == 0 {
		return
	}
	above := fmt.Sprintf("%.1f (%s)", 100*s.aboveReserve, p.above)
	if p.above == "-" {
		above = "-"
	}
	fmt.Fprintf(w, "%-8s %6d %7.1f %8.2f %14s %16s %15s\n", name, s.n, 100*float64(s.n)/float64(all), 100*s.median,
		fmt.Sprintf("%.1f (%s)", 100*s.within10, p.in10), above, fmt.Sprintf("%.2f (%s)", mostBelow(rows), p.below))
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

// mostBelow is how many times the estimate the truth is at most.
func mostBelow(rows []outcome) (most float64) {
	for i := range rows {
		most = max(most, rows[i].actualMiB/float64(rows[i].est.MiB))
	}
	return most
}

const worstRows = 20

// measuredList writes estimator/measured.go.
func measuredList(t tally, surePct, unsurePct int64) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("// SPDX-License-Identifier: Apache-2.0\n\n" +
		"// Code generated by contrib/bench/estimator; DO NOT EDIT.\n\npackage estimator\n\n")
	b.WriteString("// Margins on top of the estimate, by confidence: quantiles of measured runs of families\n" +
		"// that were left out.\n")
	fmt.Fprintf(&b, "const (\n\tsureMarginPct = %d\n\tunsureMarginPct = %d\n)\n\n", surePct, unsurePct)
	b.WriteString("// measured lists the naming patterns with enough measured runs behind them, and the classes\n" +
		"// that have these without a pattern.\nvar measured = [...]string{\n")
	for _, name := range t.listed() {
		fmt.Fprintf(&b, "\t%q,\n", name)
	}
	b.WriteString("}\n")
	src, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("format the list of what was measured: %w", err)
	}
	return src, nil
}
