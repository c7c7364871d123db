// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/gres"
	"carma/gres/confine"
	"carma/gres/lease"
	"carma/gres/resident"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// owners is a table of processes.
type owners map[int]resident.Owner

func (o owners) Owner(pid int) resident.Owner {
	if owner, ok := o[pid]; ok {
		return owner
	}
	return resident.Owner{Gone: true}
}

func (o owners) Stepds() (map[uint32]bool, error) { return map[uint32]bool{50: true}, nil }

func sample(processes ...gres.Process) gres.Sample {
	return gres.Sample{GPU: gres.GPU{UUID: "a", TotalMiB: 40536}, UsedMiB: 100, Source: figure.SourceGPM,
		Processes: processes}
}

func held(id, uid uint32) gres.Lease {
	return gres.Lease{Job: jobenv.JobKey{JobID: id}, UUID: "a", UID: uid}
}

func TestReadingCountsForeignProcesses(t *testing.T) {
	o := owners{
		1: {JobID: 7, UID: 1000},
		2: {JobID: 8, UID: 1000}, // a job without a lease here
		3: {UID: 1000, MPSServer: true},
		4: {UID: 1000},
		5: {JobID: 7, UID: 1000, Claimed: true},
		6: {JobID: 7, UID: 2000, Claimed: true}, // of another user than the job's
		7: {JobID: 7, UID: 2000},                // so too
		8: {JobID: 7},                           // root's, started by the job
		9: {JobID: 7, Claimed: true},            // root's, which only says so
	}
	leases := []gres.Lease{held(7, 1000)}
	for pid, want := range map[int]int{1: 0, 2: 1, 3: 0, 4: 1, 5: 0, 6: 1, 7: 1, 8: 0, 9: 1, 99: 0} {
		s := sample(gres.Process{PID: pid, UsedMiB: 500})
		r := Reading(s, leases, o)
		if r.Foreign != want {
			t.Errorf("process %d: %d foreign, want %d", pid, r.Foreign, want)
		}
		// What is foreign is neither credited to the job nor held against it.
		a := newAgent()
		a.Owners = o
		wire(a)
		ofJob := want == 0 && !o.Owner(pid).MPSServer && !o.Owner(pid).Gone
		if u := a.account(s, leases, o, lease.Now()); u[0].Present != ofJob || (u[0].UsedMiB == 500) != ofJob {
			t.Errorf("process %d: the job's usage %+v", pid, u)
		}
		if p, ok := a.process(pid, s.UUID, leases); ok != ofJob {
			t.Errorf("process %d: its output is watched for the job: %v %+v", pid, ok, p)
		}
	}
}

func newAgent() *Agent {
	c := config.Default()
	c.Partition = map[string]config.Partition{"gpu": {}}
	return &Agent{Config: c, Log: slog.New(slog.DiscardHandler), gpus: map[string]*gpuState{},
		Unlimited: errors.New("no driver")}
}

// wire makes the agent's parts of what it has, as cmd/carma-node does.
func wire(a *Agent) {
	l, _ := a.Ledger.(interface {
		Ledger
		Pending
		Holds
		Finished
	})
	j, _ := a.Jobs.(interface {
		ReturnedJobs
		EndedJobs
	})
	places, _ := a.Jobs.(Places)
	end, _ := a.Records.(Completing)
	a.Returned = &Returned{Ledger: l, Jobs: j, Log: a.Log}
	a.Offers = &Offers{Config: &a.Config, Thresholds: a.Thresholds, Ledger: l, Jobs: places, Own: a.Publisher,
		Returned: a.Returned, Node: a.Node, Log: a.Log}
	a.Ends = &Ends{Node: a.Node, Config: &a.Config, Ledger: l, Jobs: j, Records: end, Log: a.Log}
	a.Confinement = &Confinement{RunDir: a.RunDir, Ledger: a.Ledger, Jobs: a.Jobs, Owners: a.Owners, Log: a.Log,
		Guard: func() (confine.Guard, error) { return nil, nil }}
}

// jobs answers for slurmctld and keeps what it was asked to do.
type jobs struct {
	known   map[uint32]sctl.Job
	words   sctl.Words
	err     error
	asked   int
	version sctl.Version
	starts  map[string]time.Time
	may     sctl.Job // from when on a known one may start
	away    bool     // the known ones may run on other nodes alone

	released []string
}

