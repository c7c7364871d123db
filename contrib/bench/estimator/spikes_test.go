// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"carma/estimator"
)

// Only an excess that does not grow with the batch is a spike.
func TestMarkSpikes(t *testing.T) {
	const live = 1000 // what each of the runs below needs for a sample, in MiB
	for _, c := range []struct {
		name    string
		batches []int
		excess  []float64 // share of what is needed
		want    []int     // batches of spikes
	}{
		{"ordinary scratch, which grows", []int{8, 16, 32, 64, 128}, []float64{0.1, 0.2, 0.4, 0.7, 1}, nil},
		{"one workspace at small batches", []int{8, 16, 32, 64, 128}, []float64{0.2, 1.3, 1.2, 0.7, 0.42}, []int{16, 32, 64}},
		{"a little more", []int{8, 16, 32}, []float64{0.24, 0.1, 0.1}, nil},
		{"all that were measured", []int{8, 16}, []float64{6.1, 3.9}, []int{8, 16}},
		{"a single run", []int{32}, []float64{0.45}, nil},
		{"a single run with more", []int{32}, []float64{0.55}, []int{32}},
		{"a larger batch, whose scratch is ordinary", []int{128}, []float64{1.1}, nil},
	} {
		var runs []run
		for i, b := range c.batches {
			needed := float64(live * b)
			runs = append(runs, run{model: "m", batch: b, neededMiB: needed, actualMiB: needed * (1 + c.excess[i])})
		}
		runs = append(runs, run{model: "other", batch: 8, neededMiB: 100, actualMiB: 100},
			run{model: "unknown", batch: 8, actualMiB: 100})
		markSpikes(runs)
		var got []int
		for _, r := range runs {
			if r.spike {
				got = append(got, r.batch)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: spikes at %v, want %v", c.name, got, c.want)
		}
	}
}

// A spike is named and is in no figure of what is needed.
func TestSpikesAndMisses(t *testing.T) {
	row := func(model string, actual, needed float64, est, floor, wish int64, spike bool) outcome {
		return outcome{run: run{model: model, actualMiB: actual, neededMiB: needed, spike: spike},
			est: estimator.Estimate{MiB: est, FloorMiB: floor, WishMiB: wish}}
	}
	rows := []outcome{
		row("plain", 1000, 900, 1000, 900, 0, false),
		row("shown", 5000, 900, 1000, 900, 4000, true),
		row("beyond", 30000, 900, 1000, 900, 4000, true),
		row("wrong graph", 1000, 900, 700, 600, 0, false),
		row("takes more", 1300, 900, 1000, 900, 0, false),
		row("takes less", 1000, 900, 1300, 900, 0, false),
	}
	plain, spikes := need(rows)
	if len(plain) != 4 || len(spikes) != 2 {
		t.Fatalf("%d plain rows, %d spikes", len(plain), len(spikes))
	}
	var b bytes.Buffer
	printSpikes(&b, rows)
	printMisses(&b, plain)
	for _, want := range []string{
		"2 of 6 rows took a workspace", "reach 1 of them", "off, live tensors: 1 rows\n  wrong graph",
		"off, scratch taken: 1 rows\n  takes more", "off, scratch not taken: 1 rows\n  takes less",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if wished(&outcome{est: estimator.Estimate{MiB: 30000, WishMiB: 30000}}) != cardMiB {
		t.Error("a job takes more than its card has")
	}
}
