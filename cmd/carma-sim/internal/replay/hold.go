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

// hold is GPUs of a node kept for a job.
type hold struct {
	task, node int32
	gpus       []int32
	mib        int64 // of each, 0: all
	since      float64
	open       bool // they are offered: the job can start on them
	steward    bool // of the steward, not of a requeued job (prolog: expect)
}

func (s *slurm) stewards() bool { return s.set.Queue != FIFO && s.set.HoldAfterS > 0 }

// steward has GPUs kept for the first job in order that others pass and that has
// waited long (gres/steward): slurmctld cannot plan a start for a request that no
// node offers. One decision a period, one hold of his a node and a user. Nodes follow their
// holds as often.
func (s *slurm) steward() {
	if s.stewards() || len(s.holds) > 0 {
		s.m.plan(s.m.ownTimer(stewardTimer), s.m.now+s.set.Model.Slurm.HoldEveryS)
	}
	for _, task := range slices.Sorted(maps.Keys(s.holds)) {
		h := s.holds[task]
		if s.m.now-h.since >= s.set.HoldTimeoutS {
			s.dropHold(task)
		} else if h.open && s.m.tasks[task].phase == back && s.heldFits(h) {
			s.advanceStart(task)
		}
	}
	if !s.stewards() {
		return
	}
	looked, served := false, s.served()
	for e := range s.queue.looked {
		if _, held := s.holds[e.task]; held || s.m.now-s.eligible[e.task] < s.set.HoldAfterS ||
			served[s.m.tasks[e.task].user] {
			continue
		}
		if !looked {
			s.started.running(s.m.tasks)
			looked = true
		}
		large := s.m.tasks[e.task].job.GPUs > 1 || e.need >= s.set.GPUMemMiB
		if !large && !s.started.passed(e.task, s.eligible[e.task]) {
			continue
		}
		if n := s.soonest(); n >= 0 {
			s.keepSoonest(e, n)
		}
		return
	}
}

// started is a job given GPUs.
type started struct {
	at     float64
	task   int32
	newest int32 // the last submission among those that started then or later, and run
}

// starts are the starts of jobs, in the order of time.
type starts []started

// running leaves the starts of jobs that run.
func (l *starts) running(tasks []task) {
	*l = slices.DeleteFunc(*l, func(r started) bool {
		t := &tasks[r.task]
		return t.begun != r.at || t.phase < starting || t.phase > completing
	})
	newest := int32(-1)
	for i := range slices.Backward(*l) {
		newest = max(newest, (*l)[i].task)
		(*l)[i].newest = newest
	}
}

// passed tells whether a job submitted later has started since.
func (l starts) passed(task int32, since float64) bool {
	i, _ := slices.BinarySearchFunc(l, since, func(r started, since float64) int { return cmp.Compare(r.at, since) })
	return i < len(l) && l[i].newest > task
}

