// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/confine"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// guard keeps what it was asked for.
type guard struct {
	loose      bool
	jobs       []confine.Job
	unconfined []confine.Job
	calls      []string
}

func (g *guard) Open(job confine.Job, minors []int) error {
	g.calls = append(g.calls, fmt.Sprint("open ", job.ID, " of ", job.UID, minors))
	return nil
}

func (g *guard) Close(job confine.Job) error {
	g.calls = append(g.calls, fmt.Sprint("close ", job.ID))
	return nil
}

func (g *guard) Forget(job confine.Job) error {
	g.calls = append(g.calls, fmt.Sprint("forget ", job.ID))
	return nil
}

func (g *guard) Ready(confine.Job) error            { return nil }
func (g *guard) Jobs() ([]confine.Job, error)       { return g.jobs, nil }
func (g *guard) Unconfined() ([]confine.Job, error) { return g.unconfined, nil }
func (g *guard) Exact() bool                        { return !g.loose }
func (g *guard) String() string                     { return "test" }

// An agent that starts, or a guard that comes later, finds the jobs that are there.
func TestReopen(t *testing.T) {
	a, g := newAgent(), &guard{}
	var missing error
	guard := func() (confine.Guard, error) {
		if missing != nil {
			return nil, missing
		}
		return g, nil
	}
	s := lease.Snapshot{Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a", Minor: 3}}},
		Leases: []gres.Lease{held(7, 1000)}}
	a.Ledger = &ledger{meanwhile: s}
	wire(a)
	a.Confinement.Guard = guard
	missing = errors.New("slurmd has not started")
	for range 2 {
		a.Confinement.reopen(t.Context(), a.Confinement.guard(), s)
	}
	missing = nil
	for range 2 {
		a.Confinement.reopen(t.Context(), a.Confinement.guard(), s)
	}
	if want := []string{"open 7 of 1000 [3]"}; !slices.Equal(g.calls, want) {
		t.Errorf("calls %q", g.calls)
	}
	// Access lists are looked after as long as the agent runs.
	g.loose, g.calls = true, nil
	a.Confinement.reopen(t.Context(), a.Confinement.guard(), s)
	if want := []string{"close 0"}; !slices.Equal(g.calls, want) {
		t.Errorf("calls %q", g.calls)
	}
}

func TestReapConfined(t *testing.T) {
	a, g := newAgent(), &guard{}
	for _, id := range []uint32{7, 50, 51, 52, 53, 54} {
		g.jobs = append(g.jobs, confine.Job{ID: id})
	}
	slurm := &jobs{known: map[uint32]sctl.Job{51: {State: "RUNNING"}, 52: {State: "COMPLETED"}, 54: {State: "PENDING"}}}
	a.Owners, a.Jobs = owners{}, slurm
	a.Ledger = &ledger{meanwhile: lease.Snapshot{Leases: []gres.Lease{held(7, 1000)}}}
	wire(a)
	// 7 has a lease, 50 a slurmstepd, 51 is in its Prolog, 54 may start again without one.
	a.Confinement.reapConfined(t.Context(), g)
	if want := []string{"forget 52", "forget 53"}; !slices.Equal(g.calls, want) {
		t.Errorf("calls %q", g.calls)
	}
	slurm.err, g.calls = errors.New("slurmctld is away"), nil
	a.Confinement.reapConfined(t.Context(), g)
	if len(g.calls) != 0 {
		t.Errorf("calls %q", g.calls)
	}
}

