// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/gres"
)

// built is where the simulated GPUs are.
var built string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nvml")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command("make", "-C", "../../contrib/simgpu", "all", "BIN="+dir, "LIB="+dir, "BUILD="+dir+"/build").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build simgpu: %v\n%s", err, out)
		return 1
	}
	built = dir
	return m.Run()
}

// node makes a node of simulated GPUs and opens it.
func node(t *testing.T, args ...string) *NVML {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	simgpu(t, append([]string{"create", state}, args...)...)
	t.Setenv("SIMGPU_STATE", state)
	n, err := Open(filepath.Join(built, "libnvidia-ml.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

func simgpu(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(filepath.Join(built, "simgpu"), args...).CombinedOutput(); err != nil {
		t.Fatalf("simgpu %v: %v\n%s", args, err, out)
	}
}

// job starts a simulated job on a GPU and waits until it is there.
func job(t *testing.T, n *NVML, gpu int, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(built, "simjob"), append([]string{"--ramp", "0s"}, args...)...)
	cmd.Env = append(os.Environ(), fmt.Sprint("CUDA_VISIBLE_DEVICES=", gpu))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	for range 600 {
		if slices.ContainsFunc(n.Sample()[gpu].Processes, func(p gres.Process) bool { return p.PID == cmd.Process.Pid && p.UsedMiB > 0 }) {
			return cmd
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the job does not show itself")
	return nil
}

func TestIdleA100(t *testing.T) {
	n := node(t, "--model", "dgx-a100")
	samples := n.Sample()
	if len(samples) != 4 {
		t.Fatalf("%d GPUs", len(samples))
	}
	for i, s := range samples {
		if s.Index != i || !strings.HasPrefix(s.UUID, "GPU-") || s.Model != "NVIDIA A100-SXM4-40GB" {
			t.Errorf("GPU %d: %+v", i, s.GPU)
		}
		// The driver's 33 MiB are neither used by jobs nor there for them.
		if s.TotalMiB != 40503 || s.UsedMiB != 0 || len(s.Processes) != 0 || s.Unreadable != "" {
			t.Errorf("GPU %d: %+v", i, s)
		}
		if s.Source != gres.SourceUtilisation || s.SMActPct != 0 || s.PowerWatts != 58 {
			t.Errorf("GPU %d: %+v", i, s)
		}
	}
}

func TestBusyH100(t *testing.T) {
	n := node(t, "--model", "h100")
	cmd := job(t, n, 2, "--mem", "10G", "--smact", "60", "--duration", "1h")
	n.Sample()
	time.Sleep(200 * time.Millisecond)
	s := n.Sample()[2]
	if s.Source != gres.SourceGPM || math.Abs(float64(s.SMActPct)-60) > 0.5 {
		t.Errorf("SM activity %v from %s", s.SMActPct, s.Source)
	}
	want := gres.Process{PID: cmd.Process.Pid, UsedMiB: 10240}
	if s.UsedMiB != 10240 || !slices.Equal(s.Processes, []gres.Process{want}) {
		t.Errorf("got %+v", s)
	}
	if before := s.EnergyJ; !(n.Sample()[2].EnergyJ > before-1) || before <= 0 {
		t.Errorf("energy %v", before)
	}
}

// GPM needs two looks: the first sample has no SM activity, and does not claim 0.
func TestFirstSampleOfGPM(t *testing.T) {
	n := node(t, "--model", "h100")
	if s := n.Sample()[0]; !math.IsNaN(float64(s.SMActPct)) {
		t.Errorf("first look: %v", s.SMActPct)
	}
	if s := n.SampleTwice(50 * time.Millisecond)[0]; s.SMActPct != 0 {
		t.Errorf("second look: %v", s.SMActPct)
	}
}

// One GPU that cannot be read does not hide the others.
func TestFaults(t *testing.T) {
	for fault, want := range map[string]string{
		"lost":           "GPU is lost",
		"error=999":      "nknown",
		"garbage-memory": "MiB used",
	} {
		t.Run(fault, func(t *testing.T) {
			n := node(t, "--model", "dgx-a100")
			simgpu(t, "fault", "1", fault)
			samples := n.Sample()
			if !strings.Contains(samples[1].Unreadable, want) && !strings.Contains(strings.ToLower(samples[1].Unreadable), strings.ToLower(want)) {
				t.Errorf("got %q, want %q in it", samples[1].Unreadable, want)
			}
			if samples[0].Unreadable+samples[2].Unreadable != "" {
				t.Error("another GPU cannot be read")
			}
			simgpu(t, "fault", "1", "none")
			if s := n.Sample()[1]; s.Unreadable != "" {
				t.Errorf("after the fault: %q", s.Unreadable)
			}
		})
	}
}

func TestMIGIsNotShared(t *testing.T) {
	n := node(t, "--model", "h100", "--mig", "0=3g.40gb")
	if s := n.Sample()[0]; s.Unreadable != "MIG is enabled" {
		t.Errorf("got %q", s.Unreadable)
	}
}

func TestOpenFails(t *testing.T) {
	if _, err := Open("/nonexistent/libnvidia-ml.so.1"); err == nil || !strings.Contains(err.Error(), "load NVML from /nonexistent/libnvidia-ml.so.1") {
		t.Errorf("got %v", err)
	}
	t.Setenv("SIMGPU_STATE", "")
	os.Unsetenv("SIMGPU_STATE")
	if _, err := Open(filepath.Join(built, "libnvidia-ml.so.1")); err == nil {
		t.Error("a library without a driver was opened")
	}
}
