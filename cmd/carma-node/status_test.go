// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os/user"
	"strings"
	"testing"
	"time"

	"carma/db/texttable"
	"carma/gres"
	"carma/gres/lease"
	"carma/slurmbridge/config"
)

// A GPU whose reading is of an agent that has died is not said to be open.
func TestStatusOfOldReadings(t *testing.T) {
	for age, want := range map[time.Duration]string{time.Second: "1 open", time.Hour: "0 open"} {
		s := lease.Snapshot{Readings: []gres.Reading{{GPU: gres.GPU{UUID: "GPU-0", TotalMiB: 40536}, Age: age}}}
		var b bytes.Buffer
		if err := statusOf(config.Default(), "n1", s, userName).Print(&b, texttable.Style{}); err != nil {
			t.Fatal(err)
		}
		got := b.String()
		if !strings.Contains(got, want) || (age > time.Minute) != strings.Contains(got, "it was last read 1h") {
			t.Errorf("read %s ago:\n%s", age, got)
		}
	}
}

// A hanging directory service costs a second for each name.
func TestUserNameWithoutDirectory(t *testing.T) {
	hang := make(chan struct{})
	old := lookupID
	lookupID = func(string) (*user.User, error) { <-hang; return nil, user.UnknownUserIdError(1) }
	t.Cleanup(func() { close(hang); lookupID = old })
	if got := userName(1234); got != "1234" {
		t.Errorf("got %q", got)
	}
}