func (j *jobs) Job(_ context.Context, id uint32) (sctl.Job, error) {
	j.asked++
	if job, ok := j.known[id]; ok || j.err != nil {
		job.Partition = cmp.Or(job.Partition, "gpu")
		job.Eligible, job.Restarts, job.Submitted = j.may.Eligible, max(job.Restarts, j.may.Restarts), j.may.Submitted
		return job, j.err
	}
	return sctl.Job{}, sctl.ErrNoJob
}

func (j *jobs) MayRun(context.Context, uint32, string) (bool, error) { return !j.away, j.err }

func (j *jobs) Describe(ctx context.Context, ids []uint32) (map[uint32]sctl.Description, error) {
	asked, known := j.asked+1, map[uint32]sctl.Description{}
	for _, id := range ids {
		if job, err := j.Job(ctx, id); err == nil {
			known[id] = sctl.Description{Job: job, Words: j.words}
		}
	}
	j.asked = asked
	return known, j.err
}

func (j *jobs) Release(_ context.Context, t sctl.Target) error {
	j.released = append(j.released, t.String())
	return j.err
}

func (j *jobs) SetStart(_ context.Context, t sctl.Target, at time.Time) error {
	j.starts[t.String()] = at
	return nil
}

func (j *jobs) SafeStart(context.Context) (time.Duration, error) {
	return sctl.SafeAfter(j.version, 120*time.Second), nil
}

// ledger keeps what was released and dropped.
type ledger struct {
	Ledger
	released, dropped []uint32
	gone              bool // what is asked for has ended
	list              []lease.Ended
	ended             int
	lock              sync.Mutex // of calls
	calls             []string   // of Guard
	meanwhile         lease.Snapshot
	measured          []gres.Reading
	err               error // of SetFault
	known             bool  // the fault
	victims           []uint32
}

func (l *ledger) EndedSince(context.Context, time.Duration) ([]lease.Ended, error) { return nil, nil }

func (l *ledger) Measure(_ context.Context, readings []gres.Reading, _ []lease.Usage) error {
	l.measured = readings
	return nil
}

func (l *ledger) note(format string, args ...any) error {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.calls = append(l.calls, fmt.Sprintf(format, args...))
	return nil
}

func (l *ledger) Snapshot(context.Context) (lease.Snapshot, error) {
	return l.meanwhile, nil
}

func (l *ledger) Hold(_ context.Context, job, uid uint32, gpus int, mib int64, uuids []string) error {
	return l.note("hold %d MiB of %v for %d GPUs of %d of %d", mib, uuids, gpus, job, uid)
}
func (l *ledger) OpenHold(_ context.Context, job uint32, in time.Duration) error {
	return l.note("open %d in %s", job, in.Round(time.Second))
}
func (l *ledger) DropHold(_ context.Context, job uint32) error { return l.note("drop %d", job) }
func (l *ledger) Readmit(_ context.Context, uuid string) error { return l.note("readmit %s", uuid) }
func (l *ledger) Quarantine(_ context.Context, uuid, reason string) ([]uint32, error) {
	return []uint32{1}, l.note("quarantine %s: %s", uuid, reason)
}

func (l *ledger) FiguresOf(context.Context, jobenv.JobKey) (map[string]figure.Figures, error) {
	return map[string]figure.Figures{"a": {PeakMiB: 7}}, nil
}

func (l *ledger) Ended(_ context.Context, n int) ([]lease.Ended, error) {
	return l.list[:min(n, len(l.list))], nil
}

func (l *ledger) DropEnded(context.Context, jobenv.JobKey) error {
	l.ended++
	return nil
}

func (l *ledger) Find(_ context.Context, key jobenv.JobKey) (lease.Held, bool, error) {
	return lease.Held{Job: lease.Job{JobKey: key}}, !l.gone, nil
}

func (l *ledger) Release(_ context.Context, key jobenv.JobKey) error {
	l.released = append(l.released, key.JobID)
	return nil
}

func (l *ledger) DropPerhapsHeld(_ context.Context, key jobenv.JobKey) error {
	return l.note("not held %d.%d", key.JobID, key.Restart)
}

func (l *ledger) DropPendingRestart(_ context.Context, job uint32) error {
	l.dropped = append(l.dropped, job)
	return nil
}

