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
	for name, c := range map[string]struct {
		priority     map[uint32]int64
		silent       bool
		begins, next uint32
		want         uint32
	}{
		"the first begins first":         {map[uint32]int64{8: 100, 9: 100}, false, 8, 9, 8},
		"the first begins last":          {map[uint32]int64{8: 100, 9: 100}, false, 9, 8, 8},
		"a higher priority begins last":  {map[uint32]int64{8: 100, 9: 200}, false, 8, 9, 9},
		"a higher priority begins first": {map[uint32]int64{8: 100, 9: 200}, false, 9, 8, 9},
		"no answer":                      {nil, true, 9, 8, 8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				whole := func(id uint32) (err error) {
					h := hook(id)
					h.Carma.Mode = "exclusive"
					slurm := ranks{&slurm{}, &sync.Mutex{}, c.priority, c.silent}
					return w.Prolog(t.Context(), h, w.book, slurm)
				}
				if err := whole(1); err != nil {
					t.Fatal(err)
				}
				var both sync.WaitGroup
				both.Add(2)
				go func() { defer both.Done(); whole(c.begins) }()
				time.Sleep(50 * time.Millisecond)
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
