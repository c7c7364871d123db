// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"carma/gres"
)

// next is a step that a later release may bring: a column in every table, and a table.
func next(t *testing.T, b *Ledger) fstest.MapFS {
	t.Helper()
	rows, err := b.db.Query("SELECT name FROM sqlite_schema WHERE type='table' AND name NOT LIKE 'sqlite_%'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	sql := "CREATE TABLE later (a INTEGER) STRICT;\n"
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		sql += "ALTER TABLE " + name + " ADD COLUMN later TEXT NOT NULL DEFAULT 'x';\n"
	}
	return fstest.MapFS{fmt.Sprintf("schema/%04d.sql", version+1): {Data: []byte(sql)}}
}

// A ledger with running jobs is brought to the next version, and back come programs of
// this one: leases, holds, the jobs' notes and what was measured stay, and both go on.
func TestMigrate(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	run := func(when string, id uint32) {
		t.Helper()
		ctx := t.Context()
		if err := b.PutReadings(ctx, gpus(2)); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if _, err := b.Acquire(ctx, Job{JobKey: key(id, 0), UID: 1000, About: []byte(`{"user":"a"}`)},
			gres.Request{GPUs: 1, ReserveMiB: 1024}, pick("GPU-0")); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		for what, err := range map[string]error{
			"measure": b.Measure(ctx, gpus(2), []Usage{{Job: key(id, 0), UUID: "GPU-0", Present: true, Seconds: 1,
				UsedMiB: 5}}),
			"hold":       b.Hold(ctx, 100+id, 1000+id, 1, 0, []string{"GPU-1"}),
			"comeback":   b.AddPendingRestart(ctx, 200+id, time.Minute),
			"release":    b.Release(ctx, key(300+id, 0)),
			"published":  b.SetPublished(ctx, "gpu:1", time.Second),
			"held":       b.AddPerhapsHeld(ctx, key(400+id, 1), 1000),
			"raised":     errors.Join(b.SetNodes(ctx, 5), b.SetRaised(ctx, time.Second)),
			"quarantine": func() error { _, err := b.Quarantine(ctx, "GPU-9", "x"); return err }(),
		} {
			if err != nil {
				t.Errorf("%s: %s: %v", when, what, err)
			}
		}
	}
	holds := func(when string, ids ...uint32) {
		t.Helper()
		s, err := b.Snapshot(t.Context())
		if err != nil || len(s.Leases) != len(ids) || len(s.Holds) != 1 || len(s.PendingRestarts) != len(ids) ||
			len(s.PerhapsHeld) != len(ids) {
			t.Fatalf("%s: %+v, %v", when, s, err)
		}
		for _, id := range ids {
			h, ok, err := b.Find(t.Context(), key(id, 0))
			if err != nil || !ok || len(h.GPUs) != 1 || h.GPUs[0].PeakMiB != 5 || string(h.About) != `{"user":"a"}` {
				t.Errorf("%s: job %d: %+v, %v, %v", when, id, h, ok, err)
			}
		}
	}
	run("before", 1)
	if err := b.migrate(next(t, b), version+1); err != nil {
		t.Fatal(err)
	}
	holds("after the step", 1)
	var at int
	if err := b.db.QueryRow("PRAGMA user_version").Scan(&at); err != nil || at != version+1 {
		t.Errorf("version %d, %v", at, err)
	}
	b.Close()
	b = open(t, dir) // a program of this version
	run("on a newer ledger", 2)
	holds("on a newer ledger", 1, 2)
	if err := b.db.QueryRow("PRAGMA user_version").Scan(&at); err != nil || at != version+1 {
		t.Errorf("version %d, %v", at, err)
	}
}

// A step that fails changes nothing.
func TestMigrateFails(t *testing.T) {
	b := open(t, t.TempDir())
	if _, err := b.Acquire(t.Context(), Job{JobKey: key(1, 0)}, gres.Request{GPUs: 1}, pick("GPU-0")); err != nil {
		t.Fatal(err)
	}
	step := fstest.MapFS{filepath.Join("schema", fmt.Sprintf("%04d.sql",
		version+1)): {Data: []byte("CREATE TABLE later (a INTEGER) STRICT; ALTER TABLE nothing ADD COLUMN a;")}}
	if err := b.migrate(step, version+1); err == nil || !strings.Contains(err.Error(),
		fmt.Sprintf("migrate its schema to version %d", version+1)) {
		t.Errorf("got %v", err)
	}
	if s, err := b.Snapshot(t.Context()); err != nil || len(s.Leases) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := b.db.Exec("SELECT * FROM later"); err == nil {
		t.Error("half of the step has stayed")
	}
}
