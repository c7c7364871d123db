// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// counts is the last line of a target with tests.
var counts = regexp.MustCompile(`^(\d+) passed, (\d+) failed, (\d+) skipped\n$`)

// sum adds up the counts of all targets.
type sum [3]int

func (s *sum) take(line string) {
	for i, n := range counts.FindStringSubmatch(line) {
		if i > 0 {
			v, _ := strconv.Atoi(n)
			s[i-1] += v
		}
	}
}

// lanes are the targets between two arguments "--".
func lanes(args []string) (lanes [][]string) {
	for {
		i := slices.Index(args, "--")
		if i < 0 {
			return append(lanes, args)
		}
		lanes, args = append(lanes, args[:i]), args[i+1:]
	}
}

// making makes targets, and adds up the counts of tests.
type making struct {
	out   *screen
	name  string
	total int

	mu     sync.Mutex
	begun  int // targets
	all    sum
	failed []string
}

// makeAll makes the targets of the first lane, then those of the other lanes side by side, and returns the exit
// status. A lane ends with the first failure. spent is the time since the start.
func makeAll(out *screen, spent func() time.Duration, name string, args []string) int {
	all := lanes(args)
	m := &making{out: out, name: name, total: len(slices.Concat(all...))}
	if m.lane(all[0]) {
		var work sync.WaitGroup
		for _, targets := range all[1:] {
			work.Add(1)
			go func() {
				defer work.Done()
				m.lane(targets)
			}()
		}
		work.Wait()
	}
	if len(m.failed) > 0 {
		fmt.Fprintf(out, "%s: failed at %s after %s\n", name, strings.Join(m.failed, " and "), took(spent()))
		return 1
	}
	if m.all != (sum{}) {
		fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", m.all[0], m.all[1], m.all[2])
	}
	fmt.Fprintf(out, "%s: passed in %s\n", name, took(spent()))
	return 0
}

// lane makes targets one after the other, and returns false at the first failure.
func (m *making) lane(targets []string) bool {
	for _, target := range targets {
		m.mu.Lock()
		m.begun++
		fmt.Fprintf(m.out, "==> %s: %s (%d of %d)\n", m.name, target, m.begun, m.total)
		m.mu.Unlock()
		begun := time.Now()
		stop := m.out.still(func() string { return fmt.Sprintf("       still %s, %s", target, took(time.Since(begun))) })
		err := run(exec.Command("make", "--no-print-directory", target), func(line string) {
			m.mu.Lock()
			m.all.take(line)
			m.mu.Unlock()
			fmt.Fprint(m.out, line)
		})
		stop()
		if err != nil {
			m.mu.Lock()
			m.failed = append(m.failed, target)
			m.mu.Unlock()
			fmt.Fprintf(m.out, "==> %s: %s FAILED\n", m.name, target)
			return false
		}
	}
	return true
}
