// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A job that Prolog after Prolog returns to the queue waits all the while.
func TestWaits(t *testing.T) {
	w := Waits{}
	look := func(after time.Duration, j schedule.Job) time.Duration {
		t.Helper()
		at := now.Add(after)
		queue := []schedule.Job{j}
		w.Restore(queue, at, 30*time.Second)
		return at.Sub(queue[0].Eligible)
	}
	restarts := 0
	since := func(after time.Duration) schedule.Job {
		j := pending(7, two, 0)
		j.Eligible, j.Submitted, j.Restarts = now.Add(after), now.Add(after-time.Minute), restarts
		return j
	}
	ran := func(after time.Duration) schedule.Job {
		j := running(7, "n1", time.Hour)
		j.Start, j.GPUs, j.MiB = now.Add(after), 2, 40536
		return j
	}
	if got := look(time.Minute, since(0)); got != time.Minute {
		t.Errorf("at first it has waited %v", got)
	}
	look(2*time.Minute, ran(2*time.Minute-10*time.Second)) // in its Prolog
	restarts++
	if got := look(150*time.Second, since(3*time.Minute)); got != 150*time.Second {
		t.Errorf("while it backs off it has waited %v", got)
	}
	if got := look(3*time.Minute, since(3*time.Minute)); got != 3*time.Minute {
		t.Errorf("returned to the queue, it has waited %v", got)
	}
	restarts++
	look(4*time.Minute, schedule.Job{ID: 8}) // on its way back, the job is not in the queue
	if got := look(7*time.Minute, since(5*time.Minute)); got != 7*time.Minute {
		t.Errorf("returned to the queue again, it has waited %v", got)
	}
	restarts++
	look(11*time.Minute, ran(8*time.Minute)) // hooks.wait may be five minutes
	if got := look(12*time.Minute, since(12*time.Minute)); got != 12*time.Minute {
		t.Errorf("returned to the queue by a slow Prolog, it has waited %v", got)
	}
	look(16*time.Minute, ran(12*time.Minute))
	look(20*time.Minute, ran(12*time.Minute))
	if got := look(24*time.Minute, since(22*time.Minute)); got != 2*time.Minute {
		t.Errorf("after a run it has waited %v", got)
	}
	look(30*time.Minute, schedule.Job{ID: 8})
	if len(w) != 0 {
		t.Errorf("a job that has gone is remembered: %v", w)
	}
}

// A job that is first seen while it backs off waits from then on, and not from its start on,
// which a Prolog has put off: the agent brings that forward.
func TestWaitsFromItsBackOff(t *testing.T) {
	w := Waits{}
	j := pending(7, two, 0)
	j.Restarts, j.Submitted = 1, now
	for _, at := range []struct{ look, eligible, want time.Duration }{
		{time.Second, 15 * time.Minute, 0}, {2 * time.Second, 16 * time.Second, time.Second},
		{time.Minute, 16 * time.Second, 59 * time.Second},
	} {
		j.Eligible = now.Add(at.eligible)
		queue := []schedule.Job{j}
		w.Restore(queue, now.Add(at.look), time.Second)
		if got := now.Add(at.look).Sub(queue[0].Eligible); got != at.want {
			t.Errorf("after %v it has waited %v, want %v", at.look, got, at.want)
		}
	}
}

// A task is the same request with the array's id and with its own; jobs of others,
// and such as nothing is known of, are left alone.
func TestWaitsOfTasks(t *testing.T) {
	w := Waits{}
	task := func(id, task uint32, eligible time.Time) schedule.Job {
		j := pending(id, two, 0)
		j.ArrayJobID, j.ArrayTask, j.Eligible = 7, task, eligible
		if id != 7 { // it has been returned to the queue
			j.Restarts, j.Submitted = 1, eligible
		}
		return j
	}
	cpu, depends := pending(9, books{2, 0}, time.Hour), pending(10, two, time.Hour)
	depends.Eligible = time.Time{}
	w.Restore([]schedule.Job{task(7, 1, now), task(7, 2, now), cpu, depends}, now, 30*time.Second)
	if len(w) != 2 {
		t.Errorf("%d are known, want the two tasks: %v", len(w), w)
	}
	later := now.Add(time.Minute)
	queue := []schedule.Job{task(8, 1, later), task(7, 2, now), task(7, 3, later)}
	w.Restore(queue, later, 30*time.Second)
	for i, want := range []time.Time{now, now, later} {
		if !queue[i].Eligible.Equal(want) {
			t.Errorf("task %d waits since %v, want %v", queue[i].ArrayTask, queue[i].Eligible, want)
		}
	}
}

