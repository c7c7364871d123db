// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"carma/db/figure"
	"carma/gres"
	"carma/gres/choose"
	"carma/slurmbridge/policy"
)

// paper plays the loops of the reference system on one server, as far as they
// are known from its behaviour. Both versions look at the head of one queue;
// enough idle GPUs take it whatever the policy; else the policy shares GPUs. A
// task that failed is started again exclusively, and nothing else is until then.
//
//   - paper-v1 looks every 35 s (65 s when it shares), sees memory and activity as
//     they were at the end of the last 90 s, and keeps no account of what it
//     has promised.
//   - paper-v2 looks every second, sees a rolling window, and locks a GPU until
//     its new task has settled.
//
// The choice itself is gres/choose's, on readings that show what each version
// sees.
type paper struct {
	m        *machine
	set      *Setup
	v1       bool
	queue    []int32
	recovery []int32
	failed   []int32 // since the last scan
	step     func()  // what comes at the next alarm
	last     string
	err      error

	seen   []gres.Reading // v1: at the end of the last window
	locked []float64      // v2: by GPU, until when; +Inf: the task has not shown itself
	by     []int32        // v2: which task locks it
	wake   float64        // v2: when the answer can be another
	dummy  []gres.Lease
}

// The timers of a paper loop.
const (
	loopTimer = iota
	windowTimer
)

func newPaper(m *machine) *paper {
	n := len(m.gpus)
	p := &paper{m: m, set: m.set, v1: m.set.Mode == PaperV1, locked: make([]float64, n), by: make([]int32, n)}
	for g := range n {
		uuid := "GPU-" + strconv.Itoa(g)
		p.seen = append(p.seen, p.reading(g, 1))
		// A ledger without a promise: the gates hold for GPUs with jobs only.
		p.dummy = append(p.dummy, gres.Lease{UUID: uuid, Seen: true})
		p.by[g] = -1
	}
	if p.v1 {
		p.step = p.scan
		m.plan(m.ownTimer(loopTimer), m.set.Model.PaperV1.ScanS)
		m.plan(m.ownTimer(windowTimer), m.set.Model.PaperV1.WindowS)
	}
	return p
}

// reading is what monitoring tells of a GPU now.
func (p *paper) reading(g int, window float64) gres.Reading {
	r := &p.m.gpus[g]
	return gres.Reading{
		GPU:     gres.GPU{UUID: "GPU-" + strconv.Itoa(g), Index: g, TotalMiB: p.m.capacity, NUMA: -1},
		UsedMiB: r.used, SMActPct: 100 * r.trail.mean(p.m.now, window),
		Source: figure.SourceDCGM, Foreign: len(r.residents),
	}
}

func (p *paper) happened(what happening, id int32) {
	switch what {
	case submitted:
		p.queue = append(p.queue, id)
		p.soon()
	case released:
		p.release(id)
		p.soon()
	case appeared:
		for _, g := range p.m.tasks[id].gpus {
			if p.by[g] == id {
				p.locked[g] = p.m.now + p.set.Model.PaperV2.SettleS
			}
		}
		p.soon()
	case changed:
		p.soon()
	case alarm:
		if id == windowTimer {
			p.publish()
		} else if p.v1 {
			p.step()
		}
	}
}

// release ends a task, or notes that it failed. The reference system takes
// every failure for an OOM.
func (p *paper) release(id int32) {
	for _, g := range p.m.tasks[id].gpus {
		if p.by[g] == id {
			p.by[g], p.locked[g] = -1, 0
		}
	}
	if !p.m.tasks[id].oom {
		p.m.finish(id, false)
		return
	}
	p.m.tasks[id].gpus = nil
	p.failed = append(p.failed, id)
	// One that has its GPUs to itself and still fails never ends.
	if t := &p.m.tasks[id]; t.peak > p.m.capacity-p.set.Model.GPU.BaseMiB {
		p.failed = p.failed[:len(p.failed)-1]
		p.m.finish(id, true)
	}
}

// head is the task that a loop looks at, -1 if there is none.
func (p *paper) head() (id int32, recovered bool) {
	if len(p.recovery) > 0 {
		return p.recovery[0], true
	}
	if len(p.queue) > 0 {
		return p.queue[0], false
	}
	return -1, false
}

func (p *paper) pop() {
	if len(p.recovery) > 0 {
		p.recovery = p.recovery[1:]
		return
	}
	p.queue = p.queue[1:]
}

// The loop of paper-v1, in three steps with pauses before each.

func (p *paper) scan() {
	p.recovery = append(p.recovery, p.failed...)
	p.failed = p.failed[:0]
	p.step = p.lookForIdle
	p.m.plan(p.m.ownTimer(loopTimer), p.m.now+p.set.Model.PaperV1.WaitS)
}

func (p *paper) lookForIdle() {
	c := &p.set.Model.PaperV1
	id, recovered := p.head()
	if id >= 0 && !p.startIdle(id) && !recovered && p.set.Policy != policy.Exclusive {
		p.step = p.collocate
		p.m.plan(p.m.ownTimer(loopTimer), p.m.now+c.CollocateS)
		return
	}
	p.step = p.scan
	p.m.plan(p.m.ownTimer(loopTimer), p.m.now+c.ScanS)
}

func (p *paper) collocate() {
	if id, _ := p.head(); id >= 0 {
		p.startShared(id, p.seen)
	}
	p.step = p.scan
	p.m.plan(p.m.ownTimer(loopTimer), p.m.now+p.set.Model.PaperV1.ScanS)
}

