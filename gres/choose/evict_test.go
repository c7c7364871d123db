// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"fmt"
	"testing"
	"time"

	"carma/db/figure"
	"carma/gres"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/policy"
)

// As few jobs as possible go, the youngest first, and none that may not.
func TestEvict(t *testing.T) {
	lease := func(uuid string, job uint32, uid uint32, mib int64, age time.Duration) gres.Lease {
		return gres.Lease{UUID: uuid, Job: jobenv.JobKey{JobID: job}, UID: uid, ReserveMiB: mib, Age: age, Seen: true}
	}
	whole := gres.Request{JobID: 99, UID: 1, GPUs: 1, ReserveMiB: 40536, Exclusive: true}
	small := gres.Request{JobID: 99, UID: 1, GPUs: 1, ReserveMiB: 10000, MarginMiB: 2048}
	two := whole
	two.GPUs = 2
	never := defaults
	never.CrossUser = false
	four := []gres.Lease{
		lease("a", 1, 2, 10000, time.Hour), lease("a", 2, 2, 10000, time.Minute),
		lease("b", 3, 2, 10000, time.Hour), lease("c", 4, 2, 10000, time.Minute), lease("d", 15, 2, 10000, time.Second),
	}
	for _, c := range []struct {
		name   string
		leases []gres.Lease
		r      gres.Request
		want   string
	}{
		{"the youngest of single jobs", four, whole, "[c] [4]"},
		{"two GPUs", four, two, "[c b] [4 3]"},
		{"jobs of another user go", []gres.Lease{lease("a", 1, 2, 1000, time.Hour), lease("b", 11, 2, 1000, 0)}, small,
			"[] []"},
		{"room is made, and no more", []gres.Lease{
			lease("a", 1, 1, 15000, time.Hour), lease("a", 2, 1, 15000, time.Minute),
			lease("b", 11, 2, 1000, 0), lease("c", 12, 2, 1000, 0), lease("d", 13, 2, 1000, 0),
		}, small, "[a] [2]"},
		{"one that stays for good", []gres.Lease{
			lease("a", 1, 1, 15000, time.Hour), lease("a", 12, 1, 15000, time.Minute),
			lease("b", 11, 2, 1000, 0), lease("c", 12, 2, 1000, 0), lease("d", 13, 2, 1000, 0),
		}, small, "[a] [1]"},
		{"one that leaves costs nothing", []gres.Lease{
			lease("a", 1, 2, 10000, time.Minute), lease("b", 21, 2, 10000, time.Hour), lease("b", 2, 2, 10000, time.Hour),
			lease("c", 21, 2, 10000, time.Hour), lease("d", 11, 2, 10000, 0),
		}, whole, "[c] [21]"},
		{"one that leaves goes before a younger one", []gres.Lease{
			lease("a", 1, 1, 15000, time.Minute), lease("a", 21, 1, 15000, time.Hour),
			lease("b", 11, 2, 1000, 0), lease("c", 12, 2, 1000, 0), lease("d", 13, 2, 1000, 0),
		}, small, "[a] [21]"},
		{"none may", []gres.Lease{lease("a", 11, 2, 1, 0), lease("b", 12, 2, 1, 0), lease("c", 13, 2, 1, 0),
			lease("d", 14, 2, 1, 0)}, whole, "[] []"},
	} {
		in := Input{Readings: []gres.Reading{gpu("a"), gpu("b"), gpu("c"), gpu("d")}, Leases: c.leases, Request: c.r,
			Thresholds: never}
		if c.name == "jobs of another user go" {
			in.Readings = in.Readings[1:2]
		}
		uuids, jobs := Evict(policy.MAGM, in, func(l *gres.Lease) Leaving {
			switch {
			case l.Job.JobID < 10:
				return Yields
			case l.Job.JobID > 20:
				return Leaves
			}
			return Stays
		})
		ids := []uint32{}
		for _, j := range jobs {
			ids = append(ids, j.JobID)
		}
		if got := fmt.Sprint(uuids, " ", ids); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// What is measured on a GPU may forbid a newcomer where what is known of its jobs does not:
// the one that is preempted goes.
func TestEvictByMeasuredSlowdown(t *testing.T) {
	bounded := defaults
	bounded.MaxSlowdown = 1.2
	bounded.SMActMaxPct = 100
	busy := gpu("a")
	busy.SMActPct, busy.Source = 90, figure.SourceGPM
	in := Input{Readings: []gres.Reading{busy}, Thresholds: bounded,
		Leases: []gres.Lease{{UUID: "a", Job: jobenv.JobKey{JobID: 1}, UID: 1, ReserveMiB: 5000, AlonePct: 10,
			Seen: true, Daemon: "a"}},
		Request: gres.Request{JobID: 99, UID: 1, GPUs: 1, ReserveMiB: 5000, SMActPct: 30}}
	if got := GPUs(policy.MAGM, in); got.UUIDs != nil {
		t.Fatalf("the newcomer fits: %+v", got)
	}
	if _, jobs := Evict(policy.MAGM, in, func(*gres.Lease) Leaving { return Yields }); len(jobs) != 1 {
		t.Errorf("%v go, want job 1", jobs)
	}
	in.Readings[0].SMActPct = 10
	if _, jobs := Evict(policy.MAGM, in, func(*gres.Lease) Leaving { return Yields }); len(jobs) != 0 {
		t.Errorf("%v go where it fits", jobs)
	}
}
