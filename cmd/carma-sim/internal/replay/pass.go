// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// waiter is a job in the queue.
type waiter struct {
	task   int32
	gpus   int32
	user   uint32
	tested bool  // since then only nodes that changed matter
	need   int64 // MiB per GPU, as slurmctld counts it
	rank   float64
}

// queue is the waiting jobs in order. slurmctld looks at the first ones only, and
// at those returned to the queue.
type queue struct {
	depth int
	gpus  int      // of a node
	front []*block // those looked at; the first is the recovery partition's
	size  int      // of front
	rest  []waiter
	next  int  // of rest
	fresh bool // somebody has not been looked at
}

// block is a stretch of the queue. A pass goes over those that nobody in can start
// by one look at what each of them needs.
type block struct {
	list  []waiter
	least []int64 // nobody who was looked at needs less of each of 1, 2, ... GPUs
	fresh bool    // somebody has not been looked at
}

// blockSize is at what length a block is cut in two.
const blockSize = 256

func newQueue(depth, gpus int) queue {
	q := queue{depth: depth, gpus: gpus}
	q.front = []*block{q.newBlock(nil), q.newBlock(nil)}
	return q
}

func (q *queue) newBlock(list []waiter) *block {
	b := &block{list: list, least: make([]int64, q.gpus)}
	b.forget()
	for i := range list {
		b.note(&list[i])
	}
	return b
}

func (b *block) forget() {
	b.fresh = false
	for k := range b.least {
		b.least[k] = math.MaxInt64
	}
}

func (b *block) note(e *waiter) {
	b.least[e.gpus-1] = min(b.least[e.gpus-1], e.need)
	b.fresh = b.fresh || !e.tested
}

// add puts a job at its place: at the end, or behind those of its tier.
func (q *queue) add(e waiter, recovery bool) {
	q.fresh = true
	if recovery {
		q.insert(0, len(q.front[0].list), e)
		return
	}
	compare := func(a, b waiter) int { return cmp.Compare(a.task, b.task) }
	if e.rank != 0 { // an ideal packer's order, which has no depth
		compare = func(a, b waiter) int { return cmp.Compare(a.rank, b.rank) }
	}
	// The first block whose last job comes after it.
	n := len(q.front)
	i := 1 + sort.Search(n-1, func(i int) bool {
		list := q.front[1+i].list
		return len(list) > 0 && compare(list[len(list)-1], e) >= 0
	})
	switch {
	case i < n: // one returned to the queue keeps its place
		at, _ := slices.BinarySearchFunc(q.front[i].list, e, compare)
		q.insert(i, at, e)
	case e.rank != 0, q.next == len(q.rest) && q.size < q.depth, q.next < len(q.rest) && compare(e, q.rest[q.next]) < 0:
		q.insert(n-1, len(q.front[n-1].list), e)
	default:
		q.rest = append(q.rest, e)
	}
}

// insert puts a job into a block, and cuts that in two when it is long.
func (q *queue) insert(i, at int, e waiter) {
	b := q.front[i]
	b.list = slices.Insert(b.list, at, e)
	b.note(&e)
	q.size++
	if half := len(b.list) / 2; i > 0 && len(b.list) >= blockSize {
		q.front[i] = q.newBlock(b.list[:half:half])
		q.front = slices.Insert(q.front, i+1, q.newBlock(slices.Clone(b.list[half:])))
	}
}

// fill lets the next job be looked at if fewer than depth are left.
func (q *queue) fill() {
	if q.size >= q.depth || q.next == len(q.rest) {
		return
	}
	last := q.front[len(q.front)-1]
	if len(last.list) >= blockSize {
		last = q.newBlock(nil)
		q.front = append(q.front, last)
	}
	last.list = append(last.list, q.rest[q.next])
	last.fresh = true
	q.size++
	q.next++
	if q.next > 4096 && 2*q.next > len(q.rest) {
		q.rest = q.rest[:copy(q.rest, q.rest[q.next:])]
		q.next = 0
	}
}

// looked yields those looked at, in order.
func (q *queue) looked(yield func(*waiter) bool) {
	for _, b := range q.front {
		for i := range b.list {
			if !yield(&b.list[i]) {
				return
			}
		}
	}
}

// shrink drops blocks that are empty, but for the first and the last.
func (q *queue) shrink() {
	last := q.front[len(q.front)-1]
	kept := q.front[:1]
	for _, b := range q.front[1:] {
		if len(b.list) > 0 || b == last {
			kept = append(kept, b)
		}
	}
	clear(q.front[len(kept):])
	q.front = kept
}

// decide is slurmctld's pass over the queue: every job in order that some node
// offers enough to is sent there; with fifo the first that finds none ends it. A
// job that found no node before needs to look only at those that changed.
func (s *slurm) decide() error {
	s.retry()
	q := &s.queue
	if len(s.search.dirty) == 0 && !q.fresh {
		s.passAt = math.Inf(1)
		return s.err
	}
	if math.IsInf(s.passAt, 1) {
		s.passAt = s.m.now + s.set.Model.Slurm.ScheduleS
	}
	if s.passAt > s.m.now {
		s.m.plan(s.m.ownTimer(passTimer), s.passAt)
		return s.err
	}
	s.passAt = math.Inf(1)
	s.search.mostOffered()
	empty := false
	for i := 0; i < len(q.front); i++ { // which may grow
		b := q.front[i]
		if (s.set.Queue == FIFO || b.worth(s.search.most)) && s.pass(b) {
			break
		}
		empty = empty || i > 0 && len(b.list) == 0
	}
	if empty && len(q.front) > 2 {
		q.shrink()
	}
	q.fresh = false
	s.search.clean()
	return s.err
}

// pass starts those of a block that can, and tells whether that ends the pass over
// the queue.
func (s *slurm) pass(b *block) (ends bool) {
	q := &s.queue
	b.forget()
	kept := 0
	for i := 0; i < len(b.list); i++ { // which may grow
		e := b.list[i]
		n := int32(-1)
		if !e.tested || e.need <= s.search.most[e.gpus-1] {
			n = s.search.offering(&e)
		}
		if n >= 0 {
			q.size--
			q.fill()
			s.start(e.task, n)
			s.search.mostOffered()
			continue
		}
		e.tested = true
		b.list[kept] = e
		b.note(&e)
		kept++
		if s.set.Queue == FIFO {
			ends = true
			kept += copy(b.list[kept:], b.list[i+1:])
			break
		}
	}
	b.list = b.list[:kept]
	return ends
}

// worth tells whether somebody in the block may fit into what changed.
func (b *block) worth(most []int64) bool {
	for k, mib := range most {
		if mib >= b.least[k] {
			return true
		}
	}
	return b.fresh
}
