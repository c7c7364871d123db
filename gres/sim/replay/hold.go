// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"maps"
	"slices"
)

// steward has GPUs kept for the first job in order that small ones can pass and
// that has waited long (gres/steward): slurmctld cannot plan a start for a
// request that no node offers. One decision a period, one hold a node.
func (s *slurm) steward() {
	s.m.plan(s.m.ownTimer(0), s.m.now+s.set.Model.Slurm.HoldEveryS)
	for _, task := range slices.Sorted(maps.Keys(s.holds)) {
		if s.m.now-s.nodes[s.holds[task]].heldSince >= s.set.HoldTimeoutS {
			s.dropHold(task)
		}
	}
	for i := range s.queue.front {
		e := &s.queue.front[i]
		_, held := s.holds[e.task]
		large := e.gpus > 1 || s.bookings[e.task].exclusive
		if held || !large || s.m.now-s.eligible[e.task] < s.set.HoldAfterS {
			continue
		}
		if n := s.soonest(); n >= 0 {
			s.hold(e, n)
		}
		return
	}
}

// soonest is the node with the fewest jobs that keeps no GPUs yet.
func (s *slurm) soonest() int32 {
	best, fewest := int32(-1), 0
	for i := range s.nodes {
		if s.nodes[i].heldFor >= 0 {
			continue
		}
		jobs := 0
		for k := range s.nodes[i].gpus {
			jobs += len(s.nodes[i].gpus[k].leases)
		}
		if best < 0 || jobs < fewest {
			best, fewest = int32(i), jobs
		}
	}
	return best
}

// hold keeps GPUs of a node for a job: those with the fewest jobs, the oldest
// of them first (gres/agent).
func (s *slurm) hold(e *waiter, id int32) {
	n := &s.nodes[id]
	n.heldFor, n.heldSince = e.task, s.m.now
	s.holds[e.task] = id
	before := func(a, b *leased) bool {
		if c := cmp.Compare(len(a.leases), len(b.leases)); c != 0 {
			return c < 0
		}
		return len(a.since) > 0 && a.since[0] < b.since[0]
	}
	for range e.gpus {
		var best *leased
		for k := range n.gpus {
			l := &n.gpus[k]
			if l.reading.HeldFor == 0 && (best == nil || before(l, best)) {
				best = l
			}
		}
		best.reading.HeldFor, best.reading.HeldOpen = uint32(e.task)+1, false
	}
	s.openHold(id)
	s.refreshNode(id)
}

// openHold offers the GPUs that a node keeps once all of them are idle: not
// before, for slurmctld would give them to whoever fits.
func (s *slurm) openHold(id int32) {
	n := &s.nodes[id]
	if n.heldFor < 0 || n.heldOpen {
		return
	}
	for k := range n.gpus {
		if l := &n.gpus[k]; l.reading.HeldFor != 0 && len(l.leases) > 0 {
			return
		}
	}
	n.heldOpen = true
	for k := range n.gpus {
		n.gpus[k].reading.HeldOpen = n.gpus[k].reading.HeldFor != 0
	}
	s.refreshNode(id)
}

// dropHold ends the hold for a job, if there is one.
func (s *slurm) dropHold(task int32) {
	id, ok := s.holds[task]
	if !ok {
		return
	}
	delete(s.holds, task)
	n := &s.nodes[id]
	n.heldFor, n.heldOpen = -1, false
	for k := range n.gpus {
		n.gpus[k].reading.HeldFor, n.gpus[k].reading.HeldOpen = 0, false
	}
	s.refreshNode(id)
}

func (s *slurm) refreshNode(id int32) {
	for k := range s.set.GPUs {
		s.refresh(id*int32(s.set.GPUs) + int32(k))
	}
}
