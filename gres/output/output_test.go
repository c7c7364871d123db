// SPDX-License-Identifier: Apache-2.0

package output

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"carma/slurmbridge/jobenv"
)

// proc makes a /proc with processes and their stderr.
func proc(t *testing.T, stderr map[int]string) string {
	t.Helper()
	root := t.TempDir()
	for pid, path := range stderr {
		dir := filepath.Join(root, fmt.Sprint(pid), "fd")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, "2")); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func newWatch(t *testing.T, stderr map[int]string) *Watch {
	t.Helper()
	run := t.TempDir()
	if err := os.Mkdir(filepath.Join(run, "jobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &Watch{RunDir: run, Proc: proc(t, stderr), Log: slog.New(slog.DiscardHandler)}
}

func TestLook(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.err"), filepath.Join(dir, "b\n\xff.err")
	put(t, a, "old text")
	put(t, b, "new text")
	w := newWatch(t, map[int]string{1: a, 2: b, 3: a, 4: "/dev/null", 5: dir, 6: filepath.Join(dir, "gone")})
	job := jobenv.JobKey{JobID: 7, Restart: 1}
	early, late := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	w.look([]Process{{1, job, late}, {2, job, early}, {3, job, late}, {4, job, late}, {5, job, late}, {6, job, late},
		{99, job, late}})
	files, err := Read(w.RunDir, job)
	if err != nil || len(files) != 2 || string(files[0].Path) != a || string(files[1].Path) != b {
		t.Fatalf("got %+v, %v", files, err)
	}
	// What was there before the job is not its text; a new file is all its own.
	if files[0].Size != int64(len("old text")) || files[1].Size != 0 {
		t.Errorf("sizes %d and %d", files[0].Size, files[1].Size)
	}
	// Looking again changes nothing, whatever was written meanwhile.
	put(t, a, "old text and an error")
	w.look([]Process{{1, job, late.Add(time.Second)}, {2, job, early}})
	if again, _ := Read(w.RunDir, job); !reflect.DeepEqual(again, files) {
		t.Errorf("got %+v, then %+v", files, again)
	}
	if err := Drop(w.RunDir, job); err != nil {
		t.Error(err)
	}
	if files, err := Read(w.RunDir, job); err != nil || files != nil {
		t.Errorf("dropped, but %+v, %v", files, err)
	}
	if err := Drop(w.RunDir, job); err != nil {
		t.Errorf("dropped twice: %v", err)
	}
	w.look(nil)
	if len(w.files) != 0 || len(w.seen) != 0 {
		t.Errorf("kept %v, %v", w.files, w.seen)
	}
}

// Between two steps no process of a job is seen, and an agent that is started anew has
// seen none before: what earlier steps wrote is looked at all the same.
func TestLookAtLaterSteps(t *testing.T) {
	dir := t.TempDir()
	a, b, c := filepath.Join(dir, "step1"), filepath.Join(dir, "step2"), filepath.Join(dir, "step3")
	for _, path := range []string{a, b, c} {
		put(t, path, "text")
	}
	w := newWatch(t, map[int]string{1: a, 2: b, 3: c})
	job := jobenv.JobKey{JobID: 7}
	w.look([]Process{{1, job, time.Now()}})
	w.look(nil)
	w.look([]Process{{2, job, time.Now()}})
	w = &Watch{RunDir: w.RunDir, Proc: w.Proc, Log: w.Log}
	w.look([]Process{{3, job, time.Now()}})
	files, err := Read(w.RunDir, job)
	var paths []string
	for _, f := range files {
		paths = append(paths, string(f.Path))
	}
	if err != nil || !reflect.DeepEqual(paths, []string{a, b, c}) {
		t.Errorf("got %q, %v", paths, err)
	}
}

func TestLookBounds(t *testing.T) {
	dir := t.TempDir()
	stderr := map[int]string{}
	job := jobenv.JobKey{JobID: 7}
	var all []Process
	for pid := range 3 * most {
		stderr[pid] = filepath.Join(dir, fmt.Sprint(pid))
		put(t, stderr[pid], "x")
		all = append(all, Process{PID: pid, Job: job})
	}
	w := newWatch(t, stderr)
	w.look(all)
	files, err := Read(w.RunDir, job)
	if err != nil || len(files) != most {
		t.Fatalf("%d files, %v", len(files), err)
	}
	if last := string(files[most-1].Path); last != stderr[3*most-1] {
		t.Errorf("the last one is %s", last)
	}
}

// A mount that hangs costs the agent nothing but what it would have noted.
func TestLookReturnsAtOnce(t *testing.T) {
	w := newWatch(t, nil)
	w.busy.Store(true) // the look before hangs
	done := make(chan bool)
	go func() { w.Look(nil); close(done) }()
	<-done
}

func TestReadSpoiled(t *testing.T) {
	w := newWatch(t, nil)
	job := jobenv.JobKey{JobID: 7}
	put(t, list(w.RunDir, job), "[{")
	if _, err := Read(w.RunDir, job); err == nil {
		t.Error("no error")
	}
}
