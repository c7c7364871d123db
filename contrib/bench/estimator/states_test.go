// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// A run with large parameters shows for how many states there was no room.
func TestWithoutRoom(t *testing.T) {
	row := func(family string, beyond, params, live float64) run {
		return run{family: family, faketensorMiB: live, paramsMiB: params, actualMiB: processMiB + live + beyond}
	}
	runs := []run{
		row("a", 1000, 1000, 3000), // room for one
		row("a", 1950, 1000, 3000), // for two, nearly
		row("b", 2500, 1000, 3000), // for two
		row("c", 100, 149, 300),    // small parameters
		row("c", 100, 500, 30000),  // in a large run
		row("c", 500, 1000, 0),     // no live peak is published
		row("c", 500, 1000, 3000),  // no room for one
	}
	for states, want := range map[float64][2]int{0: {0, 0}, 1: {1, 0}, 2: {2, 0}} {
		got := withoutRoom(runs, states)
		if got[0].below != want[0] || got[1].below != want[1] {
			t.Errorf("no room for %.0f: %d and %d runs, want %v", states, got[0].below, got[1].below, want)
		}
		if got[0].runs != 3 || got[1].runs != 1 || len(got[0].families) != want[0] {
			t.Errorf("of %d and %d runs, %d families", got[0].runs, got[1].runs, len(got[0].families))
		}
	}
}
