// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"reflect"
	"testing"
)

func TestParseLimits(t *testing.T) {
	limits := []string{"GrpTRES", "MaxTRES"}
	for _, c := range []struct {
		names int
		out   string
		want  []Limit
	}{
		{1, "", nil},
		{1, "normal||\nhigh|cpu=8,gres/gpu=4|gres/gpu=1\n", []Limit{{"QOS high", "GrpTRES", "cpu=8,gres/gpu=4"},
			{"QOS high", "MaxTRES", "gres/gpu=1"}}},
		{2, "root|||\nphysics||gres/carma=7|\nphysics|alice||cpu=1\n", []Limit{
			{"account physics", "GrpTRES", "gres/carma=7"}, {"user alice of account physics", "MaxTRES", "cpu=1"}}},
	} {
		got, err := parseLimits(c.out, c.names, limits)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, %v", c.out, got, err)
		}
	}
	if _, err := parseLimits("a|b\n", 1, limits); err == nil {
		t.Error("a short row is read")
	}
}
