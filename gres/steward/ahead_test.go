// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"fmt"
	"testing"
	"time"

	"carma/gres"
	"carma/slurmbridge/schedule"
)

const named = "gres:gpu:1,gres:carmau0:1,gres:carmatotal:40536"

func TestAhead(t *testing.T) {
	job := running(9, "n1", time.Hour)
	job.Priority, job.ReqNodes, job.Reason, job.TresPerNode = 100, "n1", "Prolog", named
	for name, c := range map[string]struct {
		change func(older, job *schedule.Job)
		ahead  bool
	}{
		"waits for room": {func(*schedule.Job, *schedule.Job) {}, true},
		"for the anchor alone": {func(j,
			_ *schedule.Job) {
			j.Reason = "ReqNodeNotAvail, UnavailableNodes:carma-anchor"
		}, true},
		"submitted later":            {func(j, _ *schedule.Job) { j.ID = 12 }, false},
		"of higher priority":         {func(j, _ *schedule.Job) { j.ID, j.Priority = 12, 101 }, true},
		"of lower priority":          {func(j, _ *schedule.Job) { j.Priority = 99 }, false},
		"held by its user":           {func(j, _ *schedule.Job) { j.Reason = "JobHeldUser" }, false},
		"held, and not for its turn": {func(j, _ *schedule.Job) { j.Reason = "Dependency" }, false},
		"names this node":            {func(j, _ *schedule.Job) { j.ReqNodes = "n[1-2]" }, true},
		"names another":              {func(j, _ *schedule.Job) { j.ReqNodes = "n[2-3]" }, false},
		"in a reservation":           {func(j, _ *schedule.Job) { j.Reservation = "r" }, false},
		"both in the reservation":    {func(j, job *schedule.Job) { j.Reservation, job.Reservation = "r", "r" }, true},
		"with features":              {func(j, _ *schedule.Job) { j.Features = "big" }, false},
		"on several nodes":           {func(j, _ *schedule.Job) { j.NodeCount = 2 }, false},
		"of others":                  {func(j, _ *schedule.Job) { j.TresPerNode = "gres:gpu:1" }, false},
		"backs off, and names it": {func(j, _ *schedule.Job) {
			j.TresPerNode, j.ReqNodes, j.Reason, j.Restarts, j.Submitted = named, "n1", "BeginTime", 1, j.Eligible
		}, true},
		"is to start later": {func(j, _ *schedule.Job) {
			j.TresPerNode, j.ReqNodes, j.Reason = named, "n1",
				"BeginTime"
		}, false},
		"backs off, goes anywhere": {func(j, _ *schedule.Job) {
			j.Reason, j.Restarts, j.Submitted = "BeginTime", 1,
				j.Eligible
		}, false},
		// slurmctld says BeginTime only when it has looked at the job again.
		"backs off, not looked at since": {func(j, _ *schedule.Job) {
			j.Reason, j.Restarts, j.Submitted, j.Eligible = "None", 1, now, now.Add(time.Minute)
		}, false},
		"the same, and names it": {func(j, _ *schedule.Job) {
			j.TresPerNode, j.ReqNodes, j.Reason, j.Restarts, j.Submitted, j.Eligible = named, "n1", "None", 1, now,
				now.Add(time.Minute)
		}, true},
		"a later start, not looked at since": {func(j, _ *schedule.Job) {
			j.Reason, j.Eligible = "Resources",
				now.Add(time.Hour)
		}, false},
		"in its Prolog here": {func(j, _ *schedule.Job) {
			j.State, j.Reason, j.Nodes = "RUNNING", "Prolog",
				"n1"
		}, true},
		"in its Prolog elsewhere": {func(j, _ *schedule.Job) {
			j.State, j.Reason, j.Nodes = "RUNNING", "Prolog",
				"n2"
		}, false},
		"runs": {func(j, _ *schedule.Job) {
			j.State, j.Reason, j.Nodes = "RUNNING", "None",
				"n1"
		}, false},
		"the job names no node":       {func(_, job *schedule.Job) { job.TresPerNode = share }, false},
		"the job is none of ours":     {func(_, job *schedule.Job) { job.TresPerNode = "" }, false},
		"the job is not in the queue": {func(_, job *schedule.Job) { job.ID = 99 }, false},
	} {
		older, own := pending(7, share, time.Hour), job
		c.change(&older, &own)
		got := Ahead([]schedule.Job{own, older}, 9, "n1", now)
		if ahead := len(got) == 1 && got[0].ID == older.ID; ahead != c.ahead || len(got) > 1 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Those ahead stand in slurmctld's order, and the longest queue costs no more than a node
// has places for.
func TestAheadInOrder(t *testing.T) {
	job := pending(5000, named, 0)
	queue := []schedule.Job{job}
	for id := uint32(1000); id > 0; id-- {
		queue = append(queue, pending(id, share, time.Hour))
	}
	queue[500].Priority = 200 // job 501
	other := pending(4000, share, time.Hour)
	other.UID = 2000
	got := Ahead(append(queue, other), 5000, "n1", now)
	if len(got) != maxOfUser+1 || got[0].ID != 501 || got[1].ID != 1 || got[2].ID != 2 || got[maxOfUser].ID != 4000 {
		t.Errorf("%d: %+v", len(got), got[:3])
	}
	for i := range queue[1:] {
		queue[i+1].UID = uint32(i / 10)
	}
	for range 2 {
		queue = append(queue, queue...)
	}
	if got := Ahead(queue, 5000, "n1", now); len(got) != maxAhead {
		t.Errorf("%d of %d", len(got), len(queue))
	}
}

func TestRequest(t *testing.T) {
	for list, want := range map[string]gres.Request{
		share: {GPUs: 1, ReserveMiB: 10240},
		whole: {GPUs: 1, ReserveMiB: 40536, Exclusive: true},
		named: {GPUs: 1, ReserveMiB: 40536, Exclusive: true},
		two:   {GPUs: 2, ReserveMiB: 40536, Exclusive: true},
	} {
		want.JobID, want.UID = 7, 1000
		j := pending(7, list, 0)
		j.Partition = "big,gpu,none" // it may run in each, so it is booked for the smallest
		if got := Request(j, map[string]int64{"gpu": 40536, "big": 81072}); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %+v, want %+v", list, got, want)
		}
	}
}
