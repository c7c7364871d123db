// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What go test -json (Go 1.26) said of four packages: one with a test that fails in
// a part, one that was not built, one that dies in a test, one with a skipped test.
func TestTally(t *testing.T) {
	events, err := os.ReadFile("testdata/events.json")
	if err != nil {
		t.Fatal(err)
	}
	tally, said := newTally(), ""
	now := time.Unix(1000, 0)
	for _, line := range bytes.Split(bytes.TrimSpace(events), []byte("\n")) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		said += tally.take(e, now)
		if e.Action == "run" && e.Test == "TestDies" {
			said += tally.still(now.Add(25*time.Second)) + "\n"
		}
	}
	said += tally.summary([]string{"a.log", "b.log", "c.log"})
	want, err := os.ReadFile("testdata/said.txt")
	if err != nil {
		t.Fatal(err)
	}
	if said != string(want) {
		t.Errorf("got\n%s\nwant\n%s", said, want)
	}
}

// A part that is skipped is told and counted, though its test passes.
func TestSkippedPart(t *testing.T) {
	tally, said := newTally(), ""
	for _, e := range []event{
		{Action: "run", Test: "TestX"}, {Action: "run", Test: "TestX/a"},
		{Action: "output", Test: "TestX/a", Output: "=== RUN   TestX/a\n"},
		{Action: "output", Test: "TestX/a", Output: "    x_test.go:1: no FUSE here\n"}, {Action: "skip", Test: "TestX/a"},
		{Action: "run", Test: "TestX/b"}, {Action: "pass", Test: "TestX/b"}, {Action: "pass", Test: "TestX"},
	} {
		e.Package = "carma/p"
		said += tally.take(e, time.Unix(1000, 0))
	}
	want := "    1  skip     0.0 s  p TestX/a: x_test.go:1: no FUSE here\n    2  ok       0.0 s  p TestX\n1 passed, 0 " +
		"failed, 1 skipped\n"
	if said += tally.summary(nil); said != want {
		t.Errorf("got\n%s", said)
	}
}

// A reason is the beginning and the end of what a test said, in short lines.
func TestReasonIsShort(t *testing.T) {
	output := []string{"=== RUN   TestX\n", "    x_test.go:1: " + strings.Repeat("é", 1000) + "\n"}
	for range 100 {
		output = append(output, "    line\n", "\n")
	}
	output = append(output, "    x_test.go:9: it came first\n", "--- FAIL: TestX (0.00s)\n")
	lines := reason(output)
	if len(lines) != 2*reasonLines+1 || lines[reasonLines] != "..." || len(lines[0]) > reasonWidth ||
		!strings.HasPrefix(lines[0], "    x_test.go:1: é") || lines[2*reasonLines] != "    x_test.go:9: it came first" {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
}

// make of each target, up to the first that fails; its status and the last line tell.
func TestMakeAll(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"MAKELEVEL", "MAKEFLAGS", "MFLAGS"} { // of the make that runs the tests
		t.Setenv(name, "")
	}
	makefile := "a:\n\t@echo one; echo '2 passed, 0 failed, 1 skipped'\n" +
		"b:\n\t@echo '40 passed, 0 failed, 0 skipped'\nbad:\n\t@echo broken; exit 1\n"
	if err := os.WriteFile("Makefile", []byte(makefile), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		targets []string
		status  int
		end     string
	}{
		{[]string{"a", "b"}, 0, "\n42 passed, 0 failed, 1 skipped\nmake try: passed in 0.0 s\n"},
		{[]string{"a", "bad", "b"}, 1, "broken\nmake: *** [Makefile:6: bad] Error 1\nmake try: failed at bad after 0.0 s\n"},
	} {
		var out bytes.Buffer
		status := makeAll(newScreen(&out), func() time.Duration { return 0 }, "make try", c.targets)
		if status != c.status || !strings.HasSuffix(out.String(), c.end) {
			t.Errorf("%v: %d\n%s", c.targets, status, out.String())
		}
	}
}

// A command that leaves a process with its output behind does not keep us, nor fail.
func TestRunLeavesDaemon(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	cmd := exec.Command("sh", "-c", "sleep 1000 & echo $! >"+pid+"; echo done")
	t.Cleanup(func() { _ = exec.Command("sh", "-c", "kill $(cat "+pid+")").Run() })
	said := ""
	if err := run(cmd, func(line string) { said += line }); err != nil || said != "done\n" {
		t.Errorf("%q, %v", said, err)
	}
}

func TestTook(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0.0 s", 9949 * time.Millisecond: "9.9 s", 10 * time.Second: "10 s",
		119 * time.Second: "119 s", 250 * time.Second: "4 min 10 s",
	} {
		if got := took(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
