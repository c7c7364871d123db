// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math"
	"slices"

	"carma/gres/capacity"
	"carma/gres/choose"
)

// publish works out how much of a node jobs can get, and plans when slurmctld is
// told: the agent takes a moment, and may not speak more often than about once a
// second.
func (s *slurm) publish(id int32) {
	n := &s.nodes[id]
	s.offers, s.readings, s.leases = s.offers[:0], s.readings[:0], s.leases[:0]
	for k := range n.gpus {
		g := capacity.Offer{MiB: n.gpus[k].offer}
		g.UID, g.Own = choose.Owner(s.set.Policy, n.gpus[k].reading, n.gpus[k].leases, s.set.Thresholds)
		g.GPUs = n.gpus[k].reading.HeldGPUs
		s.offers = append(s.offers, g)
		s.readings = append(s.readings, n.gpus[k].reading)
		s.leases = append(s.leases, n.gpus[k].leases...)
	}
	n.offer = capacity.Gives(s.offers, choose.ShareableSets(s.set.Policy, s.readings, s.leases, s.set.Thresholds))
	switch p := &s.set.Model.Slurm; {
	case n.offer.Equal(n.told):
		n.tellAt = math.Inf(1)
	case s.set.ideal || p.PublishS == 0 && p.PublishEveryS == 0:
		s.tell(id)
	case n.tellAt > s.m.now+p.PublishS:
		n.tellAt = max(s.m.now+p.PublishS, n.tellNext)
		first := s.m.gpuTimer(id * int32(s.set.GPUs))
		if n.tellAt < s.m.agenda.at[first] {
			s.m.plan(first, n.tellAt)
		}
	}
}

// tell is the publication.
func (s *slurm) tell(id int32) {
	n := &s.nodes[id]
	n.told = n.offer
	n.tellAt = math.Inf(1)
	n.tellNext = max(s.m.now, n.tellNext+s.set.Model.Slurm.PublishEveryS)
	s.search.count(id)
}

// bounded is how much slurmctld would give of each of so many GPUs, out of the
// published count.
func (n *node) bounded(gpus int, mib int64) int64 {
	if n.slots < int64(gpus) {
		return 0
	}
	return min(mib, n.totalMiB/int64(gpus))
}

// gives tells whether slurmctld would send the job there.
func (n *node) gives(e *waiter) bool {
	return n.bounded(int(e.gpus), n.told.To(e.user, int(e.gpus))) >= e.need
}

// consume takes from the node the slots and memory that a job holds there
// (times is 1), or gives them back (-1).
func (s *slurm) consume(task, id int32, times int64) {
	n := &s.nodes[id]
	gpus := int64(s.m.tasks[task].job.GPUs)
	s.search.setLoad(id, 0)
	n.slots -= times * gpus
	s.search.setLoad(id, 1)
	n.jobs += times
	n.user = s.m.tasks[task].user
	n.totalMiB -= times * gpus * s.bookings[task].reserveMiB
	s.search.count(id)
}

// start sends a job to a node. Its Prolog takes GPUs there or waits for some.
func (s *slurm) start(task, id int32) {
	s.consume(task, id, 1)
	if s.acquire(task, id) {
		return
	}
	s.sentTo[task] = id
	if s.set.PrologWaitS == 0 {
		s.giveBack(task)
		return
	}
	n := &s.nodes[id]
	n.prologs = append(n.prologs, task)
	s.m.tasks[task].phase = sent
	s.m.plan(s.m.taskTimer(task), s.m.now+s.set.PrologWaitS)
}

// retry lets waiting Prologs look again where something has changed.
func (s *slurm) retry() {
	for i := 0; i < len(s.woken); i++ { // a lease may wake more
		n := &s.nodes[s.woken[i]]
		n.woken = false
		waiting := n.prologs
		n.prologs = nil
		kept := waiting[:0]
		for _, task := range waiting {
			if !s.acquire(task, s.woken[i]) {
				kept = append(kept, task)
			}
		}
		n.prologs = kept
	}
	s.woken = s.woken[:0]
}

// giveBack is a Prolog that has found no GPUs in time: the job goes back to the
// queue and backs off (package prolog, backOff). A job that was given back often,
// and now for other users' jobs, waits for idle GPUs, which the job shares none
// the less.
func (s *slurm) giveBack(task int32) {
	id := s.sentTo[task]
	n := &s.nodes[id]
	if i := slices.Index(n.prologs, task); i >= 0 {
		n.prologs = slices.Delete(n.prologs, i, i+1)
	}
	s.consume(task, id, -1)
	s.m.givenBack++
	given := s.vetoes[task]
	s.vetoes[task] = min(given, math.MaxUint8-1) + 1
	s.awaits[task] = s.awaits[task] || s.others[task] && s.set.Vetoes > 0 && int(given) >= s.set.Vetoes
	first, most := s.set.Model.Slurm.BackOffS[0], s.set.Model.Slurm.BackOffS[1]
	backOff := min(first*float64(int64(1)<<min(given, 10)), most)
	s.m.requeue(task, max(backOff, s.set.Model.Slurm.RequeueS))
	s.waitsAgain(task)
	if h := s.holds[task]; h != nil {
		s.openHold(h)
	}
}
