// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// All that is in a cgroup of an MPS daemon's ends with it, stopped or not, and what it starts
// meanwhile.
func TestServers(t *testing.T) {
	for name, mount := range map[string]string{"usual": "/sys/fs/cgroup", "v2 beside v1": "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(mount); err == nil {
			t.Run(name, func(t *testing.T) { servers(t, mount) })
		}
	}
}

func servers(t *testing.T, mount string) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.conf"), []byte("CgroupMountpoint="+mount+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Host{SlurmConf: filepath.Join(dir, "slurm.conf")}.Servers()
	if err != nil {
		if !Unavailable(err) {
			t.Error(err)
		}
		t.Skip(err)
	}
	for name, script := range map[string]string{
		"stopped": "kill -STOP $$",
		"forks":   "trap '' TERM; while :; do sleep 10 & sleep 0.001; done",
	} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go cmd.Wait()
		dir, err := s.Put(fmt.Sprintf("test.%d.%s", os.Getpid(), name), cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := s.Kill(ctx, dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Kill(ctx, dir); err != nil {
			t.Errorf("%s, again: %v", name, err)
		}
		cancel()
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err := unix.Kill(cmd.Process.Pid, 0); err == nil {
			if text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid)); !strings.Contains(string(text), ") Z ") {
				t.Errorf("%s: process %d runs on", name, cmd.Process.Pid)
			}
		}
	}
	none := fmt.Sprintf("test.%d.gone", os.Getpid())
	if _, err := s.Put(none, 1<<22+1); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that is not there: %v", err)
	}
	os.Remove(filepath.Join(s.above, none))
}
