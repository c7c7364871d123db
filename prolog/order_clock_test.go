// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package prolog

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest" // not in Go 1.24, with which CARMA builds
	"time"

	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/schedule"
)

// One GPU comes free for which slurmctld has started two jobs, and the Prolog of one begins first.
func TestLastGPUGoesToTheFirstInTheQueue(t *testing.T) {
	equal, higher := map[uint32]int64{8: 100, 9: 100}, map[uint32]int64{8: 100, 9: 200}
	for name, c := range map[string]struct {
		priority     map[uint32]int64
		silent       bool
		begins, next uint32
		after        time.Duration
		inUse        int
		want         uint32
	}{
		"the first begins first":         {equal, false, 8, 9, 50 * time.Millisecond, 3, 8},
		"the first begins last":          {equal, false, 9, 8, 50 * time.Millisecond, 3, 8},
		"a higher priority begins last":  {higher, false, 8, 9, 50 * time.Millisecond, 3, 9},
		"a higher priority begins first": {higher, false, 9, 8, 50 * time.Millisecond, 3, 9},
		"only priorities are known":      {higher, false, 8, 9, 50 * time.Millisecond, 0, 9},
		"no answer":                      {nil, true, 9, 8, 50 * time.Millisecond, 3, 8},
		"the first begins late":          {equal, false, 9, 8, 1500 * time.Millisecond, 3, 8},
		"a higher priority begins late":  {higher, false, 8, 9, 1500 * time.Millisecond, 3, 9},
		"a lower priority begins late":   {higher, false, 9, 8, 1500 * time.Millisecond, 3, 9},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				whole := func(id uint32) (err error) {
					h := hook(id)
					h.Carma.Mode = "exclusive"
					slurm := ranks{&slurm{}, &sync.Mutex{}, c.priority, c.silent, c.inUse, 0, nil}
					return w.Prolog(t.Context(), h, w.book, slurm)
				}
				if err := whole(1); err != nil {
					t.Fatal(err)
				}
				var both sync.WaitGroup
				both.Add(2)
				go func() { defer both.Done(); whole(c.begins) }()
				time.Sleep(c.after)
				go func() { defer both.Done(); whole(c.next) }()
				both.Wait()
				l := w.leases(t)
				if len(l) != 2 || l[0].Job.JobID != c.want && l[1].Job.JobID != c.want {
					t.Errorf("leases %+v", l)
				}
			})
		})
	}
}

// How long the last GPU is left to Prologs that may be to come: slurmctld says how many slots of the node are in use.
func TestLastGPUWaits(t *testing.T) {
	for name, c := range map[string]struct {
		inUse int
		takes time.Duration
		want  time.Duration
	}{
		"nobody is to come":              {2, 0, firstLooks * retryEvery},
		"a job is to come":               {3, 0, mostLeft},
		"slurmctld does not say":         {0, 0, firstLooks * retryEvery},
		"a lease of a job that has gone": {1, 0, firstLooks * retryEvery},
		"slurmctld is slow":              {3, 900 * time.Millisecond, mostLeft},
		"slurmctld does not answer":      {3, time.Hour, mostLeft + retryEvery},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				began, asked := time.Now(), 0
				for _, id := range []uint32{1, 9} { // the first finds another GPU beside its own
					h := hook(id)
					h.Carma.Mode = "exclusive"
					slurm := ranks{&slurm{}, &sync.Mutex{}, nil, false, c.inUse, c.takes, &asked}
					if err := w.Prolog(t.Context(), h, w.book, slurm); err != nil {
						t.Fatal(err)
					}
				}
				if l, took := w.leases(t), time.Since(began); len(l) != 2 || took != c.want || asked != 1 {
					t.Errorf("leases %+v after %v and %d questions, want after %v", l, took, asked, c.want)
				}
			})
		})
	}
}

// slow gives no answer about the queue.
type slow struct{ *slurm }

func (s slow) Queue(ctx context.Context, _ []string) ([]schedule.Job, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Where slurmctld takes too long to tell the queue, a job with a need beyond the booking passes nobody, and has the
// GPU when the queue has left the GPU alone for long enough.
func TestYieldsWhereSlurmctldIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.slurm.partitions = []string{"gpu"}
		h := hook(7)
		h.Carma = jobenv.Carma{}
		begin := time.Now()
		if err := w.Prolog(t.Context(), h, w.book, slow{w.slurm}); !errors.Is(err, ErrUndecided) {
			t.Errorf("Prolog: %v", err)
		}
		if l := w.leases(t); len(l) > 0 {
			t.Errorf("after %s: leases %+v", time.Since(begin), l)
		}
		if err := w.Settle(t.Context(), h, w.book, slow{w.slurm}); err != nil {
			t.Errorf("Settle: %v", err)
		}
		if l := w.leases(t); len(l) != 1 || time.Since(begin) < yieldFor {
			t.Errorf("after %s: leases %+v", time.Since(begin), l)
		}
	})
}
