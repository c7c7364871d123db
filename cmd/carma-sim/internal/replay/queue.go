// SPDX-License-Identifier: Apache-2.0

package replay

import "math"

// agenda is what comes next: an indexed heap of entities by the time of their
// next event. Every entity has at most one. Entities of the same time come in
// order of their numbers, so that runs repeat.
type agenda struct {
	at   []float64 // by entity; +Inf: nothing planned
	pos  []int32   // by entity: place in heap, -1: none
	heap []entry
}

// entry keeps the time beside the entity, which saves a look elsewhere.
type entry struct {
	at     float64
	entity int32
}

func newAgenda(entities int) *agenda {
	a := &agenda{at: make([]float64, entities), pos: make([]int32, entities)}
	for i := range a.pos {
		a.at[i] = math.Inf(1)
		a.pos[i] = -1
	}
	return a
}

// next returns the earliest entity and its time; +Inf if there is none.
func (a *agenda) next() (int32, float64) {
	if len(a.heap) == 0 {
		return -1, math.Inf(1)
	}
	return a.heap[0].entity, a.heap[0].at
}

// plan sets or moves the event of an entity; +Inf removes it.
func (a *agenda) plan(e int32, at float64) {
	if at == a.at[e] {
		return
	}
	before := a.at[e]
	a.at[e] = at
	p := a.pos[e]
	switch {
	case math.IsInf(at, 1):
		if p >= 0 {
			a.remove(p)
		}
	case p < 0:
		a.heap = append(a.heap, entry{at, e})
		a.pos[e] = int32(len(a.heap) - 1)
		a.up(a.pos[e])
	default:
		a.heap[p].at = at
		if at < before {
			a.up(p)
		} else {
			a.down(p)
		}
	}
}

func (a *agenda) remove(p int32) {
	a.pos[a.heap[p].entity] = -1
	last := int32(len(a.heap) - 1)
	moved := a.heap[last]
	a.heap = a.heap[:last]
	if p == last {
		return
	}
	a.heap[p] = moved
	a.pos[moved.entity] = p
	a.up(p)
	a.down(a.pos[moved.entity])
}

func before(x, y entry) bool {
	if x.at != y.at {
		return x.at < y.at
	}
	return x.entity < y.entity
}

// The heap has four children a node: fewer levels to miss the cache on.
const fanout = 4

func (a *agenda) up(p int32) {
	e := a.heap[p]
	for p > 0 {
		parent := (p - 1) / fanout
		if !before(e, a.heap[parent]) {
			break
		}
		a.heap[p] = a.heap[parent]
		a.pos[a.heap[p].entity] = p
		p = parent
	}
	a.heap[p] = e
	a.pos[e.entity] = p
}

func (a *agenda) down(p int32) {
	e := a.heap[p]
	n := int32(len(a.heap))
	for {
		first := p*fanout + 1
		if first >= n {
			break
		}
		best := first
		for c := first + 1; c < min(first+fanout, n); c++ {
			if before(a.heap[c], a.heap[best]) {
				best = c
			}
		}
		if !before(a.heap[best], e) {
			break
		}
		a.heap[p] = a.heap[best]
		a.pos[a.heap[p].entity] = p
		p = best
	}
	a.heap[p] = e
	a.pos[e.entity] = p
}
