// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/resident"
	"carma/slurmbridge/sctl"
)

// daemons stands for the MPS daemons.
type daemons struct {
	fault gres.Daemon
	sets  []gres.Daemon
	err   error
	calls []string
}

func (d *daemons) note(call string, on gres.Daemon) error {
	d.calls = append(d.calls, call+" "+string(on))
	return d.err
}

func (d *daemons) Ensure(_ context.Context, on gres.Daemon) error { return d.note("ensure", on) }
func (d *daemons) Terminate(_ context.Context, on gres.Daemon, _ int) error {
	return d.note("terminate", on)
}
func (d *daemons) Restart(_ context.Context, on gres.Daemon) error { return d.note("restart", on) }
func (d *daemons) Quit(_ context.Context, on gres.Daemon) error    { return d.note("quit", on) }
func (d *daemons) Sets() ([]gres.Daemon, error)                    { return d.sets, d.err }
func (d *daemons) Faulted(_ context.Context, on gres.Daemon) (bool, error) {
	return on == d.fault, d.err
}

func TestCheckMPS(t *testing.T) {
	client := gres.Process{PID: 1, MPS: true}
	using := gres.Lease{Job: gres.JobKey{JobID: 7}, UUID: "a", Daemon: "a"}
	for _, c := range []struct {
		name        string
		sample      gres.Sample
		leases      []gres.Lease
		quarantined bool
		fault       bool
		mps, ledger []string
	}{
		{"nobody", sample(), nil, false, true, []string{"ensure a"}, nil},
		{"in use", sample(client), []gres.Lease{using}, false, false, []string{"ensure a"}, nil},
		{"fault", sample(client), []gres.Lease{using}, false, true, []string{"ensure a"}, []string{"quarantine a: its MPS server has faulted"}},
		{"victims are there", sample(client), []gres.Lease{using}, true, true, nil, nil},
		{"a victim's process is there", sample(client), nil, true, true, nil, nil},
		{"victims have gone", sample(), nil, true, true, []string{"restart a"}, []string{"readmit a"}},
		{"left by a job", sample(gres.Process{PID: 2, MPS: true}), nil, false, false, []string{"ensure a", "terminate a"}, nil},
		{"of no job", sample(gres.Process{PID: 3, MPS: true}), nil, false, false, []string{"ensure a"}, nil},
		{"no client", sample(gres.Process{PID: 2}), nil, false, false, []string{"ensure a"}, nil},
		{"MIG", gres.Sample{GPU: gres.GPU{UUID: "a", MIG: true}}, nil, false, false, nil, nil},
		{"unreadable", gres.Sample{GPU: gres.GPU{UUID: "a"}, Unreadable: "lost"}, nil, false, false, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, d := &ledger{}, &daemons{}
			if c.fault {
				d.fault = "a"
			}
			a := newAgent()
			a.Ledger, a.MPS = l, d
			a.Owners = owners{1: {JobID: 7}, 2: {JobID: 99}, 3: {}}
			s := lease.Snapshot{Leases: c.leases, Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a"}}}}
			if c.quarantined {
				s.Readings[0].Quarantined = "fault"
			}
			a.checkMPS(t.Context(), []gres.Sample{c.sample}, s)
			if !slices.Equal(d.calls, c.mps) || !slices.Equal(l.calls, c.ledger) {
				t.Errorf("MPS %v, ledger %v; want %v, %v", d.calls, l.calls, c.mps, c.ledger)
			}
		})
	}
}

