// SPDX-License-Identifier: Apache-2.0

// Package queue lets processes that write to one SQLite database come in turn.
// SQLite's own waiting is a sleep that grows to 100 ms, so that of many writers
// some start long after the lock is free, and some never within their busy
// timeout; flock(2) wakes the next at once. It is a queue and no guard: who has
// waited long enough goes on without, and SQLite keeps order.
package queue

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Queue is a file that writers lock one after the other. It is not the database
// itself: closing that would end the locks that SQLite holds on it (fcntl(2)).
type Queue struct {
	file *os.File
	mine chan struct{} // one of this process at a time: a lock is the file's, not a thread's
}

// Open makes the file if need be, for its owner alone.
func Open(path string) (*Queue, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &Queue{f, make(chan struct{}, 1)}, nil
}

// Close closes the file.
func (q *Queue) Close() error { return q.file.Close() }

// Enter waits for the caller's turn, until ctx ends or at most so long, and
// returns what ends it.
func (q *Queue) Enter(ctx context.Context, most time.Duration) (leave func()) {
	late := time.NewTimer(most)
	defer late.Stop()
	select {
	case q.mine <- struct{}{}:
	case <-ctx.Done():
		return func() {}
	case <-late.C:
		return func() {}
	}
	end := func() {
		unix.Flock(int(q.file.Fd()), unix.LOCK_UN)
		<-q.mine
	}
	if unix.Flock(int(q.file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		return end
	}
	turn := make(chan struct{})
	go func() {
		defer close(turn)
		for unix.Flock(int(q.file.Fd()), unix.LOCK_EX) == unix.EINTR {
		}
	}()
	select {
	case <-turn:
		return end
	case <-ctx.Done():
	case <-late.C:
	}
	go func() {
		<-turn // when it comes, pass it on
		end()
	}()
	return func() {}
}
