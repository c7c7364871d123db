// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
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

// makeAll makes targets one after the other, up to the first that fails, and
// returns the exit status. spent is the time since its start.
func makeAll(out *screen, spent func() time.Duration, name string, targets []string) int {
	var all sum
	for i, target := range targets {
		fmt.Fprintf(out, "==> %s: %s (%d of %d)\n", name, target, i+1, len(targets))
		begun := time.Now()
		stop := out.still(func() string { return fmt.Sprintf("       still %s, %s", target, took(time.Since(begun))) })
		err := run(exec.Command("make", "--no-print-directory", target), func(line string) {
			all.take(line)
			fmt.Fprint(out, line)
		})
		stop()
		if err != nil {
			fmt.Fprintf(out, "%s: failed at %s after %s\n", name, target, took(spent()))
			return 1
		}
	}
	if all != (sum{}) {
		fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", all[0], all[1], all[2])
	}
	fmt.Fprintf(out, "%s: passed in %s\n", name, took(spent()))
	return 0
}
