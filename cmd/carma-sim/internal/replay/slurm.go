// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math"
	"slices"
	"strconv"
	"time"

	"carma/cmd/carma-sim/internal/workload"
	"carma/db/figure"
	"carma/gres"
	"carma/gres/capacity"
	"carma/gres/choose"
	"carma/slurmbridge/jobenv"
)

// slurm plays the project's way. slurmctld sees of a node the counts told by its agent
// for jobs on 1, 2, ... GPUs, and the GPU slots and the GRES carma that jobs consume
// (docs/adr/0017); the Prolog chooses GPUs on the node and leases them, waits or
// returns the job to the queue; the Epilog requeues jobs that died of GPU memory.
type slurm struct {
	m      *machine
	set    *Setup
	work   *workload.Workload
	book   *booker
	nodes  []node
	search search
	queue  queue
	woken  []int32         // nodes where Prologs wait and a GPU offers more
	holds  map[int32]*hold // by task
	again  map[uint32]int  // by user: waiting jobs with whole GPUs that have been back in the queue

	started starts // for the steward

	bookings  []booking // by task
	recovered []bool    // by task: goes to the recovery partition
	vetoes    []uint8   // by task: how often returned to the queue by a Prolog
	eligible  []float64 // by task: waits since then; -1: has never waited
	awaits    []bool    // by task: waits for idle GPUs
	others    []bool    // by task: its Prolog has met other users' jobs
	counted   []bool    // by task: in again
	sentTo    []int32   // by task: node on which its Prolog waits
	passAt    float64   // slurmctld will look at its queue; +Inf: there is no need
	err       error

	offers   []capacity.Offer // scratch of publish
	leases   []gres.Lease     // scratch of one choice
	readings []gres.Reading
}

// node is the content of a node's ledger, and slurmctld's count of the node.
type node struct {
	gpus  []leased
	offer capacity.Given // as the ledger has it
	last  string         // GPU given last

	told     capacity.Given // the same as slurmctld was told
	tellAt   float64        // slurmctld will be told anew then; +Inf: nothing is new
	tellNext float64        // not before (gres/lease: SetPublished)
	jobs     int64          // that slurmctld has there
	user     uint32         // of the last of them
	slots    int64          // of gres/gpu that are free
	totalMiB int64          // of gres/carma that is free
	room     []int64        // MiB that slurmctld would give of each of 1, 2, ... GPUs to some user's job
	dirty    bool
	prologs  []int32 // tasks whose Prologs wait here for GPUs
	woken    bool

	stewards bool // there is a hold of the steward's on the node
}

// leased is one GPU in the ledger.
type leased struct {
	offer   int64 // MiB that the node publishes for it
	leases  []gres.Lease
	tasks   []int32   // of the leases
	since   []float64 // of the leases
	reading gres.Reading
}

// The scheduler's own timers.
const (
	stewardTimer = iota
	passTimer
)

