// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"carma/db"
	"carma/gres"
	"carma/gres/lease"
	"carma/gres/resident"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// readOnly is a slurmctld that answers questions. Whatever else the agent does there fails the test.
type readOnly struct {
	Publisher
	t     *testing.T
	lock  sync.Mutex
	here  map[uint32]sctl.Job
	gpus  map[uint32][]int
	ended map[uint32]sctl.Job
	err   error

	asked, single int // for the jobs of the node, about single jobs
}

func (r *readOnly) OnNode(_ context.Context, node string) (jobs []sctl.Job, err error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.asked++
	for _, j := range r.here {
		jobs = append(jobs, j)
	}
	return jobs, r.err
}

func (r *readOnly) GPUs(_ context.Context, j sctl.Job, node string) ([]int, error) {
	return r.gpus[j.ID], nil
}

func (r *readOnly) Job(_ context.Context, id uint32) (sctl.Job, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.single++
	if j, ok := r.here[id]; ok {
		return j, nil
	}
	if j, ok := r.ended[id]; ok {
		return j, nil
	}
	return sctl.Job{}, sctl.ErrNoJob
}

func (r *readOnly) Describe(ctx context.Context, ids []uint32) (map[uint32]sctl.Description, error) {
	known := map[uint32]sctl.Description{}
	for _, id := range ids {
		if j, err := r.Job(ctx, id); err == nil {
			known[id] = sctl.Description{Job: j, Words: sctl.Words{Name: "train"}}
		}
	}
	return known, nil
}

// end has a job end in slurmctld.
func (r *readOnly) end(id uint32, j sctl.Job) {
	r.lock.Lock()
	defer r.lock.Unlock()
	delete(r.here, id)
	r.ended[id] = j
}

func (r *readOnly) changes() error {
	r.t.Error("an agent that observes has changed something")
	return errors.New("read only")
}

func (r *readOnly) Release(context.Context, sctl.Target) error             { return r.changes() }
func (r *readOnly) SetStart(context.Context, sctl.Target, time.Time) error { return r.changes() }
func (r *readOnly) Notify(context.Context, uint32, string) error           { return r.changes() }
func (r *readOnly) Cancel(context.Context, sctl.Target) error              { return r.changes() }
func (r *readOnly) PublishIf(context.Context, lease.Snapshot) error        { return r.changes() }
func (r *readOnly) SetWords(context.Context, map[string]string) error      { return r.changes() }
func (r *readOnly) SafeStart(context.Context) (time.Duration, error)       { return 0, r.changes() }
func (r *readOnly) CompareIf(context.Context, lease.Snapshot, time.Duration, int) (string, bool, error) {
	return "", false, r.changes()
}

// kept are records.
type kept struct {
	records
	lock sync.Mutex
	all  []db.Attempt
}

func (k *kept) PutLost(_ context.Context, a db.Attempt) error {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.all = append(k.all, a)
	return nil
}

func (k *kept) list() []db.Attempt {
	k.lock.Lock()
	defer k.lock.Unlock()
	return slices.Clone(k.all)
}

// lostAttempt is a record as hooks make it, in a word.
func lostAttempt(_ context.Context, h lease.Held, exit jobenv.Exit, failed bool) db.Attempt {
	a := db.Attempt{JobID: h.JobID, Restart: h.Restart, UID: h.UID, State: db.NodeFail, ExitCode: exit.Code}
	if failed && exit.Code == 77 {
		a.State, a.OOM = "OUT_OF_MEMORY", "pytorch"
	}
	for _, g := range h.GPUs {
		a.GPUs = append(a.GPUs, db.AttemptGPU{UUID: g.UUID, Figures: g.Figures})
	}
	return a
}

// leasesIn are the leases of a ledger, each as the GPU and the job.
func leasesIn(t *testing.T, b *lease.Ledger) (list []string) {
	t.Helper()
	s, err := b.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range s.Leases {
		list = append(list, l.UUID+l.Job.String())
	}
	return list
}