// slurmd starts a job without a Prolog after one was killed: it opens no GPU but what it has
// leased. A job that is older than the guard keeps what nobody else leases.
func TestShutUnconfined(t *testing.T) {
	a, g := newAgent(), &guard{unconfined: []confine.Job{{ID: 3}}}
	a.RunDir, a.Ledger = t.TempDir(), &ledger{meanwhile: lease.Snapshot{
		Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a", Minor: 3}}}, Leases: []gres.Lease{held(7, 1000)}}}
	wire(a)
	a.Confinement.shutUnconfined(t.Context(), g) // the first look
	g.unconfined = append(g.unconfined, confine.Job{ID: 7, UID: 1000}, confine.Job{ID: 8, UID: 1001})
	a.Confinement.shutUnconfined(t.Context(), g)
	wire(a) // an agent that starts knows which were there
	g.unconfined = g.unconfined[:1]
	a.Confinement.shutUnconfined(t.Context(), g)
	if want := []string{"open 7 of 1000 [3]", "open 8 of 1001 []"}; !slices.Equal(g.calls, want) {
		t.Errorf("calls %q", g.calls)
	}
}

// What the agent has seen is a little older than the ledger: an Epilog that came in between has
// closed the job's GPUs, and finds no more what is opened after it.
func TestNothingIsLeftAfterAnEpilog(t *testing.T) {
	l, g := &ledger{}, &guard{}
	a := newAgent()
	a.RunDir, a.Ledger, a.Owners, a.Jobs = t.TempDir(), l, owners{}, &jobs{}
	wire(a)
	seen := lease.Snapshot{Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a", Minor: 3}}},
		Leases: []gres.Lease{{Job: jobenv.JobKey{JobID: 7}, UUID: "a", UID: 1000, Age: time.Hour}}}
	l.gone = true
	a.reap(t.Context(), g, seen)
	if len(g.calls) != 0 || len(l.released) != 0 {
		t.Errorf("an attempt that has ended: calls %q, released %v", g.calls, l.released)
	}
	a.Confinement.reopen(t.Context(), g, seen)
	if want := []string{"open 7 of 1000 [3]", "close 7"}; !slices.Equal(g.calls, want) {
		t.Errorf("at the start: calls %q", g.calls)
	}
	l.gone, g.calls = false, nil
	a.reap(t.Context(), g, seen)
	if want := []string{"open 7 of 1000 []"}; !slices.Equal(g.calls, want) || len(l.released) != 1 {
		t.Errorf("a lost one: calls %q, released %v", g.calls, l.released)
	}
}

// A job that was requeued may be in its Prolog by the time that its last attempt is forgotten.
func TestReapConfinedBesideAProlog(t *testing.T) {
	l := &ledger{}
	for _, err := range []error{nil, syscall.EBUSY} { // or a process of its last attempt is left
		g := &prologBeside{ledger: l, err: err}
		a := newAgent()
		a.Ledger, a.Owners, a.Jobs, l.meanwhile = l, owners{}, &jobs{}, lease.Snapshot{}
		wire(a)
		g.jobs = []confine.Job{{ID: 7}}
		a.Confinement.reapConfined(t.Context(), g)
		if want := []string{"forget 7", "open 7 of 1000 [3]"}; !slices.Equal(g.calls, want) {
			t.Errorf("%v: calls %q", err, g.calls)
		}
	}
}

// prologBeside has a Prolog lease a GPU to the job that is forgotten.
type prologBeside struct {
	guard
	ledger *ledger
	err    error
}

func (g *prologBeside) Forget(job confine.Job) error {
	g.ledger.meanwhile = lease.Snapshot{Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a", Minor: 3}}},
		Leases: []gres.Lease{held(job.ID, 1000)}}
	return cmp.Or(g.guard.Forget(job), g.err)
}

// However many jobs have been returned to the queue, a look asks about some, and each has its turn.
func TestReapConfinedByTurns(t *testing.T) {
	a, g := newAgent(), &guard{}
	slurm := &jobs{known: map[uint32]sctl.Job{}}
	for id := range uint32(3 * confinedAtOnce) {
		g.jobs = append(g.jobs, confine.Job{ID: id})
		slurm.known[id] = sctl.Job{State: "PENDING"}
	}
	delete(slurm.known, 2*confinedAtOnce+1)
	a.Ledger, a.Owners, a.Jobs = &ledger{}, owners{}, slurm
	wire(a)
	for range 4 {
		a.Confinement.reapConfined(t.Context(), g)
	}
	want := fmt.Sprint("forget ", 2*confinedAtOnce+1)
	if !slices.Contains(g.calls, want) || slurm.asked != 4*confinedAtOnce {
		t.Errorf("calls %q, asked %d times", g.calls, slurm.asked)
	}
}