// A daemon of several GPUs comes with the first job that needs it and ends when
// none does; its fault closes those of its GPUs that no other daemon uses.
func TestCheckMPSOfSeveralGPUs(t *testing.T) {
	two := []gres.Lease{{Job: gres.JobKey{JobID: 7}, UUID: "a", Daemon: "a,b"}, {Job: gres.JobKey{JobID: 7}, UUID: "b", Daemon: "a,b"}}
	beside := append(slices.Clone(two[:1]), gres.Lease{Job: gres.JobKey{JobID: 8}, UUID: "b", Daemon: "b"})
	singles := []string{"ensure a", "ensure b", "ensure c"}
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
		{"comes up", two, nil, nil, "", false, append(singles, "ensure a,b"), nil},
		{"is not used", nil, []gres.Daemon{"a,b"}, nil, "", false, append(singles, "quit a,b"), nil},
		{"one of two is used", two, []gres.Daemon{"a,b", "b,c"}, nil, "", false, append(singles, "ensure a,b", "quit b,c"), nil},
		{"fault", two, []gres.Daemon{"a,b"}, nil, "a,b", false, append(singles, "ensure a,b"),
			[]string{"quarantine a: its MPS server has faulted", "quarantine b: its MPS server has faulted"}},
		{"fault beside another daemon", beside, []gres.Daemon{"a,b"}, nil, "a,b", false, append(singles, "ensure a,b"),
			[]string{"quarantine a: its MPS server has faulted"}},
		{"left on a, used on b", two[1:], []gres.Daemon{"a,b", "b,c"}, []gres.Process{left}, "", false,
			[]string{"ensure a", "terminate a", "terminate a,b", "ensure b", "ensure c", "ensure a,b", "quit b,c"}, nil},
		{"a victim runs on b", two[1:], []gres.Daemon{"a,b"}, nil, "a,b", true, []string{"ensure b", "ensure c"}, nil},
		{"the victims have gone", nil, []gres.Daemon{"a,b"}, nil, "", true, []string{"restart a", "ensure b", "ensure c", "quit a,b"}, []string{"readmit a"}},
	} {
		l, d := &ledger{}, &daemons{sets: c.sets, fault: c.fault}
		a := newAgent()
		a.Ledger, a.MPS, a.Owners, a.sets = l, d, owners{2: {JobID: 99}}, map[gres.Daemon]bool{}
		s := lease.Snapshot{Leases: c.leases, Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a"}}}}
		if c.quarantined {
			s.Readings[0].Quarantined = "fault"
		}
		samples := []gres.Sample{{GPU: gres.GPU{UUID: "a"}, Processes: c.process}, {GPU: gres.GPU{UUID: "b"}}, {GPU: gres.GPU{UUID: "c"}}}
		a.checkMPS(t.Context(), samples, s)
		if !slices.Equal(d.calls, c.mps) || !slices.Equal(l.calls, c.ledger) {
			t.Errorf("%s: MPS %v, ledger %v; want %v, %v", c.name, d.calls, l.calls, c.mps, c.ledger)
		}
		d.calls = nil
		a.startSets(t.Context(), c.leases)
		if !c.quarantined && d.calls != nil {
			t.Errorf("%s: started again %v", c.name, d.calls)
		}
	}
}

// A job that comes while the daemon of its GPUs is stopped has it again at once.
func TestStoppedDaemonComesBack(t *testing.T) {
	d := &daemons{sets: []gres.Daemon{"a,b"}}
	a := newAgent()
	a.Ledger, a.MPS, a.sets = &ledger{meanwhile: []gres.Lease{{UUID: "a", Daemon: "a,b"}, {UUID: "b", Daemon: "a,b"}}}, d, map[gres.Daemon]bool{"a,b": true}
	a.checkMPS(t.Context(), nil, lease.Snapshot{})
	if want := []string{"quit a,b", "ensure a,b"}; !slices.Equal(d.calls, want) {
		t.Errorf("%v, want %v", d.calls, want)
	}
}

// Without MPS, or with a daemon that fails, the agent goes on.
func TestCheckMPSFails(t *testing.T) {
	a := newAgent()
	a.Ledger, a.Owners = &ledger{}, owners{1: resident.Owner{JobID: 9}}
	a.checkMPS(t.Context(), []gres.Sample{sample()}, lease.Snapshot{})
	a.MPS = &daemons{err: errors.New("no such program")}
	a.checkMPS(t.Context(), []gres.Sample{sample(gres.Process{PID: 1, MPS: true})}, lease.Snapshot{})
}

