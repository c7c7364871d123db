// SPDX-License-Identifier: Apache-2.0

package replay

import "math/bits"

// search finds the node that slurmctld sends a job to, among what slurmctld counts of all nodes.
type search struct {
	exclusiveUser bool // the partition has ExclusiveUser=YES
	nodes         []node
	index         *index
	load          [][]uint64 // by free slots: the nodes that have so many, a bit each; nil without LLN=YES
	dirty         []int32    // nodes that slurmctld counts more of than at the last pass
	most          []int64    // the most that dirty nodes give of each of 1, 2, ... GPUs
}

func newSearch(set *Setup, nodes []node) search {
	s := search{
		exclusiveUser: set.Model.Slurm.ExclusiveUser, nodes: nodes, index: newIndex(set.Nodes, set.GPUs),
		most: make([]int64, set.GPUs),
	}
	if set.Model.Slurm.LeastLoaded {
		s.load = make([][]uint64, set.GPUs*set.Thresholds.MaxJobs+1)
		for i := range s.load {
			s.load[i] = make([]uint64, (set.Nodes+63)/64)
		}
	}
	return s
}

// count is slurmctld's own view of a node: no more than it was told, and no more
// than is left of what jobs consume.
func (s *search) count(id int32) {
	n := &s.nodes[id]
	more := false
	for i := range n.room {
		mib := n.bounded(i+1, n.told.Most(i+1))
		if mib != n.room[i] || len(n.told.Users) > 0 { // a user's count may have risen below the highest
			more = more || mib >= n.room[i]
			n.room[i] = mib
			s.index.set(int(id), i, mib)
		}
	}
	if more && !n.dirty {
		n.dirty = true
		s.dirty = append(s.dirty, id)
	}
}

// setLoad notes how many slots of a node are free, bit is 1, or no longer, 0.
func (s *search) setLoad(id int32, bit uint64) {
	if s.load == nil {
		return
	}
	word, at := &s.load[s.nodes[id].slots][id/64], uint(id%64)
	*word = *word&^(1<<at) | bit<<at
}

// clean ends a pass: no node has changed since.
func (s *search) clean() {
	for _, n := range s.dirty {
		s.nodes[n].dirty = false
	}
	s.dirty = s.dirty[:0]
}

// mostOffered notes the most that nodes have room for which changed, so that most
// jobs of a pass cost one comparison.
func (s *search) mostOffered() {
	clear(s.most)
	for _, n := range s.dirty {
		for k, mib := range s.nodes[n].room {
			s.most[k] = max(s.most[k], mib)
		}
	}
}

// offering returns the first node that offers enough; -1: none.
func (s *search) offering(e *waiter) int32 {
	if s.exclusiveUser {
		return s.ofUser(e)
	}
	if s.load != nil {
		return s.leastLoaded(e)
	}
	if !e.tested {
		for n := s.first(0, e); n >= 0; n = s.first(n+1, e) {
			if s.nodes[n].gives(e) {
				return int32(n)
			}
		}
		return -1
	}
	for _, n := range s.dirty {
		if s.nodes[n].gives(e) {
			return n
		}
	}
	return -1
}

// first returns the first node from from on that gives some user's job enough.
func (s *search) first(from int, e *waiter) int { return s.index.first(from, int(e.gpus)-1, e.need) }

// leastLoaded is the same in a partition with LLN=YES: the node with the most idle
// CPUs, here that with the most free slots.
func (s *search) leastLoaded(e *waiter) int32 {
	if s.first(0, e) < 0 {
		return -1
	}
	room := s.index.of(int(e.gpus) - 1)
	for slots := len(s.load) - 1; slots >= 0; slots-- {
		for i, word := range s.load[slots] {
			for ; word != 0; word &= word - 1 {
				if n := 64*i + bits.TrailingZeros64(word); room[n] >= e.need && s.nodes[n].gives(e) {
					return int32(n)
				}
			}
		}
	}
	return -1
}

// ofUser is the same in a partition with ExclusiveUser=YES: of nodes that have
// jobs of nobody else. Such a node may become free without offering more.
func (s *search) ofUser(e *waiter) int32 {
	for n := s.first(0, e); n >= 0; n = s.first(n+1, e) {
		if x := &s.nodes[n]; x.gives(e) && (x.jobs == 0 || x.user == e.user) {
			return int32(n)
		}
	}
	return -1
}
