// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"time"

	"carma/slurmbridge/sctl"
	"carma/slurmbridge/tres"
)

// Waits knows since when requests wait. A requeue sets a job's eligible time anew
// (job_mgr.c, batch_requeue_fini), also when a Prolog gives it back at once: such a
// job would never have waited long. A user's hold on the job counts as waiting, too.
type Waits map[request]wait

// request is a job, or a task of an array, which is given a job id of its own when
// it starts first.
type request struct {
	job  uint32 // or its array
	task uint32
}

type wait struct {
	since, seen int64 // Unix time
}

// prologs is longer than any Prolog takes that gives its job back: hooks.wait is
// five minutes at most, hooks.deadline one.
const prologs = 7 * time.Minute

// Restore gives waiting jobs of the queue the time since which they really wait. It
// is called every so often: a job that is on its way back may not be in the queue.
func (w Waits) Restore(queue []sctl.QueuedJob, now time.Time, every time.Duration) {
	forget := max(3*every, 5*time.Minute)
	for i := range queue {
		j := &queue[i]
		r := request{job: j.ID}
		if j.ArrayJobID != 0 {
			r = request{j.ArrayJobID, j.ArrayTask}
		}
		known, ok := w[r]
		switch {
		case j.State == "PENDING" && !j.Eligible.IsZero():
			if k, _, _ := tres.Booking(j.TresPerNode); k == 0 {
				continue
			}
			if !ok || j.Eligible.Unix() < known.since {
				known.since = j.Eligible.Unix()
			}
			w[r] = wait{known.since, now.Unix()}
			if !j.Eligible.After(now) { // else it backs off
				j.Eligible = time.Unix(known.since, 0)
			}
		case ok && j.State == "RUNNING" && now.Sub(j.Start) > prologs:
			delete(w, r)
		case ok:
			w[r] = wait{known.since, now.Unix()}
		}
	}
	for r, known := range w {
		if now.Unix()-known.seen > int64(forget.Seconds()) {
			delete(w, r)
		}
	}
}