func TestOpenHolds(t *testing.T) {
	holds := []lease.Hold{{UUID: "a", JobID: 7}, {UUID: "b", JobID: 7}}
	share := []lease.Hold{{UUID: "a", JobID: 7, MiB: 20480}}
	gpu := []gres.Reading{{GPU: gres.GPU{UUID: "a", TotalMiB: 40503}, HeldFor: 7}}
	shares := []lease.Hold{{UUID: "a", JobID: 7, MiB: 10240}, {UUID: "b", JobID: 7, MiB: 10240}}
	two := []gres.Reading{{GPU: gres.GPU{UUID: "a", TotalMiB: 40503}, HeldFor: 7}, {GPU: gres.GPU{UUID: "b", TotalMiB: 40503}, HeldFor: 7}}
	for name, c := range map[string]struct {
		s    lease.Snapshot
		want []string
	}{
		"a share, room":              {lease.Snapshot{Holds: share, Readings: gpu, Leases: []gres.Lease{{UUID: "a", Job: gres.JobKey{JobID: 1}, ReserveMiB: 17000, Seen: true}}}, []string{"open 7 in 0s"}},
		"a share, no room":           {lease.Snapshot{Holds: share, Readings: gpu, Leases: []gres.Lease{{UUID: "a", Job: gres.JobKey{JobID: 1}, ReserveMiB: 19000, Seen: true}}}, nil},
		"a share, closed":            {lease.Snapshot{Holds: share, Readings: gpu, Leases: []gres.Lease{{UUID: "a", Job: gres.JobKey{JobID: 1}, Exclusive: true}}}, nil},
		"a share, no GPU":            {lease.Snapshot{Holds: share}, nil},
		"shares of two, one daemon":  {lease.Snapshot{Holds: shares, Readings: two, Leases: []gres.Lease{{UUID: "a", Daemon: "a,b"}}}, []string{"open 7 in 0s"}},
		"shares of two, two daemons": {lease.Snapshot{Holds: shares, Readings: two, Leases: []gres.Lease{{UUID: "a", Daemon: "a"}, {UUID: "b", Daemon: "b"}}}, nil},
		"shares of two, another's":   {lease.Snapshot{Holds: shares, Readings: two, Leases: []gres.Lease{{UUID: "a", Daemon: "a,b", UID: 2000}}}, nil},
		"a share, another's":         {lease.Snapshot{Holds: share, Readings: gpu, Leases: []gres.Lease{{UUID: "a", Job: gres.JobKey{JobID: 1}, UID: 2000, Seen: true}}}, nil},
		"all idle":                   {lease.Snapshot{Holds: holds}, []string{"open 7 in 0s"}},
		"one busy":                   {lease.Snapshot{Holds: holds, Leases: []gres.Lease{{UUID: "b"}}}, nil},
		"others busy":                {lease.Snapshot{Holds: holds, Leases: []gres.Lease{{UUID: "c"}}}, []string{"open 7 in 0s"}},
		"open already":               {lease.Snapshot{Holds: []lease.Hold{{UUID: "a", JobID: 7, Opens: true, Open: true}}}, nil},
		"opens soon":                 {lease.Snapshot{Holds: []lease.Hold{{UUID: "a", JobID: 7, Opens: true}}}, nil},
		"start is not set":           {lease.Snapshot{Holds: holds, Comebacks: []lease.Comeback{{JobID: 7}}}, nil},
		"no holds":                   {lease.Snapshot{}, nil},
	} {
		l := &ledger{}
		a := newAgent()
		a.Ledger, a.Jobs = l, waiting()
		a.Thresholds = choose.Thresholds{SMActMaxPct: 80, MarginMiB: 2048, MaxJobs: 4}
		a.openHolds(t.Context(), c.s, time.Hour)
		if !slices.Equal(l.calls, c.want) {
			t.Errorf("%s: %v, want %v", name, l.calls, c.want)
		}
	}
}

// waiting is a slurmctld where job 7 waits for room.
func waiting() *jobs {
	return &jobs{
		known: map[uint32]sctl.Job{7: {ID: 7, State: "PENDING"}}, back: sctl.Comeback{Eligible: time.Now().Add(-time.Hour)},
		version: sctl.Version{Major: 22, Minor: 5}, starts: map[string]time.Time{},
	}
}

// GPUs are offered from when their job can start: until then slurmctld would send
// others there, who are given back. slurmctld is not asked all the time.
func TestOpenHoldsWhenTheJobCanStart(t *testing.T) {
	s := lease.Snapshot{Holds: []lease.Hold{{UUID: "a", JobID: 7}}}
	in := func(d time.Duration) time.Time { return time.Now().Add(d) }
	for name, c := range map[string]struct {
		job   sctl.Job
		back  sctl.Comeback
		err   error
		want  string
		start time.Duration // that is set; 0: none
	}{
		"waits for room":        {sctl.Job{ID: 7, State: "PENDING"}, sctl.Comeback{Restarts: 3, Eligible: in(-time.Minute)}, nil, "[open 7 in 0s]", 0},
		"comes back soon":       {sctl.Job{ID: 7, State: "PENDING"}, sctl.Comeback{Restarts: 1, Eligible: in(20 * time.Second)}, nil, "[open 7 in 20s]", 0},
		"backs off":             {sctl.Job{ID: 7, State: "PENDING"}, sctl.Comeback{Restarts: 1, Eligible: in(14 * time.Minute)}, nil, "[open 7 in 2m5s]", 125 * time.Second},
		"is to start at a time": {sctl.Job{ID: 7, State: "PENDING"}, sctl.Comeback{Eligible: in(time.Hour)}, nil, "[open 7 in 1h0m0s]", 0},
		"in a Prolog":           {sctl.Job{ID: 7, State: "RUNNING", Reason: "Prolog"}, sctl.Comeback{Restarts: 1, Eligible: in(-time.Minute)}, nil, "[]", 0},
		"not known":             {sctl.Job{ID: 8}, sctl.Comeback{}, nil, "[]", 0},
		"slurmctld is away":     {sctl.Job{ID: 7, State: "PENDING"}, sctl.Comeback{}, errors.New("no answer"), "[]", 0},
	} {
		l, a := &ledger{}, newAgent()
		j := waiting()
		j.known, j.back, j.err = map[uint32]sctl.Job{c.job.ID: c.job}, c.back, c.err
		a.Ledger, a.Jobs = l, j
		a.openHolds(t.Context(), s, time.Hour)
		if got := fmt.Sprint(l.calls); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if at, set := j.starts["7"]; set != (c.start != 0) || set && time.Until(at.Add(-c.start)).Abs() > 10*time.Second {
			t.Errorf("%s: start %v (set %v)", name, at, set)
		}
		a.openHolds(t.Context(), s, time.Hour+askAgain/2)
		if j.asked != 1 {
			t.Errorf("%s: asked %d times within %s", name, j.asked, askAgain)
		}
		a.openHolds(t.Context(), s, time.Hour+askAgain)
		if j.asked != 2 {
			t.Errorf("%s: asked %d times", name, j.asked)
		}
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
		"a larger margin":     {func(a *Agent) { a.Config.Placement.Margin = map[string]int64{"user": 4096} }, false},
		"a smaller margin":    {func(a *Agent) { a.Config.Placement.Margin = map[string]int64{"user": 1024} }, true},
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
		a.openHolds(t.Context(), s, time.Hour)
		if opens := len(l.calls) == 1; opens != c.opens {
			t.Errorf("%s: %v", name, l.calls)
		}
	}
}

