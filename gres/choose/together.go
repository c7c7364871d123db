// SPDX-License-Identifier: Apache-2.0

package choose

import "carma/gres"

// Together tells whether one job of the user could be given all of these GPUs at
// once, as far as who is on them goes. Leases may be of other GPUs too.
func Together(p Policy, readings []gres.Reading, leases []gres.Lease, uid uint32, t Thresholds) (ok bool) {
	var buf [maxGPUs]state
	in := Input{Readings: readings, Leases: leases, Request: gres.Request{UID: uid}, Thresholds: t}
	states := statesOf(buf[:], &in)
	for i := range states {
		if states[i].otherUsers && (!t.CrossUser || p == Carma) {
			return false
		}
	}
	if len(states) < 2 || t.Streams {
		return true
	}
	companies(p, states, func(c company) bool {
		ok = true
		for i := range states {
			ok = ok && c.has(&states[i])
		}
		return !ok
	})
	return ok
}
