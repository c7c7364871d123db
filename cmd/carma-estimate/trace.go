// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"carma/cmd/internal/cli"
	"carma/slurmbridge/directive"
)

// tracer is the command that traces; it reads the batch script itself.
const tracer = "carma-trace"

// traced runs the tracer on a batch script, as the calling user and in that user's environment.
func (p *program) traced(path string, args []string) ([]byte, error) {
	command, err := findTracer()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err != nil {
		return nil, status(unreadable("read script "+path, err))
	}
	said := &tail{}
	run := exec.Command(command, append([]string{"--", path}, args...)...)
	run.Stderr = said
	out, err := run.Output()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		return nil, cli.Fail(cli.ExitUsage, "trace %s: %s", path, said.reason(ended))
	case err != nil:
		return nil, fmt.Errorf("trace %s: %w", path, err)
	case len(out) > directive.MaxSummary:
		return nil, cli.Fail(cli.ExitUsage, "trace %s: the trace is larger than 1 MiB: give mem= instead", path)
	}
	return out, nil
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

// reason is the tracer's own sentence, or how it ended.
func (t *tail) reason(ended *exec.ExitError) string {
	at := bytes.LastIndex(t.text, []byte(tracer+": "))
	if at < 0 {
		return fmt.Sprintf("%s ended with %v and no reason", tracer, ended)
	}
	return strings.Join(strings.Fields(string(t.text[at+len(tracer)+2:])), " ")
}
