// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"sort"
	"time"

	"carma/contrib/threadclock"
	"carma/estimator"
	"carma/estimator/summary"
)

// outcome is a run with our estimate.
type outcome struct {
	run
	est    estimator.Estimate
	horus  float64
	bucket float64
}

func (o *outcome) err(mib float64) float64 { return mib/o.actualMiB - 1 }

func estimateAll(runs []run) ([]outcome, error) {
	out := make([]outcome, 0, len(runs))
	for _, r := range runs {
		e, err := estimator.Analytic(r.spec)
		if err != nil {
			return nil, fmt.Errorf("%s/%d: %w", r.model, r.batch, err)
		}
		o := outcome{run: r, est: e, horus: r.horusMiB, bucket: r.gpumemnetMiB}
		if o.horus == 0 {
			o.horus = horusOf(r.spec)
		}
		if o.bucket == 0 {
			// Its classifiers are not at hand: the bucket that holds the truth, as a
			// classifier without errors would say.
			w := 8000.0
			if r.model == "mlp" {
				w = 1000
			}
			o.bucket = math.Ceil(o.actualMiB/w) * w
		}
		out = append(out, o)
	}
	return out, nil
}

// horusOf is the result of Horus' formula; 0: none.
func horusOf(s estimator.Spec) float64 {
	m, err := summary.Parse(s.Summary)
	if err != nil {
		return 0
	}
	mib, err := horus(m, int64(s.Batch))
	if err != nil {
		return 0
	}
	return float64(mib)
}

// summaryOf is one line's figures of one method.
type summaryOf struct {
	n                         int
	median, mape              float64
	within10, under10, over30 float64
	aboveReserve              float64
	bucketHit                 float64
}

func figures(rows []outcome, of func(*outcome) float64) summaryOf {
	var s summaryOf
	var errs []float64
	for i := range rows {
		o := &rows[i]
		v := of(o)
		if v <= 0 {
			continue
		}
		e := o.err(v)
		errs = append(errs, math.Abs(e))
		s.mape += math.Abs(e)
		s.within10 += count(math.Abs(e) <= 0.10)
		s.under10 += count(e < -0.10)
		s.over30 += count(e > 0.30)
		s.aboveReserve += count(o.actualMiB > float64(o.est.ReserveMiB))
		s.bucketHit += count(math.Ceil(v/1000) == math.Ceil(o.actualMiB/1000))
	}
	s.n = len(errs)
	if s.n == 0 {
		return s
	}
	sort.Float64s(errs)
	n := float64(s.n)
	s.median = errs[s.n/2]
	for _, p := range []*float64{&s.mape, &s.within10, &s.under10, &s.over30, &s.aboveReserve, &s.bucketHit} {
		*p /= n
	}
	return s
}

