// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"carma/db"
)

func (r *records) PutLost(ctx context.Context, a db.Attempt) error { return r.Put(ctx, a) }

// What an earlier attempt left here ends, with a record, when the job starts again on the
// node; the attempt's own lease stays.
func TestEndEarlier(t *testing.T) {
	w := newWorld(t)
	w.prolog(t, hook(7))
	w.EndEarlier(t.Context(), hook(8), w.book, w.records)
	w.EndEarlier(t.Context(), hook(7), w.book, w.records)
	if l := w.leases(t); len(l) != 1 || len(w.records.attempts) != 0 {
		t.Fatalf("leases %+v, records %+v", l, w.records.attempts)
	}
	again := hook(7)
	again.Restart = 1
	output := filepath.Join(w.RunDir, "jobs", "7.0.stderr")
	if err := os.WriteFile(output, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.ForgetEarlier(again)
	w.EndEarlier(t.Context(), again, w.book, w.records)
	if _, err := os.Stat(output); err == nil {
		t.Error("a later job of the id would be judged by what the earlier attempt wrote")
	}
	if _, err := os.Stat(taskPath(w.RunDir, 7)); err == nil {
		t.Error("tasks of the next attempt would read what the earlier one left")
	}
	if l := w.leases(t); len(l) != 0 || len(w.records.attempts) != 1 {
		t.Fatalf("leases %+v, records %+v", l, w.records.attempts)
	}
	a := w.records.attempts[0]
	if a.JobID != 7 || a.Restart != 0 || a.State != db.NodeFail || a.User != "alice" || a.UID != 1000 ||
		a.ReserveMiB != 10240 || len(a.GPUs) != 1 || a.Cluster != again.Cluster {
		t.Errorf("record %+v", a)
	}
	// It had its lease taken, and its file left.
	for restart, kept := range map[uint32]bool{0: false, 1: true} {
		if err := writeTaskFile(w.RunDir, again.JobKey, taskFile{Restart: restart}); err != nil {
			t.Fatal(err)
		}
		w.EndEarlier(t.Context(), again, w.book, w.records)
		if _, err := os.Stat(taskPath(w.RunDir, 7)); (err == nil) != kept {
			t.Errorf("a file of restart %d: kept %v", restart, err == nil)
		}
	}
	if ended, err := w.book.Ended(t.Context(), 9); err != nil || len(ended) != 1 || ended[0].JobKey != hook(7).JobKey {
		t.Errorf("ended %+v, %v", ended, err)
	}
}

// A Prolog leaves no word of an earlier attempt, or of another job of its id, with a lease or without.
func TestForgetEarlier(t *testing.T) {
	for name, c := range map[string]struct {
		file taskFile
		kept bool
	}{
		"its own":        {taskFile{Restart: 1, UID: 1000}, true},
		"it waits":       {taskFile{Restart: 1, Undecided: true}, true},
		"earlier":        {taskFile{Restart: 0, UID: 1000}, false},
		"earlier, waits": {taskFile{Restart: 0, Undecided: true}, false},
		"lost state":     {taskFile{Restart: 3, UID: 1000}, false},
		"another user's": {taskFile{Restart: 1, UID: 1001}, false},
	} {
		w := newWorld(t)
		h := hook(7)
		h.Restart = 1
		w.ForgetEarlier(h)
		if err := writeTaskFile(w.RunDir, h.JobKey, c.file); err != nil {
			t.Fatal(err)
		}
		w.ForgetEarlier(h)
		if _, err := os.Stat(taskPath(w.RunDir, 7)); (err == nil) != c.kept {
			t.Errorf("%s: %v", name, err)
		}
	}
}
