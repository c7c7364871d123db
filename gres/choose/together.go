// SPDX-License-Identifier: Apache-2.0

package choose

import "carma/gres"

// Together tells whether one job of some user could be given all of these GPUs at
// once, as far as who is on them goes. Leases may be of other GPUs too.
func Together(p Policy, readings []gres.Reading, leases []gres.Lease, t Thresholds) bool {
	if len(readings) < 2 {
		return true
	}
	for _, some := range Companies(p, readings, leases, t) {
		if len(some) == len(readings) {
			return true
		}
	}
	return false
}