func TestReapAsksSlurmctldLast(t *testing.T) {
	l := &ledger{}
	a := newAgent()
	a.RunDir, a.Ledger, a.Owners = t.TempDir(), l, owners{}
	wire(a)
	r := &records{}
	a.Node, a.Records = "n1", r
	a.Lost = func(h lease.Held) db.Attempt { return db.Attempt{JobID: h.JobID} }
	a.Jobs = &jobs{known: map[uint32]sctl.Job{51: {State: "RUNNING"}, 52: {State: "COMPLETED"}, 53: {State: "PENDING"},
		56: {State: "RUNNING", NodeList: "n[2-3]"}, 57: {State: "RUNNING", NodeList: "n[1-3]"},
		58: {State: "RUNNING", NodeList: "n1", Restarts: 1},
		59: {State: "COMPLETING", NodeList: "n1", Restarts: 1}, 60: {State: "COMPLETING", NodeList: "n2"}}}
	wire(a)
	var s lease.Snapshot
	for id, age := range map[uint32]time.Duration{
		50: 2 * time.Minute, // has a slurmstepd
		51: 2 * time.Minute, // salloc: none, but slurmctld knows it
		52: 2 * time.Minute,
		53: 2 * time.Minute, // requeued
		54: 2 * time.Minute, // forgotten
		55: time.Second,     // in its Prolog
		56: 2 * time.Minute, // runs elsewhere
		57: 2 * time.Minute,
		58: 2 * time.Minute, // a later attempt runs here
		59: 2 * time.Minute, // was requeued, and completes
		60: 2 * time.Minute, // completes elsewhere
	} {
		for _, uuid := range []string{"a", "b"} {
			s.Leases = append(s.Leases, gres.Lease{Job: jobenv.JobKey{JobID: id}, UUID: uuid, Age: age})
		}
	}
	output := func(job string) string { return filepath.Join(a.RunDir, "jobs", job+".0.stderr") }
	if err := os.MkdirAll(filepath.Dir(output("54")), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, job := range []string{"51", "54"} {
		if err := os.WriteFile(output(job), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a.reap(t.Context(), nil, s)
	for job, kept := range map[string]bool{"51": true, "54": false} { // a later job of the id is judged by its own
		if _, err := os.Stat(output(job)); (err == nil) != kept {
			t.Errorf("where job %s wrote its errors: %v", job, err)
		}
	}
	slices.Sort(l.released)
	want := []uint32{52, 53, 54, 56, 58, 60}
	if !slices.Equal(l.released, want) {
		t.Errorf("released %v", l.released)
	}
	if slices.Sort(r.lost); !slices.Equal(r.lost, want) {
		t.Errorf("records of %v", r.lost)
	}
}

func TestSetStarts(t *testing.T) {
	for _, c := range []struct {
		name    string
		version sctl.Version
		job     sctl.Job
		age     time.Duration
		delay   time.Duration
		start   time.Duration // from now; 0: not set
		dropped bool
	}{
		{"lifted from 23.02 on", sctl.Version{Major: 23, Minor: 2}, sctl.Job{ID: 1, State: "PENDING", Reason: "BeginTime"},
			0, 0, 2 * time.Second, true},
		{"made longer up to 22.05", sctl.Version{Major: 22, Minor: 5, Micro: 8},
			sctl.Job{ID: 1, State: "PENDING", Reason: "BeginTime"}, 0, 0, 125 * time.Second, true},
		{"backs off no longer than is safe", sctl.Version{Major: 22, Minor: 5}, sctl.Job{ID: 1, State: "PENDING"},
			time.Second, 80 * time.Second, 125 * time.Second, true},
		{"backs off since it was returned to the queue", sctl.Version{Major: 22, Minor: 5}, sctl.Job{ID: 1, State: "PENDING"},
			time.Minute, 15 * time.Minute, 14 * time.Minute, true},
		{"without a reason yet", sctl.Version{Major: 22, Minor: 5}, sctl.Job{ID: 1, State: "PENDING", Reason: "None"}, 0, 0,
			125 * time.Second, true},
		{"with the reason of its last run", sctl.Version{Major: 22, Minor: 5},
			sctl.Job{ID: 1, State: "PENDING", Reason: "Prolog"}, 0, 0, 125 * time.Second, true},
		{"still completing", sctl.Version{Major: 25, Minor: 11}, sctl.Job{ID: 1, State: "COMPLETING"}, 0, 0, 0, false},
		{"completing for ever", sctl.Version{Major: 25, Minor: 11}, sctl.Job{ID: 1, State: "COMPLETING"}, time.Hour, 0, 0,
			true},
		{"running again", sctl.Version{Major: 25, Minor: 11}, sctl.Job{ID: 1, State: "RUNNING"}, 0, 0, 0, true},
		{"gone", sctl.Version{Major: 25, Minor: 11}, sctl.Job{ID: 9}, 0, 0, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := &ledger{}
			j := &jobs{known: map[uint32]sctl.Job{c.job.ID: c.job}, version: c.version, starts: map[string]time.Time{}}
			a := newAgent()
			a.Ledger, a.Jobs = l, j
			wire(a)
			a.Returned.setStarts(t.Context(), []lease.PendingRestart{{JobID: 1, Age: c.age, Delay: c.delay}})
			at, set := j.starts["1"]
			if set != (c.start != 0) || set && time.Until(at.Add(-c.start)).Abs() > 10*time.Second {
				t.Errorf("start %v (set %v)", at, set)
			}
			if (len(l.dropped) == 1) != c.dropped {
				t.Errorf("dropped %v", l.dropped)
			}
		})
	}
}

// A returned job that still waits is changed once more when its start has come.
func TestWakeScheduler(t *testing.T) {
	ctx := t.Context()
	for _, c := range []struct {
		name     string
		job      sctl.Job // when its start has come
		het      uint32
		eligible time.Duration // from now
		woken    bool
	}{
		{"waits", sctl.Job{State: "PENDING"}, 1, -time.Second, true},
		{"its user lets it start later", sctl.Job{State: "PENDING"}, 1, time.Hour, false},
		{"runs", sctl.Job{State: "RUNNING"}, 1, -time.Second, false},
		{"not heterogeneous", sctl.Job{State: "PENDING"}, 0, -time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := &jobs{known: map[uint32]sctl.Job{}, version: sctl.Version{Major: 25, Minor: 11}, starts: map[string]time.Time{}}
			j.known[1] = sctl.Job{ID: 1, State: "PENDING", HetJobID: c.het}
			a := newAgent()
			a.Ledger, a.Jobs = &ledger{}, j
			wire(a)
			a.Returned.setStarts(ctx, []lease.PendingRestart{{JobID: 1}})
			if len(j.starts) != 1 || len(a.Returned.starts) != 1 {
				t.Fatalf("set %v, remembered %v", j.starts, a.Returned.starts)
			}
			clear(j.starts)
			a.Returned.wakeScheduler(ctx)
			if len(j.starts) != 0 {
				t.Errorf("woken before its start: %v", j.starts)
			}
			for i := range a.Returned.starts {
				a.Returned.starts[i].due = time.Now().Add(-time.Minute)
			}
			c.job.ID, c.job.HetJobID, j.may.Eligible = 1, c.het, time.Now().Add(c.eligible)
			j.known[1] = c.job
			a.Returned.wakeScheduler(ctx)
			if woken := len(j.starts) == 1; woken != c.woken || len(a.Returned.starts) != 0 {
				t.Errorf("woken %v, remembered %v", woken, a.Returned.starts)
			}
			clear(j.starts)
			a.Returned.wakeScheduler(ctx)
			if len(j.starts) != 0 {
				t.Errorf("woken twice: %v", j.starts)
			}
		})
	}
}

// One user's returned jobs, however many, delay those of no other user.
func TestWakeSchedulerOfSeveralUsers(t *testing.T) {
	ctx := t.Context()
	j := &jobs{known: map[uint32]sctl.Job{}, version: sctl.Version{Major: 25, Minor: 11}, starts: map[string]time.Time{}}
	j.may.Eligible = time.Now().Add(-time.Minute)
	a := newAgent()
	a.Ledger, a.Jobs = &ledger{}, j
	wire(a)
	requeued := func(id, uid uint32) {
		j.known[id] = sctl.Job{ID: id, UID: uid, State: "PENDING", HetJobID: id}
		a.Returned.setStarts(ctx, []lease.PendingRestart{{JobID: id}})
	}
	const flood, others = 3000, 2 * restartsAtOnce
	for id := range uint32(flood) {
		requeued(id+1, 1)
	}
	for i := range uint32(others) {
		requeued(flood+1+i, 2+i)
	}
	if len(a.Returned.starts) != startsOfUser+others {
		t.Errorf("%d starts are remembered", len(a.Returned.starts))
	}
	for i := range a.Returned.starts {
		a.Returned.starts[i].due = time.Now().Add(-time.Minute)
	}
	woken := map[string]bool{}
	for range 3 { // ticks
		clear(j.starts)
		a.Returned.wakeScheduler(ctx)
		if len(j.starts) > restartsAtOnce {
			t.Errorf("%d questions in one tick", len(j.starts))
		}
		for target := range j.starts {
			woken[target] = true
		}
	}
	for i := range uint32(others) {
		if id := fmt.Sprint(flood + 1 + i); !woken[id] {
			t.Errorf("job %s of another user waits behind one user's; woken: %v", id, woken)
		}
	}
}

// records keeps what was completed.
type records struct {
	ends []db.End
	lost []uint32
	err  error // of SetEnd
}

func (r *records) PutLost(_ context.Context, a db.Attempt) error {
	r.lost = append(r.lost, a.JobID)
	return nil
}

func (r *records) Meters(context.Context) ([]db.Meter, error)                { return nil, nil }
func (r *records) AddSamples(context.Context, []db.Sample, []db.Meter) error { return nil }
func (r *records) Tidy(context.Context) error                                { return nil }
func (r *records) Series(context.Context, string, time.Time, time.Time) ([]db.Sample, error) {
	return nil, nil
}

func (r *records) SetEnd(_ context.Context, e db.End) error {
	r.ends = append(r.ends, e)
	return r.err
}

func TestComplete(t *testing.T) {
	for _, c := range []struct {
		name  string
		job   sctl.Job
		age   time.Duration
		state string // written; empty: nothing
		drops bool
	}{
		{"ended", sctl.Job{ID: 1, State: "TIMEOUT", ArrayJobID: 9, ArrayTask: 3}, 0, "TIMEOUT", true},
		{"requeued by its user", sctl.Job{ID: 1, State: "PENDING"}, 0, "REQUEUED", true},
		{"runs again", sctl.Job{ID: 1, State: "RUNNING"}, 0, "REQUEUED", true},
		{"runs on without this node", sctl.Job{ID: 1, State: "RUNNING", Restarts: 2}, 0, "as the Epilog saw", true},
		{"a later attempt has ended", sctl.Job{ID: 1, State: "FAILED", Restarts: 3}, 0, "REQUEUED", true},
		{"waits for its next attempt", sctl.Job{ID: 1, State: "PENDING", Restarts: 3}, 0, "REQUEUED", false},
		{"cancelled while it waited", sctl.Job{ID: 1, State: "CANCELLED", Restarts: 3}, 0, "CANCELLED", true},
		{"cancelled in its next attempt", sctl.Job{ID: 1, State: "CANCELLED", Restarts: 3, NodeList: "n2"}, 0, "REQUEUED",
			true},
		{"completing", sctl.Job{ID: 1, State: "COMPLETING"}, 0, "", false},
		{"completing for ever", sctl.Job{ID: 1, State: "COMPLETING"}, 2 * forgottenAfter, "REQUEUED", true},
		{"forgotten", sctl.Job{ID: 2}, 0, "unknown", true},
		{"too old to be asked about", sctl.Job{ID: 1, State: "TIMEOUT"}, askNoMore, "unknown", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, r := &ledger{list: []lease.Ended{{JobKey: jobenv.JobKey{JobID: 1, Restart: 2}, Age: c.age}}}, &records{}
			a := newAgent()
			a.Node, a.Ledger, a.Records, a.Jobs = "n1", l, r, &jobs{known: map[uint32]sctl.Job{c.job.ID: c.job},
				words: sctl.Words{Name: "x", Account: "ml"}}
			wire(a)
			a.Ends.complete(t.Context(), time.Hour)
			var want []db.End
			switch c.state {
			case "unknown": // figures at least
				want = []db.End{{JobID: 1, Restart: 2, Node: "n1"}}
			case "":
			case "as the Epilog saw":
				want = []db.End{{JobID: 1, Restart: 2, Node: "n1", Name: "x", Account: "ml"}}
			default:
				want = []db.End{{JobID: 1, Restart: 2, Node: "n1", ArrayJobID: c.job.ArrayJobID, ArrayTask: c.job.Task(),
					Name: "x", Account: "ml", State: c.state, Never: c.state == "CANCELLED"}}
			}
			for i := range want {
				want[i].Figures = map[string]figure.Figures{"a": {PeakMiB: 7}}
			}
			if fmt.Sprint(r.ends) != fmt.Sprint(want) || (l.ended == 1) != c.drops {
				t.Errorf("wrote %+v, dropped %d", r.ends, l.ended)
			}
		})
	}
}