// publish replaces what paper-v1 sees at the end of a window.
func (p *paper) publish() {
	for g := range p.seen {
		p.seen[g] = p.reading(g, p.set.WindowS)
	}
	p.m.plan(p.m.ownTimer(windowTimer), p.m.now+p.set.WindowS)
}

// The loop of paper-v2.

// soon says that the next look may find another answer.
func (p *paper) soon() {
	if p.v1 {
		return
	}
	p.wakeAt(p.m.now)
}

// wakeAt plans a look at the first tick of the loop at or after at.
func (p *paper) wakeAt(at float64) {
	if math.IsInf(at, 1) {
		return
	}
	loop := p.set.Model.PaperV2.LoopS
	p.wake = math.Ceil(at/loop-1e-9) * loop
	p.m.plan(p.m.ownTimer(loopTimer), p.wake)
}

func (p *paper) decide() error {
	if !p.v1 && p.m.now >= p.wake {
		p.look()
	}
	return p.err
}

// look is one turn of paper-v2's loop.
func (p *paper) look() {
	p.wake = math.Inf(1)
	p.recovery = append(p.recovery, p.failed...)
	p.failed = p.failed[:0]
	id, recovered := p.head()
	if id < 0 {
		return
	}
	started := p.startIdle(id)
	if !started && !recovered && p.set.Policy != policy.Exclusive {
		now := make([]gres.Reading, len(p.seen))
		for g := range now {
			now[g] = p.reading(g, p.set.WindowS)
			now[g].UsedMiB += p.set.Model.PaperV2.DeductMiB
		}
		started = p.startShared(id, now)
	}
	if started {
		p.wakeAt(p.m.now + p.set.Model.PaperV2.LoopS)
		return
	}
	next := math.Inf(1)
	for g := range p.m.gpus {
		if p.locked[g] > p.m.now {
			next = min(next, p.locked[g])
		}
		if open := p.m.gpus[g].trail.falls(p.m.now, p.set.WindowS, p.set.Thresholds.SMActMaxPct/100); open > p.m.now {
			next = min(next, open)
		}
	}
	p.wakeAt(next)
}

// startIdle starts a task on GPUs that no process is seen on.
func (p *paper) startIdle(id int32) bool {
	readings := make([]gres.Reading, len(p.m.gpus))
	for g := range readings {
		readings[g] = p.reading(g, p.set.WindowS)
		p.mark(&readings[g], g)
	}
	return p.start(id, choose.GPUs(policy.Exclusive, choose.Input{
		Readings: readings, Request: gres.Request{GPUs: p.m.tasks[id].job.GPUs, Exclusive: true},
		Thresholds: p.set.Thresholds,
	}))
}

// mark closes a GPU that a newcomer locks.
func (p *paper) mark(r *gres.Reading, g int) {
	if p.locked[g] > p.m.now {
		r.Quarantined = "a new task has not settled"
	}
}

// startShared starts a task on GPUs that the policy shares.
func (p *paper) startShared(id int32, seen []gres.Reading) bool {
	t := &p.m.tasks[id]
	r, err := p.request(t)
	if err != nil && p.err == nil {
		p.err = err
	}
	limits := p.set.Thresholds
	limits.MaxJobs, limits.Settle = math.MaxInt, 0
	if p.set.Policy == policy.RoundRobin { // it knows no condition
		limits.SMActMaxPct = math.Inf(1)
		r.ReserveMiB, r.MarginMiB = 0, 0
	}
	readings := slices.Clone(seen)
	for g := range readings {
		readings[g].Foreign = 0
		p.mark(&readings[g], g)
	}
	return p.start(id, choose.GPUs(p.set.Policy, choose.Input{
		Readings: readings, Leases: p.dummy, Request: r, Thresholds: limits, Last: p.last,
	}))
}

// request is the need of the task on a shared GPU.
func (p *paper) request(t *task) (gres.Request, error) {
	r := gres.Request{GPUs: t.job.GPUs, MarginMiB: p.set.Thresholds.MarginMiB}
	switch p.set.Estimator {
	case None:
		r.ReserveMiB, r.MarginMiB = p.set.MinFreeMiB, 0
	case Oracle:
		r.ReserveMiB = t.job.PeakMiB
	case GPUMemNet:
		r.ReserveMiB = t.job.GPUMemNetMiB
	case Horus:
		r.ReserveMiB = t.job.HorusMiB
	case FakeTensor:
		r.ReserveMiB = t.job.FakeTensorMiB
	case Analytic:
		e, err := analytic(t.job, &p.set.Model.Analytic, p.set.Seed)
		if err != nil {
			return r, fmt.Errorf("estimator analytic: job %s: %w", t.job.Name, err)
		}
		r.ReserveMiB = e.ReserveMiB
	}
	if r.ReserveMiB == 0 && p.set.Estimator != None {
		return r, fmt.Errorf("estimator %s: job %s has no number of it in the job table", p.set.Estimator, t.job.Name)
	}
	return r, nil
}

// start launches a task on the GPUs of a decision, if it has any.
func (p *paper) start(id int32, d choose.Decision) bool {
	if d.UUIDs == nil {
		return false
	}
	p.pop()
	p.last = d.UUIDs[len(d.UUIDs)-1]
	gpus := make([]int32, 0, len(d.UUIDs))
	for _, uuid := range d.UUIDs {
		g := slices.IndexFunc(p.dummy, func(l gres.Lease) bool { return l.UUID == uuid })
		gpus = append(gpus, int32(g))
		if !p.v1 {
			p.locked[g], p.by[g] = math.Inf(1), id
		}
	}
	var server int32 // one control daemon serves all GPUs, also jobs on several
	if !p.set.Streams {
		server = 1
	}
	p.m.launch(id, gpus, 0, server, 0)
	return true
}