func newSlurm(m *machine, w *workload.Workload) *slurm {
	s := &slurm{
		m: m, set: m.set, work: w, book: newBooker(m.set, w),
		nodes:    make([]node, m.set.Nodes),
		bookings: make([]booking, len(m.tasks)), recovered: make([]bool, len(m.tasks)), vetoes: make([]uint8, len(m.tasks)),
		eligible: make([]float64, len(m.tasks)), awaits: make([]bool, len(m.tasks)), others: make([]bool, len(m.tasks)),
		sentTo: make([]int32, len(m.tasks)), counted: make([]bool, len(m.tasks)), again: map[uint32]int{},
		readings: make([]gres.Reading, 0, m.set.GPUs),
		holds:    map[int32]*hold{}, passAt: math.Inf(1),
	}
	s.set.Thresholds.Streams, s.set.Thresholds.NodeDaemon = s.set.Streams, s.set.Model.Slurm.MPSMultiGPU
	s.queue = newQueue(m.set.Model.Slurm.Depth, m.set.GPUs)
	for i := range s.eligible {
		s.eligible[i] = -1
	}
	s.search = newSearch(m.set, s.nodes)
	uuids := make([]string, m.set.GPUs)
	for i := range uuids {
		uuids[i] = "GPU-" + strconv.Itoa(i)
	}
	for i := range s.nodes {
		n := &s.nodes[i]
		n.gpus, n.tellAt = make([]leased, m.set.GPUs), math.Inf(1)
		n.room = make([]int64, m.set.GPUs)
		n.slots, n.totalMiB = int64(m.set.GPUs)*int64(m.set.Thresholds.MaxJobs), int64(m.set.GPUs)*m.capacity
		s.search.setLoad(int32(i), 1)
		if m.set.ideal {
			n.totalMiB = math.MaxInt64 / 2 // the ideal packer counts used memory, not booked memory
		}
		for k := range n.gpus {
			n.gpus[k].reading = gres.Reading{
				GPU:    gres.GPU{UUID: uuids[k], Index: k, TotalMiB: m.capacity, NUMA: -1},
				Source: figure.SourceDCGM,
			}
			s.refresh(int32(i*m.set.GPUs + k))
		}
		s.tell(int32(i))
	}
	if s.stewards() {
		m.plan(m.ownTimer(stewardTimer), s.set.Model.Slurm.HoldEveryS)
	}
	return s
}

func (s *slurm) happened(what happening, id int32) {
	switch what {
	case submitted:
		s.submit(id)
	case released:
		s.release(id)
		s.passAt = s.m.now
	case changed, timer:
		s.refresh(id)
	case appeared:
		for _, g := range s.m.tasks[id].gpus {
			s.refresh(g)
		}
	case gaveUp:
		s.giveBack(id)
	case alarm:
		if id == stewardTimer { // passTimer only brings the moment of decide
			s.steward()
		}
	}
}

// submit books the job, unless it is back from an earlier attempt, and puts it
// into the queue.
func (s *slurm) submit(id int32) {
	if s.bookings[id].reserveMiB == 0 {
		b, err := s.book.book(s.work.Trace[id].Job, s.m.tasks[id].job)
		if err != nil && s.err == nil {
			s.err = err
		}
		s.bookings[id] = b
	}
	b := &s.bookings[id]
	t := &s.m.tasks[id]
	e := waiter{task: id, gpus: int32(t.job.GPUs), user: t.user, need: b.reserveMiB}
	if s.awaits[id] {
		e.need = s.set.GPUMemMiB
	}
	e.rank = s.rank(id)
	if s.eligible[id] < 0 { // not for one returned to the queue (gres/steward: Waits)
		s.eligible[id] = s.m.now
	}
	s.queue.add(e, s.recovered[id])
	if h := s.holds[id]; h != nil {
		s.openHold(h)
	}
}

// rank sorts the queue; 0: by arrival.
func (s *slurm) rank(id int32) float64 {
	switch {
	case s.set.ranks != nil:
		return s.set.ranks[id]
	case s.set.Queue == Shortest:
		return s.m.tasks[id].alone
	case s.set.Queue == Longest:
		return -s.m.tasks[id].alone
	}
	return 0
}

// release is the end of an Epilog: the job ends or is requeued, and the leases go.
func (s *slurm) release(id int32) {
	t, b := &s.m.tasks[id], &s.bookings[id]
	gpus, n := t.gpus, t.gpus[0]/int32(s.set.GPUs)
	s.consume(id, n, -1)
	switch {
	case !t.oom:
		s.book.learn(s.work.Trace[id].Job, t.peak, t.job.SMActPct)
		s.m.finish(id, false)
	case b.exclusive: // nobody else can be blamed
		s.m.finish(id, true)
	default:
		s.recover(id, b)
	}
	for _, g := range gpus {
		l := s.leased(g)
		i := slices.Index(l.tasks, id)
		l.leases = slices.Delete(l.leases, i, i+1)
		l.tasks = slices.Delete(l.tasks, i, i+1)
		l.since = slices.Delete(l.since, i, i+1)
		s.refresh(g)
	}
	if s.nodes[n].tellNext <= s.m.now { // the Epilog tells
		s.tell(n)
	}
}