// The end of an attempt whose job waits for its next attempt is told twice, the second time as told before.
func TestCompleteAgain(t *testing.T) {
	job := sctl.Job{ID: 1, State: "PENDING", Restarts: 3}
	l, r := &ledger{list: []lease.Ended{{JobKey: jobenv.JobKey{JobID: 1, Restart: 2}}}}, &records{}
	a, slurm := newAgent(), &jobs{known: map[uint32]sctl.Job{1: job}}
	a.Ledger, a.Records, a.Jobs = l, r, slurm
	wire(a)
	a.Ends.complete(t.Context(), time.Hour)
	job.State = "RUNNING"
	slurm.known[1] = job
	a.Ends.complete(t.Context(), 2*time.Hour)
	if len(r.ends) != 2 || r.ends[0].Again || !r.ends[1].Again {
		t.Errorf("%+v", r.ends)
	}
}

// What libcarma has advised comes into the record where the agent only observes.
func TestCompleteAdvised(t *testing.T) {
	advice := admincomment.Advice{Method: "user", EstMiB: 9000}
	for mode, want := range map[string]admincomment.Advice{config.ModeShare: {}, config.ModeObserve: advice,
		config.ModeAdvise: advice} {
		l, r := &ledger{list: []lease.Ended{{JobKey: jobenv.JobKey{JobID: 1}}}}, &records{}
		a := newAgent()
		a.Ledger, a.Records, a.Jobs = l, r, &jobs{known: map[uint32]sctl.Job{1: {ID: 1, State: "COMPLETED"}},
			words: sctl.Words{AdminComment: `site carma-advice={"v":1,"method":"user","est_mib":9000}`}}
		a.Config.Mode = mode
		wire(a)
		a.Ends.complete(t.Context(), time.Hour)
		if len(r.ends) != 1 || r.ends[0].Advice != want {
			t.Errorf("%s: %+v", mode, r.ends)
		}
	}
}

