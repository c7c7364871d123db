// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Queue lets processes that write to one SQLite database come in turn. SQLite's
// own waiting is a sleep that grows to 100 ms, so that of many writers some start
// long after the lock is free, and some never within their busy timeout; and a
// writer that has just finished is there again before the one that it has woken.
// Queue is a queue and no guard: a writer goes on without its turn after a long
// enough wait, the writers behind a killed one go on, and SQLite keeps order.
//
// In the queue's file each writer locks the byte of its number and waits for the
// byte before. The file is not the database itself: closing the database would end
// SQLite's locks there (fcntl(2)).
type Queue struct {
	file *os.File
	mine chan struct{} // a single writer of this process at a time: a lock is the file's, not a thread's
}

// The file holds the number given last. Its first byte is locked while a number is
// taken; the bytes of the numbers lie behind.
const (
	door  = 0
	first = 8
)

// OpenQueue makes the file if need be, for its owner alone.
func OpenQueue(path string) (*Queue, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &Queue{f, make(chan struct{}, 1)}, nil
}

// Close closes the file.
func (q *Queue) Close() error { return q.file.Close() }

// Enter waits for the caller's turn, until ctx ends or at most so long, and returns
// the function that ends the turn.
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
	var number int64
	end := func() {
		q.unlock(number)
		<-q.mine
	}
	asked := q.lock(door, unix.F_OFD_SETLK) == nil
	if asked {
		if number = q.take(); q.lock(number-1, unix.F_OFD_SETLK) == nil {
			q.unlock(number - 1)
			return end
		}
	}
	turn := make(chan struct{})
	go func() {
		defer close(turn)
		if !asked {
			q.await(door)
			number = q.take()
		}
		q.await(number - 1)
		q.unlock(number - 1)
	}()
	select {
	case <-turn:
		return end
	case <-ctx.Done():
	case <-late.C:
	}
	go func() {
		<-turn // when a late turn comes, pass it on
		end()
	}()
	return func() {}
}

// take takes the next number, locks its byte and opens the door. Where the file
// cannot be written, two writers have the same number.
func (q *Queue) take() int64 {
	defer q.unlock(door)
	var text [8]byte
	q.file.ReadAt(text[:], 0) // nothing yet: 0
	n := max(int64(binary.LittleEndian.Uint64(text[:])), first) + 1
	binary.LittleEndian.PutUint64(text[:], uint64(n))
	q.file.WriteAt(text[:], 0)
	q.lock(n, unix.F_OFD_SETLK)
	return n
}

func (q *Queue) await(at int64) {
	for errors.Is(q.lock(at, unix.F_OFD_SETLKW), unix.EINTR) {
	}
}

func (q *Queue) lock(at int64, how int) error {
	return unix.FcntlFlock(q.file.Fd(), how, &unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1})
}

func (q *Queue) unlock(at int64) {
	unix.FcntlFlock(q.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: at, Len: 1})
}
