// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Slurm and CARMA of one node, in a directory, as an administrator would set them up
// (docs/slurm-conf.md), with short waits. {} marks the values to be filled in.
const slurmConf = `ClusterName=kit
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=26817
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={dir}/munge/s,cred_expire=5
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.pid
SlurmctldLogFile={dir}/log/slurmctld.log
SlurmdLogFile={dir}/log/slurmd.log
PluginDir={lib}/slurm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,carma
PrologFlags=Alloc
PrologEpilogTimeout=150
ReturnToService=2
SchedulerParameters=bf_continue,bf_interval=2,bf_resolution=1,sched_interval=3,{scheduler}
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
KillWait=3
SlurmdParameters=config_overrides
JobSubmitPlugins=carma
Prolog={dir}/hooks/prolog
Epilog={dir}/hooks/epilog
TaskProlog={dir}/hooks/task-prolog
NodeName=kit {here} Port=26818 CPUs=16 RealMemory=10000 Gres=gpu:4,carma:{mib}
PartitionName=gpu Nodes=kit Default=YES LLN=YES MaxTime=INFINITE DefMemPerCPU=100
PartitionName=gpu-recovery Nodes=kit PriorityTier=2 LLN=YES MaxTime=INFINITE DefMemPerCPU=100
PartitionName=plain Nodes=kit MaxTime=INFINITE DefMemPerCPU=100
`

// At its start slurmd makes a cgroup of version 2 for slurmd itself, and fails without systemd; of version 1 slurmd
// makes none, whether or not the machine has cgroups of version 1. The kit's Slurm uses no cgroups.
const cgroupConf = "CgroupPlugin=cgroup/v1\n"

const carmaToml = `[slurm]
bin_dir = "{bin}"
conf = "{dir}/slurm.conf"
[partition.gpu]
default = true
share = true
gpus_per_node = 1
gpu_mem_mib = {mib}
recovery = "gpu-recovery"
[partition.gpu-recovery]
share = false
gpus_per_node = 1
gpu_mem_mib = {mib}
[nvml]
library = "libnvidia-ml.so.1"
[smact]
window = "5s"
[placement]
settle = "3s"
[capacity]
compare = "5s"
[mps]
control = "{mps}"
[accounting]
forward = "none"
[devices]
dir = "{dev}"
confine = "{confine}"
[history]
file = "{dir}/history"
[paths]
run_dir = "{dir}/run"
db = "{dir}/carma.db"
log = "{dir}/log/hooks.log"
`

// cluster is the Slurm of the part.
type cluster struct {
	*kit
	dir string // short: MPS makes sockets below it
	env []string
}

// constrains tells whether the kit's Slurm has constraints on Extra: 24.11 and later.
func (c *cluster) constrains() bool {
	out, err := exec.Command(filepath.Join(c.bin, "scontrol"), "--version").Output()
	var major, minor int
	if f := strings.Fields(string(out)); err == nil && len(f) > 1 {
		fmt.Sscanf(f[1], "%d.%d", &major, &minor)
	}
	return major > 24 || major == 24 && minor >= 11
}

// way is the whole way of a job on the GPU.
func way(_ context.Context, k *kit) {
	var why string
	switch _, err := os.Stat(filepath.Join(k.bin, "slurmctld")); {
	case err != nil:
		why = "no Slurm in the kit: this is the short form without it"
	case k.mounts != nil:
		why = "needs mounts of its own: " + k.mounts.Error()
	case !k.hasMPS:
		why = "no nvidia-cuda-mps-control in PATH"
	case len(k.gpus.Sample()) > 1 && !k.simulated:
		why = "needs a machine with one GPU: on several, jobs need not share"
	}
	c := &cluster{kit: k, dir: filepath.Join(k.dir, "s")}
	up := false
	k.check("up", "agent, hooks, plugin, MPS and Slurm come up together, and the agent publishes the GPU",
		"docs/admin.md: installation",
		func(r *check) error {
			if why != "" {
				r.skip("%s", why)
				return nil
			}
			begun := time.Now()
			err := c.up()
			up = err == nil
			if up {
				r.judge(true, "in %.1f s", time.Since(begun).Seconds())
			}
			return err
		})
	if up {
		c.share()
		c.confined()
	}
	if why == "" {
		k.check("logs", "", "", func(r *check) error {
			for _, pattern := range []string{"log/*", "log/*/*/*.log", "jobs/*", "*.out", "*.conf", "*.toml"} {
				files, _ := filepath.Glob(filepath.Join(c.dir, pattern))
				for _, f := range files {
					if st, err := os.Stat(f); err == nil && st.Mode().IsRegular() {
						r.text(filepath.Base(f), read(f))
					}
				}
			}
			r.Saw = fmt.Sprintf("%d files", len(r.Texts))
			return nil
		})
	}
}

