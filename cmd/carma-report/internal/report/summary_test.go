// SPDX-License-Identifier: Apache-2.0

package report

import (
	"testing"
	"time"

	"carma/db"
)

// Days of a summary are those of the calendar, also those of 23 and of 25 hours.
func TestDaysAroundSummerTime(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Copenhagen")
	if err != nil {
		t.Skip("no time zones on this machine: ", err)
	}
	for _, begin := range []time.Time{time.Date(2026, 3, 28, 12, 0, 0, 0, zone),
		time.Date(2026, 10, 24, 12, 0, 0, 0, zone)} {
		s := newTally([]string{byDay}, zone)
		hours := map[string]int{}
		for at := begin; at.Before(begin.Add(72 * time.Hour)); at = at.Add(15 * time.Minute) {
			var j job
			j.merge([]db.Attempt{{JobID: 1, Start: at.Add(-time.Minute), End: at, Total: db.TotalOf(nil)}})
			s.add(&j)
			hours[at.In(zone).Format("2006-01-02")]++
		}
		for day, n := range hours {
			if g := s.groups[0][day]; g == nil || g.Jobs != n {
				t.Errorf("%s: %+v, want %d jobs", day, g, n)
			}
		}
	}
}

// Nothing saved reads as 0.00, whichever side of it a sum of floats comes to.
func TestSavedOfAGroup(t *testing.T) {
	for hours, want := range map[float64]string{-0.001: "0.00", 0: "0.00", 0.004: "0.00", -0.02: "-0.02",
		1.236: "1.24"} {
		g := group{SavedHours: hours, SavedOf: 1}
		if got := g.row()[4]; got != want {
			t.Errorf("%g: %s, want %s", hours, got, want)
		}
	}
}
