// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
)

// BackOff is longer than any start is put off by a hook or an agent (lease.LongestDelay,
// and a minute until the start is set).
const BackOff = 16 * time.Minute

// BacksOff tells whether the time before which a job does not start is one that CARMA has set: of a
// job that was returned to the queue or requeued. slurmctld sets a job's time of submission anew when
// it returns into the queue (job_mgr.c, batch_requeue_fini). A start that is further away than
// BackOff from there is the user's, and so is any start of a job that was never back.
func BacksOff(restarts int, submitted, eligible time.Time) bool {
	return restarts > 0 && eligible.Sub(submitted) <= BackOff
}

// Waits knows since when requests wait for room. A requeue sets a job's eligible time anew
// (job_mgr.c, batch_requeue_fini), also when a Prolog returns the job to the queue at once: such
// a job would never have waited long. What its user does to the job, a hold, a later start, a
// dependency, sets the eligible time anew as well: time that a job spends so does not count.
type Waits map[request]wait

// request is a job, or a task of an array, which is given a job id of its own when
// it first starts.
type request struct {
	job  uint32 // or its array
	task uint32
}

type wait struct {
	since, seen int64 // Unix time
	eligible    int64 // as slurmctld says
	restarts    int
	heard       bool // learnt from another steward; not seen yet
}

// prologs is longer than any Prolog takes that returns its job: hooks.wait is five
// minutes at most, hooks.deadline one.
const prologs = 7 * time.Minute

// Restore gives waiting jobs of the queue the time since which they really wait
// for room. It is called every so often: a job that is on its way back may not be
// in the queue.
func (w Waits) Restore(queue []schedule.Job, now time.Time, every time.Duration) {
	forget := max(3*every, 5*time.Minute)
	for i := range queue {
		j := &queue[i]
		r := request{job: j.ID}
		if j.ArrayJobID != 0 {
			r = request{j.ArrayJobID, j.ArrayTask}
		}
		known, ok := w[r]
		switch {
		case j.State == jobstate.Pending:
			if j.MiB == 0 {
				continue
			}
			j.Eligible = w.look(r, *j, now)
		case ok && j.State == jobstate.Running && now.Sub(j.Start) > prologs:
			delete(w, r)
		case ok:
			known.seen = now.Unix()
			w[r] = known
		}
	}
	for r, known := range w {
		if now.Unix()-known.seen > int64(forget.Seconds()) {
			delete(w, r)
		}
	}
}

// look notes what a look at a waiting job tells, and returns since when the job has
// waited, as if without a break; now if the job does not wait for room at the moment.
func (w Waits) look(r request, j schedule.Job, now time.Time) time.Time {
	known, ok := w[r]
	ours := BacksOff(j.Restarts, j.Submitted, j.Eligible)
	if known.heard && (!ours || known.since > j.Eligible.Unix()) {
		ok = false // slurmctld knows better, or the job's user has changed it since
	}
	room := !j.Reason.IsOfItsUser() && (ours || !j.Eligible.After(now))
	eligible := j.Eligible.Unix()
	switch {
	case !room && ok:
		known.since += now.Unix() - known.seen
	case !room:
		known.since = now.Unix()
	case j.Eligible.IsZero(): // slurmctld has not looked at the job since its requeue or release
		return now
	case !ok:
		known.since = min(eligible, now.Unix()) // a Prolog puts a start off, and the agent brings the start forward
	case eligible > known.seen && j.Restarts == known.restarts && !ours: // a hold, say, that the user had set has ended
		known.since += eligible - known.seen
	}
	w[r] = wait{since: known.since, seen: now.Unix(), eligible: eligible, restarts: j.Restarts}
	if !room {
		return now
	}
	return time.Unix(known.since, 0)
}

// most bounds the word, which comes with every answer about the nodes.
const most = 512

// Word is the word extra.Waits, in which a steward leaves to the next one which jobs have waited
// longer than slurmctld says, the jobs with the longest waits.
func (w Waits) Word() string {
	var longer []request
	for r, known := range w {
		if known.since+int64(time.Minute/time.Second) <= known.eligible {
			longer = append(longer, r)
		}
	}
	slices.SortFunc(longer, func(a, b request) int {
		return cmp.Or(cmp.Compare(w[a].since, w[b].since), cmp.Compare(a.job, b.job), cmp.Compare(a.task, b.task))
	})
	var entries []string
	for _, r := range longer[:min(len(longer), most)] {
		entries = append(entries, fmt.Sprintf("%d:%d:%d", r.job, r.task, w[r].since))
	}
	return strings.Join(entries, ",")
}

// Learn takes over the word that another steward has left, but for jobs that are known already.
func (w Waits) Learn(word string, now time.Time) {
	for entry := range strings.SplitSeq(word, ",") {
		f := strings.Split(entry, ":")
		if len(f) != 3 {
			continue
		}
		job, err1 := strconv.ParseUint(f[0], 10, 32)
		task, err2 := strconv.ParseUint(f[1], 10, 32)
		since, err3 := strconv.ParseInt(f[2], 10, 64)
		r := request{uint32(job), uint32(task)}
		if _, known := w[r]; cmp.Or(err1, err2, err3) == nil && !known {
			w[r] = wait{since: since, seen: now.Unix(), eligible: now.Unix(), heard: true}
		}
	}
}