// Time in which a job waited for what its user had set is no waiting for room, whether the
// steward saw it or not. It counts as that from one look to the next.
func TestWaitsForItsUser(t *testing.T) {
	start := now.Add(-3 * time.Hour)
	room := pending(7, two, 3*time.Hour)
	room.Submitted = start
	with := func(change func(*schedule.Job)) schedule.Job {
		j := room
		change(&j)
		return j
	}
	reason := func(r jobstate.Reason) schedule.Job { return with(func(j *schedule.Job) { j.Reason = r }) }
	eligible := func(r jobstate.Reason, at time.Time, restarts int) schedule.Job {
		return with(func(j *schedule.Job) { j.Reason, j.Eligible, j.Restarts = r, at, restarts })
	}
	for name, c := range map[string]struct {
		between schedule.Job // seen an hour ago
		last    schedule.Job // now
		want    time.Duration
	}{
		"waits": {room, room, 3 * time.Hour},
		"for higher priorities": {reason("Nodes required for job are DOWN, DRAINED or reserved for jobs in " +
			"higher priority partitions"), room, 3 * time.Hour},
		"held": {eligible("JobHeldUser", time.Time{}, 0),
			eligible("Resources", now.Add(-time.Minute), 0), time.Hour + time.Minute},
		"held, the time stays": {reason("JobHeldUser"), room, 2 * time.Hour},
		"is held":              {room, eligible("JobHeldUser", time.Time{}, 0), 0},
		"held between two looks": {room, eligible("Resources", now.Add(-time.Minute), 0),
			2*time.Hour + time.Minute},
		"released just now": {room, eligible("None", time.Time{}, 0), 0},
		"a dependency": {eligible("Dependency", time.Time{}, 0),
			eligible("Resources", now.Add(-time.Minute), 0), time.Hour + time.Minute},
		"a licence": {reason("Licenses"), room, 2 * time.Hour},
		"a limit":   {reason("QOSMaxJobsPerUserLimit"), room, 2 * time.Hour},
		"a start": {eligible("BeginTime", now.Add(time.Hour), 0),
			eligible("Resources", now.Add(-time.Minute), 0), time.Hour + time.Minute},
		"a start, and long ago returned to the queue": {eligible("BeginTime", now.Add(time.Hour), 2),
			eligible("Resources", now.Add(-time.Minute), 2), time.Hour + time.Minute},
		"is to start later": {room, eligible("BeginTime", now.Add(time.Hour), 0), 0},
	} {
		w := Waits{}
		w.Restore([]schedule.Job{room}, now.Add(-2*time.Hour), time.Hour)
		w.Restore([]schedule.Job{c.between}, now.Add(-time.Hour), time.Hour)
		queue := []schedule.Job{c.last}
		w.Restore(queue, now, time.Hour)
		if got := now.Sub(queue[0].Eligible); got != c.want {
			t.Errorf("%s: it has waited %v, want %v", name, got, c.want)
		}
	}
}

func TestBacksOff(t *testing.T) {
	for name, c := range map[string]struct {
		restarts int
		in       time.Duration // from its requeue
		want     bool
	}{
		"returned to the queue":             {1, 10 * time.Minute, true},
		"as long as any of ours":            {3, 15 * time.Minute, true},
		"longer":                            {3, 17 * time.Minute, false},
		"a start that its user has set":     {0, time.Minute, false},
		"a start of before it was requeued": {1, -time.Hour, true},
	} {
		if got := BacksOff(c.restarts, now, now.Add(c.in)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A new steward knows from the last one who has waited longer than slurmctld tells, and
// nothing else.
func TestWaitsSurviveTheirSteward(t *testing.T) {
	first := Waits{}
	at := func(after time.Duration) time.Time { return now.Add(after) }
	givenBack := func(id uint32, eligible time.Duration, restarts int) schedule.Job {
		j := pending(id, two, 0)
		j.Eligible, j.Submitted, j.Restarts = at(eligible), at(eligible-time.Minute), restarts
		return j
	}
	task := func(restarts int) schedule.Job {
		j := givenBack(9, 59*time.Minute, restarts)
		j.ArrayJobID, j.ArrayTask = 5, 3
		return j
	}
	first.Restore([]schedule.Job{pending(7, two, time.Hour), pending(8, two, 0), task(0)}, now, time.Minute)
	first.Restore([]schedule.Job{givenBack(7, 59*time.Minute, 1), pending(8, two, 0), task(1)}, at(time.Minute),
		time.Minute)
	word := first.Word()
	if want := fmt.Sprintf("7:0:%d,5:3:%d", at(-time.Hour).Unix(), now.Unix()); word != want {
		t.Fatalf("left %q, want %q", word, want)
	}
	for _, c := range []struct {
		what string
		job  schedule.Job
		want time.Time // since when it has waited
	}{
		{"returned to the queue", givenBack(7, 59*time.Minute, 1), at(-time.Hour)},
		{"returned to the queue again", givenBack(7, 65*time.Minute, 2), at(-time.Hour)},
		{"a task", task(1), now},
		{"not returned to the queue", pending(8, two, 0), now},
		{"held by its user since", func() schedule.Job {
			j := givenBack(7, 80*time.Minute, 1)
			j.Submitted = at(59 * time.Minute)
			return j
		}(), at(80 * time.Minute)},
	} {
		next := Waits{}
		next.Learn(word, at(90*time.Minute))
		queue := []schedule.Job{c.job}
		next.Restore(queue, at(90*time.Minute), time.Minute)
		if !queue[0].Eligible.Equal(c.want) {
			t.Errorf("%s: it has waited since %v, want %v", c.what, queue[0].Eligible, c.want)
		}
		if again := next.Word(); c.what == "returned to the queue" && again != word {
			t.Errorf("it leaves %q, want %q", again, word)
		}
	}
	many := Waits{}
	for i := range uint32(2000) {
		many[request{job: i + 1}] = wait{since: int64(i), eligible: 100000}
	}
	if text := many.Word(); strings.Count(text, ",") != most-1 ||
		!strings.HasPrefix(text, "1:0:0,2:0:1,") {
		t.Errorf("%d jobs left: %.60s", strings.Count(text, ",")+1, text)
	}
	for _, bad := range []string{"", "(null)", "1", "x:0:1,1:0:1:1,1:y:1,1:0:z"} {
		w := Waits{}
		if w.Learn(bad, now); len(w) != 0 {
			t.Errorf("%q: %v", bad, w)
		}
	}
}
