// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"

	gpudata "carma/contrib/gpucheck/data"
	"carma/estimator"
)

// A summary as contrib/gpucheck/trainings.py prints it, of its mlp.
const mlpSummary = `           Flatten-1                [-1, 3072]            0
            Linear-2                [-1, 4096]     12587008
              ReLU-3                [-1, 4096]            0
            Linear-4                [-1, 4096]     16781312
              ReLU-5                [-1, 4096]            0
            Linear-6                 [-1, 100]       409700
`

func TestGPURuns(t *testing.T) {
	row := gpudata.Training{Model: "mlp", Batch: 64, Mode: "fp32", Input: []int{3, 32, 32}, UsedMiB: 2000,
		Summary: mlpSummary}
	runs, err := gpuRuns([]gpudata.Training{row})
	if err != nil || len(runs) != 1 || runs[0].spec.Input != [3]int{3, 32, 32} {
		t.Fatalf("%v, %+v", err, runs)
	}
	rows, err := estimateAll(runs)
	if err != nil || rows[0].est.MiB < estimator.DefaultBase().CuBLASMiB+16+400 {
		t.Errorf("%v, %+v", err, rows)
	}
	row.Machine.Model = "NVIDIA H200" // CUDA loads kernels when they are called
	if runs, err = gpuRuns([]gpudata.Training{row}); err != nil || runs[0].spec.Base != estimator.HopperBase() {
		t.Errorf("%v, %+v", err, runs)
	}
	row.Mode = "odd"
	if _, err := gpuRuns([]gpudata.Training{row}); err == nil {
		t.Error("a mode that is none")
	}
}

// The measured trainings are estimated as their GPUs' bookings are: within a tenth.
func TestMeasuredOnGPUs(t *testing.T) {
	all, err := gpudata.Read()
	if err != nil {
		t.Fatal(err)
	}
	runs, err := gpuRuns(all.Trainings)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := estimateAll(runs)
	if err != nil {
		t.Fatal(err)
	}
	sure := 0
	for _, r := range rows {
		if r.est.Confidence != estimator.Sure {
			continue
		}
		sure++
		if off := float64(r.est.MiB)/r.actualMiB - 1; math.Abs(off) > 0.1 {
			t.Errorf("%s: measured %.0f MiB, estimated %d", r.model, r.actualMiB, r.est.MiB)
		}
	}
	if sure == 0 {
		t.Error("no training is estimated surely")
	}
}
