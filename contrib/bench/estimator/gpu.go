// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"regexp"

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

// hopper are the models of Hopper's and Blackwell's generations, by the names that NVML gives.
var hopper = regexp.MustCompile(`^NVIDIA (G?H[1-9]|G?B[1-9])`)

// baseOf is the base that carma-node setup writes for GPUs as a machine has them.
func baseOf(m gpudata.Machine) estimator.Base {
	if hopper.MatchString(m.Model) {
		return estimator.HopperBase()
	}
	return estimator.DefaultBase()
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
			Base: baseOf(r.Machine)}
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
	for i, r := range all.Trainings {
		fmt.Fprintf(w, "  %-20s %5d  measured %6.0f  estimate %6d  %+.1f %%  %s, %s; beside the allocator's %.0f: %.0f\n",
			r.Model, r.Batch, r.UsedMiB, rows[i].est.MiB, 100*(float64(rows[i].est.MiB)/r.UsedMiB-1), rows[i].est.Confidence,
			r.Machine.Model, r.ReservedMiB, r.UsedMiB-r.ReservedMiB)
	}
	fmt.Fprintln(w)
	return nil
}
