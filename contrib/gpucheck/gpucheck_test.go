// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var built string // simulated GPUs

// The simulated NVML looks at one node in a process, so each run has its own.
const child = "GPUCHECK_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(child) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	dir, err := os.MkdirTemp("/tmp", "gpucheck-test") // short: UNIX sockets lie below it
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	built = dir
	if out, err := exec.Command("make", "-C", "../simgpu", "all", "BIN="+dir, "LIB="+dir,
		"BUILD="+dir+"/build").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build simgpu: %v\n%s", err, out)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// check runs the program on simulated GPUs of a model, with a load.
func check(t *testing.T, model, load string) (status int, out string, results map[string]result) {
	t.Helper()
	state := filepath.Join(built, "state-"+strings.ReplaceAll(t.Name(), "/", "-"))
	if out, err := exec.Command(filepath.Join(built, "simgpu"), "create", state, "--model", model, "--time-scale",
		"60").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	file := filepath.Join(t.TempDir(), "results.json")
	var o, e bytes.Buffer
	cmd := exec.Command(os.Args[0], "--library", filepath.Join(built, "libnvidia-ml.so.1"), "--load", load,
		"--mps-control", filepath.Join(built, "nvidia-cuda-mps-control"),
		"--time-scale", "60", "--rounds", "3", "--json", file)
	cmd.Env = append(os.Environ(), child+"=1", "SIMGPU_STATE="+state)
	cmd.Stdout, cmd.Stderr = &o, &e
	cmd.Run()
	status = cmd.ProcessState.ExitCode()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, o.String(), e.String())
	}
	var all struct {
		Schema string
		Checks []result
	}
	if err := json.Unmarshal(text, &all); err != nil || all.Schema != "carma.gpu-check/1" {
		t.Fatalf("%v\n%s", err, text)
	}
	results = map[string]result{}
	for _, r := range all.Checks {
		results[r.Name] = r
	}
	return status, o.String(), results
}

// wrap is simjob with something done to its call.
func wrap(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "load")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\nexec "+built+"/simjob \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// What is not timing must be right; how long things take depends on the machine.
func TestSimulated(t *testing.T) {
	for _, model := range []string{"h100", "dgx-a100"} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			_, out, results := check(t, model, filepath.Join(built, "simjob"))
			for _, name := range []string{"memory-limit", "attribution"} {
				if r := results[name]; !r.OK || r.Skipped != "" {
					t.Errorf("%s: %s: %+v", model, name, r)
				}
			}
			if r := results["readings"]; len(r.Figures) != 4 {
				t.Errorf("%s: %+v", model, r)
			}
			if r := results["throughput"]; len(r.Figures) != 3*(2+2*3+2*3) {
				t.Errorf("%s: %d figures of throughput: %s", model, len(r.Figures), r.Note)
			}
			if !strings.HasPrefix(out, "# NVIDIA ") || !strings.Contains(out, " (simulated)\n") {
				t.Errorf("not said to be simulated:\n%s", out)
			}
			if !strings.Contains(out, "| memory-limit |  | ok |") || !strings.Contains(out, "of 3 neighbours ended well | 3") {
				t.Errorf("%s:\n%s", model, out)
			}
			for _, name := range []string{"oom-pytorch", "oom-jax"} {
				if r := results[name]; !r.OK || r.Skipped == "" {
					t.Errorf("%s: %+v", name, r)
				}
			}
		})
	}
}

// A limit that nobody keeps is found.
func TestLimitNotKept(t *testing.T) {
	t.Parallel()
	status, _, results := check(t, "h100", wrap(t, "unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"))
	if r := results["memory-limit"]; status != exitFailed || r.OK || r.Figures[0].Value != 0 {
		t.Errorf("status %d, %+v", status, r)
	}
}

// So are readings of a load that is not there.
func TestReadingsOff(t *testing.T) {
	t.Parallel()
	_, _, results := check(t, "h100", wrap(t, "shift 4; set -- --mem 1G --smact 10 \"$@\""))
	if r := results["readings"]; r.OK || len(r.Figures) != 4 {
		t.Errorf("%+v", r)
	}
}

func TestNoGPU(t *testing.T) {
	var o, e bytes.Buffer
	if status := run([]string{"--library", "/none/libnvidia-ml.so.1"}, &o, &e); status != exitNoGPU ||
		!strings.HasPrefix(e.String(), "gpucheck: no GPU to check: ") {
		t.Errorf("status %d, %s", status, e.String())
	}
}

func TestFrameworkTexts(t *testing.T) {
	for _, c := range []struct {
		script  string
		ok      bool
		skipped bool
	}{
		{"echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 PiB.' >&2; exit 1", true, false},
		{"echo 'some other trouble' >&2; exit 1", false, false},
		{"echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 PiB.' >&2", false, false},
		{"exit 77", true, true},
	} {
		r := framework{"x", []string{"sh", "-c", c.script}, 77}.check(context.Background())
		if r.OK != c.ok || (r.Skipped != "") != c.skipped {
			t.Errorf("%s: %+v", c.script, r)
		}
	}
}