// up writes the configuration and starts everything.
func (c *cluster) up() error {
	for _, d := range []string{"", "log", "state", "spool", "run", "hooks", "munge", "jobs"} {
		if err := os.MkdirAll(filepath.Join(c.dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(c.dir, "jobs"), 0o1777|fs.ModeSticky); err != nil {
		return err
	}
	if err := loopback(); err != nil {
		return err
	}
	scheduler := "sched_min_interval=100000,nohold_on_prolog_fail"
	if c.constrains() {
		scheduler += ",extra_constraints"
	}
	fill := strings.NewReplacer("{dir}", c.dir, "{scheduler}", scheduler,
		"{here}", "NodeHostname=localhost NodeAddr=127.0.0.1",
		"{lib}", filepath.Join(filepath.Dir(c.bin), "lib"), "{bin}", c.bin,
		"{mib}", fmt.Sprint(c.gpu.TotalMiB), "{mps}", c.mps.Program, "{dev}", filepath.Join(c.kit.dir,
			"dev"), "{confine}", c.confine())
	var gres strings.Builder
	for i := range 4 {
		// A major of the local/experimental range: no driver owns it.
		path := filepath.Join(c.kit.dir, "dev", fmt.Sprintf("slot%d", i))
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(120, uint32(i)))); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
	}
	fmt.Fprintf(&gres, "NodeName=kit Name=gpu File=%s/slot[0-3]\n", filepath.Join(c.kit.dir, "dev"))
	fmt.Fprintf(&gres, "NodeName=kit Name=carma Count=%d\n", c.gpu.TotalMiB)
	c.env = environ("SLURM_CONF="+filepath.Join(c.dir, "slurm.conf"), "CARMA_CONF="+filepath.Join(c.dir, "carma.toml"))
	if c.simulated {
		c.env = append(c.env, "SIMGPU_DEV="+filepath.Join(c.kit.dir, "dev"))
	}
	files := map[string]string{"slurm.conf": fill.Replace(slurmConf), "carma.toml": fill.Replace(carmaToml),
		"gres.conf": gres.String(), "cgroup.conf": cgroupConf,
		"munge/key": read("/proc/sys/kernel/random/uuid") + read("/proc/sys/kernel/random/uuid")}
	for _, h := range []string{"prolog", "epilog", "task-prolog"} {
		files["hooks/"+h] = c.hook(h)
	}
	for name, text := range files {
		mode := os.FileMode(0o644)
		if strings.HasPrefix(name, "hooks/") {
			mode = 0o755
		} else if name == "munge/key" {
			mode = 0o600
		}
		if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), mode); err != nil {
			return err
		}
	}
	conf := filepath.Join(c.dir, "slurm.conf")
	for _, d := range [][]string{
		// --force: munged otherwise refuses a directory whose parents others can write.
		{"munged", "--force", "--foreground", "--socket=" + c.dir + "/munge/s", "--key-file=" + c.dir + "/munge/key",
			"--pid-file=" + c.dir + "/munge/pid", "--log-file=" + c.dir + "/log/munged.log",
			"--seed-file=" + c.dir + "/munge/seed"},
		{"slurmctld", "-D", "-c", "-f", conf},
		{"slurmd", "-D", "-f", conf, "-N", "kit", "-d", filepath.Join(c.bin, "slurmstepd")},
		{"carma-node", "--config", filepath.Join(c.dir, "carma.toml"), "--node", "kit", "agent"},
	} {
		if err := c.start(d); err != nil {
			return err
		}
		if d[0] == "munged" {
			if _, err := c.eventually(10*time.Second, func() (string, bool) {
				_, err := os.Stat(filepath.Join(c.dir, "munge/s"))
				return fmt.Sprint(err), err == nil
			}); err != nil {
				return fmt.Errorf("munged does not listen: %w", err)
			}
		}
	}
	last, err := c.eventually(60*time.Second, func() (string, bool) {
		s := c.says("sinfo", "-N", "-h", "-p", "plain", "-o", "%T %G")
		return s, strings.HasPrefix(s, "idle") &&
			(!c.constrains() || strings.Contains(c.says("scontrol", "show", "node", "kit"), `"carma1":`))
	})
	if err != nil {
		return fmt.Errorf("the node did not come up, or the agent published nothing: sinfo says %q: %w", last, err)
	}
	return nil
}

