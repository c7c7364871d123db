// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/db/figure"
	"carma/gres"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

func TestUnused(t *testing.T) {
	p := gres.Process{PID: 1}
	for _, c := range []struct {
		name         string
		present      bool
		own          float64
		total        figure.Measured
		source       figure.Source
		processes    []gres.Process
		foreign      bool
		holders      int
		idle, coarse bool
	}{
		{"works", true, 60, 60, figure.SourceGPM, []gres.Process{p}, false, 1, false, false},
		{"has a context and does nothing", true, 0, 0.1, figure.SourceGPM, []gres.Process{p}, false, 1, true, false},
		{"the same, not measured well", true, 0, 0, figure.SourceUtilisation, []gres.Process{p}, false, 1, true, true},
		{"the same, not measured", true, math.NaN(), figure.Unknown, figure.SourceNone, []gres.Process{p}, false, 1, false,
			false},
		{"no context, others have one", false, math.NaN(), 50, figure.SourceGPM, []gres.Process{p}, false, 2, true, false},
		{"no context, nobody has one", false, 0, 0, figure.SourceGPM, nil, false, 1, true, false},
		{"no context, and yet there is activity", false, 50, 50, figure.SourceGPM, nil, false, 1, false, false},
		{"no context, and nothing is measured", false, math.NaN(), figure.Unknown, figure.SourceNone, nil, false, 1, false,
			false},
		{"no context, but processes of no job", false, 0, 0, figure.SourceGPM, []gres.Process{p}, true, 1, false, false},
		{"does nothing beside one that works", true, 0, 50, figure.SourceGPM, []gres.Process{p}, false, 2, true, true},
		{"works beside one that works", true, 20, 50, figure.SourceGPM, []gres.Process{p}, false, 2, false, true},
	} {
		s := gres.Sample{SMActPct: c.total, Source: c.source, Processes: c.processes}
		if idle, coarse := unused(c.present, c.own, s, c.foreign, c.holders); idle != c.idle || idle && coarse != c.coarse {
			t.Errorf("%s: idle %v, coarse %v", c.name, idle, coarse)
		}
	}
}

// The ledger hears of a change alone, and of what stands once after a start.
func TestIdlenessTellsChanges(t *testing.T) {
	var i idleness
	quiet := gres.Sample{SMActPct: 0, Source: figure.SourceGPM, Processes: []gres.Process{{PID: 1}}}
	busy, coarse := quiet, quiet
	busy.SMActPct, coarse.Source = 50, figure.SourceUtilisation
	for n, c := range []struct {
		s          gres.Sample
		own        float64
		changed    bool
		from, sure time.Duration
	}{
		{busy, 50, true, 0, 0}, {busy, 50, false, 0, 0}, {quiet, 0, true, 3, 3}, {quiet, 0, false, 3, 3},
		{coarse, 0, true, 3, 0}, {quiet, 0, true, 3, 6}, {busy, 50, true, 0, 0}, {quiet, 0, true, 8, 8},
	} {
		u := lease.Usage{Present: true, SMActPct: c.own}
		i.look(&u, c.s, false, 1, time.Duration(n+1))
		if u.IdleChanged != c.changed || u.IdleFrom != c.from || u.IdleSure != c.sure {
			t.Errorf("look %d: %+v", n+1, u)
		}
	}
}

// users keeps what it was asked to do.
type users struct{ calls []string }

func (u *users) Notify(_ context.Context, job uint32, text string) error {
	u.calls = append(u.calls, fmt.Sprint("notify ", job, ": ", text))
	return nil
}

func (u *users) Cancel(_ context.Context, t sctl.Target) error {
	u.calls = append(u.calls, "cancel "+t.String())
	return nil
}

func (l *ledger) Cancelled(_ context.Context, key jobenv.JobKey, why string) error {
	return l.note("cancelled %s: %s", key, why)
}

