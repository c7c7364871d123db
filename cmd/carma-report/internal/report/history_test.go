// SPDX-License-Identifier: Apache-2.0

package report

import (
	"testing"

	"carma/db"
	"carma/db/figure"
	"carma/estimator/method"
	"carma/slurmbridge/jobstate"
)

// What a job teaches, it teaches for its user.
func TestRunOf(t *testing.T) {
	j := job{Attempt: &db.Attempt{UID: 1007, Key: "00000000000000ff", Method: method.Analytic, EstMiB: 2334,
		FullMiB: 40536,
		State:   jobstate.Completed}, PeakMiB: 20, figures: &db.Total{PeakHow: figure.Exact}}
	if r := runOf(&j); r.UID != 1007 || r.Key != 0xff || !r.Analytic || !r.Completed || r.PeakMiB != 20 ||
		r.EstMiB != 2334 || r.FullMiB != 40536 {
		t.Errorf("%+v", r)
	}
}