// While slurmctld is away, jobs that have ended cost ever fewer questions;
// those that nobody will ask about go, without one.
func TestCompleteManyWhileSlurmctldIsAway(t *testing.T) {
	l, r, j := &ledger{}, &records{}, &jobs{err: errors.New("no connection")}
	for i := range uint32(500) {
		l.list = append(l.list, lease.Ended{JobKey: jobenv.JobKey{JobID: i}, Age: 10 * time.Minute})
	}
	a := newAgent()
	a.Ledger, a.Records, a.Jobs = l, r, j
	wire(a)
	second := func(n int) time.Duration { return time.Hour + time.Duration(n)*time.Second }
	for n := range 60 {
		a.Ends.complete(t.Context(), second(n))
	}
	const asked = 6 // after 0, 1, 3, 7, 15 and 31 s
	if j.asked != asked || l.ended != 0 {
		t.Errorf("%d questions in a minute, %d dropped", j.asked, l.ended)
	}
	for i := range 20 {
		l.list[i].Age = askNoMore
	}
	a.Ends.complete(t.Context(), second(60))
	if j.asked != asked || l.ended != 20 {
		t.Errorf("%d questions, %d dropped of 20 that are too old", j.asked, l.ended)
	}
	l.list = l.list[20:]
	j.err = nil
	a.Ends.complete(t.Context(), second(65)) // one question about many
	if j.asked != asked+1 || l.ended != 500 || len(r.ends) != l.ended {
		t.Errorf("slurmctld is back: %d questions, %d dropped, %d records", j.asked, l.ended, len(r.ends))
	}
	l.list = nil
	for i := range uint32(2 * endsAskedAtOnce) {
		l.list = append(l.list, lease.Ended{JobKey: jobenv.JobKey{JobID: 500 + i}})
	}
	a.Ends.complete(t.Context(), second(66))
	a.Ends.complete(t.Context(), second(90))
	if j.asked != asked+1+2*endsAskedAtOnce || l.ended != 500+2*endsAskedAtOnce || len(r.ends) != l.ended {
		t.Errorf("and goes on: %d questions, %d dropped, %d records", j.asked, l.ended, len(r.ends))
	}
}

