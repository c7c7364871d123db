// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// The agent releases a job that CARMA's own requeue has left held, and no other.
func TestReleaseHeld(t *testing.T) {
	ours := sctl.Job{ID: 7, UID: 1000, Restarts: 1, State: jobstate.Pending, Reason: jobstate.RequeuedHeld}
	with := func(change func(*sctl.Job)) sctl.Job { j := ours; change(&j); return j }
	for name, c := range map[string]struct {
		job      sctl.Job
		age      time.Duration
		err      error
		released bool
		dropped  bool
	}{
		"held":             {ours, time.Minute, nil, true, true},
		"of an array":      {with(func(j *sctl.Job) { j.ArrayJobID, j.ArrayTask = 5, 2 }), time.Minute, nil, true, true},
		"just now":         {ours, time.Second, nil, false, false},
		"its Epilog runs":  {with(func(j *sctl.Job) { j.State = jobstate.Completing }), time.Minute, nil, false, false},
		"held by its user": {with(func(j *sctl.Job) { j.Reason = "JobHeldUser" }), time.Minute, nil, false, true},
		"held by an admin": {with(func(j *sctl.Job) { j.Reason = "JobHeldAdmin" }), time.Minute, nil, false, true},
		"runs": {with(func(j *sctl.Job) { j.State, j.Reason = jobstate.Running, "None" }), time.Minute, nil, false,
			true},
		"of another user":  {with(func(j *sctl.Job) { j.UID = 1001 }), time.Minute, nil, false, true},
		"a later attempt":  {with(func(j *sctl.Job) { j.Restarts = 2 }), time.Minute, nil, false, true},
		"not requeued yet": {with(func(j *sctl.Job) { j.Restarts = 0 }), time.Minute, nil, false, false},
		"not requeued":     {with(func(j *sctl.Job) { j.Restarts = 0 }), 10 * time.Minute, nil, false, true},
		"gone":             {sctl.Job{}, time.Minute, nil, false, true},
		"no answer":        {ours, time.Minute, errors.New("away"), false, false},
		"a day later":      {ours, 25 * time.Hour, errors.New("away"), false, true},
	} {
		j := &jobs{known: map[uint32]sctl.Job{}, err: c.err, starts: map[string]time.Time{}}
		if c.job.ID != 0 {
			j.known[7] = c.job
		}
		l := &ledger{}
		r := &Returned{Ledger: l, Jobs: j, Log: slog.New(slog.DiscardHandler)}
		held := []lease.PerhapsHeld{{JobKey: jobenv.JobKey{JobID: 7, Restart: 1}, UID: 1000, Age: c.age}}
		r.releaseHeld(t.Context(), held, time.Hour)
		released := slices.Equal(j.released, []string{c.job.Leader().String()})
		if released != c.released || (len(j.starts) == 1) != c.released {
			t.Errorf("%s: released %v, starts %v", name, j.released, j.starts)
		}
		if dropped := slices.Equal(l.calls, []string{"not held 7.1"}); dropped != c.dropped {
			t.Errorf("%s: ledger %v", name, l.calls)
		}
		asked := j.asked
		r.releaseHeld(t.Context(), held, time.Hour+time.Second)
		if c.age >= heldSince && j.asked != asked {
			t.Errorf("%s: slurmctld is asked again after a second", name)
		}
	}
}

// Jobs that hang, completing, delay no other's release.
func TestReleaseHeldInTurn(t *testing.T) {
	j := &jobs{known: map[uint32]sctl.Job{}, starts: map[string]time.Time{}}
	r := &Returned{Ledger: &ledger{}, Jobs: j, Log: slog.New(slog.DiscardHandler)}
	var held []lease.PerhapsHeld
	for id := range uint32(restartsAtOnce + 1) {
		job := sctl.Job{ID: id + 1, UID: 1000, Restarts: 1, State: jobstate.Completing}
		if id == restartsAtOnce {
			job.State, job.Reason = jobstate.Pending, jobstate.RequeuedHeld
		}
		j.known[job.ID] = job
		held = append(held, lease.PerhapsHeld{JobKey: jobenv.JobKey{JobID: job.ID, Restart: 1}, UID: 1000, Age: time.Hour})
	}
	for round := range 2 {
		r.releaseHeld(t.Context(), held, time.Hour+time.Duration(round)*heldEvery)
	}
	if !slices.Equal(j.released, []string{"6"}) {
		t.Errorf("released %v", j.released)
	}
}
