// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"slices"

	"carma/gres"
	"carma/slurmbridge/jobenv"
)

// Behind returns the leases as they are once the requests ahead, in their order, have been
// given what they would be given now: the rest is for those who come later. A request that
// nothing fits now takes nothing.
func Behind(p Policy, in Input, ahead []gres.Request) []gres.Lease {
	leases := slices.Clip(in.Leases)
	for _, r := range ahead {
		if slices.ContainsFunc(in.Leases, func(l gres.Lease) bool { return l.Job.JobID == r.JobID }) {
			continue // it has come
		}
		d := GPUs(p, Input{Readings: in.Readings, Leases: leases, Request: r, Thresholds: in.Thresholds, Last: in.Last})
		for _, uuid := range d.UUIDs {
			leases = append(leases, gres.Lease{
				Job: jobenv.JobKey{JobID: r.JobID}, UUID: uuid, UID: r.UID, ReserveMiB: r.ReserveMiB,
				Exclusive: r.Exclusive, SMActPct: r.SMActPct, MaxSlowdown: r.MaxSlowdown, Seen: true, Daemon: d.Daemon,
			})
		}
	}
	return leases
}
