// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carma/db"
)

// again puts attempts of job 5 on nodes, and returns reports of it.
func again(t *testing.T, attempts ...db.Attempt) func(o Options, words ...string) string {
	t.Helper()
	d, err := db.Open(filepath.Join(t.TempDir(), "carma.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	for _, a := range attempts {
		a.JobID, a.User, a.State = 5, fmt.Sprint("user", a.UID), "COMPLETED"
		a.Submit, a.End = a.Start, a.Start.Add(time.Hour)
		if err := d.Put(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	return func(o Options, words ...string) string {
		t.Helper()
		o.From = "2020-01-01"
		r, err := New(o, words, time.Now())
		if err == nil {
			err = r.Databases([]*db.DB{d})
		}
		var out strings.Builder
		if err == nil {
			err = r.Show(t.Context(), &out)
		}
		if err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
}

func day(n int) time.Time { return time.Unix(1_700_000_000, 0).AddDate(0, 0, n) }

// slurmctld gives ids again. The page of a user's job has no attempt of another user's.
func TestPageOfAnIDGivenAgain(t *testing.T) {
	show := again(t, db.Attempt{UID: 1000, Node: "n1", Start: day(0)}, db.Attempt{UID: 1001, Node: "n2", Start: day(400)})
	for user, node := range map[string]string{"user1000": "n2", "user1001": "n1"} {
		if page := show(Options{Users: user}, "5"); strings.Count(page, "run 1") != 1 || strings.Contains(page, node) {
			t.Errorf("page of %s:\n%s", user, page)
		}
	}
}

// An earlier job of the same user is another job: on another node, or with an attempt beyond those of the later job. A
// job on several nodes that went on after weeks in the queue stays a single job.
func TestIDGivenAgainToTheSameUser(t *testing.T) {
	for name, c := range map[string]struct {
		attempts []db.Attempt
		want     string
	}{
		"another node": {[]db.Attempt{{Node: "n1", Start: day(0)}, {Node: "n2", Start: day(400)}}, "1 n1;1 n2;"},
		"the earlier one was requeued": {[]db.Attempt{{Node: "n1", Start: day(400)},
			{Restart: 1, Node: "n1", Start: day(1)}}, "1 n1;1 n1;"},
		"on both nodes, requeued": {[]db.Attempt{{Node: "n1", Start: day(0)}, {Node: "n2", Start: day(400)},
			{Restart: 1, Node: "n1", Start: day(1)}, {Restart: 1, Node: "n2", Start: day(401)}}, "2 n1;2 n2;"},
		"one job": {[]db.Attempt{{Node: "n1", Start: day(0)}, {Node: "n2", Start: day(0).Add(time.Minute)},
			{Restart: 1, Node: "n3", Start: day(0).Add(-time.Minute)}, {Restart: 2, Node: "n4", Start: day(40)}}, "3 n4;"},
	} {
		show := again(t, c.attempts...)
		got := show(Options{Parsable2: true, Delimiter: " ", NoHeader: true, Format: "Attempts,NodeList"})
		if got = strings.ReplaceAll(got, "\n", ";"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
