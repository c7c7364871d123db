// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"slices"
	"testing"
	"time"

	"carma/gres"
)

func TestSoonest(t *testing.T) {
	s := struct {
		Readings []gres.Reading
		Leases   []gres.Lease
	}{
		Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a"}}, {GPU: gres.GPU{UUID: "b"}}, {GPU: gres.GPU{UUID: "c"}}, {GPU: gres.GPU{UUID: "d"}},
			{GPU: gres.GPU{UUID: "lost"}, Unreadable: "x"}, {GPU: gres.GPU{UUID: "bad"}, Quarantined: "x"}, {GPU: gres.GPU{UUID: "kept"}, HeldFor: 9}},
		Leases: []gres.Lease{{UUID: "a", Age: time.Minute}, {UUID: "a", Age: time.Hour}, {UUID: "b", Age: time.Minute}, {UUID: "c", Age: time.Hour}},
	}
	if got := Soonest(s.Readings, s.Leases, 3, 0); !slices.Equal(got, []string{"d", "c", "b"}) {
		t.Errorf("got %v", got)
	}
	if got := Soonest(s.Readings, s.Leases, 5, 0); got != nil {
		t.Errorf("5 of 4: %v", got)
	}
	// A share: where most is left.
	for i := range s.Readings {
		s.Readings[i].TotalMiB = 40536
	}
	s.Readings[3].TotalMiB = 10000
	s.Leases[2].ReserveMiB, s.Leases[3].ReserveMiB = 30000, 20000
	s.Readings[0].UsedMiB = 25000
	if got := Soonest(s.Readings, s.Leases, 1, 20480); !slices.Equal(got, []string{"c"}) {
		t.Errorf("got %v", got)
	}
	// Several: who is on them counts more.
	if got := Soonest(s.Readings, s.Leases, 3, 20480); !slices.Equal(got, []string{"c", "b", "a"}) {
		t.Errorf("got %v", got)
	}
}