func TestFollowHolds(t *testing.T) {
	l := &ledger{}
	a := newAgent()
	a.Ledger = l
	a.Jobs = &jobs{known: map[uint32]sctl.Job{1: {State: "PENDING"}, 2: {State: "RUNNING"}, 3: {State: "COMPLETING"}, 5: {State: "PENDING"}, 6: {State: "RUNNING", Reason: "Prolog"}}}
	var s lease.Snapshot
	for id := range uint32(6) { // 4 has gone, 6 is in some Prolog, which may give it back
		s.Holds = append(s.Holds, lease.Hold{UUID: "x", JobID: id + 1})
	}
	s.Holds[4].Age = a.Config.Hold.Timeout.D() + time.Second
	a.followHolds(t.Context(), s)
	if want := []string{"drop 2", "drop 4", "drop 5"}; !slices.Equal(l.calls, want) {
		t.Errorf("%v, want %v", l.calls, want)
	}
}

// A job whose GPUs are open does not back off any longer.
func TestHasten(t *testing.T) {
	soon := time.Now().Add(10 * time.Minute)
	for name, c := range map[string]struct {
		change func(j *jobs, job *sctl.Job, h *lease.Hold)
		start  time.Duration // from now; 0: not set
	}{
		"backs off":       {func(*jobs, *sctl.Job, *lease.Hold) {}, 2 * time.Second},
		"up to 22.05":     {func(j *jobs, _ *sctl.Job, _ *lease.Hold) { j.version = sctl.Version{Major: 22, Minor: 5} }, 125 * time.Second},
		"not open yet":    {func(_ *jobs, _ *sctl.Job, h *lease.Hold) { h.Open = false }, 0},
		"waits for room":  {func(j *jobs, _ *sctl.Job, _ *lease.Hold) { j.back.Eligible = time.Now().Add(-time.Hour) }, 0},
		"still ends":      {func(_ *jobs, job *sctl.Job, _ *lease.Hold) { job.State = "COMPLETING" }, 0},
		"comes soon":      {func(j *jobs, _ *sctl.Job, _ *lease.Hold) { j.back.Eligible = time.Now().Add(10 * time.Second) }, 0},
		"user's wish":     {func(j *jobs, _ *sctl.Job, _ *lease.Hold) { j.back.Eligible = soon.Add(time.Hour) }, 0},
		"never back":      {func(j *jobs, _ *sctl.Job, _ *lease.Hold) { j.back.Restarts = 0 }, 0},
		"GPU in use":      {func(_ *jobs, _ *sctl.Job, h *lease.Hold) { h.UUID = "in use" }, 0},
		"is late by then": {func(_ *jobs, _ *sctl.Job, h *lease.Hold) { h.Age = 24 * time.Hour }, 0},
	} {
		job, hold := sctl.Job{ID: 1, State: "PENDING"}, lease.Hold{UUID: "x", JobID: 1, Opens: true, Open: true}
		j := &jobs{version: sctl.Version{Major: 25, Minor: 11}, starts: map[string]time.Time{}, back: sctl.Comeback{Restarts: 1, Eligible: soon}}
		c.change(j, &job, &hold)
		j.known = map[uint32]sctl.Job{1: job}
		a := newAgent()
		a.Ledger, a.Jobs = &ledger{}, j
		a.followHolds(t.Context(), lease.Snapshot{Holds: []lease.Hold{hold}, Leases: []gres.Lease{{UUID: "in use"}}})
		at, set := j.starts["1"]
		if set != (c.start != 0) || set && time.Until(at.Add(-c.start)).Abs() > 10*time.Second {
			t.Errorf("%s: start %v (set %v)", name, at, set)
		}
	}
}
