// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"carma/cmd/internal/cli"
)

// aTrace is what carma-trace prints, as a command of a shell.
const aTrace = `printf '#CARMA batch=8\n#CARMA| carma-trace 1\n#CARMA| torch 2.6.0\n#CARMA| s p8388608 g8388608\n` +
	`#CARMA| e +0+1-1-2\n#CARMA| end\n'
`

// Whatever the traced program does, carma-estimate goes on with the trace or ends with a sentence, soon.
func TestTraced(t *testing.T) {
	const late = "carma-trace has not ended within 1s: train on less data, or give mem= instead"
	const large = "carma-trace has printed more than 1 MiB, which no trace is: give mem= instead"
	const none = "carma-trace has printed no trace"
	for _, c := range []struct {
		name, tracer string
		refused      string // empty: the trace is taken
	}{
		{"a trace", aTrace, ""},
		{"a program that keeps the pipes open", "sleep 60 &\n" + aTrace, ""},
		{"and one that fails then", "sleep 60 &\necho 'carma-trace: it trains nothing' >&2\nexit 1", "it trains nothing"},
		{"it never ends", "exec sleep 60", late},
		{"nor when asked to", "trap '' TERM\nwhile :; do sleep 0.1; done", late},
		{"nothing", "exit 0", none},
		{"some other text", "echo training loss 0.3", none},
		{"noise", "head -c 100000 /dev/urandom", none},
		{"no end of lines", "yes", large},
		{"no end of a line", "cat /dev/zero", large},
		{"a part of a trace", "printf '#CARMA| carma-trace 1\n#CARMA| s p8\n'",
			"the trace has no end: it was cut off; print it again"},
		{"another version", "echo '#CARMA| carma-trace 7'",
			"the trace is of another version than 1: use the carma_trace.py of this installation"},
		{"more behind its end", aTrace + "echo '#CARMA| e +0'", "line 6 of the trace: text behind its end"},
		{"killed", "kill -9 $$", "carma-trace ended with signal: killed and no reason"},
		{"a status and no reason", "echo a traceback >&2\nexit 3", "carma-trace ended with exit status 3 and no reason"},
		{"a reason that no terminal takes", `printf 'carma-trace: a\033[2Jb\n c\200\n' >&2; exit 1`, "a?[2Jb c?"},
		{"a long reason", `printf 'carma-trace: %05000d\n' 0 >&2; exit 1`, strings.Repeat("0", 999) + "+"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, command := filepath.Join(dir, "job.sh"), filepath.Join(dir, "carma-trace")
			for name, text := range map[string]string{path: "train\n", command: "#!/bin/sh\n" + c.tracer} {
				// A test beside must not start a program now: the program would hold the file open for writing, and
				// the kernel starts no such file (ETXTBSY).
				syscall.ForkLock.RLock()
				err := os.WriteFile(name, []byte(text), 0o755)
				syscall.ForkLock.RUnlock()
				if err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			most := time.Minute
			if strings.Contains(c.refused, "1s") {
				most = time.Second
			}
			text, err := tracing{command, most, time.Second}.of(path, nil)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
			switch {
			case c.refused == "" && (err != nil || !bytes.HasSuffix(text, []byte("end\n"))):
				t.Errorf("got %q, %v", text, err)
			case c.refused == "":
			case err == nil || err.Error() != "trace "+path+": "+c.refused || cli.Status(err) != cli.ExitUsage:
				t.Errorf("got %v", err)
			}
		})
	}
}
