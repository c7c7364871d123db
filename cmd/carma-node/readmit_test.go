// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"carma/gres"
)

// What still stands is said: readmit ends no fault that NVML reports.
func TestReadmitted(t *testing.T) {
	gpu := func(reason string, cause gres.Cause) gres.Reading {
		return gres.Reading{GPU: gres.GPU{UUID: "a"}, Quarantined: reason, Cause: cause}
	}
	for _, c := range []struct {
		before, now gres.Reading
		ended       bool
		want        string
	}{
		{gpu("Xid 79", gres.CauseXid), gpu("", ""), true, "takes jobs again: Xid 79"},
		{gpu("Xid 79", gres.CauseXid), gpu("reset", gres.CauseDevice), true, "stays in quarantine: reset; it takes jobs"},
		{gpu("reset", gres.CauseDevice), gpu("reset", gres.CauseDevice), false, "when NVML no longer reports that"},
		{gpu("MPS", gres.CauseMPS), gpu("MPS", gres.CauseMPS), true, "when the server's clients have gone"},
		{gpu("", ""), gpu("", ""), false, "was not in quarantine"},
	} {
		if got := readmitted(c.before, []gres.Reading{c.now}, c.ended); !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.now, got, c.want)
		}
	}
	if got := readmitted(gpu("Xid 79", gres.CauseXid), nil, true); got != "takes jobs again: Xid 79" {
		t.Errorf("a GPU that is gone: %q", got)
	}
}
