// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"carma/estimator"
)

// madeUp is a run of a family whose module has a class of its own.
func madeUp(family, kind string, actualMiB float64) outcome {
	o := outcome{est: estimator.Estimate{MiB: 1000}}
	o.model, o.family, o.actualMiB = family, family, actualMiB
	o.spec.Summary = []byte("  Linear-1  [-1, 10]  110\n  " + kind + "-2  [-1, 10]  0\n  Linear-3  [-1, 10]  110\n")
	return o
}

// A family that is left out gives no evidence for itself.
func TestEvidence(t *testing.T) {
	tally, err := evidence([]outcome{
		madeUp("a", "OneBlock", 1000), madeUp("a", "OneBlock", 1050),
		madeUp("b", "TwoBlock", 950), madeUp("c", "WrongBlock", 3000),
		madeUp("d", "LowBlock", 1000), madeUp("d", "LowBlock", 1000), madeUp("d", "LowBlock", 1000),
		madeUp("d", "LowBlock", 1000), madeUp("d", "LowBlock", 1000), madeUp("d", "LowBlock", 1400),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, without string
		want          int
	}{
		{"OneBlock", "", 1},
		{"OneBlock", "a", 0},
		{"*Block", "", 2},
		{"*Block", "b", 1},
		{"WrongBlock", "", 0},
		{"LowBlock", "", 0},
		{"linear", "", 2},
	} {
		if got := tally.families(c.name, c.without); got != c.want {
			t.Errorf("%s without %q: %d families, want %d", c.name, c.without, got, c.want)
		}
	}
	for kind, want := range map[string]bool{"OneBlock": true, "OtherBlock": false, "Linear": true} {
		if got := tally.without("b")(kind); got != want {
			t.Errorf("%s counts as measured without b: %v", kind, got)
		}
	}
	if got := tally.listed(); !slices.Equal(got, []string{"*Block", "linear"}) {
		t.Errorf("listed: %v", got)
	}
}

func TestMarginOf(t *testing.T) {
	var rows []outcome
	for i := range 200 { // what is needed beside the fixed part: 1 to 200 % more
		rows = append(rows, madeUp("a", "X", float64(1000+10*(i+1)+estimator.MarginMiB)))
	}
	rows = append(rows, madeUp("b", "X", 1e6))
	for _, c := range []struct {
		family string
		want   int64
	}{{"b", 199}, {"", 200}} {
		if got := marginOf(rows, estimator.Sure, c.family); got != c.want {
			t.Errorf("without %q: %d %%, want %d", c.family, got, c.want)
		}
	}
	if got := marginOf(rows, estimator.Unsure, ""); got != 0 {
		t.Errorf("no unsure run: %d %%", got)
	}
}
