// SPDX-License-Identifier: Apache-2.0

package sctl

import "testing"

func TestParseBooked(t *testing.T) {
	for _, c := range []struct {
		row          []string
		target, gres string
		fails        bool
	}{
		{[]string{"7", "7", "N/A", "0", "0", "gres/gpu:1,gres/carma:10240"}, "7", "gpu:1", false},
		{[]string{"7", "7", "N/A", "N/A", "N/A", "gres:gpu:a100:2,gres:carma:10240,gres:nic:mlx5:1K"}, "7",
			"gpu:a100:2,nic:mlx5:1024", false},
		{[]string{"9", "7", "3", "0", "0", "gres/gpu,gres/carma:1"}, "7_3", "gpu:1", false},
		{[]string{"7", "7", "4-9,12%2", "0", "0", "gres/carma:1"}, "7", "", false},
		{[]string{"8", "8", "N/A", "7", "1", " gres/gpu:1,gres/carma:1 "}, "7+1", "gpu:1", false},
		{[]string{"7", "7", "N/A", "0", "0", "gres/gpu:1"}, "", "", false},
		{[]string{"7", "7", "N/A", "0", "0", "gres/gpu:$(x):1,gres/carma:1"}, "7", "", true},
		{[]string{"7", "7", "N/A", "0", "0", "gres/gpu:1\nx,gres/carma:1"}, "7", "", true},
		{[]string{"x", "7", "N/A", "0", "0", "gres/carma:1"}, "", "", false},
		{[]string{"7", "y", "1", "0", "0", "gres/carma:1"}, "", "", false},
		{[]string{"7", "7", "N/A", "6", "x", "gres/carma:1"}, "", "", false},
	} {
		b, ok := parseBooked(c.row)
		if ok != (c.target != "") || b.Target.String() != c.target || b.Gres != c.gres || (b.Err != nil) != c.fails {
			t.Errorf("%q: %+v, %v", c.row, b, ok)
		}
	}
	if got := withPrefix("gpu:1,nic:2"); got != "gres/gpu:1,gres/nic:2" {
		t.Errorf("got %s", got)
	}
}
