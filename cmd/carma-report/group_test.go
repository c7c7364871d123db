// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// Nothing saved reads as 0.00, whichever side of it a sum of floats comes to.
func TestSavedOfAGroup(t *testing.T) {
	for hours, want := range map[float64]string{-0.001: "0.00", 0: "0.00", 0.004: "0.00", -0.02: "-0.02", 1.236: "1.24"} {
		g := group{SavedHours: hours, SavedOf: 1}
		if got := g.row()[4]; got != want {
			t.Errorf("%g: %s, want %s", hours, got, want)
		}
	}
}
