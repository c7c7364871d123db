// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// facts are the checks that need no load.
func facts(_ context.Context, k *kit) {
	k.check("machine", "", "", func(c *check) error {
		c.Saw = fmt.Sprintf("%s, %d MiB", k.gpu.Model, k.gpu.TotalMiB)
		c.text("nvidia-smi -q", k.tool("nvidia-smi", "-q"))
		c.text("nvidia-smi topo -m", k.tool("nvidia-smi", "topo", "-m"))
		c.text("mounts", read("/proc/self/mounts"))
		for _, f := range []string{"/proc/driver/nvidia/version", "/proc/driver/nvidia/params", "/etc/os-release",
			"/proc/version"} {
			c.text(f, read(f))
		}
		return nil
	})
	k.check("mounts", "the kit may have mounts of its own", "contrib/gpucheck/README.md: what the kit needs",
		func(c *check) error {
			c.judge(k.mounts == nil, "%v", k.mounts)
			return nil
		})
	k.check("device-nodes", "each GPU has /dev/nvidiaN of its minor number, open to all users",
		"gres/confine: the nodes that are denied; docs/admin.md: confinement", func(c *check) error {
			names, err := filepath.Glob("/dev/nvidia*")
			if err != nil || len(names) == 0 {
				c.skip("no /dev/nvidia*")
				return err
			}
			var b strings.Builder
			for _, n := range names {
				if st, err := os.Stat(n); err == nil {
					fmt.Fprintf(&b, "%s %s\n", st.Mode(), n)
				}
			}
			c.text("modes", b.String())
			_, err = os.Stat(fmt.Sprintf("/dev/nvidia%d", k.gpu.Minor))
			c.judge(err == nil, "minor %d; %d nodes", k.gpu.Minor, len(names))
			return nil
		})
	k.check("nvml-symbols", "NVML has the calls that the agent asks by name, and says where it lacks one",
		"gres/nvml/device.go and health.go: LookupSymbol", nvmlSymbols)
	k.check("daemon-start", "nvidia-cuda-mps-control -d starts and listens within mps.Keep's time",
		"gres/mps/mps.go: start", func(c *check) error {
			if !k.hasMPS {
				c.skip("no nvidia-cuda-mps-control in PATH")
				return nil
			}
			begun := time.Now()
			if err := k.keepDaemon(k.ctx); err != nil {
				return err
			}
			c.add(time.Since(begun).Seconds(), "s", "until it listens")
			c.text("modes", modes(k.pipes()))
			c.judge(k.listens(), "listens")
			return nil
		})
	if k.hasMPS && k.ctx.Err() == nil && k.listens() {
		os.Chmod(k.pipes(), 0o755) // a user asks, too
		k.commands()
	}
	k.check("daemon-quit", "quit leaves control, control_lock and control_privileged, and nobody listens",
		"gres/mps/alive.go: Listens, tidy", func(c *check) error {
			if !k.hasMPS {
				c.skip("no nvidia-cuda-mps-control in PATH")
				return nil
			}
			k.control(0, "quit -t 2") // mps.End also tidies
			for until := time.Now().Add(10 * time.Second); k.listens() && time.Now().Before(until); {
				k.pause(50 * time.Millisecond)
			}
			var left []string
			for _, f := range []string{"control", "control_lock", "control_privileged"} {
				if _, err := os.Stat(filepath.Join(k.pipes(), f)); err == nil {
					left = append(left, f)
				}
			}
			c.text("modes", modes(k.pipes()))
			c.judge(len(left) == 3 && !k.listens(), "left: %s; listens: %v",
				strings.Join(left, ", "), k.listens())
			return nil
		})
}

// commands asks the daemon CARMA's questions, and others that the daemon must
// refuse a user.
func (k *kit) commands() {
	for _, q := range []struct {
		uid           int
		command, want string // part of the answer; empty: none is wanted
		follows       string
	}{
		{0, "get_server_list", "", "gres/mps/mps.go: servers"},
		{uidA, "get_server_list", "", "gres/mps/mps.go: servers"},
		{0, "get_server_status 1", "not found", "gres/mps/mps.go: Faulted; driver 550 at least"},
		{0, "get_client_list 1", "not found", "gres/mps/mps.go: Clients"},
		{0, "terminate_client 1 2", "not found", "gres/mps/mps.go: Terminate"},
		{0, "frobnicate", "Unknown command", "gres/mps/mps.go: refused"},
		{uidA, "set_default_device_pinned_mem_limit 0 3G", "Insufficient privileges", "gres/mps/mps.go: ErrOld"},
		{uidA, "quit", "", "docs/threat-model.md: a user's quit"},
	} {
		who := "root"
		if q.uid != 0 {
			who = "user"
		}
		k.check(fmt.Sprintf("command %q as %s", q.command, who),
			"a command ends with status 0, refused or not; the answer is a text", q.follows, func(c *check) error {
				a := k.control(q.uid, q.command)
				c.add(a.Took, "s", "until the answer")
				c.text("stdout", a.Stdout)
				c.text("stderr", a.Stderr)
				c.judge(a.Status == 0 && strings.Contains(a.Stdout, q.want), "status %d, %q", a.Status, a.Stdout)
				return nil
			})
	}
	k.check("user-quit", "a user's quit ends nothing", "docs/threat-model.md: a user's quit", func(c *check) error {
		c.judge(k.listens(), "the daemon listens: %v", k.listens())
		return nil
	})
}

// nvmlSymbols looks only whether the library has them.
func nvmlSymbols(c *check) error {
	path := ""
	for line := range strings.Lines(read("/proc/self/maps")) {
		if f := strings.Fields(line); len(f) == 6 && strings.Contains(f[5], "libnvidia-ml.so") {
			path = f[5]
		}
	}
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read the symbols of NVML at %q: %w", path, err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("read the symbols of %s: %w", path, err)
	}
	lacks := 0
	for _, want := range []struct {
		name string
		must bool
	}{
		{"nvmlDeviceGetComputeRunningProcesses_v3", true}, {"nvmlDeviceGetTotalEnergyConsumption", true},
		{"nvmlDeviceGetProcessUtilization", false}, {"nvmlDeviceGetProcessesUtilizationInfo", false},
		{"nvmlGpmSampleGet", false}, {"nvmlDeviceGetRemappedRows", false}, {"nvmlEventSetWait_v2", false},
		{"nvmlDeviceSetMemoryLimits_v1", false}, {"nvmlDeviceGetMemoryLimits_v1", false},
	} {
		has := slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == want.name })
		value := 0.0
		if has {
			value = 1
		}
		c.add(value, "", "has %s", want.name)
		if want.must && !has {
			lacks++
		}
	}
	c.judge(lacks == 0, "%s: %d of the needed are missing", path, lacks)
	return nil
}

// tool is the output of a program of the driver, or why there is none.
func (k *kit) tool(args ...string) string {
	if _, err := exec.LookPath(args[0]); err != nil {
		return "no " + args[0] + " in PATH"
	}
	a := k.ask(0, 20*time.Second, "", environ(), args...)
	return a.Stdout + a.Stderr
}

func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// modes lists a directory.
func modes(dir string) string {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err == nil {
			fmt.Fprintf(&b, "%s %s\n", st.Mode(), path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(&b, err)
	}
	return b.String()
}