func TestTellIdle(t *testing.T) {
	running := sctl.Job{ID: 7, State: "RUNNING", Nodes: 1, ArrayJobID: 5, ArrayTask: 2}
	with := func(change func(*sctl.Job)) sctl.Job { j := running; change(&j); return j }
	const told = "notify 7: carma: job 7 holds GPUs and has not used them for 30m0s"
	cancelled := []string{told + "; it is cancelled", "cancel 5_2"}
	for _, c := range []struct {
		name, action string
		job          sctl.Job
		change       func(*lease.Snapshot)
		want         []string
	}{
		{"none", "none", running, func(*lease.Snapshot) {}, nil},
		{"notify", "notify", running, func(*lease.Snapshot) {}, []string{told}},
		{"cancel", "cancel", running, func(*lease.Snapshot) {}, cancelled},
		{"not for long", "cancel", running, func(s *lease.Snapshot) { s.Leases[0].Idle = 29 * time.Minute }, nil},
		{"uses one of two", "cancel", running, func(s *lease.Snapshot) { s.Leases[1].Idle = 0 }, nil},
		{"not certain", "cancel", running, func(s *lease.Snapshot) { s.Leases[1].IdleSure = 29 * time.Minute },
			[]string{told}},
		{"not read", "cancel", running, func(s *lease.Snapshot) { s.Readings[1].Unreadable = "lost" }, nil},
		{"not read lately", "cancel", running, func(s *lease.Snapshot) { s.Readings[1].Age = time.Minute }, nil},
		{"another user's by now", "cancel", with(func(j *sctl.Job) { j.UID = 1 }), func(*lease.Snapshot) {}, nil},
		{"runs elsewhere by now", "cancel", with(func(j *sctl.Job) { j.NodeList = "n9" }), func(*lease.Snapshot) {}, nil},
		{"a later attempt", "cancel", with(func(j *sctl.Job) { j.Restarts = 1 }), func(*lease.Snapshot) {}, nil},
		{"several nodes", "cancel", with(func(j *sctl.Job) { j.Nodes = 2 }), func(*lease.Snapshot) {}, []string{told}},
		{"suspended", "cancel", with(func(j *sctl.Job) { j.State = "SUSPENDED" }), func(*lease.Snapshot) {}, []string{told}},
		{"suspended a part of the time", "cancel", with(func(j *sctl.Job) { j.Suspended = time.Minute }),
			func(*lease.Snapshot) {}, nil},
		{"suspended before", "cancel", with(func(j *sctl.Job) { j.Suspended = time.Minute }), func(s *lease.Snapshot) {
			s.Leases[0].Idle, s.Leases[0].IdleSure = 31*time.Minute, 31*time.Minute
		}, []string{strings.Replace(told, "30", "31", 1) + "; it is cancelled", "cancel 5_2"}},
		{"without leases", "cancel", running, func(s *lease.Snapshot) { s.Leases = nil }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			u, l := &users{}, &ledger{}
			a := newAgent()
			a.Config.Idle.Action = c.action
			a.Users, a.Ledger, a.Jobs = u, l, &jobs{known: map[uint32]sctl.Job{7: c.job}}
			key := jobenv.JobKey{JobID: 7}
			s := lease.Snapshot{
				Leases: []gres.Lease{{Job: key, UUID: "a", Idle: 30 * time.Minute, IdleSure: 30 * time.Minute},
					{Job: key, UUID: "b", Idle: 40 * time.Minute, IdleSure: 40 * time.Minute},
					{Job: jobenv.JobKey{JobID: 8}, UUID: "b"}},
				Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a"}}, {GPU: gres.GPU{UUID: "b"}}},
			}
			c.change(&s)
			l.meanwhile = s
			a.tellIdle(t.Context(), s)
			a.tellIdle(t.Context(), s) // once
			if !slices.Equal(u.calls, c.want) {
				t.Errorf("%q\nwant %q", u.calls, c.want)
			}
			if noted := len(l.calls) == 1 && regexp.MustCompile("^cancelled 7: cancelled: it used none of its GPUs for "+
				"3[01]m0s$").MatchString(l.calls[0]); noted != (len(c.want) == 2) {
				t.Errorf("ledger %q", l.calls)
			}
		})
	}
}

