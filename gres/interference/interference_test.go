// SPDX-License-Identifier: Apache-2.0

package interference

import (
	"math"
	"testing"
)

// The scarcer of SM activity and memory bandwidth sets the rate, and what nobody has
// measured counts for nothing.
func TestEqual(t *testing.T) {
	for _, x := range []struct {
		name       string
		clients    []Client
		rate, util float64
	}{
		{"alone", []Client{{Demand: 0.7, DRAM: 0.9}}, 1, 0.7},
		{"nothing to do", []Client{{}, {}}, 1, 0},
		{"SM activity", []Client{{Demand: 0.5}, {Demand: 0.5}}, 0.75, 0.75},
		{"all SMs", []Client{{Demand: 1}, {Demand: 0.5}}, 1 / 1.5, 1},
		{"bandwidth", []Client{{Demand: 0.1, DRAM: 0.8}, {Demand: 0.1, DRAM: 0.8}}, 0.6, 0.12},
		{"the bandwidth of one alone is known", []Client{{Demand: 0.5, DRAM: 0.8}, {Demand: 0.5}}, 0.75, 0.75},
	} {
		util := Equal(x.clients)
		for i := range x.clients {
			if math.Abs(x.clients[i].Rate-x.rate) > 1e-12 {
				t.Errorf("%s: rate %g, want %g", x.name, x.clients[i].Rate, x.rate)
			}
		}
		if math.Abs(util-x.util) > 1e-12 {
			t.Errorf("%s: activity %g, want %g", x.name, util, x.util)
		}
	}
}
