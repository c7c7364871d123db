// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// 100 Mi parameters are 400 MiB, and their gradients as much.
func TestImpossible(t *testing.T) {
	for _, c := range []struct {
		actualMiB, faketensorMiB, params float64
		want                             bool
	}{
		{2501, 600, 100 << 20, false},
		{2499, 600, 100 << 20, true},
		{2501, 2700, 100 << 20, true},
		{1731, 20, 300000, false},
	} {
		if got := impossible(c.actualMiB, c.faketensorMiB, c.params); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
