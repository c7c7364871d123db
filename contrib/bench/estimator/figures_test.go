// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"testing"

	"carma/estimator"
)

const data = "../../../../shared/data/memory"

// firstUnseen begins the rows of families that the estimator was not made with: what it
// comes to there is logged, and not yet held to anything.
const firstUnseen = "beit_base_patch16_224"

// The figures that the estimator is held to, on the measured runs of the families that it
// was made with.
func TestFigures(t *testing.T) {
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
	seen := slices.IndexFunc(timmSet, func(r run) bool { return r.model == firstUnseen })
	if seen < 0 {
		seen = len(timmSet)
	}
	unseen := all(timmSet[seen:])
	timm := all(timmSet[:seen])
	sure := only(timm, estimator.Sure)
	ours := methods[0].of
	r, m, a, s := figures(all(realSet), ours), figures(all(mlpSet), ours), figures(timm, ours), figures(sure, ours)
	u, us := figures(unseen, ours), figures(only(unseen, estimator.Sure), ours)
	t.Logf("%d runs of families never seen: median error %.4f, mean %.4f, within 10 %% %.4f, of the sure %.4f and %.4f above the reserve",
		len(unseen), u.median, u.mape, u.within10, us.within10, us.aboveReserve)
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
		{"timm: median error", a.median, 0.035, false},
		{"timm: mean error", a.mape, 0.08, false},
		{"timm: within 10 %", a.within10, 0.80, true},
		{"sure: share", float64(len(sure)) / float64(len(timm)), 0.65, true},
		{"sure: median error", s.median, 0.025, false},
		{"sure: within 10 %", s.within10, 0.90, true},
		{"sure: above the reserve", s.aboveReserve, 0.05, false},
	} {
		if c.atLeast && c.value < c.goal || !c.atLeast && c.value > c.goal {
			t.Errorf("%s: %.4f, goal %.4f", c.what, c.value, c.goal)
		}
	}
}