func TestPoke(t *testing.T) {
	dir := t.TempDir()
	Poke(dir) // nobody listens: no error, no wait
	poked, err := listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		Poke(dir)
	}
	select {
	case <-poked:
	case <-time.After(30 * time.Second):
		t.Fatal("not poked")
	}
}

// A driver that hangs must not keep the agent from ending.
func TestSampleHangs(t *testing.T) {
	a := newAgent()
	a.Sample = func() []gres.Sample { select {} }
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("end"))
	if _, ok := a.sampleInTime(ctx); ok {
		t.Error("a hanging driver gave a sample")
	}
}

// A source of SM activity that stays away is said once, one that comes and goes is not.
func TestTellSource(t *testing.T) {
	var log bytes.Buffer
	a := newAgent()
	a.Log = slog.New(slog.NewTextHandler(&log, nil))
	st := &gpuState{}
	look := func(n int, source figure.Source) int {
		for range n {
			a.tellSource(st, gres.Sample{GPU: gres.GPU{UUID: "a"}, Source: source})
		}
		return strings.Count(log.String(), "another source")
	}
	for i, c := range []struct {
		looks  int
		source figure.Source
		want   int
	}{
		{3, figure.SourceUtilisation, 0}, {otherFor, figure.SourceGPM, 0}, {otherFor - 1, figure.SourceUtilisation, 0},
		{1, figure.SourceGPM, 0},
		{otherFor, figure.SourceUtilisation, 1}, {100, figure.SourceUtilisation, 1}, {otherFor, figure.SourceGPM, 2},
	} {
		if got := look(c.looks, c.source); got != c.want {
			t.Errorf("step %d: %d lines, want %d\n%s", i, got, c.want, log.String())
		}
	}
}

