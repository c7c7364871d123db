// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// open is another process's queue: a lock is of an open file.
func open(t *testing.T, path string) *Queue {
	t.Helper()
	q, err := OpenQueue(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return q
}

// One at a time, of one process and of several, and all of them.
func TestEnter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	shared := open(t, path)
	var inside, entered atomic.Int32
	var wait sync.WaitGroup
	for i := range 20 {
		q := shared
		if i%2 == 0 {
			q = open(t, path)
		}
		wait.Add(1)
		go func() {
			defer wait.Done()
			defer q.Enter(t.Context(), time.Minute)()
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d at once", n)
			}
			entered.Add(1)
			time.Sleep(time.Millisecond)
			inside.Add(-1)
		}()
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
		q[i] = open(t, path)
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

// Who is requeued waits behind those who wait already.
func TestEnterInOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	var q [4]*Queue
	for i := range q {
		q[i] = open(t, path)
	}
	came := make(chan int, len(q))
	var wait sync.WaitGroup
	defer wait.Wait()
	enter := func(i int) {
		leave := q[i].Enter(t.Context(), time.Minute)
		came <- i
		leave()
	}
	taken := func() byte {
		text, err := os.ReadFile(path)
		if err != nil || len(text) != 8 {
			t.Fatal(text, err)
		}
		return text[0]
	}
	leave := q[0].Enter(t.Context(), time.Minute)
	for i := 1; i < len(q); i++ {
		before := taken()
		wait.Add(1)
		go func() {
			defer wait.Done()
			enter(i)
		}()
		for taken() == before {
			time.Sleep(time.Millisecond)
		}
	}
	leave()
	enter(0)
	for i := range q {
		if want := (i + 1) % len(q); <-came != want {
			t.Errorf("place %d is not %d's", i, want)
		}
	}
}

// Nobody waits for ever for one who is stopped while it takes its number, and a
// spoiled file stops nobody.
func TestEnterBrokenQueue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	stopped, q := open(t, path), open(t, path)
	if err := stopped.lock(door, unix.F_OFD_SETLK); err != nil {
		t.Fatal(err)
	}
	q.Enter(t.Context(), time.Millisecond)()
	stopped.Close()
	q.Enter(t.Context(), time.Hour)()
	for _, text := range []string{"", "x", strings.Repeat("\xff", 8), strings.Repeat("\xff", 7) + "\x7f", "\xff\x01\x02"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		q.Enter(t.Context(), time.Hour)()
		q.Enter(t.Context(), time.Hour)()
	}
}
