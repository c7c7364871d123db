// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"carma/db/file"
	"carma/gres"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// A lease that has lost its job takes the job's task file with it, unless a later attempt has
// written its own.
func TestDropTaskFile(t *testing.T) {
	a := &Agent{RunDir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(a.RunDir, "jobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(a.RunDir, "jobs", "7.json")
	for text, kept := range map[string]bool{`{"restart":1}`: false, `{"restart":2}`: true, `{`: false} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		a.dropTaskFile(jobenv.JobKey{JobID: 7, Restart: 1})
		if _, err := os.Stat(path); (err == nil) != kept {
			t.Errorf("%s: kept %t, want %t", text, err == nil, kept)
		}
	}
}

// releasing notes whether a file is there when a lease ends.
type releasing struct {
	ledger
	path  string
	there bool
}

func (l *releasing) Release(ctx context.Context, key jobenv.JobKey) error {
	_, err := os.Stat(l.path)
	l.there = err == nil
	return l.ledger.Release(ctx, key)
}

// The file goes first: a task of the job's next attempt may look as soon as the lease has ended.
func TestTaskFileGoesBeforeTheLease(t *testing.T) {
	a := newAgent()
	a.RunDir, a.Owners, a.Jobs = t.TempDir(), owners{}, &jobs{known: map[uint32]sctl.Job{7: {State: "COMPLETED"}}}
	l := &releasing{path: filepath.Join(a.RunDir, "jobs", "7.json")}
	a.Ledger = l
	if err := os.Mkdir(filepath.Dir(l.path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.path, []byte(`{"restart":0}`), 0o644); err != nil {
		t.Fatal(err)
	}
	a.reap(t.Context(), nil, lease.Snapshot{Leases: []gres.Lease{{Job: jobenv.JobKey{JobID: 7}, Age: time.Hour}}})
	if len(l.released) != 1 || l.there {
		t.Errorf("released %v; its file was there: %v", l.released, l.there)
	}
}

// The job's next Prolog may put its own file there meanwhile.
func TestDropTaskFileBesideAProlog(t *testing.T) {
	a := &Agent{RunDir: t.TempDir()}
	path := filepath.Join(a.RunDir, "jobs", "7.json")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		if err := os.WriteFile(path, []byte(`{"restart":1}`), 0o644); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- file.Replace(path, []byte(`{"restart":2}`), 0o644) }()
		a.dropTaskFile(jobenv.JobKey{JobID: 7, Restart: 1})
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != `{"restart":2}` {
			t.Fatalf("the next attempt's: %q, %v", text, err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
