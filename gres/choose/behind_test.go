// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"slices"
	"testing"

	"carma/gres"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/policy"
)

func TestBehind(t *testing.T) {
	readings := []gres.Reading{{GPU: gres.GPU{UUID: "a", Index: 0, TotalMiB: 40536}},
		{GPU: gres.GPU{UUID: "b", Index: 1, TotalMiB: 40536}}}
	whole := func(id uint32, gpus int) gres.Request {
		return gres.Request{JobID: id, GPUs: gpus, ReserveMiB: 40536, Exclusive: true, UID: 1000}
	}
	share := func(id uint32, mib int64) gres.Request {
		return gres.Request{JobID: id, GPUs: 1, ReserveMiB: mib, UID: 1000}
	}
	runs := gres.Lease{Job: jobenv.JobKey{JobID: 1}, UUID: "a", UID: 1000, ReserveMiB: 40536, Exclusive: true, Seen: true}
	for name, c := range map[string]struct {
		leases []gres.Lease
		ahead  []gres.Request
		want   []string // that the job, which wants a whole GPU, is given
	}{
		"nobody":                      {nil, nil, []string{"a"}},
		"one for a GPU":               {nil, []gres.Request{whole(2, 1)}, []string{"b"}},
		"two tasks of an array":       {nil, []gres.Request{whole(2, 1), whole(2, 1)}, nil},
		"two for a GPU each":          {nil, []gres.Request{whole(2, 1), whole(3, 1)}, nil},
		"one for more than is there":  {nil, []gres.Request{whole(2, 3)}, []string{"a"}},
		"one for both, one is in use": {[]gres.Lease{runs}, []gres.Request{whole(2, 2)}, []string{"b"}},
		"one for a GPU, one in use":   {[]gres.Lease{runs}, []gres.Request{whole(2, 1)}, nil},
		"one that has come":           {[]gres.Lease{runs}, []gres.Request{whole(1, 1)}, []string{"b"}},
		"two that share":              {nil, []gres.Request{share(2, 10000), share(3, 10000)}, []string{"b"}},
		"one that is too large":       {[]gres.Lease{runs}, []gres.Request{share(2, 60000)}, []string{"b"}},
	} {
		in := Input{Readings: readings, Leases: c.leases, Request: whole(9, 1),
			Thresholds: Thresholds{SMActMaxPct: 80, MaxJobs: 4, MarginMiB: 2048}}
		before := slices.Clone(c.leases)
		in.Leases = Behind(policy.FirstFit, in, c.ahead)
		if got := GPUs(policy.FirstFit, in).UUIDs; !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
		if !slices.Equal(c.leases, before) {
			t.Errorf("%s: the leases were changed", name)
		}
	}
}
