// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/estimator/history"
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

// A script whose runs are far apart is said to be several.
func TestHistoryOfRunsThatDiffer(t *testing.T) {
	l := history.NewLearner()
	for i, peak := range []int64{1000, 9000} {
		l.Add(history.Run{Key: 1, End: int64(i), PeakMiB: peak, RunS: 60, Completed: true})
		l.Add(history.Run{Key: 2, End: int64(i), PeakMiB: 1000 + peak/9, RunS: 60, Completed: true})
	}
	var out bytes.Buffer
	if err := printHistory(&out, l, nil, &style{}, 9); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		differ := strings.HasSuffix(line, "  the runs differ: vars= or job= tells them apart\n")
		if differ != strings.HasPrefix(line, history.Key(1).String()) {
			t.Errorf("%q of\n%s", line, &out)
		}
	}
	if !strings.Contains(out.String(), " 9450 ") { // 9000 and 5 %
		t.Errorf("the largest is not booked:\n%s", &out)
	}
}

// slurmdbd is asked for the jobs of a while, whatever times are asked for: the timer asks again and again.
func TestHistoryAsksForAWhile(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	r, err := New(Options{From: "2020-01-01", To: "2020-02-01"}, []string{History}, now)
	if err != nil {
		t.Fatal(err)
	}
	if f := r.Filter(); !f.From.Equal(now.AddDate(0, 0, -90)) || !f.To.IsZero() {
		t.Errorf("from %s to %s", f.From, f.To)
	}
}
