// SPDX-License-Identifier: Apache-2.0

package run

import "testing"

// Small figures keep two digits.
func TestAmount(t *testing.T) {
	for _, c := range []struct {
		v    float64
		want string
	}{
		{12345.67, "12345.7"}, {10, "10.0"}, {9.96, "10.0"}, {1.04, "1.0"}, {1, "1.0"}, {0.996, "1.00"}, {0.1, "0.10"},
		{0.0999, "0.100"}, {0.0338, "0.034"}, {0.01, "0.010"}, {0.00028, "0.00028"}, {0.0000161, "0.000016"}, {1e-12, "0.0"},
		{0, "0.0"},
	} {
		if got := amount(c.v); got != c.want {
			t.Errorf("amount(%g) = %s, want %s", c.v, got, c.want)
		}
	}
}
