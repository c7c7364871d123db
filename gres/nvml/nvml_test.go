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

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"carma/db/figure"
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
	if out, err := exec.Command("make", "-C", "../../contrib/simgpu", "all", "BIN="+dir, "LIB="+dir,
		"BUILD="+dir+"/build").CombinedOutput(); err != nil {
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
		if slices.ContainsFunc(n.Sample()[gpu].Processes, func(p gres.Process) bool {
			return p.PID == cmd.Process.Pid &&
				p.UsedMiB > 0
		}) {
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
		if s.Source != figure.SourceUtilisation || s.SMActPct != 0 || s.PowerWatts != 58 {
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
	if s.Source != figure.SourceGPM || math.Abs(float64(s.SMActPct)-60) > 0.5 || math.Abs(float64(s.SMOccPct)-30) > 0.5 ||
		math.Abs(float64(s.DRAMPct)-24) > 0.5 {
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
		"error=3":        "does not tell the memory of this GPU", // not supported: GPUs that share the memory of the node
	} {
		t.Run(fault, func(t *testing.T) {
			n := node(t, "--model", "dgx-a100")
			simgpu(t, "fault", "1", fault)
			samples := n.Sample()
			if !strings.Contains(samples[1].Unreadable, want) && !strings.Contains(strings.ToLower(samples[1].Unreadable),
				strings.ToLower(want)) {
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

// A GPU that is lost before the library is opened does not hide the others, and is told.
func TestLostBeforeOpen(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	simgpu(t, "create", state, "--model", "dgx-a100")
	t.Setenv("SIMGPU_STATE", state)
	simgpu(t, "fault", "1", "lost")
	n, err := Open(filepath.Join(built, "libnvidia-ml.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	samples := n.Sample()
	if len(samples) != 3 || samples[1].Index != 2 || samples[1].Unreadable != "" {
		t.Errorf("samples %+v", samples)
	}
	if len(n.Lost) != 1 || !strings.Contains(fmt.Sprint(n.Lost[1]), "open GPU 1: GPU is lost") {
		t.Errorf("lost %v", n.Lost)
	}
	// It is tried again.
	simgpu(t, "fault", "1", "none")
	for range 600 {
		n.tried = time.Time{}
		if samples = n.Sample(); len(samples) == 4 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if len(samples) != 4 || samples[1].Index != 1 || samples[1].Unreadable != "" || len(n.Lost) != 0 {
		t.Errorf("after the fault %+v, lost %v", samples, n.Lost)
	}
}

// GPM that is supported and does not answer: the coarse utilisation is taken, and said
// to be the source.
func TestSilentGPM(t *testing.T) {
	n := node(t, "--model", "h100")
	job(t, n, 2, "--mem", "10G", "--smact", "60", "--duration", "1h")
	simgpu(t, "fault", "2", "silent-gpm")
	if s := n.SampleTwice(50 * time.Millisecond)[2]; s.Source != figure.SourceUtilisation || s.SMActPct != 75 ||
		s.Unreadable != "" {
		t.Errorf("%v from %s, %q", s.SMActPct, s.Source, s.Unreadable)
	}
	simgpu(t, "fault", "2", "none")
	if s := n.SampleTwice(200 * time.Millisecond)[2]; s.Source != figure.SourceGPM ||
		math.Abs(float64(s.SMActPct)-60) > 0.5 {
		t.Errorf("after the fault: %v from %s", s.SMActPct, s.Source)
	}
}

// Each MIG instance is a GPU of its own.
func TestMIG(t *testing.T) {
	n := node(t, "--model", "h100", "--mig", "1=3g.40gb,1=3g.40gb")
	samples := n.Sample()
	if len(samples) != 9 {
		t.Fatalf("%d samples, want 7 GPUs and 2 instances", len(samples))
	}
	for i, s := range samples[1:3] {
		if !s.MIG || s.Index != 1 || !strings.HasPrefix(s.UUID, "MIG-") || s.TotalMiB < 30000 || s.TotalMiB > 45000 ||
			s.Unreadable != "" {
			t.Errorf("instance %d: %+v", i, s)
		}
	}
	if samples[0].MIG || samples[3].MIG || samples[1].UUID == samples[2].UUID {
		t.Errorf("samples %+v", samples[:4])
	}
}

// fallen is a device with two MIG instances, fallen off the bus: nothing of the instances can be read.
type fallen struct{ nvml.Device }

func (fallen) GetMaxMigDeviceCount() (int, nvml.Return) { return 7, nvml.SUCCESS }
func (fallen) GetUUID() (string, nvml.Return)           { return "", nvml.ERROR_GPU_IS_LOST }
func (fallen) GetMigDeviceHandleByIndex(i int) (nvml.Device, nvml.Return) {
	if i < 2 {
		return fallen{}, nvml.SUCCESS
	}
	return nil, nvml.ERROR_NOT_FOUND
}

// Instances without a readable UUID are a single sample, of the device: the ledger takes each UUID once, and
// without readings all other GPUs of the node would close.
func TestFallenMIG(t *testing.T) {
	d := &device{Device: fallen{}, gpu: gres.GPU{UUID: "GPU-1"}, mig: true}
	if samples := d.look(); len(samples) != 1 || samples[0].UUID != "GPU-1" || samples[0].Unreadable == "" {
		t.Errorf("%+v", samples)
	}
}

// A GPU that hangs is unreadable, once after a wait and then at once; the
// others are read all the time, and it is when it answers again.
func TestHang(t *testing.T) {
	n := node(t, "--model", "dgx-a100")
	n.Sample()
	simgpu(t, "fault", "2", "hang")
	for i := range 3 {
		start := time.Now()
		samples := n.Sample()
		if took := time.Since(start); i > 0 && took > answerIn {
			t.Errorf("look %d took %s", i, took)
		}
		for g, s := range samples {
			want := ""
			if g == 2 {
				want = "NVML does not answer"
			}
			if s.Unreadable != want || s.UUID == "" {
				t.Errorf("look %d, GPU %d: %q", i, g, s.Unreadable)
			}
		}
	}
	simgpu(t, "fault", "2", "none")
	for range 600 {
		if n.Sample()[2].Unreadable == "" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("it is not read again")
}

func TestLinks(t *testing.T) {
	n := node(t, "--model", "h100")
	for i, s := range n.Sample() {
		if s.NVLink != 0xff&^(1<<i) || s.NUMA < 0 || s.NUMA > 1 {
			t.Errorf("GPU %d: NVLink %b, NUMA %d", i, s.NVLink, s.NUMA)
		}
	}
}

func TestOpenFails(t *testing.T) {
	if _, err := Open("/nonexistent/libnvidia-ml.so.1"); err == nil ||
		!strings.Contains(err.Error(), "load NVML from /nonexistent/libnvidia-ml.so.1") {
		t.Errorf("got %v", err)
	}
	t.Setenv("SIMGPU_STATE", "")
	os.Unsetenv("SIMGPU_STATE")
	if _, err := Open(filepath.Join(built, "libnvidia-ml.so.1")); err == nil {
		t.Error("a library without a driver was opened")
	}
}

// Counters that answer nonsense are not believed: the coarse utilisation is taken, and where
// there is none, nothing is known.
func TestActivityThatIsNone(t *testing.T) {
	n := node(t, "--model", "h100")
	job(t, n, 2, "--mem", "10G", "--smact", "60", "--duration", "1h")
	for _, c := range []struct {
		fault  string
		source figure.Source
		smact  float64
	}{
		{"nan-gpm", figure.SourceUtilisation, 75},
		{"zero-smact", figure.SourceUtilisation, 75}, // 0 % beside a utilisation of 75 %
		{"no-activity", figure.SourceNone, math.NaN()},
	} {
		simgpu(t, "fault", "2", c.fault)
		s := n.SampleTwice(200 * time.Millisecond)[2]
		if s.Source != c.source || fmt.Sprint(float64(s.SMActPct)) != fmt.Sprint(c.smact) || s.SMOccPct.Known() ||
			s.DRAMPct.Known() || s.Unreadable != "" {
			t.Errorf("%s: %v, %v, %v from %s, %q", c.fault, s.SMActPct, s.SMOccPct, s.DRAMPct, s.Source, s.Unreadable)
		}
	}
}

// A driver that tells 0 of every process: nobody's share is known, so that it goes by rule.
func TestNoShares(t *testing.T) {
	n := node(t, "--model", "dgx-a100")
	job(t, n, 1, "--mem", "1G", "--smact", "20", "--duration", "1h")
	job(t, n, 1, "--mem", "1G", "--smact", "40", "--duration", "1h")
	simgpu(t, "fault", "1", "no-shares")
	s := n.Sample()[1]
	for pid, pct := range s.ProcessSMPct {
		if pct != 0 {
			t.Errorf("process %d: %v", pid, pct)
		}
	}
	if len(s.Processes) != 2 || !s.SMActPct.Known() {
		t.Errorf("got %+v", s)
	}
}
