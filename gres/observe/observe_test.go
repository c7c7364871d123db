// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"reflect"
	"testing"

	"carma/gres"
	"carma/slurmbridge/jobenv"
)

func node(mig bool) (gpus []gres.GPU) {
	for i, uuid := range []string{"a", "b", "c"} {
		gpus = append(gpus, gres.GPU{UUID: uuid, Index: i, Minor: 2 - i, MIG: mig && i == 2}) // PCI's order is another
	}
	return gpus
}

func key(id, restart uint32) jobenv.JobKey { return jobenv.JobKey{JobID: id, Restart: restart} }

func lease(id, restart, uid uint32, uuid string) gres.Lease {
	return gres.Lease{Job: key(id, restart), UID: uid, UUID: uuid}
}

func TestPlan(t *testing.T) {
	whole := func(uuids ...string) (c []Claim) {
		for _, u := range uuids {
			c = append(c, Claim{u, true})
		}
		return c
	}
	for _, c := range []struct {
		name   string
		mig    bool
		job    *Job
		leases []gres.Lease
		begin  []Claim
		end    bool
	}{
		{name: "an empty node"},
		{name: "new, by slurmctld's word", job: &Job{Indices: []int{0, 2}}, begin: whole("a", "c")},
		{name: "new, without a GPU", job: &Job{}},
		{name: "new, seen on a GPU", job: &Job{On: []string{"b"}}, begin: []Claim{{"b", false}}},
		{name: "uses a GPU beside its own", job: &Job{Indices: []int{1}, On: []string{"b", "c"}},
			begin: []Claim{{"b", true}, {"c", false}}},
		{name: "indices that mean other devices", job: &Job{Indices: []int{1}, On: []string{"c"}},
			begin: []Claim{{"c", false}}},
		{name: "an index beyond the last GPU", job: &Job{Indices: []int{1, 9}, On: []string{"a"}},
			begin: []Claim{{"a", false}}},
		{name: "indices of MIG instances", mig: true, job: &Job{Indices: []int{1}}},
		{name: "a MIG instance", mig: true, job: &Job{Indices: []int{1}, On: []string{"c"}}, begin: whole("c")},
		{name: "in the ledger", job: &Job{Indices: []int{1}, On: []string{"b"}},
			leases: []gres.Lease{lease(7, 1, 1000, "b")}},
		{name: "in the ledger, and idle", job: &Job{Indices: []int{1}}, leases: []gres.Lease{lease(7, 1, 1000, "b")}},
		{name: "comes to a second GPU", job: &Job{On: []string{"a", "b"}}, leases: []gres.Lease{lease(7, 1, 1000, "b")},
			begin: []Claim{{"a", false}}},
		{name: "of an agent before, indices not asked for again", job: &Job{},
			leases: []gres.Lease{lease(7, 1, 1000, "b")}},
		{name: "has ended", leases: []gres.Lease{lease(7, 1, 1000, "b"), lease(7, 1, 1000, "c")}, end: true},
		{name: "was requeued and runs again", job: &Job{Indices: []int{0}}, leases: []gres.Lease{lease(7, 0, 1000, "b")},
			begin: whole("c"), end: true},
		{name: "another user's by the same id", job: &Job{Indices: []int{0}}, leases: []gres.Lease{lease(7, 1, 1001, "c")},
			begin: whole("c"), end: true},
		{name: "completes, with processes", job: &Job{Ending: true, On: []string{"b"}},
			leases: []gres.Lease{lease(7, 1, 1000, "b")}},
		{name: "completes", job: &Job{Ending: true, Indices: []int{1}}, leases: []gres.Lease{lease(7, 1, 1000, "b")},
			end: true},
		{name: "completes, never seen", job: &Job{Ending: true, Indices: []int{1}, On: []string{"b"}}},
	} {
		var jobs []Job
		if c.job != nil {
			c.job.JobKey, c.job.UID = key(7, 1), 1000
			jobs = append(jobs, *c.job)
		}
		begin, end := Plan(node(c.mig), jobs, c.leases)
		var got []Claim
		for _, b := range begin {
			got = append(got, b.Claims...)
		}
		if !reflect.DeepEqual(got, c.begin) || len(begin) > 1 {
			t.Errorf("%s: begins %+v, want %+v", c.name, begin, c.begin)
		}
		if (len(end) == 1) != c.end || len(end) > 1 || c.end && end[0] != c.leases[0].Job {
			t.Errorf("%s: ends %v", c.name, end)
		}
	}
}
