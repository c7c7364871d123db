// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"carma/gres"
	"carma/gres/confine"
	"carma/gres/lease"
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
	a.Guard = func() (confine.Guard, error) {
		if missing != nil {
			return nil, missing
		}
		return g, nil
	}
	s := lease.Snapshot{Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a", Minor: 3}}},
		Leases: []gres.Lease{held(7, 1000)}}
	missing = errors.New("slurmd has not started")
	for range 2 {
		a.reopen(a.guard(), s)
	}
	missing = nil
	for range 2 {
		a.reopen(a.guard(), s)
	}
	if want := []string{"open 7 of 1000 [3]"}; !slices.Equal(g.calls, want) {
		t.Errorf("calls %q", g.calls)
	}
	// Access lists are looked after as long as the agent runs.
	g.loose, g.calls = true, nil
	a.reopen(a.guard(), s)
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
	// 7 has a lease, 50 a slurmstepd, 51 is in its Prolog, 54 may start again without one.
	a.reapConfined(t.Context(), g, lease.Snapshot{Leases: []gres.Lease{held(7, 1000)}})
	if want := []string{"forget 52", "forget 53"}; !slices.Equal(g.calls, want) {
		t.Errorf("calls %q", g.calls)
	}
	slurm.err, g.calls = errors.New("slurmctld is away"), nil
	a.reapConfined(t.Context(), g, lease.Snapshot{})
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
	a.shutUnconfined(t.Context(), g) // the first look
	g.unconfined = append(g.unconfined, confine.Job{ID: 7, UID: 1000}, confine.Job{ID: 8, UID: 1001})
	a.shutUnconfined(t.Context(), g)
	a = &Agent{RunDir: a.RunDir, Ledger: a.Ledger, Log: a.Log} // an agent that starts knows which were there
	g.unconfined = g.unconfined[:1]
	a.shutUnconfined(t.Context(), g)
	if want := []string{"open 7 of 1000 [3]", "open 8 of 1001 []"}; !slices.Equal(g.calls, want) {
		t.Errorf("calls %q", g.calls)
	}
}
