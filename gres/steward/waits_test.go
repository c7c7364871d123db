// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"testing"
	"time"

	"carma/slurmbridge/sctl"
)

// A job that Prolog after Prolog gives back waits all the while.
func TestWaits(t *testing.T) {
	w := Waits{}
	look := func(after time.Duration, j sctl.QueuedJob) time.Duration {
		t.Helper()
		at := now.Add(after)
		queue := []sctl.QueuedJob{j}
		w.Restore(queue, at, 30*time.Second)
		return at.Sub(queue[0].Eligible)
	}
	since := func(after time.Duration) sctl.QueuedJob {
		j := pending(7, two, 0)
		j.Eligible = now.Add(after)
		return j
	}
	ran := func(after time.Duration) sctl.QueuedJob {
		j := running(7, "n1", time.Hour)
		j.Start, j.TresPerNode = now.Add(after), two
		return j
	}
	if got := look(time.Minute, since(0)); got != time.Minute {
		t.Errorf("at first it has waited %v", got)
	}
	look(2*time.Minute, ran(2*time.Minute-10*time.Second)) // in its Prolog
	if got := look(150*time.Second, since(3*time.Minute)); got != -30*time.Second {
		t.Errorf("while it backs off it has waited %v", got)
	}
	if got := look(3*time.Minute, since(3*time.Minute)); got != 3*time.Minute {
		t.Errorf("given back, it has waited %v", got)
	}
	look(4*time.Minute, sctl.QueuedJob{ID: 8}) // on its way back, the job is not in the queue
	if got := look(7*time.Minute, since(5*time.Minute)); got != 7*time.Minute {
		t.Errorf("given back again, it has waited %v", got)
	}
	look(11*time.Minute, ran(8*time.Minute)) // hooks.wait may be five minutes
	if got := look(12*time.Minute, since(12*time.Minute)); got != 12*time.Minute {
		t.Errorf("given back by a slow Prolog, it has waited %v", got)
	}
	look(16*time.Minute, ran(12*time.Minute))
	look(20*time.Minute, ran(12*time.Minute))
	if got := look(24*time.Minute, since(22*time.Minute)); got != 2*time.Minute {
		t.Errorf("after a run it has waited %v", got)
	}
	look(30*time.Minute, sctl.QueuedJob{ID: 8})
	if len(w) != 0 {
		t.Errorf("a job that has gone is remembered: %v", w)
	}
}

// A task is the same request with the array's id and with its own; jobs of others,
// and such as nothing is known of, are left alone.
func TestWaitsOfTasks(t *testing.T) {
	w := Waits{}
	task := func(id, task uint32, eligible time.Time) sctl.QueuedJob {
		j := pending(id, two, 0)
		j.ArrayJobID, j.ArrayTask, j.Eligible = 7, task, eligible
		return j
	}
	cpu, depends := pending(9, "gres:gpu:2", time.Hour), pending(10, two, time.Hour)
	depends.Eligible = time.Time{}
	w.Restore([]sctl.QueuedJob{task(7, 1, now), task(7, 2, now), cpu, depends}, now, 30*time.Second)
	if len(w) != 2 {
		t.Errorf("%d are known, want the two tasks: %v", len(w), w)
	}
	later := now.Add(time.Minute)
	queue := []sctl.QueuedJob{task(8, 1, later), task(7, 2, now), task(7, 3, later)}
	w.Restore(queue, later, 30*time.Second)
	for i, want := range []time.Time{now, now, later} {
		if !queue[i].Eligible.Equal(want) {
			t.Errorf("task %d waits since %v, want %v", queue[i].ArrayTask, queue[i].Eligible, want)
		}
	}
}
