// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// logDir takes the whole output of each failed test.
const logDir = "build/failed"

// Of a failed test, so much is shown; the rest is in its log.
const (
	reasonLines = 20
	reasonWidth = 300
)

// event is a line of go test -json (go doc cmd/test2json) or go build -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a build
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// test is a test, or, with no name, a package as a whole.
type test struct{ pkg, name string }

// failure is a failed test and its output.
type failure struct {
	test
	seconds float64
	output  []string
}

// tally follows the events of one go test.
type tally struct {
	passed, failed, skipped int
	failures                []failure

	output  map[test][]string
	builds  map[string][]string
	running map[test]time.Time
}

func newTally() *tally {
	return &tally{output: map[test][]string{}, builds: map[string][]string{}, running: map[test]time.Time{}}
}

// take follows an event and returns the text to be printed for the event.
func (t *tally) take(e event, now time.Time) string {
	name, _, sub := strings.Cut(e.Test, "/")
	at := test{strings.TrimPrefix(e.Package, "carma/"), name}
	switch e.Action {
	case "build-output":
		t.builds[e.ImportPath] = append(t.builds[e.ImportPath], e.Output)
	case "output":
		t.output[at] = append(t.output[at], e.Output)
		if sub {
			part := test{at.pkg, e.Test}
			t.output[part] = append(t.output[part], e.Output)
		}
		if name == "" && (strings.HasPrefix(e.Output, "ok  \t") || strings.HasPrefix(e.Output, "FAIL\t")) {
			return e.Output // go test's own closing line of a package
		}
	case "run", "cont":
		if !sub {
			t.running[at] = now
		}
	case "pause":
		if !sub {
			delete(t.running, at)
		}
	case "pass", "fail", "skip":
		if !sub {
			return t.ended(at, e)
		}
		part := test{at.pkg, e.Test}
		if e.Action == "skip" { // the whole test passes, and yet not all of the test has run
			return t.ended(part, e)
		}
		delete(t.output, part)
	}
	return ""
}

// ended counts a test at its end. A package counts when the package failed and
// none of its tests did: the package was not built, or died.
func (t *tally) ended(at test, e event) string {
	delete(t.running, at)
	output := t.output[at]
	delete(t.output, at)
	if at.name == "" {
		if e.Action == "fail" && !slices.ContainsFunc(t.failures, func(f failure) bool { return f.pkg == at.pkg }) {
			for r := range t.running { // the test in which the package died
				if r.pkg == at.pkg {
					output = append(output, "in "+r.name+":\n")
					output = append(output, t.output[r]...)
					delete(t.running, r)
				}
			}
			t.failed++
			t.failures = append(t.failures, failure{at, e.Elapsed, append(t.builds[e.FailedBuild], output...)})
		}
		return ""
	}
	word, why := "ok  ", ""
	switch e.Action {
	case "pass":
		t.passed++
	case "skip":
		t.skipped++
		word, why = "skip", skipReason(output)
	case "fail":
		t.failed++
		word = "FAIL"
		t.failures = append(t.failures, failure{at, e.Elapsed, output})
	}
	return fmt.Sprintf("%5d  %s %7.1f s  %s %s%s\n", t.passed+t.failed+t.skipped, word, e.Elapsed, at.pkg, at.name, why)
}

// frame is what the testing package prints around a test's own words.
var frame = regexp.MustCompile(`^(=== (RUN|PAUSE|CONT|NAME)|--- (PASS|FAIL|SKIP)|(PASS|FAIL)$|FAIL\t|exit status)`)

func skipReason(output []string) string {
	for _, line := range output {
		if line = strings.TrimSpace(line); line != "" && !frame.MatchString(line) {
			return ": " + line
		}
	}
	return ""
}

// reason is the beginning and the end of a failed test's output: a long test logs its steps, and reports the
// failed check at the end.
func reason(output []string) []string {
	var lines []string
	for _, line := range strings.Split(strings.Join(output, ""), "\n") {
		word := strings.TrimSpace(line)
		part := strings.HasPrefix(word, "--- FAIL") && strings.Contains(word, "/")
		if word == "" || frame.MatchString(word) && !part {
			continue
		}
		lines = append(lines, strings.ToValidUTF8(line[:min(len(line), reasonWidth)], ""))
	}
	if len(lines) <= 2*reasonLines {
		return lines
	}
	return slices.Concat(lines[:reasonLines], []string{"..."}, lines[len(lines)-reasonLines:])
}

// still names the running tests.
func (t *tally) still(now time.Time) string {
	var names []string
	for at, since := range t.running {
		names = append(names, fmt.Sprintf("%s %s", at.name, took(now.Sub(since))))
	}
	slices.Sort(names)
	if len(names) == 0 {
		names = []string{"building"}
	}
	which := strings.Join(names[:min(len(names), 6)], ", ")
	return fmt.Sprintf("%5d  finished; now: %s", t.passed+t.failed+t.skipped, which)
}

// summary tells of the failures and counts; logs are where their outputs are.
func (t *tally) summary(logs []string) string {
	var s strings.Builder
	for i, f := range t.failures {
		fmt.Fprintf(&s, "\nFAILED %s after %.1f s\n", strings.TrimSpace(f.pkg+" "+f.name), f.seconds)
		for _, line := range reason(f.output) {
			fmt.Fprintf(&s, "    %s\n", line)
		}
		fmt.Fprintf(&s, "    all of it: %s\n", logs[i])
	}
	fmt.Fprintf(&s, "%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
	return s.String()
}

// keep writes the outputs of failed tests to files and returns their names.
func (t *tally) keep() (logs []string) {
	for _, f := range t.failures {
		path := filepath.Join(logDir, strings.ReplaceAll(strings.TrimSuffix(f.pkg+"."+f.name, "."), "/", ".")+".log")
		err := os.MkdirAll(logDir, 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(strings.Join(f.output, "")), 0o644)
		}
		if err != nil {
			path = fmt.Sprintf("not kept: %v", err)
		}
		logs = append(logs, path)
	}
	return logs
}

// goTest runs go test and returns its exit status.
func goTest(args []string) int {
	program := os.Getenv("GO")
	if program == "" {
		program = "go"
	}
	out := newScreen(os.Stdout)
	var mu sync.Mutex
	t := newTally()
	stop := out.still(func() string { mu.Lock(); defer mu.Unlock(); return t.still(time.Now()) })
	err := run(exec.Command(program, append([]string{"test", "-json"}, args...)...), func(line string) {
		var e event
		if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil {
			fmt.Fprint(out, line)
			return
		}
		mu.Lock()
		said := t.take(e, time.Now())
		mu.Unlock()
		fmt.Fprint(out, said)
	})
	stop()
	fmt.Fprint(out, t.summary(t.keep()))
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "go test: %v\n", err)
		return 1
	case t.failed > 0:
		return 1
	}
	return 0
}
