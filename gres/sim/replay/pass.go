// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"math"
	"slices"
)

// waiter is a job in the queue.
type waiter struct {
	task   int32
	gpus   int32
	tested bool  // since then only nodes that changed matter
	need   int64 // MiB per GPU, as slurmctld counts it
	rank   float64
}

// queue is the waiting jobs in order. slurmctld looks at the first ones only.
type queue struct {
	depth int
	front []waiter // those that are looked at
	least []int64  // no tested job of front on 1, 2, ... GPUs needs less
	rest  []waiter
	next  int  // of rest
	fresh bool // somebody has not been looked at
	tier  int  // of front: so many come from the recovery partition, which goes first
}

// add puts a job at its place: at the end, or behind those of its tier.
func (q *queue) add(e waiter, recovery bool) {
	q.fresh = true
	if recovery {
		q.front = slices.Insert(q.front, q.tier, e)
		q.tier++
		return
	}
	if e.rank != 0 { // an ideal packer's order, which has no depth
		at, _ := slices.BinarySearchFunc(q.front[q.tier:], e.rank, func(w waiter, r float64) int { return cmp.Compare(w.rank, r) })
		q.front = slices.Insert(q.front, q.tier+at, e)
		return
	}
	at, _ := slices.BinarySearchFunc(q.front[q.tier:], e.task, func(w waiter, task int32) int { return cmp.Compare(w.task, task) })
	if at += q.tier; at < len(q.front) || len(q.front) < q.depth && q.next == len(q.rest) {
		q.front = slices.Insert(q.front, at, e) // one that was given back keeps its place
		return
	}
	q.rest = append(q.rest, e)
}

// fill lets the next job be looked at if fewer than depth are left.
func (q *queue) fill(left int) {
	if left >= q.depth || q.next == len(q.rest) {
		return
	}
	q.front = append(q.front, q.rest[q.next])
	q.fresh = true
	q.next++
	if q.next > 4096 && 2*q.next > len(q.rest) {
		q.rest = q.rest[:copy(q.rest, q.rest[q.next:])]
		q.next = 0
	}
}

// decide is slurmctld's pass over the queue: every job in order that some node
// offers enough to is sent there; with fifo the first that finds none ends it. A
// job that found no node before needs to look only at those that changed.
func (s *slurm) decide() error {
	s.retry()
	q := &s.queue
	if len(s.dirty) == 0 && !q.fresh {
		return s.err
	}
	s.mostOffered()
	all := q.fresh // every job is looked at, so that the least needs come out exact
	if all {
		q.forget()
	}
	kept, gone := 0, 0
	for i := 0; i < len(q.front); i++ {
		if !q.fresh && s.set.Queue != FIFO && !s.worth() {
			kept += copy(q.front[kept:], q.front[i:])
			break
		}
		e := q.front[i]
		n := int32(-1)
		if !e.tested || e.need <= s.most[e.gpus-1] {
			n = s.offering(&e)
		}
		if n < 0 {
			if all || !e.tested {
				q.least[e.gpus-1] = min(q.least[e.gpus-1], e.need)
			}
			if kept < i || !e.tested {
				e.tested = true
				q.front[kept] = e
			}
			kept++
			if s.set.Queue == FIFO {
				kept += copy(q.front[kept:], q.front[i+1:])
				break
			}
			continue
		}
		if i < q.tier {
			gone++
		}
		q.fill(len(q.front) - 1 - i + kept)
		s.start(e.task, n)
		s.mostOffered()
	}
	q.front = q.front[:kept]
	q.tier -= gone
	q.fresh = false
	for _, n := range s.dirty {
		s.nodes[n].dirty = false
	}
	s.dirty = s.dirty[:0]
	return s.err
}

// forget lets the least needs be found out anew.
func (q *queue) forget() {
	for k := range q.least {
		q.least[k] = math.MaxInt64
	}
}

// mostOffered notes the most that nodes have room for which changed, so that most
// jobs of a pass cost one comparison.
func (s *slurm) mostOffered() {
	clear(s.most)
	for _, n := range s.dirty {
		for k, mib := range s.nodes[n].room {
			s.most[k] = max(s.most[k], mib)
		}
	}
}

// worth tells whether a job that has been looked at may fit into what changed.
func (s *slurm) worth() bool {
	for k, mib := range s.most {
		if mib >= s.queue.least[k] {
			return true
		}
	}
	return false
}

// offering returns the first node that offers enough; -1: none.
func (s *slurm) offering(e *waiter) int32 {
	if s.set.Model.Slurm.ExclusiveUser {
		return s.ofUser(e)
	}
	if !e.tested {
		return int32(s.index.first(0, int(e.gpus), e.need))
	}
	for _, n := range s.dirty {
		if s.nodes[n].room[e.gpus-1] >= e.need {
			return n
		}
	}
	return -1
}

// ofUser is the same in a partition with ExclusiveUser=YES: of nodes that have
// jobs of nobody else. Such a node may become free without offering more.
func (s *slurm) ofUser(e *waiter) int32 {
	k := int(e.gpus)
	for n := s.index.first(0, k, e.need); n >= 0; n = s.index.first(n+1, k, e.need) {
		if x := &s.nodes[n]; x.jobs == 0 || x.user == s.m.tasks[e.task].user {
			return int32(n)
		}
	}
	return -1
}
