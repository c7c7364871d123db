// SPDX-License-Identifier: Apache-2.0

// Package capacity tells slurmctld how much GPU memory the node can still
// take, as counts of the GRES carma, carma2, ...: the count of carmaK is the
// K-th largest memory that a GPU can be given, so what one job on K GPUs can get.
// Jobs do not consume these counts: slurmctld drains a node that registers while
// a consumed count is not what it was at an earlier registration (gres.c,
// _node_config_validate, 22.05 to 26.05), and a node registers twice an hour.
// What keeps a burst of starts in bounds is carmatotal, which never changes.
package capacity

import (
	"fmt"
	"slices"
	"strings"

	"carma/gres"
	"carma/slurmbridge/tres"
)

// stepMiB is the grain of published memory. What is used moves all the time;
// an update of the node table for a few MiB would serve nobody.
const stepMiB = 256

// Counts returns the counts of carma, carma2, ..., one for each GPU.
// placeableMiB holds what each GPU can be given, together which GPUs, by their
// indices, a job on several can be given at once.
func Counts(placeableMiB []int64, together [][]int) []int64 {
	if len(placeableMiB) == 0 {
		return nil
	}
	counts := make([]int64, len(placeableMiB))
	for _, mib := range placeableMiB {
		counts[0] = max(counts[0], mib)
	}
	for _, some := range together {
		order := make([]int64, 0, len(some))
		for _, i := range some {
			order = append(order, placeableMiB[i])
		}
		slices.SortFunc(order, func(a, b int64) int { return int(b - a) })
		for k, mib := range order {
			counts[k] = max(counts[k], mib)
		}
	}
	return counts
}

// Grain rounds what a GPU can be given down to whole steps. A GPU that can be
// given whole counts as fullMiB, the size that carma.toml gives it: an exclusive
// job books exactly that.
func Grain(mib int64, g gres.GPU, fullMiB int64) int64 {
	switch {
	case mib < g.TotalMiB:
		return mib / stepMiB * stepMiB
	case g.Whole(fullMiB):
		return fullMiB
	}
	return g.TotalMiB
}

// Text returns a node's Gres text with the CARMA counts replaced and everything
// else kept, as "scontrol update NodeName=... Gres=" takes it. A count is never 0:
// see tres.AnyMiB.
func Text(nodeGres string, counts []int64) string {
	var words []string
	for _, e := range tres.Parse(nodeGres) {
		if tres.K(e.Name) > 0 {
			continue
		}
		word := e.Name
		if e.Type != "" {
			word += ":" + e.Type
		}
		words = append(words, fmt.Sprintf("%s:%d", word, e.Count))
	}
	for i, c := range counts {
		words = append(words, fmt.Sprintf("%s:%s:%d", tres.Name(i+1), tres.NoConsume, max(c, tres.AnyMiB)))
	}
	return strings.Join(words, ",")
}

// Same tells whether two Gres texts hold the same CARMA counts.
func Same(a, b string) bool {
	return slices.Equal(countsOf(a), countsOf(b))
}

func countsOf(nodeGres string) []int64 {
	var counts []int64
	for _, e := range tres.Parse(nodeGres) {
		if k := tres.K(e.Name); k > 0 && k <= 64 {
			for len(counts) < k {
				counts = append(counts, 0)
			}
			counts[k-1] = e.Count
		}
	}
	// Slurm does not print a count of 0.
	for len(counts) > 0 && counts[len(counts)-1] == 0 {
		counts = counts[:len(counts)-1]
	}
	return counts
}
