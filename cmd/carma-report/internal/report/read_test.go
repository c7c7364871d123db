// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"carma/db"
	"carma/db/source"
	"carma/slurmbridge/jobstate"
)

// manyJobs is a source of jobs 1 to last, of which the failed ones come last; read counts what is handed out.
type manyJobs struct {
	last, failed uint32
	name         string
	read         atomic.Int64
}

func (m *manyJobs) JobIDs(context.Context) (low, high uint32, err error) { return 1, m.last, nil }

func (m *manyJobs) Scan(_ context.Context, f db.Filter, each func([]db.Attempt) error) error {
	at := time.Unix(1_700_000_000, 0)
	for id := max(f.FromJob, 1); id <= m.last && (f.BeforeJob == 0 || uint64(id) < f.BeforeJob); id++ {
		m.read.Add(1)
		a := db.Attempt{JobID: id, Name: m.name, Start: at, End: at.Add(time.Minute), State: jobstate.Completed,
			Total: db.TotalOf(nil)}
		if id > m.last-m.failed {
			a.State = jobstate.Failed
		}
		if err := each([]db.Attempt{a}); err != nil {
			return err
		}
	}
	return nil
}

// The first jobs of several databases are found without all others: a million would not fit into memory.
func TestFirstOfSeveralSourcesReadsFew(t *testing.T) {
	a, b := &manyJobs{last: 100_000}, &manyJobs{last: 100_000}
	jobs, rest, err := first(t.Context(), []source.Source{a, b}, &selection{}, 10, 200)
	if err != nil || len(jobs) != 10 || !rest {
		t.Fatalf("%d jobs, more %v, %v", len(jobs), rest, err)
	}
	if n := a.read.Load() + b.read.Load(); n > 1000 {
		t.Errorf("%d records were read for 10 jobs", n)
	}
}

// A page shows the jobs that match, however many others come before.
func TestPagesFindLateJobs(t *testing.T) {
	for _, o := range []Options{{HTML: true}, {SVG: true}} {
		o.States, o.From = "F", "2020-01-01"
		r, err := New(o, nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		r.Read(&manyJobs{last: 12_000, failed: 3})
		var out strings.Builder
		if err := r.Show(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"11998", "11999", "12000"} {
			if !strings.Contains(out.String(), id) {
				t.Errorf("%+v: job %s is missing", o, id)
			}
		}
		if strings.Contains(out.String(), "of the selection; choose fewer") {
			t.Errorf("%+v: says that there are more", o)
		}
	}
}
