// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	gpudata "carma/contrib/gpucheck/data"
	"carma/estimator"
	"carma/estimator/graph"
	"carma/estimator/training"
)

// modes are the modes of gpucheck's trainings.
var modes = map[string]func(*estimator.Spec){
	"fp32":       func(*estimator.Spec) {},
	"amp":        func(s *estimator.Spec) { s.Precision = graph.AMP },
	"bf16":       func(s *estimator.Spec) { s.Precision = graph.AMP }, // autocast to bfloat16
	"checkpoint": func(s *estimator.Spec) { s.GradCheckpoint = true },
}

// gpuRuns are the trainings that gpucheck made on real GPUs.
func gpuRuns(rows []gpudata.Training) ([]run, error) {
	var runs []run
	for _, r := range rows {
		set := modes[r.Mode]
		if set == nil || r.UsedMiB <= 0 {
			return nil, fmt.Errorf("a training of %s in mode %q takes %.0f MiB", r.Model, r.Mode, r.UsedMiB)
		}
		s := estimator.Spec{Summary: []byte(r.Summary), Batch: r.Batch, Optimizer: training.AdamW,
			Base: estimator.DefaultBase()}
		copy(s.Input[:], r.Input)
		set(&s)
		runs = append(runs, run{model: r.Model, family: family(r.Model), batch: r.Batch, spec: s,
			actualMiB: r.UsedMiB})
	}
	return runs, nil
}

// measuredReport prints the rows of contrib/gpucheck/data, a table of their own: the margins
// are not made from them.
func measuredReport(w io.Writer) error {
	all, err := gpudata.Read()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nmeasured by gpucheck on GPUs: %d rows\n", len(all.Trainings))
	runs, err := gpuRuns(all.Trainings)
	if err != nil || len(runs) == 0 {
		return err
	}
	rows, err := estimateAll(runs)
	if err != nil {
		return err
	}
	printSet(w, "gpu", rows)
	fmt.Fprintln(w)
	return nil
}
