// SPDX-License-Identifier: Apache-2.0

package slurmtime

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// unlimited is a time limit that is none.
const unlimited = time.Duration(math.MaxInt64)

// Limit reads a time limit as slurm.conf and sbatch have it (parse_time.c, time_str2secs()): "90",
// "90:30", "1:30:00", "2-12", "2-12:30", "2-12:30:00", "INFINITE". Minutes where no day and no
// second ":" says otherwise.
func Limit(text string) (_ time.Duration, ok bool) {
	switch strings.ToUpper(text) {
	case "-1", "INFINITE", "UNLIMITED":
		return unlimited, true
	}
	days, clock, hasDays := strings.Cut(text, "-")
	units := []int{60, 1} // seconds
	switch {
	case hasDays:
		units = []int{3600, 60, 1}
	case strings.Count(text, ":") == 2:
		units = []int{3600, 60, 1}
		fallthrough
	default:
		days, clock = "0", text
	}
	n, ok := digits(days)
	total := n * 24 * 3600
	if hasDays && clock == "" { // "2-"
		return inSeconds(total), ok
	}
	parts := strings.Split(clock, ":")
	if len(parts) > len(units) {
		return 0, false
	}
	for i, part := range parts {
		n, isNumber := digits(part)
		ok = ok && isNumber
		total += n * units[i]
	}
	return inSeconds(total), ok
}

func inSeconds(n int) time.Duration {
	if n > int(unlimited/time.Second) {
		return unlimited
	}
	return time.Duration(n) * time.Second
}

// digits reads up to ten: slurmctld counts the minutes of a limit in 32 bits.
func digits(text string) (n int, ok bool) {
	if text == "" || len(text) > 10 || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}
