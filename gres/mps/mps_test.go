// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"carma/gres"
)

// program writes a script in place of nvidia-cuda-mps-control, for what its servers would
// have to say. contract_test.go has the stand-in of simgpu and the real daemons.
func program(t *testing.T, body string) Control {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "control")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
	return Control{Program: path, RunDir: dir, LogDir: filepath.Join(dir, "log")}
}

const daemon = `
read -r command
case $command in
get_server_list) echo 111; echo 222; echo 333 ;;
"get_server_status 111") echo ACTIVE ;;
"get_server_status 222") if [ -e "$(dirname "$0")/fault" ]; then echo FAULT; else echo ACTIVE; fi ;;
"get_client_list 111") echo 5 ;;
"get_client_list 222") echo 7; echo 77; echo 8 ;;
"terminate_client 222 8") echo 1 ;;
terminate_client*) echo "$command" >>"$(dirname "$0")/terminated" ;;
*333) echo "Server 333 not found" ;;
*) echo "Unknown command \"$command\"" ;;
esac
`

func TestDoTellsWhatTheDaemonSaid(t *testing.T) {
	for body, want := range map[string]string{
		daemon:                       `MPS daemon of GPU GPU-1: frobnicate: refused: Unknown command "frobnicate"`,
		"echo No daemon >&2; exit 1": "MPS daemon of GPU GPU-1: frobnicate: exit status 1: No daemon",
	} {
		c := program(t, body)
		if _, err := c.do(t.Context(), "GPU-1", "frobnicate"); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestFaultAndTerminate(t *testing.T) {
	c := program(t, daemon)
	if faulted, err := c.Faulted(t.Context(), "GPU-1"); faulted || err != nil {
		t.Errorf("got %v, %v", faulted, err)
	}
	if err := os.WriteFile(filepath.Join(c.RunDir, "fault"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if faulted, err := c.Faulted(t.Context(), "GPU-1"); !faulted || err != nil {
		t.Errorf("got %v, %v", faulted, err)
	}
	for _, pid := range []int{77, 5, 6} { // 6 is nobody's client
		if err := c.Terminate(t.Context(), "GPU-1", pid); err != nil {
			t.Error(err)
		}
	}
	// The status of a refusal is 0.
	if err := c.Terminate(t.Context(), "GPU-1", 8); err == nil || !strings.Contains(err.Error(), "terminate_client: 1") {
		t.Errorf("refused: %v", err)
	}
	got, err := os.ReadFile(filepath.Join(c.RunDir, "terminated"))
	if want := "terminate_client 222 77\nterminate_client 111 5\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestKeepFails(t *testing.T) {
	c := program(t, "exit 3")
	err := c.Keep(t.Context(), "GPU-1", func(now int64) (int64, error) { return now, nil })
	if err == nil || !strings.Contains(err.Error(), "keep the MPS daemon of GPU GPU-1") {
		t.Errorf("got %v", err)
	}
}

// The note of a daemon of several GPUs is replaced: a reader meanwhile finds all of the note.
func TestNoteIsReplaced(t *testing.T) {
	c := program(t, "exit 3")
	const d = gres.Daemon("GPU-1,GPU-2")
	before := filepath.Join(c.RunDir, "before")
	err := errors.Join(os.Mkdir(filepath.Join(c.RunDir, "mps"), 0o755),
		os.WriteFile(before, []byte("the note of before"), 0o644), os.Link(before, noteOf(c.RunDir, d)))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.start(t.Context(), d, tenure{User: gres.Nobody}); err == nil {
		t.Error("a daemon that does not start has started")
	}
	if sets, err := c.Sets(); err != nil || !slices.Equal(sets, []gres.Daemon{d}) {
		t.Errorf("%q, %v", sets, err)
	}
	if text, err := os.ReadFile(before); err != nil || string(text) != "the note of before" {
		t.Errorf("the old note is written to: %q, %v", text, err)
	}
}