// An agent that observes finds jobs by their processes and by slurmctld's word, writes their records, goes on where an
// earlier agent has stopped, and changes nothing.
func TestObserver(t *testing.T) {
	b, err := lease.Open(t.TempDir(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	started := time.Now().Add(-time.Hour)
	running := func(id uint32) sctl.Job {
		return sctl.Job{ID: id, UID: 1000, State: "RUNNING", Partition: "gpu", NodeList: "n1", Start: started}
	}
	slurm := &readOnly{t: t, here: map[uint32]sctl.Job{7: running(7), 8: running(8), 9: running(9)},
		gpus: map[uint32][]int{7: {0}, 8: {1}}, ended: map[uint32]sctl.Job{}}
	k := &kept{}
	var atFirst []string // in the ledger when systemd hears of a ready agent
	run := func(until func() bool, processes ...gres.Process) {
		t.Helper()
		a := newAgent()
		a.Node, a.RunDir, a.Ledger, a.Records = "n1", t.TempDir(), b, k
		a.Owners = owners{1: {JobID: 7, UID: 1000}, 2: {JobID: 99, UID: 1000}}
		a.Config = a.Config.Observing()
		a.Config.NVML.Interval = config.Duration(10 * time.Millisecond)
		a.Config.Capacity.Compare = config.Duration(time.Millisecond)
		a.Config.Idle.After = config.Duration(time.Millisecond)
		a.Jobs, a.Users, a.Publisher = slurm, slurm, slurm
		a.Ends = &Ends{Node: "n1", Config: &a.Config, Ledger: b, Jobs: slurm, Records: k, Log: a.Log}
		a.Observer = &Observer{Node: "n1", Cluster: "c", Ledger: b, Jobs: slurm, Found: slurm, Nodes: alone,
			Records: k, Record: lostAttempt, User: func(uint32) string { return "alice" }, Log: a.Log,
			Present: func() []uint32 { return nil }}
		a.Sample = func() []gres.Sample {
			s, other := sample(processes...), sample()
			other.UUID, other.Minor = "b", 1
			s.EnergyJ, other.EnergyJ = 100, 100
			return []gres.Sample{s, other}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		atFirst = nil
		a.Alive = sync.OnceFunc(func() {
			s, err := b.Snapshot(context.WithoutCancel(ctx))
			for _, l := range s.Leases {
				atFirst = append(atFirst, l.UUID+l.Job.String())
			}
			for _, r := range s.Readings {
				atFirst = append(atFirst, fmt.Sprintf("%s: %d of nobody", r.UUID, r.Foreign))
			}
			if err != nil {
				t.Error(err)
			}
		})
		go func() { ended <- a.Run(ctx) }()
		for start := time.Now(); !until(); time.Sleep(10 * time.Millisecond) {
			if time.Since(start) > time.Minute {
				t.Fatal("not so after a minute")
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	held := func() []string { return leasesIn(t, b) }
	measured := func() bool {
		h, _, err := b.Find(t.Context(), jobenv.JobKey{JobID: 7})
		return err == nil && len(h.GPUs) == 1 && h.GPUs[0].PeakMiB == 500
	}
	run(func() bool { return slices.Equal(held(), []string{"a7", "b8"}) && measured() },
		gres.Process{PID: 1, UsedMiB: 500},
		gres.Process{PID: 2, UsedMiB: 50})
	// Not a moment later: a new administrator calls carma-node status first.
	if want := []string{"a7", "b8", "a: 1 of nobody", "b: 0 of nobody"}; !slices.Equal(atFirst, want) {
		t.Errorf("ready with %q, want %q", atFirst, want)
	}
	if h, _, err := b.Find(t.Context(), jobenv.JobKey{JobID: 7}); err != nil || !strings.Contains(string(h.About), `"alice"`) ||
		h.GPUs[0].ReserveMiB != 40536 {
		t.Errorf("in the ledger: %+v %s, %v", h, h.About, err)
	}
	// One ends while no agent runs.
	gone := running(7)
	gone.State, gone.End, gone.ExitCode = "FAILED", time.Now(), 3
	slurm.end(7, gone)
	run(func() bool { return len(k.list()) == 1 && slices.Equal(held(), []string{"b8"}) })
	a := k.list()[0]
	if a.JobID != 7 || a.State != "FAILED" || a.ExitCode != 3 || !a.Start.Equal(gone.Start) || !a.End.Equal(gone.End) ||
		!strings.HasPrefix(a.OOMNote, "its figures begin 1h0m0s after its start") {
		t.Errorf("record %+v", a)
	}
	if len(a.GPUs) != 1 || a.GPUs[0].PeakMiB != 500 {
		t.Errorf("figures %+v", a.GPUs)
	}
}

// A look asks slurmctld for all jobs rarely, and about a job whose processes have come or gone soon.
func TestObserverAsks(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     Observer
		since time.Duration
		due   bool
	}{
		{"lately", Observer{}, 9 * time.Second, false},
		{"long ago", Observer{}, 10 * time.Second, true},
		{"jobs are left", Observer{more: true}, 2 * time.Second, true},
		{"jobs are left, a moment ago", Observer{more: true}, time.Second, false},
		{"jobs are left, slurmctld took its time", Observer{more: true, took: time.Second}, 19 * time.Second, false},
		{"slurmctld takes its time", Observer{took: time.Second}, 99 * time.Second, false},
		{"slurmctld took its time", Observer{took: time.Second}, 100 * time.Second, true},
	} {
		c.o.asked = time.Hour
		if got := c.o.due(time.Hour + c.since); got != c.due {
			t.Errorf("all jobs, %s: %v", c.name, got)
		}
	}
	if !(&Observer{}).due(time.Second) {
		t.Error("the first look asks nothing")
	}

	presences := func(owner resident.Owner) map[presence]struct{} { return map[presence]struct{}{{owner, "a"}: {}} }
	one, claimed := presences(resident.Owner{JobID: 7}), presences(resident.Owner{JobID: 7, Claimed: true})
	for _, c := range []struct {
		name         string
		before, seen map[presence]struct{}
		met          bool
		took, since  time.Duration
		due          bool
		failed       bool
	}{
		{name: "nothing new", before: one, seen: one, met: true, since: time.Hour},
		{name: "a new job, no answer", seen: one, took: 10 * time.Second, since: 19 * time.Second, failed: true},
		{name: "a new job, no answer before", seen: one, took: 10 * time.Second, since: 20 * time.Second, failed: true,
			due: true},
		{"a new job", nil, one, false, 0, 0, true, false},
		{"a new job, slurmctld takes its time", nil, one, false, time.Second, 0, true, false},
		{"a claim", nil, claimed, false, 0, time.Second, false, false},
		{"a claim, later", nil, claimed, false, 0, 2 * time.Second, true, false},
		{"a job comes to a GPU", nil, one, true, 0, time.Second, false, false},
		{"a job came to a GPU", nil, one, true, 0, 2 * time.Second, true, false},
		{"a job leaves", one, nil, true, 0, time.Second, false, false},
		{"a job left", one, nil, true, 0, 2 * time.Second, true, false},
		{"a job left, slurmctld takes its time", one, nil, true, time.Second, 19 * time.Second, false, false},
		{"a job left, slurmctld took its time", one, nil, true, time.Second, 20 * time.Second, true, false},
	} {
		s := singles{asked: time.Hour, took: c.took, failed: c.failed}
		s.note(time.Hour, nil, nil, nil)
		if c.met {
			s.met[7] = struct{}{}
		}
		s.note(time.Hour, c.before, c.seen, nil)
		if got := s.due(time.Hour + c.since); len(got) > 0 != c.due {
			t.Errorf("one job, %s: %v", c.name, got)
		}
	}
}

// Cgroups of jobs that come and go cost few questions: none at the first look, none beside a new job's on a GPU, none
// about a job that an answer has named or that had no GPU and has gone.
func TestObserverAsksAboutCgroups(t *testing.T) {
	s := singles{asked: time.Hour}
	s.note(time.Hour, nil, nil, nil)
	leases := []gres.Lease{{UUID: "a", Job: jobenv.JobKey{JobID: 7}}}
	due := func(after time.Duration, want ...uint32) {
		t.Helper()
		got := s.due(time.Hour + after)
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			t.Errorf("after %v: asks about %v, want %v", after, got, want)
		}
	}
	s.notePresent(time.Hour, []uint32{7, 8}, leases)
	due(time.Hour)
	s.notePresent(time.Hour, []uint32{7, 8, 9}, leases)
	due(time.Second)
	due(2*time.Second, 9)
	s.took = time.Second
	due(19 * time.Second)
	s.note(time.Hour, nil, map[presence]struct{}{{resident.Owner{JobID: 10}, "b"}: {}}, leases)
	due(19*time.Second, 10)
	due(20*time.Second, 9, 10)
	s.answered(10, time.Hour+observeGap)
	s.answered(9, time.Hour+observeGap)
	s.notePresent(time.Hour, []uint32{11}, leases)
	due(20*time.Second, 7, 11)
	s.answeredAll(nil, time.Hour+observeGap)
	due(20 * time.Second)
}

// longAgo lets slurmctld be asked again, however long the last answers took.
func (s *singles) longAgo() { s.asked, s.took = s.asked-observeGap, 0 }

// Where slurmctld takes long to tell of all jobs, each job that comes to a GPU is asked about alone: a short job has a
// record, of the job's own end and not of the next job on the GPU.
func TestObserverFindsShortJobs(t *testing.T) {
	b, err := lease.Open(t.TempDir(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	slurm, k := &readOnly{t: t, here: map[uint32]sctl.Job{}, ended: map[uint32]sctl.Job{}}, &kept{}
	o := &Observer{Node: "n1", Cluster: "c", Ledger: b, Jobs: slurm, Found: slurm, Nodes: alone, Records: k,
		Record: lostAttempt,
		User:   func(uint32) string { return "alice" }, Log: newAgent().Log, Present: func() []uint32 { return nil }}
	look := func(job uint32) []string {
		t.Helper()
		s, err := b.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		v := view{samples: []gres.Sample{sample()}, snapshot: s, owners: owners{1: {JobID: job, UID: 1000}}}
		if job != 0 {
			v.samples = []gres.Sample{sample(gres.Process{PID: 1})}
		}
		o.look(t.Context(), v)
		return leasesIn(t, b)
	}
	look(0)
	o.took = time.Hour
	for id := uint32(7); id < 10; id++ {
		j := sctl.Job{ID: id, UID: 1000, State: "RUNNING", Partition: "gpu", NodeList: "n1", Start: time.Now()}
		slurm.here[id] = j
		if held, want := look(id), []string{fmt.Sprint("a", id)}; !slices.Equal(held, want) {
			t.Errorf("the ledger has %q, want %q", held, want)
		}
		look(0) // and slurmctld has not heard of the end
		o.single.longAgo()
		look(0)
		j.State, j.End = "COMPLETED", time.Now()
		slurm.end(id, j)
	}
	// Job 10 ends before slurmctld is asked; job 11 has ended before a process came to a GPU.
	late := time.Now().Add(time.Hour) // as soon as can be, on any machine
	slurm.end(10, sctl.Job{ID: 10, UID: 1000, State: "FAILED", ExitCode: 3, NodeList: "n1", End: late})
	slurm.end(11, sctl.Job{ID: 11, UID: 1000, State: "COMPLETED", NodeList: "n1", End: time.Now().Add(-time.Minute)})
	look(10)
	look(11)
	look(0)
	o.single.longAgo()
	for id := range o.single.changed {
		o.single.changed[id] -= observeGap
	}
	if held := look(0); held != nil || len(o.single.changed) > 0 {
		t.Errorf("the ledger has %q, to be asked about are %v", held, o.single.changed)
	}
	var ended []string
	for _, a := range k.list() {
		ended = append(ended, fmt.Sprint(a.JobID, " ", a.State))
	}
	want := []string{"7 COMPLETED", "8 COMPLETED", "10 FAILED", "9 COMPLETED"}
	if !slices.Equal(ended, want) || slurm.asked != 1 {
		t.Errorf("records %q, want %q; asked %d times for all jobs", ended, want, slurm.asked)
	}
}

// Where slurmctld takes long to tell of all jobs, the cgroup of a job that uses no GPU tells that the job is there, and
// that the job has gone.
func TestObserverFindsIdleJobs(t *testing.T) {
	b, err := lease.Open(t.TempDir(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	idle := sctl.Job{ID: 7, UID: 1000, State: "RUNNING", Partition: "gpu", NodeList: "n1", Start: time.Now()}
	elsewhere := sctl.Job{ID: 8, UID: 1000, State: "RUNNING", Partition: "gpu", NodeList: "n2", Start: time.Now()}
	slurm := &readOnly{t: t, here: map[uint32]sctl.Job{}, ended: map[uint32]sctl.Job{}, gpus: map[uint32][]int{7: {0}}}
	k, present := &kept{}, []uint32(nil)
	o := &Observer{Node: "n1", Cluster: "c", Ledger: b, Jobs: slurm, Found: slurm, Nodes: alone, Records: k,
		Record: lostAttempt,
		User:   func(uint32) string { return "alice" }, Log: newAgent().Log, Present: func() []uint32 { return present }}
	look := func() []string {
		t.Helper()
		for range 2 { // what has changed in the first look is asked about in the second
			s, err := b.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			o.look(t.Context(), view{samples: []gres.Sample{sample()}, snapshot: s, owners: owners{}})
			o.single.longAgo()
		}
		return leasesIn(t, b)
	}
	look()
	o.took, slurm.here[7], slurm.here[8], present = time.Hour, idle, elsewhere, []uint32{7, 8}
	if held := look(); !slices.Equal(held, []string{"a7"}) {
		t.Errorf("the job has come: the ledger has %q", held)
	}
	idle.State, idle.End = "COMPLETED", time.Now()
	slurm.end(7, idle)
	present = []uint32{8}
	if held := look(); held != nil || len(k.list()) != 1 || slurm.asked != 1 {
		t.Errorf("the job has gone: the ledger has %q, records %+v; asked %d times for all jobs", held, k.list(), slurm.asked)
	}
}

// slurmctld gives a whole GPU to one job at a time: the job before has ended there, also where its end was not asked
// for, and is no neighbour of the next. A job that slurmctld has on the node stays.
func TestObserverEndsTheJobBefore(t *testing.T) {
	for _, c := range []struct {
		runs          bool // the jobs before, in slurmctld
		before, ended int
	}{
		{false, 1, 1},
		{true, 1, 0},
		{false, observedAtOnce + 5, observedAtOnce},
	} {
		b, err := lease.Open(t.TempDir(), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		running := func(id uint32) sctl.Job {
			return sctl.Job{ID: id, UID: 1000, State: "RUNNING", Partition: "gpu", NodeList: "n1", Start: time.Now()}
		}
		slurm := &readOnly{t: t, here: map[uint32]sctl.Job{}, ended: map[uint32]sctl.Job{}, gpus: map[uint32][]int{100: {0}}}
		var present []uint32
		for id := range uint32(c.before) {
			slurm.here[id+1], slurm.gpus[id+1] = running(id+1), []int{0}
			present = append(present, id+1)
		}
		k := &kept{}
		o := &Observer{Node: "n1", Cluster: "c", Ledger: b, Jobs: slurm, Found: slurm, Nodes: alone, Records: k,
			Record: lostAttempt,
			User:   func(uint32) string { return "alice" }, Log: newAgent().Log, Present: func() []uint32 { return present }}
		look := func() []string {
			t.Helper()
			s, err := b.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			o.look(t.Context(), view{samples: []gres.Sample{sample()}, snapshot: s, owners: owners{}})
			return leasesIn(t, b)
		}
		for len(leasesIn(t, b)) != c.before {
			o.asked -= observeEvery // a look takes in some of many jobs
			look()
		}
		slurm.asked, slurm.single = 0, 0
		for id := range slurm.here {
			if !c.runs {
				j := running(id)
				j.State, j.End = "FAILED", time.Now()
				slurm.end(id, j)
			}
		}
		o.took, slurm.here[100], present = time.Hour, running(100), append(present, 100) // slurmstepds are slow to end
		o.single.longAgo()
		held, questions := look(), 1+min(c.before, observedAtOnce)
		if len(held) != c.before-c.ended+1 || !slices.Contains(held, "a100") || len(k.list()) != c.ended ||
			slurm.asked != 0 || slurm.single != questions || o.more != (c.before > observedAtOnce) {
			t.Errorf("%+v: the ledger has %q; records %+v; asked %d times for all jobs, %d times about one, more: %v",
				c, held, k.list(), slurm.asked, slurm.single, o.more)
		}
	}
}

func TestObserverRecord(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	began := now.Add(-time.Minute)
	for _, c := range []struct {
		name  string
		job   sctl.Job
		state string
		end   time.Time
		code  int
	}{
		{"ended well", sctl.Job{State: "COMPLETED", End: now.Add(-5 * time.Second)}, "COMPLETED",
			now.Add(-5 * time.Second), 0},
		{"failed", sctl.Job{State: "FAILED", ExitCode: 2, End: now.Add(-time.Second)}, "FAILED", now.Add(-time.Second), 2},
		{"out of GPU memory", sctl.Job{State: "FAILED", ExitCode: 77}, "OUT_OF_MEMORY", now, 77},
		{"cancelled", sctl.Job{State: "CANCELLED", ExitCode: 77}, "CANCELLED", now, 77},
		{"completing", sctl.Job{State: "COMPLETING", End: now.Add(-time.Second)}, "COMPLETED", now.Add(-time.Second), 0},
		{"completing, failed", sctl.Job{State: "COMPLETING", ExitCode: 1}, "FAILED", now, 1},
		{"was requeued", sctl.Job{State: "RUNNING", Restarts: 1, End: now.Add(time.Hour), ExitCode: 9}, "REQUEUED", now, 0},
		{"another user's by now", sctl.Job{State: "COMPLETED", UID: 5, ExitCode: 9}, "NODE_FAIL", now, 0},
		{"not known any more", sctl.Job{}, "NODE_FAIL", now, 0},
		{"by another clock", sctl.Job{State: "COMPLETED", End: now.Add(time.Minute)}, "COMPLETED", now, 0},
	} {
		held := lease.Held{Age: 50 * time.Second}
		held.JobID, held.UID = 7, 1000
		held.About = []byte(`{"Start":"` + began.UTC().Format(time.RFC3339) + `"}`)
		c.job.ID = 7
		if c.job.UID == 0 {
			c.job.UID = 1000
		}
		a := (&Observer{Record: lostAttempt}).record(t.Context(), held, c.job, now)
		if a.State != c.state || !a.End.Equal(c.end) || a.ExitCode != c.code || !a.Start.Equal(began) || a.OOMNote != "" {
			t.Errorf("%s: %+v", c.name, a)
		}
	}
}

// counting counts the snapshots of a ledger.
type counting struct {
	*lease.Ledger
	snapshots int
}

func (c *counting) Snapshot(ctx context.Context) (lease.Snapshot, error) {
	c.snapshots++
	return c.Ledger.Snapshot(ctx)
}

// An agent that observes reads the whole ledger at the first look alone, and measures the jobs at each.
func TestLooksOfAnObserver(t *testing.T) {
	c := &counting{Ledger: book(t, 7)}
	a := newAgent()
	a.Observer, a.Ledger, a.Owners, a.Records = &Observer{}, c, owners{1: {JobID: 7}}, &records{}
	for look := range 3 {
		a.Sample = func() []gres.Sample { return []gres.Sample{sample(gres.Process{PID: 1, UsedMiB: int64(10 + look)})} }
		if _, ok := a.read(t.Context()); !ok {
			t.Fatal("no look")
		}
	}
	held, ok, err := c.Find(t.Context(), jobenv.JobKey{JobID: 7})
	if err != nil || !ok || held.GPUs[0].PeakMiB != 12 || c.snapshots != 1 {
		t.Errorf("%d times all, %+v, %v, %v", c.snapshots, held.GPUs, ok, err)
	}
}

// The cost of all observing agents for slurmctld is bounded: the answer to squeue --nodelist is packed from all jobs of
// the cluster. An agent without an answer asks again soon.
func TestObserversTogether(t *testing.T) {
	for _, c := range []struct {
		nodes  int
		took   time.Duration
		failed bool
		want   time.Duration
	}{{0, time.Second, false, 100 * time.Second}, {1, 10 * time.Millisecond, false, observeEvery},
		{1000, 500 * time.Millisecond, false, 1000 * time.Second}, {5000, time.Millisecond, false, observeEvery},
		{1000, 30 * time.Millisecond, false, time.Minute}, {1000, time.Minute, false, observeRarest},
		{1000, 2 * time.Minute, true, 4 * time.Minute}, {1000, time.Second, true, observeEvery},
	} {
		o := &Observer{nodes: c.nodes, asked: time.Second, took: c.took, failed: c.failed}
		if now := time.Second + c.want; o.due(now-time.Millisecond) || !o.due(now) {
			t.Errorf("%+v: asks otherwise", c)
		}
	}
}

// A question without an answer is known to have none, and the number of nodes and the cluster's name are asked until
// slurmctld tells.
func TestObserverAsksAgain(t *testing.T) {
	b, err := lease.Open(t.TempDir(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	slurm, told := &readOnly{t: t, err: errors.New("squeue: timed out")}, 0
	named := 0
	o := &Observer{Node: "n1", Ledger: b, Found: slurm, Log: newAgent().Log,
		Named: func(context.Context) (string, error) {
			if named++; named == 1 {
				return "", errors.New("no answer")
			}
			return "c", nil
		},
		Nodes: func(context.Context) (int, error) {
			if told++; told == 1 {
				return 0, errors.New("no answer")
			}
			return 1000, nil
		}}
	if err := o.askAll(t.Context(), time.Second, nil); err == nil || !o.failed || told != 0 {
		t.Errorf("%v, failed %v, %d questions for nodes", err, o.failed, told)
	}
	slurm.err = nil
	for i, nodes := range []int{0, 1000, 1000} {
		if err := o.askAll(t.Context(), time.Second, nil); err != nil || o.failed || o.nodes != nodes {
			t.Errorf("look %d: %v, failed %v, %d nodes", i, err, o.failed, o.nodes)
		}
	}
	if told != 2 || named != 2 || o.Cluster != "c" {
		t.Errorf("%d questions for nodes, %d for the cluster %q", told, named, o.Cluster)
	}
}

// alone is a cluster of a single node.
func alone(context.Context) (int, error) { return 1, nil }