// recover is the Epilog's judgement on a job that shared and died of GPU memory. If
// the job is to be requeued alone, its GPUs are kept, unless another such job of the
// user waits (prolog: mayHold).
func (s *slurm) recover(id int32, b *booking) {
	t := &s.m.tasks[id]
	gpus := t.gpus
	t.gpus = nil
	s.recovered[id], s.eligible[id] = true, -1
	s.m.requeue(id, s.set.Model.Slurm.RequeueS)
	if s.set.Recovery == RecoverLadder {
		next, err := s.book.raise(t.job, *b, t.seen)
		if err != nil && s.err == nil {
			s.err = err
		}
		*b = next
		return
	}
	*b = booking{exclusive: true, reserveMiB: s.set.GPUMemMiB, estMiB: b.estMiB, smactPct: b.smactPct}
	if s.waitsAgain(id); s.again[t.user] == 1 {
		s.keep(&hold{task: id, node: gpus[0] / int32(s.set.GPUs), gpus: gpus})
	}
}

// waitsAgain counts a job that is back in the queue, if it has booked whole GPUs, until it starts.
func (s *slurm) waitsAgain(task int32) {
	if s.counted[task] || s.bookings[task].reserveMiB < s.set.GPUMemMiB {
		return
	}
	s.counted[task] = true
	s.again[s.m.tasks[task].user]++
}

func (s *slurm) leased(g int32) *leased {
	return &s.nodes[int(g)/s.set.GPUs].gpus[int(g)%s.set.GPUs]
}

// refresh is the agent's look at a GPU: refresh finds the newcomers that have
// shown themselves, works out and publishes how much the GPU can be given, and
// plans the next moment at which the answer may change by itself.
func (s *slurm) refresh(g int32) {
	l := s.leased(g)
	now := s.m.now
	next := s.look(g, l)
	if l.reading.HeldFor != 0 && !l.reading.HeldOpen {
		s.openHold(s.holds[int32(l.reading.HeldFor)-1])
	}
	mib, _ := choose.Placeable(l.reading, l.leases, s.set.Thresholds)
	offer := capacity.Grain(mib, l.reading.GPU, s.set.GPUMemMiB)
	if open := s.m.gpus[g].trail.falls(now, s.set.WindowS, s.set.Thresholds.SMActMaxPct/100); mib == 0 && open > now {
		next = min(next, s.tick(open))
	}
	id := g / int32(s.set.GPUs)
	n := &s.nodes[id]
	if len(n.prologs) > 0 && !n.woken && offer > l.offer {
		n.woken = true
		s.woken = append(s.woken, id)
	}
	if offer != l.offer {
		l.offer = offer
		s.publish(id)
	}
	if n.tellAt <= now {
		s.tell(id)
	}
	if g%int32(s.set.GPUs) == 0 {
		next = min(next, n.tellAt)
	}
	s.m.plan(s.m.gpuTimer(g), next)
}

// look brings the ledger's view of a GPU up to now and returns when a newcomer
// will have settled.
func (s *slurm) look(g int32, l *leased) (next float64) {
	now := s.m.now
	next = math.Inf(1)
	l.reading.UsedMiB = s.m.gpus[g].used
	l.reading.SMActPct = 100 * s.m.gpus[g].trail.mean(now, s.set.WindowS)
	for i := range l.leases {
		t := &s.m.tasks[l.tasks[i]]
		lease := &l.leases[i]
		lease.Age = seconds(now - l.since[i])
		if s.set.ideal {
			lease.ReserveMiB = t.peak
			if t.phase == training {
				lease.ReserveMiB = t.steady
			}
		}
		if len(l.leases) == 1 && t.phase >= growing && now-t.appeared >= s.set.WindowS {
			lease.AlonePct = l.reading.SMActPct
		}
		if lease.Seen {
			continue
		}
		if t.phase >= growing {
			if seen := s.tick(t.appeared); seen <= now {
				lease.Seen = true
				continue
			} else {
				next = min(next, seen)
			}
		}
		if settled := l.since[i] + s.set.Thresholds.Settle.Seconds(); settled > now {
			next = min(next, settled)
		}
	}
	return next
}

