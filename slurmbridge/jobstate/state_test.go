// SPDX-License-Identifier: Apache-2.0

package jobstate

import (
	"fmt"
	"strings"
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

func TestHasEnded(t *testing.T) {
	for state, want := range map[State]bool{"RUNNING": false, "PENDING": false, "REQUEUED": false, "COMPLETED": true,
		"NODE_FAIL": true, "PREEMPTED": true} {
		if state.HasEnded() != want {
			t.Error(fmt.Sprint(state, " has ended: ", !want))
		}
	}
}

// The words are those of 24.11.5 to 26.05.
func TestReasons(t *testing.T) {
	const noNodes = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
	for reason, want := range map[Reason]struct{ room, user bool }{
		"Resources": {true, false}, "Priority": {true, false}, "None": {true, false}, "Constraints": {true, false},
		noNodes: {true, false},
		Reason(strings.ReplaceAll(noNodes, " ", "_")):    {true, false},
		"ReqNodeNotAvail, UnavailableNodes:n4":           {false, false},
		"ReqNodeNotAvail, May be reserved for other job": {true, false},
		"BeginTime": {false, false}, "Prolog": {false, false},
		"Cleaning": {false, false}, "BadConstraints": {true, false}, "Dependency": {false, true},
		"JobHeldUser": {false, true}, "": {false, true},
	} {
		if reason.IsRoom() != want.room || reason.IsOfItsUser() != want.user {
			t.Errorf("%s: room %v, of its user %v", reason, reason.IsRoom(), reason.IsOfItsUser())
		}
	}
}
