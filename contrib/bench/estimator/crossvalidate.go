// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"sort"

	"carma/estimator"
)

// The grid of the fitted constants: the base with cuDNN, and the scratch memory
// of backward convolutions in quarters of the bytes read and written.
var (
	baseGrid      = []int64{1649, 1669, 1689, 1709, 1729, 1749, 1769}
	workspaceGrid = []int64{4, 6, 9, 12, 16}
)

const folds = 10

// crossValidate fits the two constants on nine tenths of the families and
// judges on the last tenth, ten times. Spikes are left out.
func crossValidate(w io.Writer, runs []run) error {
	fold := familyFolds(runs)
	// est[k][i]: estimate of run i with workspace k, without the base.
	est := make([][]float64, len(workspaceGrid))
	for k, q := range workspaceGrid {
		est[k] = make([]float64, len(runs))
		for i, r := range runs {
			e, err := estimator.Refit(r.spec, q)
			if err != nil {
				return fmt.Errorf("%s/%d: %w", r.model, r.batch, err)
			}
			est[k][i] = float64(e.MiB - e.Parts[0].MiB)
		}
	}
	errOf := func(i, k int, base int64) float64 {
		return math.Abs((est[k][i]+float64(base))/runs[i].actualMiB - 1)
	}
	picks := map[string]int{}
	var held []float64
	for f := range folds {
		bestK, bestBase, best := 0, baseGrid[0], math.Inf(1)
		for k := range workspaceGrid {
			for _, base := range baseGrid {
				var train []float64
				for i := range runs {
					if fold[i] != f && !runs[i].spike {
						train = append(train, errOf(i, k, base))
					}
				}
				sort.Float64s(train)
				if m := train[len(train)/2]; m < best {
					bestK, bestBase, best = k, base, m
				}
			}
		}
		picks[fmt.Sprintf("base %d, workspace %.2f", bestBase, float64(workspaceGrid[bestK])/4)]++
		for i := range runs {
			if fold[i] == f && !runs[i].spike {
				held = append(held, errOf(i, bestK, bestBase))
			}
		}
	}
	sort.Float64s(held)
	var sum float64
	for _, e := range held {
		sum += e
	}
	names := make([]string, 0, len(picks))
	for p := range picks {
		names = append(names, p)
	}
	sort.Slice(names, func(a, b int) bool {
		return picks[names[a]] > picks[names[b]] || picks[names[a]] == picks[names[b]] && names[a] < names[b]
	})
	fmt.Fprintf(w, "cross-validation by family, %d folds: median %.2f %%, mape %.2f %% on the families left out; picks:",
		folds, 100*held[len(held)/2], 100*sum/float64(len(held)))
	for _, p := range names {
		fmt.Fprintf(w, " %dx(%s)", picks[p], p)
	}
	fmt.Fprintln(w)
	return nil
}

// familyFolds puts whole families into folds.
func familyFolds(runs []run) []int {
	seen := map[string]bool{}
	var names []string
	for _, r := range runs {
		if !seen[r.family] {
			seen[r.family] = true
			names = append(names, r.family)
		}
	}
	sort.Strings(names)
	of := map[string]int{}
	for i, n := range names {
		of[n] = i % folds
	}
	fold := make([]int, len(runs))
	for i, r := range runs {
		fold[i] = of[r.family]
	}
	return fold
}
