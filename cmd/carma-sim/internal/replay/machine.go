// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math"
	"slices"

	"carma/cmd/carma-sim/internal/model"
	"carma/cmd/carma-sim/internal/workload"
	"carma/gres/interference"
)

// phase is what a task does now.
type phase uint8

const (
	waiting    phase = iota // not started, or not again
	back                    // waits to be put into the queue again
	sent                    // on a node, its Prolog waits for GPUs
	starting                // on the CPU only
	growing                 // allocates step by step
	peaking                 // at its start-up peak
	training                // at its steady memory
	completing              // off the GPU, not yet released
	ended
)

// task is one submission on its way.
type task struct {
	job   *workload.Job
	user  uint32
	phase phase
	oom   bool  // the attempt died of GPU memory
	tries uint8 // attempts so far
	step  uint8 // of growth

	gpus   []int32
	server int32 // MPS server; 0: none
	limit  int64 // MiB per GPU that the task may take; 0: no limit
	mem    int64 // MiB on each of its GPUs now
	seen   int64 // the most that the task has had there

	arrival  float64
	alone    float64 // s on its GPUs, this run's jitter in it
	startup  float64
	spike    float64
	peak     int64
	steady   int64
	begun    float64 // this attempt
	appeared float64 // on its GPUs
	memAt    float64 // next change of memory
	left     float64 // s of work alone, still to do
	rate     float64
	since    float64 // left and rate hold from then
	doneAt   float64

	exec     float64 // s of all attempts
	lastExec float64 // s of the last one
	end      float64
	failed   bool
}

// gpu is one GPU.
type gpu struct {
	residents []int32 // tasks with a process on the GPU, clients of one server together
	rates     []float64
	used      int64   // MiB, the driver's own included
	util      float64 // 0 to 1
	watts     float64
	since     float64 // integrals hold up to then
	energyJ   float64
	utilS     float64
	memMiBS   float64
	holders   int32   // tasks that have the GPU, from their launch to their release
	heldS     float64 // with holders, up to heldAt
	heldAt    float64
	trail     trail
}

// rampSteps is in how many steps memory grows to its first peak, where
// job.ramp_s is not 0.
const rampSteps = 8

// machine is the cluster's GPUs and the tasks on them, without any decision.
type machine struct {
	now    float64
	set    *Setup
	law    model.Law
	gpus   []gpu
	tasks  []task
	agenda *agenda // entities: tasks, GPUs, then the scheduler's own timers
	sched  scheduler

	capacity  int64 // MiB of a GPU
	ooms      int
	givenBack int
	done      int // ended tasks
	clients   []model.Client
	record    *recorder
}

// scheduler decides. The machine tells the scheduler of happenings; after all
// happenings of one moment the scheduler may start tasks.
type scheduler interface {
	happened(what happening, id int32)
	decide() error
}

// happening is an event told to a scheduler.
type happening uint8

const (
	submitted happening = iota // task: in the queue, for the first time or again
	appeared                   // task: its processes are on its GPUs
	left                       // task: its processes are gone
	released                   // task: has given its GPUs back
	gaveUp                     // task: its Prolog has waited long enough
	changed                    // GPU: its activity or memory is another
	timer                      // GPU: the time that the scheduler planned
	alarm                      // the scheduler's own timer
)

// timers is how many timers a scheduler has of its own.
const timers = 2

