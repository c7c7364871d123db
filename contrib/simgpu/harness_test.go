// SPDX-License-Identifier: Apache-2.0

package simgpu_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// build holds the programs and the library, made once by TestMain.
var build string

func TestMain(m *testing.M) {
	if path := os.Getenv("MPS_LOCK"); path != "" {
		os.Exit(holdLock(path))
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "simgpu")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		build = dir
		// The jobs of other users that a test may start must reach the programs.
		if err := os.Chmod(dir, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		out, err := exec.Command("make", "BIN="+dir, "LIB="+dir, "BUILD="+filepath.Join(dir, "build"), "all").CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "make: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

type gpuState struct {
	UUID       string  `json:"uuid"`
	PCIBusID   string  `json:"pci_bus_id"`
	UsedMiB    uint64  `json:"memory_used_mib"`
	SMACT      float64 `json:"smact"`
	PowerW     float64 `json:"power_w"`
	EnergyJ    float64 `json:"energy_j"`
	MIG        []struct{ UUID, Profile string }
	ComputeMod string `json:"compute_mode"`
}

type state struct {
	GPUs      []gpuState
	Processes []struct {
		GPU       int
		PID       uint32
		Kind      string
		MemoryMiB uint64 `json:"memory_mib"`
	}
}

func simgpu(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(build, "simgpu"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("simgpu %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func show(t *testing.T) state {
	t.Helper()
	var s state
	if err := json.Unmarshal([]byte(simgpu(t, "show", "--json")), &s); err != nil {
		t.Fatalf("simgpu show --json: %v", err)
	}
	return s
}

// open makes a state and initialises the library on it.
func open(t *testing.T, args ...string) nvml.Interface {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	simgpu(t, append([]string{"create", path}, args...)...)
	t.Setenv("SIMGPU_STATE", path)
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(build, "libnvidia-ml.so.1")))
	must(t, "Init", lib.Init())
	t.Cleanup(func() { must(t, "Shutdown", lib.Shutdown()) })
	return lib
}

// start runs a program until the test ends; env entries are added.
func start(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(build, args[0]), args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// eventually polls: the time limit is only there to end a test that fails.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

func must(t *testing.T, call string, ret nvml.Return) {
	t.Helper()
	want(t, call, ret, nvml.SUCCESS)
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// value checks a call's return code and hands its value on.
func value[T any](t *testing.T, call string) func(T, nvml.Return) T {
	return func(v T, ret nvml.Return) T {
		t.Helper()
		must(t, call, ret)
		return v
	}
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func device(t *testing.T, lib nvml.Interface, index int) nvml.Device {
	t.Helper()
	return value[nvml.Device](t, "DeviceGetHandleByIndex")(lib.DeviceGetHandleByIndex(index))
}

// text is a C string in an array of any 8-bit type.
func text[T int8 | uint8](b []T) string {
	var s strings.Builder
	for _, c := range b {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}