// The first look of an agent fills the window: else no GPU in use would take a job until
// the second.
func TestFirstLookCounts(t *testing.T) {
	a := newAgent()
	l := &ledger{meanwhile: lease.Snapshot{}}
	a.Ledger, a.Owners = l, owners{}
	wire(a)
	a.Sample = func() []gres.Sample {
		return []gres.Sample{{GPU: gres.GPU{UUID: "a"}, SMActPct: 40, Source: figure.SourceGPM}}
	}
	a.observe(t.Context())
	if len(l.measured) != 1 || l.measured[0].SMActPct != 40 {
		t.Errorf("readings %+v", l.measured)
	}
}

// still is a slurmctld of one waiting job, which two loops may ask at once.
type still struct{ jobs }

func (*still) Job(_ context.Context, id uint32) (sctl.Job, error) {
	return sctl.Job{ID: id, State: "PENDING", Restarts: 1}, nil
}
func (*still) SetStart(context.Context, sctl.Target, time.Time) error { return nil }
func (*still) SafeStart(context.Context) (time.Duration, error)       { return 0, nil }

// The loop that looks after holds sets start times too.
func TestTwoLoopsSetStarts(t *testing.T) {
	a := newAgent()
	a.Ledger, a.Jobs = &ledger{}, &still{}
	wire(a)
	var work sync.WaitGroup
	for _, loop := range []func(id uint32){
		func(id uint32) { a.Returned.startAt(t.Context(), sctl.Job{ID: id}, time.Now().Add(-time.Minute)) },
		func(uint32) { a.Returned.wakeScheduler(t.Context()) },
	} {
		work.Add(1)
		go func() {
			defer work.Done()
			for id := range uint32(100) {
				loop(id)
			}
		}()
	}
	work.Wait()
	for range 100 {
		a.Returned.wakeScheduler(t.Context())
	}
	if len(a.Returned.starts) != 0 {
		t.Errorf("remembered %v", a.Returned.starts)
	}
}

// A job whose processes hang, or about which slurmctld cannot be asked, delays the records of no
// other.
func TestCompleteBesideJobsThatHang(t *testing.T) {
	l, r := &ledger{}, &records{}
	j := &jobs{known: map[uint32]sctl.Job{}}
	const hang = 2 * endedAtOnce
	for id := range uint32(hang + 1) {
		l.list = append(l.list, lease.Ended{JobKey: jobenv.JobKey{JobID: id}})
		j.known[id] = sctl.Job{ID: id, State: "COMPLETING"}
	}
	j.known[hang] = sctl.Job{ID: hang, State: "COMPLETED"}
	a := newAgent()
	a.Ledger, a.Records, a.Jobs = l, r, j
	wire(a)
	for second := range hang {
		a.Ends.complete(t.Context(), time.Hour+time.Duration(second)*time.Second)
	}
	if len(r.ends) == 0 || r.ends[0].JobID != hang {
		t.Errorf("records of %v", r.ends)
	}
}

