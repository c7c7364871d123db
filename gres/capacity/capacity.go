// SPDX-License-Identifier: Apache-2.0

// Package capacity tells slurmctld how much GPU memory the node can still
// take, as counts of GRES (tres.Names): those of carmau0 to carmau7 are the largest
// memory that a GPU can give a job on one GPU of these users, that of carmaK is the
// K-th largest, so what one job on K GPUs can get.
// Jobs do not consume these counts: slurmctld drains a node that registers while
// a consumed count is not what it was at an earlier registration (gres.c,
// _node_config_validate, 22.05 to 26.05), and a node registers twice an hour.
// What keeps a burst of starts in bounds is carmatotal, which never changes.
package capacity

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"carma/gres"
	"carma/gres/choose"
	"carma/slurmbridge/tres"
)

// Offer is what one GPU can give, and whom.
type Offer struct {
	MiB  int64
	UID  uint32 // of the only user, if Own
	Own  bool
	GPUs int // how many the job wants that it is kept for; 0: it is kept for none
}

// Counts returns the counts of tres.Names. together says which GPUs, by their
// indices, a job on several can be given at once.
func Counts(gpus []Offer, together [][]int) []int64 {
	if len(gpus) == 0 {
		return nil
	}
	counts := make([]int64, tres.Users+len(gpus)-1)
	for _, g := range gpus {
		if g.GPUs > 1 {
			continue
		}
		if g.Own {
			n := tres.Part(g.UID)
			counts[n] = max(counts[n], g.MiB)
			continue
		}
		for n := range tres.Users {
			counts[n] = max(counts[n], g.MiB)
		}
	}
	for _, some := range together {
		order := slices.Clone(some)
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(gpus[b].MiB, gpus[a].MiB) })
		for k := 2; k <= len(order); k++ {
			if i := kth(k, order, gpus); i >= 0 {
				n := tres.Index(k, 0)
				counts[n] = max(counts[n], gpus[i].MiB)
			}
		}
	}
	return counts
}

// whole raises the counts of all GPUs of a node to what a job asks for that takes them all.
func whole(counts []int64, gpus int) {
	first, last := tres.Index(gpus, 0), tres.Index(gpus, 0)
	if gpus == 1 {
		first, last = 0, tres.Users-1
	}
	for i := first; i <= last; i++ {
		counts[i] = max(counts[i], tres.WholeMiB)
	}
}

// kth returns which of the GPUs in order is the k-th that a job on k of them can be
// given; -1: there are fewer.
func kth(k int, order []int, gpus []Offer) int {
	left := k
	for _, i := range order {
		if g := gpus[i].GPUs; g == 0 || g == k {
			if left--; left == 0 {
				return i
			}
		}
	}
	return -1
}

// Grain rounds what a GPU can be given down to whole steps. A GPU that can be
// given whole counts as fullMiB, the size that carma.toml gives it: an exclusive
// job books exactly that.
func Grain(mib int64, g gres.GPU, fullMiB int64) int64 {
	switch {
	case mib < g.TotalMiB:
		return mib / choose.StepMiB * choose.StepMiB
	case g.Whole(fullMiB):
		return fullMiB
	}
	return g.TotalMiB
}

// Text returns a node's Gres text with the CARMA counts replaced and everything
// else kept, as "scontrol update NodeName=... Gres=" takes it. A count is never 0:
// see tres.AnyMiB, SentMiB and WholeMiB.
func Text(nodeGres string, counts []int64) string {
	var words []string
	for e := range tres.Parse(nodeGres) {
		if tres.K(e.Name) > 0 {
			continue
		}
		word := e.Name
		if e.Type != "" {
			word += ":" + e.Type
		}
		words = append(words, fmt.Sprintf("%s:%d", word, e.Count))
	}
	if len(counts) > 0 {
		for i, name := range tres.Names(len(counts) - tres.Users + 1) {
			words = append(words, fmt.Sprintf("%s:%s:%d", name, tres.NoConsume, max(counts[i], tres.SentMiB)))
		}
	}
	return strings.Join(words, ",")
}

// Same tells whether two Gres texts hold the same CARMA counts.
func Same(a, b string) bool {
	return slices.Equal(countsOf(a), countsOf(b))
}

const maxCounts = tres.Users + 64

func countsOf(nodeGres string) []int64 {
	var counts []int64
	for e := range tres.Parse(nodeGres) {
		if i := tres.IndexOf(e.Name); i >= 0 && i < maxCounts {
			for len(counts) <= i {
				counts = append(counts, 0)
			}
			counts[i] = e.Count
		}
	}
	// Slurm does not print a count of 0.
	for len(counts) > 0 && counts[len(counts)-1] == 0 {
		counts = counts[:len(counts)-1]
	}
	return counts
}