func newMachine(s *Setup, w *workload.Workload) *machine {
	n := s.Nodes * s.GPUs
	m := &machine{
		set: s, law: s.Model.GPU.LawOf(), gpus: make([]gpu, n), tasks: make([]task, len(w.Trace)),
		agenda: newAgenda(len(w.Trace) + n + timers), capacity: s.GPUMemMiB,
	}
	for i := range m.gpus {
		g := &m.gpus[i]
		g.used, g.watts = s.Model.GPU.BaseMiB, s.Model.GPU.Watts(0)
		g.trail.length = max(s.WindowS, s.Model.PaperV1.WindowS, s.Model.PaperV2.WindowS)
		g.trail.set(0, 0)
	}
	for i := range m.tasks {
		sub, t, d := &w.Trace[i], &m.tasks[i], s.DrawOf(w, i)
		t.job, t.user, t.arrival = &w.Jobs[sub.Job], sub.User, d.ArrivalS
		if s.ideal { // a scheduler that knows no users shares through MPS always
			t.user = 0
		}
		t.startup, t.spike, t.alone, t.peak, t.steady = d.StartupS, d.SpikeS, d.AloneS, d.PeakMiB, d.SteadyMiB
	}
	if s.Record {
		m.record = newRecorder(m)
	}
	return m
}

func (m *machine) taskTimer(t int32) int32  { return t }
func (m *machine) gpuTimer(g int32) int32   { return int32(len(m.tasks)) + g }
func (m *machine) ownTimer(i int32) int32   { return int32(len(m.tasks)+len(m.gpus)) + i }
func (m *machine) plan(e int32, at float64) { m.agenda.plan(e, at) }

// launch starts a task on GPUs after delay.
func (m *machine) launch(id int32, gpus []int32, delay float64, server int32, limit int64) {
	t := &m.tasks[id]
	t.phase, t.gpus, t.server, t.limit = starting, gpus, server, limit
	t.oom, t.mem, t.step = false, 0, 0
	t.tries++
	t.begun = m.now
	t.left = t.alone
	t.doneAt = math.Inf(1)
	m.plan(m.taskTimer(id), m.now+delay+t.startup)
	m.hold(id, 1)
}

// hold counts a task in or out of the holders of its GPUs.
func (m *machine) hold(id, n int32) {
	for _, g := range m.tasks[id].gpus {
		r := &m.gpus[g]
		if r.holders > 0 {
			r.heldS += m.now - r.heldAt
		}
		r.holders, r.heldAt = r.holders+n, m.now
	}
}

// fire is the planned event of a task.
func (m *machine) fire(id int32) {
	t := &m.tasks[id]
	switch t.phase {
	case back:
		t.phase = waiting
		m.sched.happened(submitted, id)
	case sent:
		m.sched.happened(gaveUp, id)
	case starting:
		t.appeared = m.now
		t.phase = growing
		for _, g := range t.gpus {
			m.join(g, id)
		}
		t.rate, t.since = 0, m.now
		if m.grow(id) {
			for _, g := range t.gpus {
				m.share(g)
			}
			m.sched.happened(appeared, id)
		}
	case growing, peaking, training:
		if t.doneAt <= m.now {
			m.leave(id)
			return
		}
		m.grow(id)
	case completing:
		t.phase = waiting
		m.hold(id, -1)
		m.sched.happened(released, id)
	}
}

// grow brings the memory of a task up to date, and plans the next change. The
// result is false if the task died of the growth.
func (m *machine) grow(id int32) bool {
	t := &m.tasks[id]
	ramp := m.set.Model.Job.RampS
	if t.phase == growing {
		t.step++
		// The first step comes with the context, the last one at the end.
		want := t.peak
		if ramp > 0 {
			want = t.peak * int64(t.step) / rampSteps
		}
		if !m.resize(id, want) {
			m.ooms++
			t.oom = true
			m.leave(id)
			return false
		}
		if t.step < rampSteps && ramp > 0 {
			t.memAt = t.appeared + ramp*float64(t.step)/(rampSteps-1)
		} else {
			t.phase = peaking
			t.memAt = m.now + t.spike
		}
	} else if t.phase == peaking && m.now >= t.memAt {
		m.resize(id, t.steady)
		t.phase = training
		t.memAt = math.Inf(1)
	}
	m.plan(m.taskTimer(id), min(t.memAt, t.doneAt))
	return true
}