// hook is a hook that slurm.conf names. slurmd gives hooks next to no
// environment.
func (c *cluster) hook(name string) string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	for _, v := range []string{"PATH", "LD_LIBRARY_PATH", "SIMGPU_STATE", marker} {
		if value := os.Getenv(v); value != "" {
			fmt.Fprintf(&b, "%s='%s'; export %s\n", v, value, v)
		}
	}
	if name == "task-prolog" && c.simulated {
		fmt.Fprintf(&b, "echo export SIMGPU_DEV=%s/dev\n", c.kit.dir)
	}
	fmt.Fprintf(&b, "exec %s/carma-node --config %s/carma.toml %s\n", c.bin, c.dir, name)
	return b.String()
}

// start starts a daemon in the foreground.
func (c *cluster) start(args []string) error {
	out, err := os.Create(filepath.Join(c.dir, args[0]+".out"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(filepath.Join(c.bin, args[0]), args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.Dir = c.env, out, out, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", args[0], err)
	}
	go cmd.Wait()
	return nil
}

// says is the output of a command of Slurm.
func (c *cluster) says(name string, args ...string) string {
	a := c.ask(0, 20*time.Second, "", c.env, append([]string{filepath.Join(c.bin, name)}, args...)...)
	return strings.TrimSpace(a.Stdout + a.Stderr)
}

// eventually asks until the answer is right.
func (c *cluster) eventually(limit time.Duration, f func() (string, bool)) (string, error) {
	for until := time.Now().Add(limit); ; c.pause(200 * time.Millisecond) {
		got, ok := f()
		if ok {
			return got, nil
		}
		if err := c.ctx.Err(); err != nil {
			return got, err
		}
		if time.Now().After(until) {
			return got, fmt.Errorf("not in %s", limit)
		}
	}
}

// submit submits a script as user A.
func (c *cluster) submit(name, directives, body string) (string, error) {
	path := filepath.Join(c.dir, "jobs", name+".sh")
	if err := os.WriteFile(path, []byte("#!/bin/bash\n"+directives+"\n"+body+"\n"), 0o755); err != nil {
		return "", err
	}
	id := c.says("sbatch", "--parsable", fmt.Sprintf("--uid=%d", uidA), fmt.Sprintf("--gid=%d", uidA),
		"--open-mode=append",
		"--chdir="+filepath.Join(c.dir, "jobs"), "-o", filepath.Join(c.dir, "jobs", name+".txt"), path)
	if strings.Trim(id, "0123456789") != "" || id == "" {
		return "", fmt.Errorf("sbatch %s: %s", name, id)
	}
	return id, nil
}

func (c *cluster) state(id, field string) string {
	for _, word := range strings.Fields(c.says("scontrol", "-o", "show", "job", id)) {
		if v, ok := strings.CutPrefix(word, field+"="); ok {
			return v
		}
	}
	return ""
}

func (c *cluster) ends(id string, limit time.Duration) (string, error) {
	return c.eventually(limit, func() (string, bool) {
		s := c.state(id, "JobState")
		return s, slices.Contains([]string{"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}, s)
	})
}

// confine is "acl", unless the driver sets the nodes' modes anew (docs/admin.md: confinement).
func (c *cluster) confine() string {
	if c.simulated || strings.Contains(read("/proc/driver/nvidia/params"), "ModifyDeviceFiles: 0") {
		return "acl"
	}
	return "none"
}

// loopback brings up lo of the part's own network. getaddrinfo with AI_ADDRCONFIG, by which
// Slurm's daemons listen, wants an address beside 127.0.0.1.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, up); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	second, err := unix.NewIfreq("lo:1")
	if err != nil {
		return err
	}
	if err := second.SetInet4Addr([]byte{127, 0, 0, 2}); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, second); err != nil {
		return fmt.Errorf("give lo a second address: %w", err)
	}
	return nil
}
