// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest" // not in Go 1.24, with which CARMA builds
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// On a busy machine jobs end faster than slurmctld answers about single jobs, and slurmctld forgets a job MinJobAge
// after its end. Each record gets slurmctld's word, for few questions about many jobs; such a question without an
// answer keeps no record from it.
func TestCompleteWhereJobsEndFasterThanSlurmctldAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		jobs, perSecond uint32
		takes           time.Duration // a question
		noMany          bool          // about many jobs there is no answer
		most            int           // questions about many jobs
	}{
		"quick":            {500, 3, 100 * time.Millisecond, false, 0},
		"a few at once":    {30, 1000, 4 * time.Second, false, 0},
		"slow":             {500, 3, 1800 * time.Millisecond, false, 3},
		"slower":           {300, 3, 4 * time.Second, false, 2},
		"slowest":          {300, 3, 8 * time.Second, false, 2},
		"single jobs only": {300, 1000, 400 * time.Millisecond, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, r := &burst{ledger: &ledger{}, takes: c.takes, noMany: c.noMany}, &records{}
				a := newAgent()
				a.Records = r
				wire(a)
				a.Ends.Ledger, a.Ends.Jobs = b, b
				for start := time.Now(); len(r.ends) < int(c.jobs) && time.Since(start) < 15*time.Minute; {
					for id := uint32(len(b.ends)); id < c.jobs && time.Since(start)*time.Duration(c.perSecond) >=
						time.Duration(id)*time.Second; id++ {
						b.ends = append(b.ends, time.Now())
					}
					tick := time.After(time.Second)
					a.Ends.complete(t.Context(), time.Hour+time.Since(start))
					<-tick
				}
				nameless := 0
				for _, e := range r.ends {
					if e.Name == "" {
						nameless++
					}
				}
				if len(r.ends) != int(c.jobs) || nameless > 0 || b.many > c.most {
					t.Errorf("%d records, %d without slurmctld's word, %d questions about many jobs", len(r.ends), nameless, b.many)
				}
			})
		})
	}
}

// burst is the ledger of many jobs that end soon after each other, and a slurmctld that takes its time.
type burst struct {
	*ledger
	takes  time.Duration
	noMany bool
	many   int
	ends   []time.Time // by id
}

func (b *burst) Ended(_ context.Context, n int) (list []lease.Ended, err error) {
	for id, at := range b.ends {
		if len(list) < n && !slices.Contains(b.dropped, uint32(id)) {
			list = append(list, lease.Ended{JobKey: jobenv.JobKey{JobID: uint32(id)}, Age: time.Since(at)})
		}
	}
	return list, nil
}

func (b *burst) DropEnded(_ context.Context, key jobenv.JobKey) error {
	b.dropped = append(b.dropped, key.JobID)
	return nil
}

func (b *burst) Describe(_ context.Context, ids []uint32) (map[uint32]sctl.Description, error) {
	time.Sleep(b.takes)
	if len(ids) > 1 {
		if b.many++; b.noMany {
			time.Sleep(5 * time.Second)
			return nil, errors.New("timed out")
		}
	}
	const minJobAge = 5 * time.Minute
	known := map[uint32]sctl.Description{}
	for _, id := range ids {
		if time.Since(b.ends[id]) < minJobAge {
			known[id] = sctl.Description{Job: sctl.Job{ID: id, State: "COMPLETED"}, Words: sctl.Words{Name: "train"}}
		}
	}
	return known, nil
}
