// SPDX-License-Identifier: Apache-2.0

package script

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"carma/estimator/history"
)

// readHistory reads what slurmctld's plugin knows of earlier runs: the same
// file, by the same key. A job's key holds its user's id, so that one's own runs
// are found.
func (s *Site) readHistory(path string) {
	if path == "" {
		return
	}
	text, err := os.ReadFile(path)
	if err == nil {
		s.History, err = history.Parse(text)
	}
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist): // no job has taught anything yet
	case errors.Is(err, fs.ErrPermission):
		s.unread = "it is not for you to read; slurmctld reads it"
	default:
		s.unread = err.Error()
	}
}

// Learned says in words what earlier runs did; empty: nothing is known.
func (s *Submission) Learned() string {
	v := s.Seen
	switch {
	case s.Site.unread != "":
		return s.Site.unread
	case v == nil:
		return ""
	}
	runs := "1 run"
	if v.Runs != 1 {
		runs = fmt.Sprintf("%d runs", v.Runs)
	}
	text := fmt.Sprintf("%s, peak %d MiB", runs, v.PeakMiB)
	if v.SpreadMiB > 0 {
		text += fmt.Sprintf(" (lowest %d)", v.LeastMiB())
	}
	if v.SMActPct > 0 {
		text += fmt.Sprintf(", SM activity %.0f %%", v.SMActPct)
	}
	text += fmt.Sprintf(", %d s each", v.RunS)
	if v.Differ() {
		text += "; the runs differ, and the largest is booked: " + history.TellApart
	}
	return text
}
