// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"maps"
	"slices"

	"carma/gres"
	"carma/gres/capacity"
	"carma/gres/choose"
)

// steward has GPUs kept for the first job in order that others pass and that has
// waited long (gres/steward): slurmctld cannot plan a start for a request that no
// node offers. One decision a period, one hold a node.
func (s *slurm) steward() {
	s.m.plan(s.m.ownTimer(0), s.m.now+s.set.Model.Slurm.HoldEveryS)
	for _, task := range slices.Sorted(maps.Keys(s.holds)) {
		n := &s.nodes[s.holds[task]]
		if s.m.now-n.heldSince >= s.set.HoldTimeoutS {
			s.dropHold(task)
		} else if n.heldOpen && s.m.tasks[task].phase == back && s.heldFits(n) { // gres/agent: hasten
			timer := s.m.taskTimer(task)
			s.m.plan(timer, min(s.m.agenda.at[timer], s.m.now+s.set.Model.Slurm.ComebackS))
		}
	}
	looked := false
	for e := range s.queue.looked {
		if _, held := s.holds[e.task]; held || s.m.now-s.eligible[e.task] < s.set.HoldAfterS {
			continue
		}
		if !looked {
			s.running()
			looked = true
		}
		large := s.m.tasks[e.task].job.GPUs > 1 || e.need >= s.set.GPUMemMiB
		if !large && !s.passed(e.task, s.eligible[e.task]) {
			continue
		}
		if n := s.soonest(); n >= 0 {
			s.hold(e, n)
		}
		return
	}
}

// started is a job that was given GPUs.
type started struct {
	at     float64
	task   int32
	newest int32 // the last submission among those that started then or later, and run
}

// running leaves of the jobs that were started, in the order of time, those that run.
func (s *slurm) running() {
	s.started = slices.DeleteFunc(s.started, func(r started) bool {
		t := &s.m.tasks[r.task]
		return t.begun != r.at || t.phase < starting || t.phase > completing
	})
	newest := int32(-1)
	for i := range slices.Backward(s.started) {
		newest = max(newest, s.started[i].task)
		s.started[i].newest = newest
	}
}

// passed tells whether a job that was submitted later has started since.
func (s *slurm) passed(task int32, since float64) bool {
	i, _ := slices.BinarySearchFunc(s.started, since, func(r started, since float64) int { return cmp.Compare(r.at, since) })
	return i < len(s.started) && s.started[i].newest > task
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

// hold keeps GPUs of a node for a job.
func (s *slurm) hold(e *waiter, id int32) {
	n := &s.nodes[id]
	s.lookAll(id)
	mib := s.bookings[e.task].reserveMiB
	if e.need >= s.set.GPUMemMiB {
		mib = 0
	}
	r := s.kept(e.task, mib)
	uuids := choose.Soonest(s.set.Policy, s.readings, s.leases, r, s.set.Thresholds)
	if uuids == nil {
		return
	}
	n.heldFor, n.heldSince, n.heldMiB = e.task, s.m.now, mib
	s.holds[e.task] = id
	for k := range n.gpus {
		if g := &n.gpus[k].reading; slices.Contains(uuids, g.UUID) {
			g.HeldFor, g.HeldUID, g.HeldGPUs, g.HeldOpen = r.JobID, r.UID, r.GPUs, false
		}
	}
	s.openHold(id)
	s.refreshNode(id)
}

// openHold offers the GPUs that a node keeps once all of them have what the job
// needs: not before, for slurmctld would give them to whoever fits.
func (s *slurm) openHold(id int32) {
	n := &s.nodes[id]
	if n.heldFor < 0 || n.heldOpen || !s.heldFits(n) {
		return
	}
	n.heldOpen = true
	for k := range n.gpus {
		n.gpus[k].reading.HeldOpen = n.gpus[k].reading.HeldFor != 0
	}
	s.refreshNode(id)
}

// heldFits tells whether the GPUs that a node keeps would do for the job.
func (s *slurm) heldFits(n *node) bool {
	s.readings, s.leases = s.readings[:0], s.leases[:0]
	for k := range n.gpus {
		if l := &n.gpus[k]; l.reading.HeldFor != 0 {
			r := l.reading
			r.HeldFor = 0
			free, _ := choose.Placeable(r, l.leases, s.set.Thresholds)
			if n.heldMiB == 0 && len(l.leases) > 0 || capacity.Grain(free, r.GPU, s.set.GPUMemMiB) < n.heldMiB {
				return false
			}
			s.readings, s.leases = append(s.readings, r), append(s.leases, l.leases...)
		}
	}
	in := choose.Input{Readings: s.readings, Leases: s.leases, Request: s.kept(n.heldFor, n.heldMiB), Thresholds: s.set.Thresholds}
	return choose.GPUs(s.set.Policy, in).UUIDs != nil
}

// kept is the request of a task that GPUs are kept for (gres/agent: kept).
func (s *slurm) kept(task int32, mib int64) gres.Request {
	t := &s.m.tasks[task]
	return gres.Request{JobID: uint32(task) + 1, UID: t.user, GPUs: t.job.GPUs, ReserveMiB: mib, Exclusive: mib == 0, MarginMiB: s.set.Thresholds.MarginMiB}
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
		n.gpus[k].reading.HeldFor, n.gpus[k].reading.HeldGPUs, n.gpus[k].reading.HeldOpen = 0, 0, false
	}
	s.refreshNode(id)
}

func (s *slurm) refreshNode(id int32) {
	for k := range s.set.GPUs {
		s.refresh(id*int32(s.set.GPUs) + int32(k))
	}
	s.publish(id) // whose the offer is may have changed
}