// soonest is the node with the fewest jobs that has no hold of the steward's yet.
func (s *slurm) soonest() int32 {
	best, fewest := int32(-1), 0
	for i := range s.nodes {
		if s.nodes[i].stewards {
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

// keepSoonest keeps GPUs of a node for a job.
func (s *slurm) keepSoonest(e *waiter, id int32) {
	s.lookAll(id)
	h := &hold{task: e.task, node: id, mib: s.bookings[e.task].reserveMiB, steward: true}
	if e.need >= s.set.GPUMemMiB || s.set.Thresholds.MaxSlowdown > 0 {
		h.mib = 0
	}
	for _, uuid := range choose.Soonest(s.set.Policy, s.readings, s.leases, s.kept(h), s.set.Thresholds) {
		k := slices.IndexFunc(s.readings, func(r gres.Reading) bool { return r.UUID == uuid })
		h.gpus = append(h.gpus, id*int32(s.set.GPUs)+int32(k))
	}
	s.keep(h)
}

// served are the users for a job of whom GPUs are kept at the steward's word.
func (s *slurm) served() map[uint32]bool {
	users := map[uint32]bool{}
	for task, h := range s.holds {
		if h.steward {
			users[s.m.tasks[task].user] = true
		}
	}
	return users
}

// keep keeps the GPUs that are not kept for another job, unless enough of the node's
// are kept for other jobs of its user (gres/lease: Hold).
func (s *slurm) keep(h *hold) {
	r := s.kept(h)
	others := 0
	for task, other := range s.holds {
		if other.node == h.node && task != h.task && s.m.tasks[task].user == r.UID {
			others += len(other.gpus)
		}
	}
	enough := others > 0 && 2*(others+len(h.gpus)) > s.set.GPUs
	h.gpus = slices.DeleteFunc(slices.Clone(h.gpus), func(g int32) bool { return s.leased(g).reading.HeldFor != 0 })
	if len(h.gpus) == 0 || enough {
		return
	}
	h.since = s.m.now
	s.holds[h.task] = h
	s.nodes[h.node].stewards = s.nodes[h.node].stewards || h.steward
	for _, g := range h.gpus {
		l := &s.leased(g).reading
		l.HeldFor, l.HeldUID, l.HeldGPUs, l.HeldOpen = r.JobID, r.UID, r.GPUs, false
	}
	if s.m.agenda.at[s.m.ownTimer(stewardTimer)] > s.m.now+s.set.Model.Slurm.HoldEveryS {
		s.m.plan(s.m.ownTimer(stewardTimer), s.m.now+s.set.Model.Slurm.HoldEveryS)
	}
	s.openHold(h)
	s.refreshNode(h.node)
}

// openHold offers the kept GPUs once all of them have what the job needs and it
// waits, and lets it come if it backs off: not before, for slurmctld would give them to
// whoever fits.
func (s *slurm) openHold(h *hold) {
	if h.open || !s.heldFits(h) {
		return
	}
	switch s.m.tasks[h.task].phase {
	case back:
		s.advanceStart(h.task)
	case waiting:
		h.open = true
		for _, g := range h.gpus {
			s.leased(g).reading.HeldOpen = true
		}
		s.refreshNode(h.node)
	}
}

// advanceStart lets a job that backs off start as soon as is safe (gres/agent).
func (s *slurm) advanceStart(task int32) {
	timer, at := s.m.taskTimer(task), s.m.now+s.set.Model.Slurm.RequeueS
	if s.m.agenda.at[timer]-at >= s.set.Model.Slurm.HoldEveryS {
		s.m.plan(timer, at)
	}
}

// heldFits tells whether the kept GPUs would do for their job.
func (s *slurm) heldFits(h *hold) bool {
	s.readings, s.leases = s.readings[:0], s.leases[:0]
	for _, g := range h.gpus {
		l := s.leased(g)
		r := l.reading
		r.HeldFor = 0
		free, _ := choose.Placeable(r, l.leases, s.set.Thresholds)
		if h.mib == 0 && len(l.leases) > 0 || capacity.Grain(free, r.GPU, s.set.GPUMemMiB) < h.mib {
			return false
		}
		s.readings, s.leases = append(s.readings, r), append(s.leases, l.leases...)
	}
	if h.mib == 0 {
		return true
	}
	in := choose.Input{Readings: s.readings, Leases: s.leases, Request: s.kept(h), Thresholds: s.set.Thresholds}
	return choose.GPUs(s.set.Policy, in).UUIDs != nil
}

// kept is the request of the task that GPUs are kept for (gres/agent: kept).
func (s *slurm) kept(h *hold) gres.Request {
	t := &s.m.tasks[h.task]
	return gres.Request{JobID: uint32(h.task) + 1, UID: t.user, GPUs: t.job.GPUs, ReserveMiB: h.mib,
		Exclusive: h.mib == 0, MarginMiB: s.set.Thresholds.MarginMiB}
}

// dropHold ends the hold for a job, if there is one.
func (s *slurm) dropHold(task int32) {
	h := s.holds[task]
	if h == nil {
		return
	}
	delete(s.holds, task)
	if h.steward {
		s.nodes[h.node].stewards = false
	}
	for _, g := range h.gpus {
		r := &s.leased(g).reading
		r.HeldFor, r.HeldUID, r.HeldGPUs, r.HeldOpen = 0, 0, 0, false
	}
	s.refreshNode(h.node)
}

func (s *slurm) refreshNode(id int32) {
	for k := range s.set.GPUs {
		s.refresh(id*int32(s.set.GPUs) + int32(k))
	}
	s.publish(id) // whose the offer is may have changed
}
