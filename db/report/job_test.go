// SPDX-License-Identifier: Apache-2.0

package report

import (
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
)

// SM activity is that of the last attempt of which it is known, over all its nodes.
func TestMergeSMAct(t *testing.T) {
	part := func(restart uint32, node string, smact, most figure.Measured, how figure.Quality,
		leaseS float64) db.Attempt {
		return db.Attempt{
			JobID:   1,
			Restart: restart,
			Node:    node,
			Start:   time.Unix(1, 0),
			End:     time.Unix(2, 0),
			Total:   db.Total{SMActPct: smact, SMActMax: most, SMActHow: how, LeaseS: leaseS},
		}
	}
	none := func(restart uint32, node string) db.Attempt {
		return part(restart, node, figure.Unknown, figure.Unknown, figure.QualityNone, 10)
	}
	for name, c := range map[string]struct {
		attempts   []db.Attempt
		mean, most figure.Measured
		how        figure.Quality
	}{
		"two nodes": {[]db.Attempt{part(0, "a", 20, 30, figure.Exact, 100),
			part(0, "b", 50, 90, figure.Exact, 50)}, 30, 90, figure.Exact},
		"one of them shared": {[]db.Attempt{part(0, "a", 20, 95, figure.Exact, 50),
			part(0, "b", 40, 90, figure.Shared, 50)}, 30, 95, figure.Shared},
		"one of them not known": {[]db.Attempt{none(0, "a"), part(0, "b", 40, 90, figure.Exact, 50)}, 40, 90,
			figure.Exact},
		"the other not known": {[]db.Attempt{part(0, "a", 40, 90, figure.Exact, 50), none(0, "b")}, 40, 90,
			figure.Exact},
		"the last attempt counts": {[]db.Attempt{part(0, "a", 40, 90, figure.Shared, 50),
			part(1, "a", 10, 20, figure.Exact, 5), part(1, "b", 30, 40, figure.Exact, 5)}, 20, 40, figure.Exact},
		"the last one is unknown": {[]db.Attempt{part(0, "a", 40, 90, figure.Shared, 50), none(1, "a")}, 40, 90,
			figure.Shared},
	} {
		var j job
		for range 2 { // what is used again is as new
			if j.merge(c.attempts); j.figures.SMActPct != c.mean || j.figures.SMActMax != c.most ||
				j.figures.SMActHow != c.how {
				t.Errorf("%s: %v, %v, %s", name, j.figures.SMActPct, j.figures.SMActMax, j.figures.SMActHow)
			}
		}
	}
}