func count(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var methods = []struct {
	name string
	of   func(*outcome) float64
}{
	{"carma", func(o *outcome) float64 { return float64(o.est.MiB) }},
	{"horus", func(o *outcome) float64 { return o.horus }},
	{"faketensor", func(o *outcome) float64 { return o.faketensorMiB }},
	{"gpumemnet", func(o *outcome) float64 { return o.bucket }},
}

// report prints the whole table.
func report(w io.Writer, dir, traces, measured string) error {
	realSet, err := realRuns(dir)
	if err != nil {
		return err
	}
	mlpSet, err := mlpRuns(dir)
	if err != nil {
		return err
	}
	timmSet, drop, err := timmRuns(dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%-10s %-10s %6s %8s %8s %8s %8s %8s %8s %8s\n",
		"set", "method", "rows", "median%", "mape%", "in10%", "under10%", "over30%", ">resv%", "1GB-bkt")
	var timm, others []outcome
	for _, set := range []struct {
		name string
		runs []run
	}{{"real", realSet}, {"mlp", mlpSet}, {"timm all", timmSet}} {
		rows, err := estimateAll(set.runs)
		if err != nil {
			return err
		}
		printSet(w, set.name, rows)
		if set.name == "timm all" {
			timm = rows
		} else {
			others = append(others, rows...)
		}
	}
	plain, _ := need(timm)
	printSet(w, "timm need", plain)
	sure := only(plain, estimator.Sure)
	printSet(w, "sure", sure)
	printSet(w, "unsure", only(plain, estimator.Unsure))
	printSet(w, "bound", only(plain, estimator.Bound))
	fmt.Fprintf(w, "\ntimm need: %d of %d rows are sure (%.0f %%); dropped: %d failed, %d below what is physically "+
		"needed, %d without a summary\n",
		len(sure), len(plain), 100*float64(len(sure))/float64(len(plain)), drop.failed, len(drop.impossible),
		len(drop.noSummary))
	for _, r := range drop.impossible {
		fmt.Fprintf(w, "  below process, parameters and gradients: %s at batch %d, measured %.0f MiB\n",
			r.model, r.batch, r.actualMiB)
	}
	fmt.Fprintf(w, "gpumemnet: as published for the real set, elsewhere the bucket that holds the truth; horus: "+
		"published or computed\n\n")
	rows, list, err := judgeLeftOut(timm, others)
	if err != nil {
		return err
	}
	calibration(w, rows, timm)
	if measured != "" {
		if err := os.WriteFile(measured, list, 0o644); err != nil {
			return err
		}
	}
	if err := crossValidate(w, timmSet); err != nil {
		return err
	}
	printStates(w, timmSet)
	if err := traceReport(w, timmSet, drop.noSummary, traces); err != nil {
		return err
	}
	if err := realTraces(w, realSet, traces); err != nil {
		return err
	}
	if err := measuredReport(w); err != nil {
		return err
	}
	return costs(w, realSet)
}

func only(rows []outcome, c estimator.Confidence) []outcome {
	var out []outcome
	for _, o := range rows {
		if o.est.Confidence == c {
			out = append(out, o)
		}
	}
	return out
}

func printSet(w io.Writer, name string, rows []outcome) {
	for _, m := range methods {
		s := figures(rows, m.of)
		if s.n == 0 {
			continue
		}
		reserve := "-"
		if m.name == "carma" {
			reserve = fmt.Sprintf("%.1f", 100*s.aboveReserve)
		}
		fmt.Fprintf(w, "%-10s %-10s %6d %8.2f %8.2f %8.1f %8.1f %8.1f %8s %8.4f\n",
			name, m.name, s.n, 100*s.median, 100*s.mape, 100*s.within10, 100*s.under10, 100*s.over30, reserve, s.bucketHit)
		name = ""
	}
}

// rounds is how often each text is estimated, for its time.
const rounds = 200

// costs prints time and allocation of parse and estimate, text by text: the time of the thread, for on
// a busy machine a clock on the wall shows the others.
func costs(w io.Writer, runs []run) error {
	var means, leasts, worst time.Duration
	var bytes uint64
	var slowest string
	for _, r := range runs {
		var before, after runtime.MemStats
		var err error
		runtime.ReadMemStats(&before)
		mean, least := threadclock.Cost(rounds, func() {
			if _, failed := estimator.Analytic(r.spec); failed != nil {
				err = failed
			}
		})
		if err != nil {
			return fmt.Errorf("time the estimate of %s: %w", r.model, err)
		}
		runtime.ReadMemStats(&after)
		means += mean
		leasts += least
		if least > worst {
			worst, slowest = least, r.model
		}
		bytes = max(bytes, (after.TotalAlloc-before.TotalAlloc)/rounds)
	}
	n := time.Duration(len(runs))
	fmt.Fprintf(w, "\nparse and estimate over the real summaries, thread time: %d us in the best of %d rounds, which "+
		"others disturb least, %d us in the mean; largest %d us (%s); at most %d KiB allocated\n",
		(leasts / n).Microseconds(), rounds, (means / n).Microseconds(), worst.Microseconds(), slowest, bytes>>10)
	return nil
}
