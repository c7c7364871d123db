// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// One at a time, of one process and of several, and all of them.
func TestEnter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	shared, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	var inside, entered atomic.Int32
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			q := shared
			if i%2 == 0 { // as another process: a lock is of an open file
				var err error
				if q, err = Open(path); err != nil {
					t.Error(err)
					return
				}
				defer q.Close()
			}
			defer q.Enter(t.Context(), time.Minute)()
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d at once", n)
			}
			entered.Add(1)
			time.Sleep(time.Millisecond)
			inside.Add(-1)
		})
	}
	wait.Wait()
	if entered.Load() != 20 {
		t.Errorf("%d entered", entered.Load())
	}
}

// Who has waited long enough goes on without, and its turn passes to the next
// when it comes.
func TestEnterGivesUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	var q [3]*Queue
	for i := range q {
		var err error
		if q[i], err = Open(path); err != nil {
			t.Fatal(err)
		}
		defer q[i].Close()
	}
	leave := q[0].Enter(t.Context(), time.Minute)
	q[1].Enter(t.Context(), time.Millisecond)()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q[1].Enter(ctx, time.Minute)()
	leave()
	// By now, or soon, q[1] has what it no longer waits for, and must give it up.
	q[1].mine <- struct{}{}
	entered := make(chan struct{})
	go func() {
		q[2].Enter(t.Context(), time.Hour)()
		close(entered)
	}()
	select {
	case <-entered:
	case <-time.After(time.Minute):
		t.Error("a turn that nobody waits for is kept")
	}
}
