// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"carma/cmd/carma-estimate/internal/script"
	"carma/cmd/internal/cli"
	"carma/estimator/trace"
	"carma/slurmbridge/directive"
	"carma/slurmbridge/usertext"
)

// tracer is the tracing command, which reads the batch script itself.
const tracer = "carma-trace"

// longest is how long a trace may take. A script of 6.7 billion parameters took 164 s (docs/trace.md).
const longest = 30 * time.Minute

// traced runs the tracer on a batch script, as the calling user and in that user's environment.
func (p *program) traced(path string, args []string) ([]byte, error) {
	command, err := findTracer()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err != nil {
		return nil, status(unreadable("read script "+path, err))
	}
	return tracing{command, longest, 10 * time.Second}.of(path, args)
}

// tracing is how the tracer is run: for how long at most, and how much time it has to end when
// asked to, and what it has started to let go of the pipes.
type tracing struct {
	command     string
	most, delay time.Duration
}

// of returns the trace of a script. A traced program is a user's, and may do anything.
func (t tracing) of(path string, args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), t.most)
	defer cancel()
	said, out := &tail{}, &printed{}
	run := exec.CommandContext(ctx, t.command, append([]string{"--", path}, args...)...)
	run.Stdout, run.Stderr = out, said
	late := false
	run.Cancel = func() error {
		late = true
		return run.Process.Signal(syscall.SIGTERM) // the tracer removes its folder then
	}
	run.WaitDelay = t.delay
	refuse := func(format string, args ...any) error {
		return cli.Fail(cli.ExitUsage, "trace %s: "+format, append([]any{path}, args...)...)
	}
	err := run.Run()
	var ended *exec.ExitError
	switch {
	case out.tooLong:
		return nil, refuse("%s has printed more than %d MiB, which no trace is: give mem= instead", tracer,
			directive.MaxSummary>>20)
	case late:
		return nil, refuse("%s has not ended within %v: train on less data, or give mem= instead", tracer, t.most)
	case errors.As(err, &ended):
		return nil, refuse("%s", said.reason(ended))
	case err != nil && !errors.Is(err, exec.ErrWaitDelay): // what the script has started may live longer
		return nil, fmt.Errorf("trace %s: %w", path, err)
	}
	_, text := script.Unwrap(out.text)
	if !bytes.HasPrefix(out.text, []byte("#CARMA")) || !trace.Is(text) {
		return nil, refuse("%s has printed no trace", tracer)
	}
	if _, err := trace.Parse(text); err != nil {
		return nil, refuse("%w", err)
	}
	return out.text, nil
}

// printed keeps what the tracer prints, up to what a batch script may hold.
type printed struct {
	text    []byte
	tooLong bool
}

func (a *printed) Write(b []byte) (int, error) {
	if a.tooLong = a.tooLong || len(a.text)+len(b) > directive.MaxSummary; a.tooLong {
		return 0, errors.New("too long")
	}
	a.text = append(a.text, b...)
	return len(b), nil
}

// findTracer looks in PATH and beside this program.
func findTracer() (string, error) {
	if path, err := exec.LookPath(tracer); err == nil {
		return path, nil
	}
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), tracer)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	return "", cli.Fail(cli.ExitUsage, "--trace: %s is neither in PATH nor beside carma-estimate", tracer)
}

// tail keeps the end of the output of the tracer and the traced script.
type tail struct{ text []byte }

const tailBytes = 16 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.text = append(t.text, b...)
	if extra := len(t.text) - tailBytes; extra > 0 {
		t.text = t.text[:copy(t.text, t.text[extra:])]
	}
	return len(b), nil
}

// longestReason is of characters.
const longestReason = 1000

// reason is the tracer's own sentence, or how it ended.
func (t *tail) reason(ended *exec.ExitError) string {
	at := bytes.LastIndex(t.text, []byte(tracer+": "))
	if at < 0 {
		return fmt.Sprintf("%s ended with %v and no reason", tracer, ended)
	}
	said := strings.Join(strings.Fields(string(t.text[at+len(tracer)+2:])), " ")
	return usertext.Cut(said, longestReason)
}
