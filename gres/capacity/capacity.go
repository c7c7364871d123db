// SPDX-License-Identifier: Apache-2.0

// Package capacity tells slurmctld how much GPU memory the node can still take, as counts in the
// node's Extra (package extra): the MiB that each of K GPUs can give a job of anybody, and a job of
// each user who owns GPUs there, and whether all GPUs are there and well. slurmctld compares jobs'
// constraints with these counts. The GRES carma, which jobs consume and which never changes, keeps a
// burst of starts in bounds.
package capacity

import (
	"cmp"
	"maps"
	"slices"

	"carma/gres"
	"carma/gres/choose"
	"carma/slurmbridge/extra"
)

// Offer is how much a GPU can give, and whom.
type Offer struct {
	MiB  int64
	UID  uint32 // of the only user, if Own
	Own  bool
	GPUs int // GPUs wanted by the job that the GPU is kept for; 0: kept for none
}

// Given is how much a node's GPUs can give a job, by the number of GPUs less 1.
type Given struct {
	Anybody []int64
	Users   map[uint32][]int64 // of those who own GPUs there
}

// To is how many MiB of each of so many GPUs the node can give a user's job.
func (g Given) To(uid uint32, gpus int) int64 {
	mib := int64(0)
	if gpus <= len(g.Anybody) {
		mib = g.Anybody[gpus-1]
	}
	if own := g.Users[uid]; gpus <= len(own) {
		mib = max(mib, own[gpus-1])
	}
	return mib
}

// Most is the same for the user who can be given most.
func (g Given) Most(gpus int) int64 {
	mib := g.To(0, gpus)
	for uid := range g.Users {
		mib = max(mib, g.To(uid, gpus))
	}
	return mib
}

// Equal tells whether both give the same to everybody.
func (g Given) Equal(other Given) bool {
	return slices.Equal(g.Anybody, other.Anybody) && maps.EqualFunc(g.Users, other.Users, slices.Equal[[]int64])
}

// Gives works out how much GPUs can give: for each number K of GPUs the memory of the K-th largest
// without an owner, and for each owner the same among these and the owner's GPUs, where that is
// more. together says which GPUs, by their indices, a job on several can be given at once.
func Gives(gpus []Offer, together [][]int) Given {
	given := Given{Anybody: most(gpus, together, func(g Offer, _ int) bool { return !g.Own })}
	for _, g := range gpus {
		if _, done := given.Users[g.UID]; !g.Own || done {
			continue
		}
		own := most(gpus, together, func(other Offer, k int) bool {
			return !other.Own || other.UID == g.UID && (other.GPUs == 0 || other.GPUs == k)
		})
		if given.Users == nil {
			given.Users = map[uint32][]int64{}
		}
		given.Users[g.UID] = own
	}
	return given
}

// keyed are the results of Gives by their keys in the node's Extra.
func keyed(gpus []Offer, together [][]int, tags extra.Tags) map[string]int64 {
	counts, given := map[string]int64{}, Gives(gpus, together)
	for k, mib := range given.Anybody {
		counts[extra.Key(k+1)] = mib
	}
	for uid, own := range given.Users {
		for k, mib := range own {
			if mib > given.Anybody[k] {
				counts[extra.UserKey(k+1, tags.Of(uid))] = mib
			}
		}
	}
	return counts
}

// most is how much each of 1, 2, ... GPUs can give at once to a job that takes GPUs allowed by may.
func most(gpus []Offer, together [][]int, may func(g Offer, k int) bool) []int64 {
	list := make([]int64, len(gpus))
	for _, g := range gpus { // a single GPU need go together with none
		if may(g, 1) {
			list[0] = max(list[0], g.MiB)
		}
	}
	for _, some := range together {
		order := slices.Clone(some)
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(gpus[b].MiB, gpus[a].MiB) })
		for k := 2; k <= len(order); k++ {
			left := k
			for _, i := range order {
				if !may(gpus[i], k) {
					continue
				}
				if left--; left == 0 {
					list[k-1] = max(list[k-1], gpus[i].MiB)
					break
				}
			}
		}
	}
	return list
}

// Grain rounds the free memory of a GPU down to whole steps. A GPU that can be
// given whole counts as fullMiB, its size in carma.toml: an exclusive job books
// exactly this size.
func Grain(mib int64, g gres.GPU, fullMiB int64) int64 {
	switch {
	case mib < g.TotalMiB:
		return mib / choose.StepMiB * choose.StepMiB
	case g.Whole(fullMiB):
		return fullMiB
	}
	return g.TotalMiB
}

// noted returns the counts last told to slurmctld, by the ledger. The text of a ledger of an earlier
// version is no JSON: nothing was told.
func noted(text string, told bool) (counts map[string]int64, ok bool) {
	if !told {
		return nil, false
	}
	counts, err := extra.Counts(text)
	return counts, err == nil
}

// note is the text of counts for the ledger.
func note(counts map[string]int64) (string, error) { return extra.SetCounts("", counts) }

// of is the count of the key: anybody's where a user has none.
func of(counts map[string]int64, key string) int64 {
	return max(counts[key], counts[extra.Anybodys(key)])
}

// without takes out the counts of users that are no higher than anybody's.
func without(counts map[string]int64) map[string]int64 {
	maps.DeleteFunc(counts, func(key string, n int64) bool {
		any := extra.Anybodys(key)
		return any != key && n <= counts[any]
	})
	return counts
}
