// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"carma/gres/lease"
)

// latest has place for one value, which a newer value replaces. It has one sender.
type latest[T any] chan T

func (l latest[T]) put(v T) {
	select {
	case <-l:
	default:
	}
	l <- v
}

// Slurm's commands give up by themselves, after MessageTimeout (10 s) several times; a
// loop's work on a look ends after these.
const (
	publishDeadline = time.Minute
	slurmDeadline   = 2 * time.Minute
)

// every starts a loop that works on the newest value it is given, at most once in a while,
// until ctx ends. The work has the deadline each time; 0: it has a deadline of its own.
func every[T any](ctx context.Context, work *sync.WaitGroup, pause, deadline time.Duration,
	do func(context.Context, T)) latest[T] {
	in := make(latest[T], 1)
	work.Add(1)
	go func() {
		defer work.Done()
		var last time.Duration
		for {
			select {
			case <-ctx.Done():
				return
			case v := <-in:
				if now := lease.Now(); last != 0 && now-last < pause {
					continue
				}
				last = lease.Now()
				once, cancel := ctx, context.CancelFunc(func() {})
				if deadline > 0 {
					once, cancel = context.WithTimeout(ctx, deadline)
				}
				do(once, v)
				cancel()
			}
		}
	}()
	return in
}

// reason is an error's text without its numbers: where munge rejects a clock, Slurm's commands print the time.
func reason(err error) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, fmt.Sprint(err))
}