// resize sets the memory of a task on all its GPUs; false if the memory is
// refused.
func (m *machine) resize(id int32, mib int64) bool {
	t := &m.tasks[id]
	if t.limit > 0 && mib > t.limit {
		return false
	}
	more := mib - t.mem
	for _, g := range t.gpus {
		if m.gpus[g].used+more > m.capacity {
			return false
		}
	}
	t.mem, t.seen = mib, max(t.seen, mib)
	for _, g := range t.gpus {
		m.account(g)
		m.gpus[g].used += more
		m.tell(g)
	}
	return true
}

// join puts a process of a task on a GPU, beside the other clients of its server.
func (m *machine) join(g, id int32) {
	r := &m.gpus[g]
	at := len(r.residents)
	if s := m.tasks[id].server; s != 0 {
		for at > 0 && m.tasks[r.residents[at-1]].server != s {
			at--
		}
		if at == 0 {
			at = len(r.residents)
		}
	}
	r.residents = slices.Insert(r.residents, at, id)
	r.rates = append(r.rates, 0)
}

// leave takes a task off its GPUs.
func (m *machine) leave(id int32) {
	t := &m.tasks[id]
	for _, g := range t.gpus {
		m.account(g)
		r := &m.gpus[g]
		r.residents = slices.Delete(r.residents, slices.Index(r.residents, id), slices.Index(r.residents, id)+1)
		r.rates = r.rates[:len(r.residents)]
		r.used -= t.mem
	}
	for _, g := range t.gpus {
		m.share(g)
	}
	t.mem = 0
	t.lastExec = m.now - t.begun
	t.exec += t.lastExec
	t.end = m.now
	t.phase = completing
	m.sched.happened(left, id)
	m.plan(m.taskTimer(id), m.now+m.set.release())
}

// requeue puts a task into the queue again after delay.
func (m *machine) requeue(id int32, delay float64) {
	m.tasks[id].phase = back
	m.plan(m.taskTimer(id), m.now+delay)
}

// finish ends a task for good.
func (m *machine) finish(id int32, failed bool) {
	t := &m.tasks[id]
	t.phase, t.failed, t.gpus = ended, failed, nil
	m.done++
}

// share applies the law to a GPU whose residents are others than before.
func (m *machine) share(g int32) {
	m.account(g)
	r := &m.gpus[g]
	m.clients = m.clients[:0]
	for _, id := range r.residents {
		t := &m.tasks[id]
		m.clients = append(m.clients, model.Client{Demand: t.job.SMActPct / 100, Server: t.server})
	}
	r.util = min(interference.Share(m.law, m.clients), 1)
	r.watts = m.set.Model.GPU.Watts(r.util)
	r.trail.set(m.now, r.util)
	for i := range r.residents {
		r.rates[i] = m.clients[i].Rate
	}
	for _, id := range r.residents {
		m.progress(id)
	}
	m.tell(g)
}

// progress brings a task's work up to now and plans its end at its new rate:
// that of its slowest GPU.
func (m *machine) progress(id int32) {
	t := &m.tasks[id]
	t.left -= t.rate * (m.now - t.since)
	t.since = m.now
	t.rate = math.Inf(1)
	for _, g := range t.gpus {
		r := &m.gpus[g]
		t.rate = min(t.rate, r.rates[slices.Index(r.residents, id)])
	}
	t.doneAt = m.now + max(t.left, 0)/t.rate
	m.plan(m.taskTimer(id), min(t.memAt, t.doneAt))
}

// account brings the integrals of a GPU up to now.
func (m *machine) account(g int32) {
	r := &m.gpus[g]
	dt := m.now - r.since
	if dt > 0 {
		r.energyJ += r.watts * dt
		r.utilS += r.util * dt
		r.memMiBS += float64(r.used) * dt
		r.since = m.now
	}
}

// tell passes on that a GPU has changed.
func (m *machine) tell(g int32) {
	if m.record != nil {
		m.record.touch(g)
	}
	m.sched.happened(changed, g)
}
