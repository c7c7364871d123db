// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"carma/prolog/oomscan"
)

// gpuload on the simulated GPU's libcuda; whether a GPU then does as it should only a
// GPU can show.
func TestGPULoad(t *testing.T) {
	dir, state := t.TempDir(), filepath.Join(t.TempDir(), "state")
	load := filepath.Join(dir, "gpuload")
	for _, args := range [][]string{
		{"make", "-C", "../simgpu", "all", "BIN=" + dir, "LIB=" + dir, "BUILD=" + dir + "/build"},
		{"cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", load, filepath.Join("load", "gpuload.c"), "-ldl"},
		{filepath.Join(dir, "simgpu"), "create", state, "--model", "dgx-a100"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	results := map[string]string{}
	for _, c := range []struct {
		args   string
		status int
		out    string
	}{
		{"--mem 1024M --smact 50 --duration 300ms", 0, `"free_after_mib":39479`},
		{"--mem 1024M --smact 50 --duration 300ms --kind async", 0, `"free_after_mib":39479`},
		{"--mem 1024M --smact 50 --duration 300ms --kind vmm", 0, `"free_after_mib":39479`},
		{"--mem 64M --smact 50 --duration 300ms --kind managed", 0, `"free_after_mib":40503`},
		{"--mem 1024M --smact 50 --duration 310ms", 0, `"ptx":"sm_90"`},
		{"--mem 64M --smact 1 --duration 10ms", 0, "ready"},
		{"--mem 64M --smact 20 --duration 3000ms --wild 100ms", 2, "CUDA error 700"},
		{"--mem 50000M --smact 50 --duration 10ms", 1, "CUDA out of memory"},
		{"--mem 1G --smact 50 --duration 10ms", 2, "1G is no number with M behind it"},
		{"--mem 1024M --smact 101 --duration 10ms", 2, "usage: gpuload"},
		{"--mem 1024M --smact 10 --duration 10ms --kind odd", 2, "usage: gpuload"},
		{"", 2, "usage: gpuload"},
	} {
		cmd := exec.Command(load, strings.Fields(c.args)...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "SIMGPU_STATE="+state)
		out, _ := cmd.CombinedOutput()
		if status := cmd.ProcessState.ExitCode(); status != c.status || !strings.Contains(string(out), c.out) {
			t.Errorf("%s: status %d\n%s", c.args, status, out)
		}
		if oom := oomscan.Scan(out).Grade == oomscan.Strong; oom != (c.status == 1) {
			t.Errorf("%s: OOM %v", c.args, oom)
		}
		var saw seen
		if _, after, _ := strings.Cut(string(out), "ready\n"); c.status == 0 && json.Unmarshal([]byte(after),
			&saw) != nil {
			t.Errorf("%s: %s", c.args, out)
		}
		results[c.args] = saw.Result
	}
	// The result is of what was computed: the same of the same, another of another kernel more.
	const args = "--mem 1024M --smact 50 --duration 300ms"
	if a, b, other := results[args], results[args+" --kind vmm"],
		results["--mem 1024M --smact 50 --duration 310ms"]; a == "" || a != b || a == other {
		t.Errorf("results %q, %q, %q", a, b, other)
	}
}
