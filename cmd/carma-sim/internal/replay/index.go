// SPDX-License-Identifier: Apache-2.0

package replay

import "math/bits"

// index finds the first node that offers enough of each of some number of GPUs: a tree of
// maxima over the nodes for each. So a decision costs the
// logarithm of the number of nodes.
type index struct {
	leaves int // a power of two, the nodes and some empty ones
	trees  [][]int64
}

func newIndex(nodes, gpus int) *index {
	x := &index{leaves: 1 << bits.Len(uint(nodes-1))}
	x.trees = make([][]int64, gpus)
	for k := range x.trees {
		x.trees[k] = make([]int64, 2*x.leaves)
		for i := range x.trees[k] {
			x.trees[k][i] = -1
		}
	}
	return x
}

// of returns what each node offers of each of gpus+1 GPUs, side by side: a look at all of them
// stays in the cache.
func (x *index) of(gpus int) []int64 { return x.trees[gpus][x.leaves:] }

// set says what node offers of each of gpus+1 GPUs.
func (x *index) set(node, gpus int, mib int64) {
	t := x.trees[gpus]
	i := x.leaves + node
	if t[i] == mib {
		return
	}
	t[i] = mib
	for i >>= 1; i > 0; i >>= 1 {
		best := max(t[2*i], t[2*i+1])
		if t[i] == best {
			return
		}
		t[i] = best
	}
}

// first returns the first node from from on that offers mib of each of gpus+1 GPUs; -1 if none
// does.
func (x *index) first(from, gpus int, mib int64) int {
	t := x.trees[gpus]
	if from >= x.leaves {
		return -1
	}
	i := x.leaves + from
	// Up and to the right until a tree holds enough, then down its left side.
	for t[i] < mib {
		for i&1 == 1 { // a right child, or the last leaf of all
			i >>= 1
			if i == 0 {
				return -1
			}
		}
		i++
	}
	for i < x.leaves {
		i *= 2
		if t[i] < mib {
			i++
		}
	}
	return i - x.leaves
}
