// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
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
	read         atomic.Int64
}

func (m *manyJobs) JobIDs(context.Context) (low, high uint32, err error) { return 1, m.last, nil }

func (m *manyJobs) Scan(_ context.Context, f db.Filter, each func([]db.Attempt) error) error {
	at := time.Unix(1_700_000_000, 0)
	for id := max(f.FromJob, 1); id <= m.last && (f.BeforeJob == 0 || uint64(id) < f.BeforeJob); id++ {
		m.read.Add(1)
		a := db.Attempt{JobID: id, Start: at, End: at.Add(time.Minute), State: jobstate.Completed, Total: db.TotalOf(nil)}
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
	jobs, rest, err := first(t.Context(), []source.Source{a, b}, &selection{}, 10)
	if err != nil || len(jobs) != 10 || !rest {
		t.Fatalf("%d jobs, more %v, %v", len(jobs), rest, err)
	}
	if n := a.read.Load() + b.read.Load(); n > 1000 {
		t.Errorf("%d records were read for 10 jobs", n)
	}
}
