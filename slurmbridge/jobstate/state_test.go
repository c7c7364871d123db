// SPDX-License-Identifier: Apache-2.0

package jobstate

import (
	"fmt"
	"testing"
)

func TestHoldsNode(t *testing.T) {
	for state, want := range map[State]bool{"RUNNING": true, "COMPLETING": true, "SUSPENDED": true, "PENDING": false,
		"COMPLETED": false, "": false} {
		if state.HoldsNode() != want {
			t.Error(fmt.Sprint(state, " holds a node: ", !want))
		}
	}
}