// The first question often comes before slurmctld knows the end. It forgets a job soon, so the next
// one does not wait for the next comparison; while it is away, questions grow rarer.
func TestCompleteAsksAgainSoon(t *testing.T) {
	full := errors.New("disk full")
	for name, c := range map[string]struct {
		state jobstate.State
		err   error
		write error
		least int // questions in half an hour
		most  int
	}{
		"completing":       {"COMPLETING", nil, nil, 15, 60},
		"no answer":        {"", full, nil, 8, 15},
		"no record":        {"COMPLETED", nil, full, 15, 60},
		"has ended before": {"COMPLETED", nil, nil, 1, 1},
	} {
		l, r, j := &ledger{}, &records{err: c.write}, &jobs{known: map[uint32]sctl.Job{}, err: c.err}
		j.known[1] = sctl.Job{ID: 1, State: c.state}
		a := newAgent()
		a.Config.Capacity.Compare = config.Duration(time.Hour)
		a.Ledger, a.Records, a.Jobs = l, r, j
		wire(a)
		var after []int
		for second := range 30 * 60 {
			if l.ended > 0 {
				break
			}
			l.list = []lease.Ended{{JobKey: jobenv.JobKey{JobID: 1}, Age: min(time.Duration(second)*time.Second, 4*time.Minute)}}
			asked := j.asked
			if a.Ends.complete(t.Context(), time.Hour+time.Duration(second)*time.Second); j.asked > asked {
				after = append(after, second)
			}
		}
		if len(after) < c.least || len(after) > c.most || c.most > 1 && after[1] > 2 {
			t.Errorf("%s: asked after %v s", name, after)
		}
	}
}

// One job that cannot be read keeps no other record from slurmctld's word, and is asked about again.
func TestCompleteBesideAJobThatCannotBeRead(t *testing.T) {
	l, r, j := &ledger{}, &records{}, &unread{jobs: jobs{known: map[uint32]sctl.Job{}}, id: 3}
	for id := range uint32(2 * manyDue) {
		l.list = append(l.list, lease.Ended{JobKey: jobenv.JobKey{JobID: id}, Age: time.Minute})
		j.known[id] = sctl.Job{ID: id, State: "COMPLETED"}
	}
	a := newAgent()
	a.Ledger, a.Records, a.Jobs = l, r, &j.jobs
	wire(a)
	a.Ends.Jobs = j
	a.Ends.complete(t.Context(), time.Hour)
	if j.asked != 1 || len(r.ends) != 2*manyDue-1 || a.Ends.silence != 0 {
		t.Errorf("%d questions, %d records, then silence for %v", j.asked, len(r.ends), a.Ends.silence)
	}
	for _, e := range r.ends {
		if e.JobID == 3 || e.State != "COMPLETED" {
			t.Errorf("record %+v", e)
		}
	}
}

// unread has a job that cannot be read.
type unread struct {
	jobs
	id uint32
}

func (u *unread) Describe(ctx context.Context, ids []uint32) (map[uint32]sctl.Description, error) {
	known, _ := u.jobs.Describe(ctx, ids)
	delete(known, u.id)
	return known, errors.New("not a state")
}

// A record that cannot be written is tried for as long as one that nobody can be asked about.
func TestCompleteKeepsWhatIsNotWritten(t *testing.T) {
	for age, want := range map[time.Duration]int{2 * forgottenAfter: 0, askNoMore: 1} {
		l := &ledger{list: []lease.Ended{{JobKey: jobenv.JobKey{JobID: 1}, Age: age}}}
		a := newAgent()
		a.Ledger, a.Records = l, &records{err: errors.New("disk full")}
		a.Jobs = &jobs{known: map[uint32]sctl.Job{1: {ID: 1, State: "COMPLETED"}}}
		wire(a)
		if a.Ends.complete(t.Context(), time.Hour); l.ended != want {
			t.Errorf("%v after its end: %d dropped, want %d", age, l.ended, want)
		}
	}
}

// So with the start times of jobs that were requeued.
func TestSetStartsBesideJobsThatHang(t *testing.T) {
	j := &jobs{known: map[uint32]sctl.Job{}, version: sctl.Version{Major: 25, Minor: 11}, starts: map[string]time.Time{}}
	var pending []lease.PendingRestart
	for id := range uint32(restartsAtOnce + 1) {
		pending = append(pending, lease.PendingRestart{JobID: id})
		j.known[id] = sctl.Job{ID: id, State: "COMPLETING"}
	}
	j.known[restartsAtOnce] = sctl.Job{ID: restartsAtOnce, State: "PENDING"}
	a := newAgent()
	a.Ledger, a.Jobs = &ledger{}, j
	wire(a)
	for range 2 {
		a.Returned.setStarts(t.Context(), pending)
	}
	if len(j.starts) != 1 {
		t.Errorf("set %v", j.starts)
	}
}
