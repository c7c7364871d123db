// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"testing"

	"carma/db"
	"carma/db/figure"
)

// The user with most idle GPU time comes first, and an unknown figure of a job is no zero.
func TestUsers(t *testing.T) {
	var u users
	for _, c := range []struct {
		user string
		of   db.Total
		mib  int64
	}{
		{"busy", db.Total{SMActPct: 90, LeaseS: 36000, SharedS: 18000, PeakMiB: 9000, EnergyJ: 3.6e6}, 10000},
		{"idle", db.Total{SMActPct: 10, LeaseS: 7200, PeakMiB: 1000, EnergyJ: figure.Unknown}, 40000},
		{"idle", db.Total{SMActPct: figure.Unknown, LeaseS: 3600, EnergyJ: 7.2e6}, 40000},
		{"", db.Total{SMActPct: figure.Unknown, EnergyJ: figure.Unknown}, 0},
	} {
		u.add(&job{Attempt: &db.Attempt{User: c.user, ReserveMiB: c.mib}, PeakMiB: c.of.PeakMiB, figures: &c.of})
	}
	want := "[[idle 2 3.0 1.8 10 % 0 % 2 % 2.0] [busy 1 10.0 1.0 90 % 50 % 90 % 1.0] [- 1 0.0 - - - - -]]"
	if got := fmt.Sprint(u.section().Rows); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
