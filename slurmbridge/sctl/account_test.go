// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"strings"
	"testing"
)

func TestParseAccounted(t *testing.T) {
	line := func(fields ...string) string { return strings.Join(fields, separator) }
	for _, c := range []struct {
		line string
		want Accounted
		ok   bool
	}{
		{line("c", "12", "12", "alice", "ml", "gpu", "COMPLETED", "a|b", "JS1:x carma1:y"), Accounted{"c", 12, 0, "", "a|b", "alice", "ml", "gpu", "COMPLETED", "JS1:x carma1:y"}, true},
		{line("c", "13", "12_4", "alice", "ml", "gpu", "CANCELLED by 1000", "n", ""), Accounted{"c", 13, 12, "4", "n", "alice", "ml", "gpu", "CANCELLED", ""}, true},
		{line("c", "14", "12+0", "alice", "", "gpu", "NEWSTATE", "n", ""), Accounted{"c", 14, 0, "", "n", "alice", "", "gpu", "NEWSTATE", ""}, true},
		{line("c", "12.batch", "12.batch", "", "ml", "", "COMPLETED", "batch", ""), Accounted{}, false},
		{line("c", "12"), Accounted{}, false},
		{"", Accounted{}, false},
		{"sacct: warning of something new", Accounted{}, false},
	} {
		if got, ok := parseAccounted(c.line); ok != c.ok || got != c.want {
			t.Errorf("%q: %+v, %v", c.line, got, ok)
		}
	}
}

func FuzzParseAccounted(f *testing.F) {
	f.Add(strings.Join([]string{"c", "13", "12_4", "alice", "ml", "gpu", "CANCELLED by 1000", "n", "carma1:"}, separator))
	f.Fuzz(func(t *testing.T, line string) {
		if j, ok := parseAccounted(line); ok && strings.Contains(j.State, " ") {
			t.Errorf("state %q", j.State)
		}
	})
}