// tick is the agent's first sample at or after at.
func (s *slurm) tick(at float64) float64 {
	if s.set.ideal {
		return at
	}
	sample := s.set.Model.Slurm.SampleS
	return math.Ceil(at/sample-1e-9) * sample
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// acquire is a Prolog's look at the ledger; false: no choice of GPUs fits.
func (s *slurm) acquire(task, id int32) bool {
	n := &s.nodes[id]
	b, t := &s.bookings[task], &s.m.tasks[task]
	s.lookAll(id)
	r := gres.Request{
		JobID: uint32(task) + 1, GPUs: t.job.GPUs, ReserveMiB: b.reserveMiB, Exclusive: b.exclusive, SMActPct: b.smactPct,
		UID: t.user,
	}
	if b.estMiB > 0 && !b.exclusive {
		r.MarginMiB = s.set.Thresholds.MarginMiB
	}
	d := choose.GPUs(s.set.Policy, choose.Input{Readings: s.readings, Leases: s.leases, Request: r,
		Thresholds: s.set.Thresholds, Last: n.last})
	if s.others[task] = d.UUIDs == nil && d.Uncounted(); d.UUIDs == nil {
		return false
	}
	s.lease(task, id, d.UUIDs, d.Daemon)
	return true
}

// lookAll fills in readings and leases of a node as they are now.
func (s *slurm) lookAll(id int32) {
	n := &s.nodes[id]
	s.readings, s.leases = s.readings[:0], s.leases[:0]
	for k := range n.gpus {
		l := &n.gpus[k]
		s.look(id*int32(s.set.GPUs)+int32(k), l)
		s.readings = append(s.readings, l.reading)
		s.leases = append(s.leases, l.leases...)
	}
}

// lease writes the chosen GPUs into the ledger (gres/lease: Acquire) and
// launches the job.
func (s *slurm) lease(task, id int32, uuids []string, daemon gres.Daemon) {
	n := &s.nodes[id]
	b, t := &s.bookings[task], &s.m.tasks[task]
	base := id * int32(s.set.GPUs)
	gpus := make([]int32, 0, len(uuids))
	for _, uuid := range uuids {
		k := slices.IndexFunc(n.gpus, func(l leased) bool { return l.reading.UUID == uuid })
		gpus = append(gpus, base+int32(k))
	}
	n.last = uuids[len(uuids)-1]
	s.dropHold(task)
	if s.counted[task] {
		s.counted[task] = false
		s.again[t.user]--
	}
	reserve := b.reserveMiB
	if b.exclusive {
		reserve = s.m.capacity
	}
	for i, g := range gpus {
		l := s.leased(g)
		l.leases = append(l.leases, gres.Lease{
			Job: jobenv.JobKey{JobID: uint32(task) + 1}, UUID: uuids[i], UID: t.user, ReserveMiB: reserve,
			Exclusive: b.exclusive, SMActPct: b.smactPct, Daemon: daemon,
		})
		l.tasks = append(l.tasks, task)
		l.since = append(l.since, s.m.now)
		s.refresh(g)
	}
	var server int32
	var limit int64
	if daemon != "" {
		server, limit = int32(t.user)+1, reserve // CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
	}
	delay := s.set.Model.Slurm.LaunchS
	if s.set.ideal {
		delay, limit = 0, 0
	}
	s.m.launch(task, gpus, delay, server, limit)
	if s.set.HoldAfterS > 0 && s.set.Queue != FIFO {
		s.started = append(s.started, started{at: s.m.now, task: task})
	}
}
