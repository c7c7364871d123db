// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// A run with large parameters shows the number of the optimizer's states, whatever an estimate says:
// the process, the published live peak and the states must fit into the memory of the run.
const (
	largeMiB   = 150 // parameters of fewer MiB, or a smaller share of the run, show nothing
	largeShare = 0.05
	clearlyMiB = 64 // a larger difference is no accident
)

// shown are the runs of a half of the families by which the number of states shows, and the runs that
// had no room for so many.
type shown struct {
	runs, below int
	families    map[string]bool // of the runs below
}

// withoutRoom holds the runs against a number of states; every second family is in one half.
func withoutRoom(runs []run, states float64) (halves [2]shown) {
	half := map[string]int{}
	for i, f := range slices.Sorted(maps.Keys(families(runs))) {
		half[f] = i % 2
	}
	for i := range halves {
		halves[i].families = map[string]bool{}
	}
	for _, r := range runs {
		if r.faketensorMiB == 0 || r.paramsMiB < largeMiB || r.paramsMiB < largeShare*r.actualMiB {
			continue
		}
		h := &halves[half[r.family]]
		h.runs++
		if processMiB+r.faketensorMiB+states*r.paramsMiB-r.actualMiB > clearlyMiB {
			h.below++
			h.families[r.family] = true
		}
	}
	return halves
}

func printStates(w io.Writer, runs []run) {
	fmt.Fprintf(w, "\noptimizer's states in the timm runs, by the published live peak and no estimate\n")
	for _, states := range []float64{1, 2} {
		for i, h := range withoutRoom(runs, states) {
			fmt.Fprintf(w, "  no room for %.0f beside process, live peak: %d of %d runs with large parameters, %d families "+
				"(half %d)\n", states, h.below, h.runs, len(h.families), i+1)
		}
	}
}
