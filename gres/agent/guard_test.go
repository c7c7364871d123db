// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/resident"
	"carma/gres/steward"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// daemons stands for the MPS daemons.
type daemons struct {
	fault  gres.Daemon
	logged gres.Daemon // whose log tells of a fault
	sets   []gres.Daemon
	err    error
	silent gres.Daemon // does not answer
	lock   sync.Mutex
	calls  []string
	has    map[gres.Daemon]int64 // who has the daemons that run
}

func (d *daemons) note(call string, on gres.Daemon) error {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.calls = append(d.calls, call+" "+string(on))
	return d.err
}

// called are the calls, those of each daemon's in order.
func (d *daemons) called() []string {
	slices.SortStableFunc(d.calls, func(a, b string) int {
		_, a, _ = strings.Cut(a, " ")
		_, b, _ = strings.Cut(b, " ")
		return strings.Compare(a, b)
	})
	return d.calls
}

func (d *daemons) Tenant(on gres.Daemon) (int64, bool) {
	d.lock.Lock()
	defer d.lock.Unlock()
	user, runs := d.has[on]
	if !runs {
		user = gres.Nobody
	}
	return user, runs
}

func (d *daemons) Keep(_ context.Context, on gres.Daemon, who func(int64) (int64, error)) error {
	has, runs := d.Tenant(on)
	user, err := who(has)
	if err != nil || d.err != nil {
		return errors.Join(err, d.note("fails", on))
	}
	if runs && (user == has || has == gres.Nobody) {
		if user != has {
			d.note("gives", on)
		}
	} else {
		d.note("starts", on)
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	if d.has == nil {
		d.has = map[gres.Daemon]int64{}
	}
	d.has[on] = user
	return nil
}

func (d *daemons) End(_ context.Context, on gres.Daemon, used func() (bool, error)) error {
	is, err := used()
	if is || err != nil {
		return err
	}
	d.lock.Lock()
	delete(d.has, on)
	d.lock.Unlock()
	return d.note("ends", on)
}

func (d *daemons) Kill(_ context.Context, on gres.Daemon) error {
	d.lock.Lock()
	delete(d.has, on)
	d.lock.Unlock()
	return d.note("kills", on)
}
func (d *daemons) Terminate(ctx context.Context, on gres.Daemon, _ int) error {
	if on == d.silent {
		<-ctx.Done()
		return ctx.Err()
	}
	return d.note("terminate", on)
}
func (d *daemons) Clients(context.Context, gres.Daemon) ([]int, error) { return []int{1, 2, 3}, d.err }
func (d *daemons) ServerFault(on gres.Daemon, from int64) (bool, int64, error) {
	return on == d.logged, from + 1, d.err
}
func (d *daemons) BoundLogs() error                 { return d.err }
func (d *daemons) Restricted() error                { return d.err }
func (d *daemons) ClearEnded(context.Context) error { return d.err }
func (d *daemons) Sets() ([]gres.Daemon, error)     { return d.sets, d.err }
func (d *daemons) Faulted(ctx context.Context, on gres.Daemon) (bool, error) {
	if on == d.silent {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return on == d.fault, d.err
}

func TestCheckMPS(t *testing.T) {
	client := gres.Process{PID: 1, MPS: true}
	using := gres.Lease{Job: jobenv.JobKey{JobID: 7}, UUID: "a", Daemon: "a"}
	for _, c := range []struct {
		name        string
		sample      gres.Sample
		leases      []gres.Lease
		quarantined bool
		fault       bool
		mps, ledger []string
	}{
		{"nobody", sample(), nil, false, true, nil, nil},
		{"in use", sample(client), []gres.Lease{using}, false, false, nil, nil},
		{"fault", sample(client), []gres.Lease{using}, false, true, nil,
			[]string{"quarantine a: its MPS server has faulted"}},
		{"victims are there", sample(client), []gres.Lease{using}, true, true, nil, nil},
		{"a victim's process is there", sample(client), nil, true, true, nil, nil},
		{"victims have gone", sample(), nil, true, true, []string{"ends a"}, []string{"readmit a"}},
		{"left by a job", sample(gres.Process{PID: 2, MPS: true}), nil, false, false, []string{"terminate a"},
			nil},
		{"of no job", sample(gres.Process{PID: 3, MPS: true}), nil, false, false, nil, nil},
		{"no client", sample(gres.Process{PID: 2}), nil, false, false, nil, nil},
		{"MIG", gres.Sample{GPU: gres.GPU{UUID: "a", MIG: true}}, nil, false, false, nil, nil},
		{"unreadable", gres.Sample{GPU: gres.GPU{UUID: "a"}, Unreadable: "lost"}, nil, false, false, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, d := &ledger{}, &daemons{}
			if c.fault {
				d.fault = "a"
			}
			m := looksAfter(d, l, owners{1: {JobID: 7}, 2: {JobID: 99}, 3: {}})
			s := lease.Snapshot{Leases: c.leases, Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a"}}}}
			if c.quarantined {
				s.Readings[0].Quarantined, s.Readings[0].Cause = "fault", gres.CauseMPS
			}
			l.meanwhile = s
			d.has = map[gres.Daemon]int64{"a": 0}
			m.check(t.Context(), view{samples: []gres.Sample{c.sample}, snapshot: s}, true)
			m.work.Wait()
			if !slices.Equal(d.called(), c.mps) || !slices.Equal(l.calls, c.ledger) {
				t.Errorf("MPS %v, ledger %v; want %v, %v", d.calls, l.calls, c.mps, c.ledger)
			}
		})
	}
}

func looksAfter(d MPS, l *ledger, o owners) *Daemons {
	return &Daemons{MPS: d, Leases: l, Faults: l, Owners: o, Log: slog.New(slog.DiscardHandler)}
}

// A daemon of several GPUs comes with the first job that needs it and ends when
// none does; its fault closes those of its GPUs that no other daemon uses.
func TestCheckMPSOfSeveralGPUs(t *testing.T) {
	two := []gres.Lease{{Job: jobenv.JobKey{JobID: 7}, UUID: "a", Daemon: "a,b"},
		{Job: jobenv.JobKey{JobID: 7}, UUID: "b", Daemon: "a,b"}}
	beside := append(slices.Clone(two[:1]), gres.Lease{Job: jobenv.JobKey{JobID: 8}, UUID: "b", Daemon: "b"})
	left := gres.Process{PID: 2, MPS: true}
	for _, c := range []struct {
		name        string
		leases      []gres.Lease
		sets        []gres.Daemon
		process     []gres.Process // on a
		fault       gres.Daemon
		quarantined bool // a
		mps, ledger []string
	}{
		{"comes up", two, nil, nil, "", false, []string{"starts a,b"}, nil},
		{"is not used", nil, []gres.Daemon{"a,b"}, nil, "", false, []string{"ends a,b"}, nil},
		{"one of two is used", two, []gres.Daemon{"a,b", "b,c"}, nil, "", false, []string{"starts a,b", "ends b,c"}, nil},
		{"fault", two, []gres.Daemon{"a,b"}, nil, "a,b", false, []string{"starts a,b"},
			[]string{"quarantine a: its MPS server has faulted", "quarantine b: its MPS server has faulted"}},
		{"fault beside another daemon", beside, []gres.Daemon{"a,b"}, nil, "a,b", false, []string{"starts a,b", "gives b"},
			[]string{"quarantine a: its MPS server has faulted"}},
		{"left on a, used on b", two[1:], []gres.Daemon{"a,b", "b,c"}, []gres.Process{left}, "", false,
			[]string{"terminate a", "starts a,b", "terminate a,b", "ends b,c"}, nil},
		{"a victim runs on b", two[1:], []gres.Daemon{"a,b"}, nil, "a,b", true, nil, nil},
		{"the victims have gone", nil, []gres.Daemon{"a,b"}, nil, "", true, []string{"ends a", "ends a,b"},
			[]string{"readmit a"}},
	} {
		l, d := &ledger{}, &daemons{sets: c.sets, fault: c.fault, has: map[gres.Daemon]int64{"a": gres.Nobody,
			"b": gres.Nobody, "c": gres.Nobody}}
		m := looksAfter(d, l, owners{2: {JobID: 99}})
		s := lease.Snapshot{Leases: c.leases, Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a"}}}}
		if c.quarantined {
			s.Readings[0].Quarantined, s.Readings[0].Cause = "fault", gres.CauseMPS
		}
		l.meanwhile = s
		samples := []gres.Sample{{GPU: gres.GPU{UUID: "a"}, Processes: c.process}, {GPU: gres.GPU{UUID: "b"}},
			{GPU: gres.GPU{UUID: "c"}}}
		m.check(t.Context(), view{samples: samples, snapshot: s}, true)
		m.work.Wait()
		got := d.called()
		slices.Sort(got)
		slices.Sort(c.mps)
		if !slices.Equal(got, c.mps) || !slices.Equal(l.calls, c.ledger) {
			t.Errorf("%s: MPS %v, ledger %v; want %v, %v", c.name, got, l.calls, c.mps, c.ledger)
		}
	}
}

// A daemon stays its user's between two jobs that follow each other, and is another's at once.
func TestTenures(t *testing.T) {
	of := func(job uint32, uid uint32, d gres.Daemon) []gres.Lease {
		return []gres.Lease{{Job: jobenv.JobKey{JobID: job}, UID: uid, UUID: "a", Daemon: d}}
	}
	s := &served{}
	for i, c := range []struct {
		leases []gres.Lease
		at     time.Duration
		has    int64
		want   int64
	}{
		{nil, 1, gres.Nobody, gres.Nobody},
		{of(7, 1000, "a"), 2, gres.Nobody, 1000},
		{nil, 3, 1000, 1000},
		{of(8, 1000, "a"), 4, 1000, 1000},
		{nil, 5, 1000, 1000},
		{of(9, 2000, "a"), 6, 1000, 2000},
		{nil, 7, 2000, 2000},
		{nil, 7 + keptFree, 2000, gres.Nobody},
		{of(10, 1000, "a"), 8 + keptFree, gres.Nobody, 1000},
		{of(11, 2000, ""), 9 + keptFree, 1000, gres.Nobody}, // with the GPU to itself
		{of(12, 1000, "a,b"), 10 + keptFree, 1000, gres.Nobody},
	} {
		if got := s.tenant("a", c.has, c.leases, c.at); got != c.want {
			t.Errorf("%d: user %d, want %d", i, got, c.want)
		}
	}
}

// A daemon that does not answer twice is replaced, and no other one waits for it.
func TestSilentDaemonIsReplaced(t *testing.T) {
	leases := []gres.Lease{{Job: jobenv.JobKey{JobID: 7}, UID: 1000, UUID: "a", Daemon: "a"},
		{Job: jobenv.JobKey{JobID: 8}, UID: 2000, UUID: "b", Daemon: "b"}}
	l, d := &ledger{}, &daemons{silent: "a", fault: "b", has: map[gres.Daemon]int64{"a": 1000, "b": 2000}}
	m := looksAfter(d, l, owners{})
	l.meanwhile = lease.Snapshot{Leases: leases}
	v := view{samples: []gres.Sample{{GPU: gres.GPU{UUID: "a"}}, {GPU: gres.GPU{UUID: "b"}}}, snapshot: l.meanwhile}
	begin := time.Now()
	m.check(t.Context(), v, true)
	for !m.idle("b") { // it is looked after beside the other
		if time.Since(begin) > time.Minute {
			t.Fatal("b waits for a")
		}
		time.Sleep(time.Millisecond)
	}
	if m.idle("a") {
		t.Error("a has answered")
	}
	m.work.Wait()
	if got := d.called(); len(got) > 0 {
		t.Errorf("silent once: %v", got)
	}
	m.check(t.Context(), v, false) // not due, but a owes an answer
	m.work.Wait()
	if got, want := d.called(), []string{"kills a", "starts a"}; !slices.Equal(got, want) {
		t.Errorf("silent twice: %v, want %v", got, want)
	}
	if user, _ := d.Tenant("a"); user != 1000 {
		t.Errorf("the new one is user %d's", user)
	}
}

func (m *Daemons) idle(d gres.Daemon) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return !m.of[d].busy
}

// A set that a job leases while the agent ends it goes on.
func TestUsedSetGoesOn(t *testing.T) {
	l, d := &ledger{}, &daemons{sets: []gres.Daemon{"a,b"}, has: map[gres.Daemon]int64{"a,b": gres.Nobody}}
	l.meanwhile.Leases = []gres.Lease{{UUID: "a", UID: 7, Daemon: "a,b"}, {UUID: "b", UID: 7, Daemon: "a,b"}}
	m := looksAfter(d, l, nil)
	m.check(t.Context(), view{samples: []gres.Sample{{GPU: gres.GPU{UUID: "c", MIG: true}}}}, true)
	m.work.Wait()
	if len(d.calls) > 0 {
		t.Errorf("%v", d.calls)
	}
}

// With a daemon that fails the agent goes on.
func TestCheckMPSFails(t *testing.T) {
	m := looksAfter(&daemons{err: errors.New("no such program")}, &ledger{}, owners{1: resident.Owner{JobID: 9}})
	v := view{samples: []gres.Sample{sample(gres.Process{PID: 1, MPS: true})}}
	m.check(t.Context(), v, true)
	m.work.Wait()
}

func TestOpenHolds(t *testing.T) {
	holds := []lease.Hold{{UUID: "a", JobID: 7}, {UUID: "b", JobID: 7}}
	share := []lease.Hold{{UUID: "a", JobID: 7, MiB: 20480}}
	gpu := []gres.Reading{{GPU: gres.GPU{UUID: "a", TotalMiB: 40503}, HeldFor: 7}}
	shares := []lease.Hold{{UUID: "a", JobID: 7, MiB: 10240}, {UUID: "b", JobID: 7, MiB: 10240}}
	two := []gres.Reading{{GPU: gres.GPU{UUID: "a", TotalMiB: 40503}, HeldFor: 7},
		{GPU: gres.GPU{UUID: "b", TotalMiB: 40503}, HeldFor: 7}}
	for name, c := range map[string]struct {
		s    lease.Snapshot
		want []string
	}{
		"a share, room": {lease.Snapshot{Holds: share, Readings: gpu,
			Leases: []gres.Lease{{UUID: "a", Job: jobenv.JobKey{JobID: 1}, ReserveMiB: 17000, Seen: true}}},
			[]string{"open 7 in 0s"}},
		"a share, no room": {lease.Snapshot{Holds: share, Readings: gpu,
			Leases: []gres.Lease{{UUID: "a", Job: jobenv.JobKey{JobID: 1}, ReserveMiB: 19000, Seen: true}}}, nil},
		"a share, closed": {lease.Snapshot{Holds: share, Readings: gpu,
			Leases: []gres.Lease{{UUID: "a", Job: jobenv.JobKey{JobID: 1}, Exclusive: true}}}, nil},
		"a share, no GPU": {lease.Snapshot{Holds: share}, nil},
		"shares of two, one daemon": {lease.Snapshot{Holds: shares, Readings: two,
			Leases: []gres.Lease{{UUID: "a", Daemon: "a,b"}}}, []string{"open 7 in 0s"}},
		"shares of two, two daemons": {lease.Snapshot{Holds: shares, Readings: two,
			Leases: []gres.Lease{{UUID: "a", Daemon: "a"}, {UUID: "b", Daemon: "b"}}}, nil},
		"shares of two, another's": {lease.Snapshot{Holds: shares, Readings: two,
			Leases: []gres.Lease{{UUID: "a", Daemon: "a,b", UID: 2000}}}, nil},
		"a share, another's": {lease.Snapshot{Holds: share, Readings: gpu,
			Leases: []gres.Lease{{UUID: "a", Job: jobenv.JobKey{JobID: 1}, UID: 2000, Seen: true}}}, nil},
		"all idle": {lease.Snapshot{Holds: holds}, []string{"open 7 in 0s"}},
		"one busy": {lease.Snapshot{Holds: holds, Leases: []gres.Lease{{UUID: "b"}}}, nil},
		"others busy": {lease.Snapshot{Holds: holds, Leases: []gres.Lease{{UUID: "c"}}},
			[]string{"open 7 in 0s"}},
		"open already":     {lease.Snapshot{Holds: []lease.Hold{{UUID: "a", JobID: 7, Open: true}}}, nil},
		"start is not set": {lease.Snapshot{Holds: holds, PendingRestarts: []lease.PendingRestart{{JobID: 7}}}, nil},
		"no holds":         {lease.Snapshot{}, nil},
	} {
		l := &ledger{}
		a := newAgent()
		a.Ledger, a.Jobs = l, waiting()
		a.Thresholds = choose.Thresholds{SMActMaxPct: 80, MarginMiB: 2048, MaxJobs: 4}
		wire(a)
		a.Offers.openHolds(t.Context(), c.s, time.Hour)
		if !slices.Equal(l.calls, c.want) {
			t.Errorf("%s: %v, want %v", name, l.calls, c.want)
		}
	}
}

// An offered GPU that a job was still on, or came to, has been offered since it was free again.
func TestOfferBeginsAnew(t *testing.T) {
	l, a := &ledger{}, newAgent()
	a.Ledger, a.Jobs = l, waiting()
	wire(a)
	free := lease.Snapshot{Holds: []lease.Hold{{UUID: "a", JobID: 7, Open: true}}}
	busy := free
	busy.Leases = []gres.Lease{{UUID: "a", Job: jobenv.JobKey{JobID: 1}}}
	for i, s := range []lease.Snapshot{free, busy, busy, free, free, busy, {}, free} {
		l.calls = nil
		a.Offers.openHolds(t.Context(), s, time.Hour+time.Duration(i)*time.Second)
		if anew := fmt.Sprint(l.calls) == "[open 7 in 0s]"; anew != (i == 3) {
			t.Errorf("look %d: %v", i, l.calls)
		}
	}
}

// waiting is a slurmctld where job 7 waits for room.
func waiting() *jobs {
	return &jobs{known: map[uint32]sctl.Job{7: {ID: 7, State: "PENDING", Reason: "Resources"}},
		version: sctl.Version{Major: 22, Minor: 5}, starts: map[string]time.Time{}}
}

// GPUs are offered from when their job can start: until then slurmctld would send
// others there, who are returned to the queue. slurmctld is not asked all the time.
func TestOpenHoldsWhenTheJobCanStart(t *testing.T) {
	s := lease.Snapshot{Holds: []lease.Hold{{UUID: "a", JobID: 7}}}
	in := func(d time.Duration) time.Time { return time.Now().Add(d) }
	compare := newAgent().Config.Capacity.Compare.D()
	for name, c := range map[string]struct {
		state  jobstate.State
		reason jobstate.Reason
		may    sctl.Job
		err    error
		want   string
		start  time.Duration // that is set; 0: none
		again  time.Duration
	}{
		"waits for room": {"PENDING", "Priority", sctl.Job{}, nil, "[open 7 in 0s]", 0, compare},
		"waits, nothing said": {"PENDING", "None", sctl.Job{Eligible: in(-time.Minute), Restarts: 3}, nil,
			"[open 7 in 0s]", 0, compare},
		"is requeued soon": {"PENDING", "Prolog", sctl.Job{Eligible: in(20 * time.Second), Restarts: 1}, nil,
			"[open 7 in 20s]", 0, compare},
		"backs off": {"PENDING", "BeginTime", sctl.Job{Eligible: in(14 * time.Minute), Restarts: 1,
			Submitted: time.Now()}, nil, "[]", 125 * time.Second, askAgain},
		"is to start at a time": {"PENDING", "BeginTime", sctl.Job{Eligible: in(time.Hour)}, nil, "[open 7 in 1h0m0s]", 0,
			compare},
		"not yet looked at": {"PENDING", "Prolog", sctl.Job{Restarts: 1}, nil, "[]", 0, compare},
		"held, while it backs off": {"PENDING", "JobHeldUser", sctl.Job{Eligible: in(14 * time.Minute), Restarts: 1}, nil,
			"[]", 0, compare},
		"its array has enough": {"PENDING", "JobArrayTaskLimit", sctl.Job{}, nil, "[]", 0, compare},
		"in a Prolog":          {"RUNNING", "Prolog", sctl.Job{}, nil, "[]", 0, askAgain},
		"has gone":             {"", "", sctl.Job{}, nil, "[]", 0, askAgain},
		"slurmctld is away":    {"PENDING", "Resources", sctl.Job{}, errors.New("no answer"), "[]", 0, compare},
	} {
		l, a, j := &ledger{}, newAgent(), waiting()
		j.known[7] = sctl.Job{ID: 7, State: c.state, Reason: c.reason}
		if j.may, j.err = c.may, c.err; c.err != nil || c.state == "" {
			j.known = nil
		}
		a.Ledger, a.Jobs = l, j
		wire(a)
		a.Offers.openHolds(t.Context(), s, time.Hour)
		if got := fmt.Sprint(l.calls); got != c.want || j.asked != 1 {
			t.Errorf("%s: %s, asked %d times; want %s, once", name, got, j.asked, c.want)
		}
		if at, set := j.starts["7"]; set != (c.start != 0) || set && time.Until(at.Add(-c.start)).Abs() > 10*time.Second {
			t.Errorf("%s: start %v (set %v)", name, at, set)
		}
		a.Offers.openHolds(t.Context(), s, time.Hour+c.again-1)
		if j.asked != 1 {
			t.Errorf("%s: asked %d times within %s", name, j.asked, c.again)
		}
		a.Offers.openHolds(t.Context(), s, time.Hour+c.again)
		if j.asked != 2 {
			t.Errorf("%s: asked %d times in %s", name, j.asked, c.again)
		}
	}
}

// A slurmctld that does not answer is not asked about the next job.
func TestOpenHoldsOfManyJobs(t *testing.T) {
	s := lease.Snapshot{Holds: []lease.Hold{{UUID: "a", JobID: 7}, {UUID: "b", JobID: 8}, {UUID: "c", JobID: 9}}}
	a, j := newAgent(), &jobs{err: errors.New("no answer")}
	a.Ledger, a.Jobs = &ledger{}, j
	wire(a)
	a.Offers.openHolds(t.Context(), s, time.Hour)
	a.Offers.openHolds(t.Context(), s, time.Hour+askAgain)
	if j.asked != 1 {
		t.Errorf("asked %d times", j.asked)
	}
}

// GPUs are not offered to a job whose Prolog might refuse them: it does not tell the
// agent by which method its memory was estimated, or which policy it chose.
func TestOpenHoldsAsTheProlog(t *testing.T) {
	s := lease.Snapshot{
		Holds:    []lease.Hold{{UUID: "a", JobID: 7, UID: 1000, MiB: 20480}},
		Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a", TotalMiB: 40503}, HeldFor: 7}},
		Leases:   []gres.Lease{{UUID: "a", UID: 1000, ReserveMiB: 17000, Seen: true, Daemon: "a"}},
	}
	for name, c := range map[string]struct {
		change func(*Agent)
		opens  bool
	}{
		"as it is":            {func(*Agent) {}, true},
		"nobody shares":       {func(a *Agent) { a.Config.Placement.Policy = "exclusive" }, false},
		"another's, by turns": {func(a *Agent) { a.Thresholds.CrossUser, s.Leases[0].UID = true, 2000 }, true},
		"another's, or carma": {func(a *Agent) {
			a.Thresholds.CrossUser, s.Leases[0].UID, a.Config.Placement.AllowPolicies = true, 2000, []string{"lug", "carma"}
		}, false},
		"the user's, and carma": {func(a *Agent) { a.Config.Placement.AllowPolicies = []string{"carma"} }, true},
	} {
		l, a := &ledger{}, newAgent()
		a.Ledger, a.Jobs = l, waiting()
		a.Thresholds = choose.Thresholds{SMActMaxPct: 80, MarginMiB: 2048, MaxJobs: 4}
		s.Leases[0].UID = 1000
		c.change(a)
		wire(a)
		a.Offers.openHolds(t.Context(), s, time.Hour)
		if opens := len(l.calls) == 1; opens != c.opens {
			t.Errorf("%s: %v", name, l.calls)
		}
	}
}

func TestFollowHolds(t *testing.T) {
	l := &ledger{}
	a := newAgent()
	a.Ledger = l
	a.Jobs = &jobs{known: map[uint32]sctl.Job{1: {State: "PENDING", Reason: "Resources"}, 2: {State: "RUNNING"},
		3: {State: "COMPLETING"}, 5: {State: "PENDING"}, 6: {State: "RUNNING", Reason: "Prolog"}, 7: {State: "CONFIGURING"}}}
	wire(a)
	var s lease.Snapshot
	for id := range uint32(7) { // 4 has gone, 6 and 7 are in some Prolog, or will be, which may return them to the queue
		s.Holds = append(s.Holds, lease.Hold{UUID: "x", JobID: id + 1})
	}
	s.Holds[4].Age = steward.HoldTimeout + time.Second
	a.Offers.followHolds(t.Context(), s)
	if want := []string{"drop 2", "drop 4", "drop 5"}; !slices.Equal(l.calls, want) {
		t.Errorf("%v, want %v", l.calls, want)
	}
}

// Nothing is kept for a job that can run on other nodes alone, by the node itself or as the steward says.
func TestHoldOfAJobForOtherNodes(t *testing.T) {
	for _, kept := range []bool{true, false} {
		hold := steward.Hold{JobID: 7, GPUs: 1, Since: time.Now()}
		l, slurm := &ledger{}, &cluster{nodes: []schedule.Node{{Name: "n1", Extra: extraOf(hold)}}}
		a := stewardOf(slurm, "n1")
		a.Ledger, a.Jobs = l, &jobs{known: map[uint32]sctl.Job{7: {State: "PENDING", Reason: "Resources", Nodes: 1}},
			away: !kept}
		wire(a)
		s := lease.Snapshot{Holds: []lease.Hold{{UUID: "x", JobID: 7}}}
		said := a.Offers.followHolds(t.Context(), s)
		if dropped := slices.Equal(l.calls, []string{"drop 7"}); dropped == kept {
			t.Errorf("may run here %v: %v", kept, l.calls)
		}
		a.Offers.followExtra(t.Context(), slurm.nodes[0].Extra, s, said)
		if says := strings.Contains(slurm.nodes[0].Extra, "carmahold"); says != kept {
			t.Errorf("may run here %v: Extra %s", kept, slurm.nodes[0].Extra)
		}
	}
}

// A job whose GPUs are open does not back off any longer, and they are closed until it
// comes.
func TestHasten(t *testing.T) {
	soon := time.Now().Add(10 * time.Minute)
	for name, c := range map[string]struct {
		change func(j *jobs, job *sctl.Job, h *lease.Hold)
		start  time.Duration // from now; 0: not set
		calls  string
	}{
		"backs off": {func(*jobs, *sctl.Job, *lease.Hold) {}, 2 * time.Second, "[open 1 in 2s]"},
		"up to 22.05": {func(j *jobs, _ *sctl.Job, _ *lease.Hold) { j.version = sctl.Version{Major: 22, Minor: 5} },
			125 * time.Second, "[open 1 in 2m5s]"},
		"no reason yet": {func(_ *jobs, job *sctl.Job, _ *lease.Hold) { job.Reason = "Prolog" }, 2 * time.Second,
			"[open 1 in 2s]"},
		"not open yet":    {func(_ *jobs, _ *sctl.Job, h *lease.Hold) { h.Open = false }, 0, "[]"},
		"waits for room":  {func(_ *jobs, job *sctl.Job, _ *lease.Hold) { job.Reason = "Resources" }, 0, "[]"},
		"held":            {func(_ *jobs, job *sctl.Job, _ *lease.Hold) { job.Reason = "JobHeldUser" }, 0, "[drop 1]"},
		"depends":         {func(_ *jobs, job *sctl.Job, _ *lease.Hold) { job.Reason = "Dependency" }, 0, "[drop 1]"},
		"wants a licence": {func(_ *jobs, job *sctl.Job, _ *lease.Hold) { job.Reason = "Licenses" }, 0, "[drop 1]"},
		"at a limit": {func(_ *jobs, job *sctl.Job, _ *lease.Hold) { job.Reason = "QOSMaxJobsPerUserLimit" }, 0,
			"[drop 1]"},
		"past a deadline": {func(_ *jobs, job *sctl.Job, _ *lease.Hold) { job.Reason = "DeadLine" }, 0, "[drop 1]"},
		"has moved": {func(_ *jobs, job *sctl.Job, _ *lease.Hold) { job.Reason, job.Partition = "Resources", "cpu" },
			0, "[drop 1]"},
		"not answered": {func(j *jobs, _ *sctl.Job, _ *lease.Hold) { j.err = errors.New("no answer") }, 0, "[]"},
		"still ends":   {func(_ *jobs, job *sctl.Job, _ *lease.Hold) { job.State = "COMPLETING" }, 0, "[]"},
		"comes soon": {func(j *jobs, _ *sctl.Job, _ *lease.Hold) { j.may.Eligible = time.Now().Add(10 * time.Second) },
			0, "[open 1 in 10s]"},
		"user's wish": {func(j *jobs, _ *sctl.Job, _ *lease.Hold) { j.may.Eligible = soon.Add(time.Hour) }, 0,
			"[drop 1]"},
		"and then again": {func(j *jobs, _ *sctl.Job,
			_ *lease.Hold) {
			j.may.Submitted = time.Now().Add(-10 * time.Minute)
		}, 0, "[drop 1]"},
		"never back": {func(j *jobs, _ *sctl.Job, _ *lease.Hold) { j.may.Restarts = 0 }, 0, "[drop 1]"},
		"not looked at": {func(j *jobs, job *sctl.Job, _ *lease.Hold) { job.Reason, j.may.Eligible = "None", time.Time{} },
			0, "[open 1 in 30m0s]"},
		"GPU in use":      {func(_ *jobs, _ *sctl.Job, h *lease.Hold) { h.UUID = "in use" }, 0, "[]"},
		"is late by then": {func(_ *jobs, _ *sctl.Job, h *lease.Hold) { h.Age = 24 * time.Hour }, 0, "[drop 1]"},
	} {
		job, hold := sctl.Job{ID: 1, State: "PENDING", Reason: "BeginTime"}, lease.Hold{UUID: "x", JobID: 1, Open: true}
		j := &jobs{version: sctl.Version{Major: 25, Minor: 11}, starts: map[string]time.Time{},
			may: sctl.Job{Restarts: 1, Eligible: soon, Submitted: time.Now()}}
		c.change(j, &job, &hold)
		j.known = map[uint32]sctl.Job{1: job}
		a, l := newAgent(), &ledger{}
		a.Ledger, a.Jobs = l, j
		wire(a)
		a.Offers.followHolds(t.Context(), lease.Snapshot{Holds: []lease.Hold{hold}, Leases: []gres.Lease{{UUID: "in use"}}})
		if got := fmt.Sprint(l.calls); got != c.calls {
			t.Errorf("%s: %s, want %s", name, got, c.calls)
		}
		at, set := j.starts["1"]
		if set != (c.start != 0) || set && time.Until(at.Add(-c.start)).Abs() > 10*time.Second {
			t.Errorf("%s: start %v (set %v)", name, at, set)
		}
	}
}
