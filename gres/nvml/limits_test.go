// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"
)

// cgroup2 makes a cgroup v2.
func cgroup2(t *testing.T) string {
	t.Helper()
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(mount, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		dir, err := os.MkdirTemp(mount, "carma-test")
		if err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { os.Remove(dir) })
		return dir
	}
	t.Skip("no cgroup v2 is mounted")
	return ""
}

// The processes of a cgroup and below it come to its limit together, on that GPU alone; those
// outside do not. The limit goes with the cgroup.
func TestMemoryLimits(t *testing.T) {
	group := cgroup2(t)
	n := node(t, "--model", "dgx-a100", "--gpus", "2")
	limits, err := FindMemoryLimits(filepath.Join(built, "libnvidia-ml.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	gpus := n.Sample()
	below := filepath.Join(group, "step")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(below) })
	run := func(dir string, gpu int, mem string) error {
		enter := ""
		if dir != "" {
			enter = "echo $$ >" + dir + "/cgroup.procs; "
		}
		cmd := exec.Command("sh", "-c", enter+"exec "+built+"/simjob --ramp 0s --duration 0.1s --smact 10 --mem "+mem)
		cmd.Env = append(os.Environ(), fmt.Sprint("CUDA_VISIBLE_DEVICES=", gpu))
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	set := func(dir, uuid string, mib int64) {
		t.Helper()
		if err := limits.Set(dir, uuid, mib); err != nil {
			t.Fatal(err)
		}
	}
	set(group, gpus[0].UUID, 10240)
	for _, c := range []struct {
		dir  string
		gpu  int
		mem  string
		fits bool
	}{
		{group, 0, "9G", true}, {below, 0, "9G", true}, {group, 0, "11G", false}, {below, 0, "11G", false},
		{group, 1, "30G", true}, {"", 0, "30G", true},
	} {
		err := run(c.dir, c.gpu, c.mem)
		if (err == nil) != c.fits {
			t.Errorf("%s on GPU %d in %q: %v", c.mem, c.gpu, c.dir, err)
		}
		if err != nil && !strings.Contains(err.Error(), "CUDA out of memory") {
			t.Errorf("%s on GPU %d in %q ended of something else: %v", c.mem, c.gpu, c.dir, err)
		}
	}
	// vLLM refuses to start with a part of the GPU that it can have by the limit alone.
	if err := run(below, 0, "8G --framework vllm --fraction 0.9"); err != nil {
		t.Errorf("nine tenths of the limit: %v", err)
	}
	set(group, gpus[0].UUID, 20480)
	if err := run(below, 0, "11G"); err != nil {
		t.Errorf("after a higher limit: %v", err)
	}
	set(group, gpus[0].UUID, 0)
	if err := run(below, 0, "30G"); err != nil {
		t.Errorf("without a limit: %v", err)
	}
	set(below, gpus[0].UUID, 1024)
	if err := os.Remove(below); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := run(below, 0, "11G"); err != nil {
		t.Errorf("in a cgroup of the name of one that has gone: %v", err)
	}
}

// What the driver refuses is told.
func TestMemoryLimitsRefused(t *testing.T) {
	n := node(t, "--model", "dgx-a100", "--gpus", "2")
	library := filepath.Join(built, "libnvidia-ml.so.1")
	limits, err := FindMemoryLimits(library)
	if err != nil {
		t.Fatal(err)
	}
	uuid := n.Sample()[0].UUID
	want := nvml.ERROR_NOT_FOUND
	if os.Geteuid() != 0 {
		want = nvml.ERROR_NO_PERMISSION
	}
	if err := limits.Set("/tmp", uuid, 1024); !errors.Is(err, want) {
		t.Errorf("no cgroup: %v, want %v", err, want)
	}
	if err := limits.Set("/tmp", "GPU-none", 1024); err == nil {
		t.Error("no GPU")
	}
	simgpu(t, "fault", "0", "no-limits")
	if err := limits.Set("/tmp", uuid, 1024); !errors.Is(err, nvml.ERROR_NOT_SUPPORTED) {
		t.Errorf("not supported: %v", err)
	}
	if _, err := FindMemoryLimits("libc.so.6"); err == nil || !strings.Contains(err.Error(), "R615") {
		t.Errorf("a library without the call: %v", err)
	}
	if _, err := FindMemoryLimits("/none.so"); err == nil {
		t.Error("no library")
	}
}
