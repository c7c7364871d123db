// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"cmp"
	"slices"
	"time"

	"carma/gres"
)

// Soonest returns the k GPUs that are likely to have mib free first, 0 for all of
// their memory: for a share of one GPU, that with the most memory that nobody uses
// or was promised; for a whole one, and for several, which mostly have to be idle
// to be given together, those with the fewest jobs. Among equals, those whose jobs
// are the oldest. GPUs that take nobody are left out.
func Soonest(readings []gres.Reading, leases []gres.Lease, k int, mib int64) []string {
	type candidate struct {
		uuid    string
		freeMiB int64
		jobs    int
		age     time.Duration
	}
	var all []candidate
	for _, r := range readings {
		if r.Unreadable != "" || r.Quarantined != "" || r.HeldFor != 0 || r.MIG || r.TotalMiB < mib {
			continue
		}
		c := candidate{uuid: r.UUID}
		booked := int64(0)
		for _, l := range leases {
			if l.UUID == r.UUID {
				booked += l.ReserveMiB
				c.jobs++
				c.age = max(c.age, l.Age)
			}
		}
		if mib > 0 && k == 1 {
			c.freeMiB = r.TotalMiB - max(r.UsedMiB, booked)
		}
		all = append(all, c)
	}
	if len(all) < k {
		return nil
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.freeMiB, a.freeMiB), cmp.Compare(a.jobs, b.jobs), cmp.Compare(b.age, a.age))
	})
	var uuids []string
	for _, c := range all[:k] {
		uuids = append(uuids, c.uuid)
	}
	return uuids
}
