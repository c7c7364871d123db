// SPDX-License-Identifier: Apache-2.0

// Package threadclock measures what work costs by the processor time of its thread, for
// tests and benchmarks of what a text may cost slurmctld: the time on a wall clock of a busy
// machine says nothing of the text.
package threadclock

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// most is what a text may cost (docs/threat-model.md).
	most = 10 * time.Millisecond
	// far is how much slower a machine may be, with the race detector perhaps, before a
	// test fails: what bounds the cost of a text is counted, and tested as a count.
	far   = 25
	tries = 5
)

// Cost is the processor time that f took of its thread: the mean of some tries, and the least, in
// which other programs disturbed f least.
func Cost(tries int, f func()) (mean, least time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	least = 1<<63 - 1
	for range tries {
		before := now()
		f()
		spent := now() - before
		mean += spent
		least = min(least, spent)
	}
	return mean / time.Duration(tries), least
}

func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(fmt.Sprintf("read the clock of a thread: %v", err))
	}
	return time.Duration(t.Nano())
}

// Judge logs what each of some pieces of work costs, the dearest first, and fails where one
// costs many times Most.
func Judge(t *testing.T, work map[string]func()) {
	t.Helper()
	spent := map[string]time.Duration{}
	for name, f := range work {
		_, spent[name] = Cost(tries, f)
	}
	var lines strings.Builder
	names := slices.SortedFunc(maps.Keys(spent), func(a, b string) int { return int(spent[b] - spent[a]) })
	for _, name := range names {
		fmt.Fprintf(&lines, "\n%8.2f ms %s", spent[name].Seconds()*1e3, name)
	}
	t.Logf("thread time, of which at most %v on an idle core:%s", most, lines.String())
	if worst := names[0]; spent[worst] > far*most {
		t.Errorf("%s takes %v of thread time", worst, spent[worst])
	}
}