// A job that is at work again and then not is told again; slurmctld that does
// not answer is no reason to cancel.
func TestTellIdleAgain(t *testing.T) {
	u := &users{}
	a := newAgent()
	a.Config.Idle.Action = "notify"
	j := &jobs{known: map[uint32]sctl.Job{7: {ID: 7}}}
	a.Users, a.Jobs = u, j
	key := jobenv.JobKey{JobID: 7}
	s := lease.Snapshot{Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a"}}}}
	for _, idle := range []time.Duration{time.Hour, 0, time.Hour} {
		s.Leases = []gres.Lease{{Job: key, UUID: "a", Idle: idle}}
		a.tellIdle(t.Context(), s)
	}
	if len(u.calls) != 2 {
		t.Errorf("told %q", u.calls)
	}
	s.Leases[0].IdleSure = time.Hour
	a.Config.Idle.Action, j.err, j.known = "cancel", errors.New("away"), nil
	if a.tellIdle(t.Context(), s); len(u.calls) != 2 {
		t.Errorf("told %q", u.calls)
	}
}

// A job that goes to work while slurmctld is asked about it is not cancelled.
func TestTellIdleTooLate(t *testing.T) {
	u, l := &users{}, &ledger{}
	a := newAgent()
	a.Config.Idle.Action = "cancel"
	a.Users, a.Ledger, a.Jobs = u, l, &jobs{known: map[uint32]sctl.Job{7: {ID: 7, State: "RUNNING", Nodes: 1}}}
	s := lease.Snapshot{Leases: []gres.Lease{{Job: jobenv.JobKey{JobID: 7}, UUID: "a", Idle: time.Hour,
		IdleSure: time.Hour}}, Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a"}}}}
	l.meanwhile = lease.Snapshot{Leases: []gres.Lease{{Job: jobenv.JobKey{JobID: 7}, UUID: "a"}}, Readings: s.Readings}
	if a.tellIdle(t.Context(), s); u.calls != nil || l.calls != nil {
		t.Errorf("%q, ledger %q", u.calls, l.calls)
	}
}

// A job that the agent cancels leaves the MPS servers before signals end it, where other jobs
// are clients too; whether that works, it is cancelled.
func TestCancelledJobsLeaveMPSFirst(t *testing.T) {
	key := jobenv.JobKey{JobID: 7}
	mine := gres.Lease{Job: key, UID: 1000, UUID: "a", Daemon: "a", Idle: time.Hour, IdleSure: time.Hour}
	other := gres.Lease{Job: jobenv.JobKey{JobID: 8}, UID: 1000, UUID: "a", Daemon: "a"}
	for name, c := range map[string]struct {
		leases []gres.Lease
		err    error
		want   string
	}{
		"with another": {[]gres.Lease{mine, other}, nil, "[terminate a]"},
		"alone":        {[]gres.Lease{mine}, nil, "[]"},
		"fails":        {[]gres.Lease{mine, other}, errors.New("no answer"), "[terminate a]"},
	} {
		u, m := &users{}, &daemons{err: c.err}
		a := newAgent()
		a.Config.Idle.Action = "cancel"
		a.Users, a.Jobs = u, &jobs{known: map[uint32]sctl.Job{7: {ID: 7, UID: 1000, State: "RUNNING", Nodes: 1}}}
		a.Owners = owners{1: {JobID: 7, UID: 1000}, 2: {JobID: 8, UID: 1000}, 3: {}}
		s := lease.Snapshot{Leases: c.leases, Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a"}}}}
		l := &ledger{meanwhile: s}
		a.Ledger, a.Daemons = l, &Daemons{MPS: m, Leases: l, Faults: l, Owners: a.Owners, Log: a.Log}
		a.tellIdle(t.Context(), s)
		if got := fmt.Sprint(m.calls); got != c.want || len(u.calls) != 2 {
			t.Errorf("%s: daemons %s, want %s; users %q", name, got, c.want, u.calls)
		}
	}
}
