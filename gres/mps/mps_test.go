// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// program writes a stand-in for nvidia-cuda-mps-control. The real words are
// tried on the development cluster and, where there is one, on a GPU.
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
echo "$@ pipe=$CUDA_MPS_PIPE_DIRECTORY visible=$CUDA_VISIBLE_DEVICES limit=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" >>"$(dirname "$0")/calls"
if [ "$1" = -d ]; then
	: >"$CUDA_MPS_PIPE_DIRECTORY/control"
	exit 0
fi
read -r command
case $command in
get_server_list) echo 111; echo 222 ;;
"get_server_status 111") echo ACTIVE ;;
"get_server_status 222") if [ -e "$(dirname "$0")/fault" ]; then echo FAULT; else echo ACTIVE; fi ;;
"get_client_list 111") echo 5 ;;
"get_client_list 222") echo 7; echo 77 ;;
terminate_client*) echo "$command" >>"$(dirname "$0")/terminated" ;;
quit) rm "$CUDA_MPS_PIPE_DIRECTORY/control" ;;
*) echo "Unknown command"; exit 1 ;;
esac
`

func TestEnsureStartsOnce(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	t.Setenv("CUDA_VISIBLE_DEVICES", "7")
	t.Setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1M")
	c := program(t, daemon)
	for range 2 {
		if err := c.Ensure(t.Context(), "GPU-1"); err != nil {
			t.Fatal(err)
		}
	}
	calls, err := os.ReadFile(filepath.Join(c.RunDir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	pipe := PipeDir(c.RunDir, "GPU-1")
	if want := "-d pipe=" + pipe + " visible=GPU-1 limit=\n"; !strings.HasPrefix(string(calls), want) || strings.Count(string(calls), "-d ") != 1 {
		t.Errorf("calls:\n%swant one\n%s", calls, want)
	}
	if st, err := os.Stat(pipe); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("pipe directory: %v, %v", st, err)
	}
	if err := c.Quit(t.Context(), "GPU-1"); err != nil || c.Answers(t.Context(), "GPU-1") {
		t.Errorf("after quit: %v", err)
	}
}

func TestDoTellsWhatTheDaemonSaid(t *testing.T) {
	for body, want := range map[string]string{
		daemon: "MPS daemon of GPU GPU-1: frobnicate: exit status 1: Unknown command",
		"echo Cannot find MPS control daemon process": "MPS daemon of GPU GPU-1: frobnicate: no daemon: Cannot find MPS control daemon process",
	} {
		c := program(t, body)
		if _, err := c.Do(t.Context(), "GPU-1", "frobnicate"); err == nil || err.Error() != want {
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
	got, err := os.ReadFile(filepath.Join(c.RunDir, "terminated"))
	if want := "terminate_client 222 77\nterminate_client 111 5\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestEnsureFails(t *testing.T) {
	c := program(t, "exit 3")
	if err := c.Ensure(t.Context(), "GPU-1"); err == nil || !strings.Contains(err.Error(), "start MPS daemon of GPU GPU-1") {
		t.Errorf("got %v", err)
	}
}
