// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carma/estimator/history"
)

// A new history is used from the next tick on; a spoiled one is told once and
// changes nothing.
func TestHistoryReload(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "history")
	old := site
	t.Cleanup(func() { site = old })
	path := filepath.Join(dir, "carma.toml")
	if err := os.WriteFile(path, []byte(carmaToml+"[history]\nfile = \""+file+"\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	site = siteFile{path: path, gresPrefix: "gres:"}
	if err := site.load(); err != nil {
		t.Fatal(err)
	}
	const script = "#CARMA on\ntrain\n"
	answer := func() string { return answerTo(ask("gpu", "gres:gpu:1", script)) }
	if got := answer(); !strings.Contains(got, "MODE=exclusive") {
		t.Errorf("without a history: %q", got)
	}
	key := history.KeyOf(history.Ask{UID: 1000, Script: []byte(script), GPUs: 1, FullMiB: 40536})
	write := func(text []byte, age time.Duration) {
		t.Helper()
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	good := history.Make([]history.Key{key}, map[history.Key]history.Value{key: {PeakMiB: 10000, Runs: 1, SMActPct: 50}},
		nil)
	write(good, 3*time.Second)
	if err := site.reload(); err != nil {
		t.Fatal(err)
	}
	if got := answer(); !strings.Contains(got, "gres:carma:11000\n") ||
		!strings.Contains(got, "METHOD=history\n") || !strings.Contains(got, "SMACT=50\n") {
		t.Errorf("with a history: %q", got)
	}
	write(good[:len(good)-1], 2*time.Second)
	if err := site.reload(); err == nil || !strings.Contains(err.Error(), "carma-report history --write") {
		t.Errorf("a spoiled history: %v", err)
	}
	if err := site.reload(); err != nil {
		t.Errorf("told twice: %v", err)
	}
	if got := answer(); !strings.Contains(got, "METHOD=history") {
		t.Errorf("after a spoiled history: %q", got)
	}
}
