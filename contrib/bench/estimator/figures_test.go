// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"testing"

	"carma/estimator"
)

// The figures that the estimator is held to: on what timm's models need, with evidence and margins
// of other families than their own.
func TestFigures(t *testing.T) {
	data := cmp.Or(os.Getenv("CARMA_DATA"), "../../../data") + "/memory"
	if _, err := os.Stat(data); err != nil {
		t.Skipf("the measured runs are not part of the repository and not at %s", data)
	}
	realSet, err := realRuns(data)
	if err != nil {
		t.Fatal(err)
	}
	mlpSet, err := mlpRuns(data)
	if err != nil {
		t.Fatal(err)
	}
	timmSet, _, err := timmRuns(data)
	if err != nil {
		t.Fatal(err)
	}
	all := func(runs []run) []outcome {
		rows, err := estimateAll(runs)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	realRows, mlpRows := all(realSet), all(mlpSet)
	shipped := all(timmSet)
	timm, list, err := judgeLeftOut(shipped, slices.Concat(realRows, mlpRows))
	if err != nil {
		t.Fatal(err)
	}
	if have, err := os.ReadFile("../../../estimator/measured.go"); err != nil || !bytes.Equal(have, list) {
		t.Errorf("estimator/measured.go is not what the bench finds (%v): run contrib/bench/estimator -measured "+
			"estimator/measured.go", err)
	}
	timm, _ = need(timm)
	shipped, _ = need(shipped)
	sure, told := only(timm, estimator.Sure), only(shipped, estimator.Sure)
	ours := methods[0].of
	r, m, a, s := figures(realRows, ours), figures(mlpRows, ours), figures(timm, ours), figures(sure, ours)
	v := figures(told, ours)
	for _, c := range []struct {
		what        string
		value, goal float64
		atLeast     bool
	}{
		{"real: median error", r.median, 0.03, false},
		{"real: under by more than 10 %", r.under10, 0, false},
		{"real: over by more than 30 %", r.over30, 0, false},
		{"mlp: 1,000-MB buckets", m.bucketHit, 0.995, true},
		{"mlp: mean error", m.mape, 0.01, false},
		{"timm: median error", a.median, 0.03, false},
		{"timm: mean error", a.mape, 0.08, false},
		{"timm: within 10 %", a.within10, 0.85, true},
		{"sure: share", float64(len(sure)) / float64(len(timm)), 0.55, true},
		{"sure: median error", s.median, 0.025, false},
		{"sure: within 10 %", s.within10, 0.93, true},
		{"sure: above the reserve", s.aboveReserve, 0.01, false},
		{"sure: truth above the estimate, times", mostBelow(sure), 1.3, false},
		{"sure as shipped: share", float64(len(told)) / float64(len(timm)), 0.55, true},
		{"sure as shipped: within 10 %", v.within10, 0.93, true},
		{"sure as shipped: above the reserve", v.aboveReserve, 0.01, false},
		{"sure as shipped: truth above the estimate, times", mostBelow(told), 1.3, false},
	} {
		if c.atLeast && c.value < c.goal || !c.atLeast && c.value > c.goal {
			t.Errorf("%s: %.4f, goal %.4f", c.what, c.value, c.goal)
		}
	}
}
