// SPDX-License-Identifier: Apache-2.0

package annotate

import "testing"

// A user's bound on slowdown is only stricter than the site's; who gives a looser one is told.
func TestSlowdownIsOnlyStricter(t *testing.T) {
	const looser = "slowdown=2 is looser than this site's bound of 1.5, which applies"
	for _, c := range []struct {
		script string
		site   float64
		want   float64
		advice string
	}{
		{"#CARMA mem=10G\n", 1.5, 0, ""},
		{"#CARMA mem=10G slowdown=1.3\n", 0, 1.3, ""},
		{"#CARMA mem=10G slowdown=1.3\n", 1.5, 1.3, ""},
		{"#CARMA mem=10G slowdown=1.5\n", 1.5, 1.5, ""},
		{"#CARMA mem=10G slowdown=2\n", 1.5, 0, looser},
		{"#CARMA policy=exclusive slowdown=1.3\n", 1.5, 0, ""},
	} {
		s, j := site(), job("#!/bin/sh\n"+c.script)
		s.MaxSlowdown, j.TRES.PerNode = c.site, "gres:gpu:1"
		a, err := s.Annotate(j)
		if err != nil || a.MaxSlowdown != c.want || a.Advice != c.advice {
			t.Errorf("%q at a site with %g: %g, %q, %v", c.script, c.site, a.MaxSlowdown, a.Advice, err)
		}
	}
}
