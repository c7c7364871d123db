// SPDX-License-Identifier: Apache-2.0

// Package confine keeps the tasks of jobs from the device nodes of other jobs' GPUs: by
// cgroups, or by access lists where Slurm puts no tasks into cgroups for devices
// (docs/adr/0015).
package confine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"carma/db/file"
	"carma/slurmbridge/config"
	"carma/slurmbridge/slurmconf"
)

// NVIDIAMajor is the character major of NVIDIA's devices. GPUs have the minors below
// most, which is also the most GPUs in carma.toml; nvidiactl is 255, nvidia-modeset 254;
// nvidia-uvm and nvidia-caps have majors of their own. These devices stay open.
const (
	NVIDIAMajor = 195
	most        = 64
)

// Job is a job as its cgroups are named.
type Job struct {
	ID    uint32
	UID   uint32
	SLUID string // names the cgroup on 26.05; empty: the job has none
}

// Guard is a way to confine jobs.
type Guard interface {
	// Open lets the tasks of a job open the GPUs of these minors and no other. The
	// job need not have started.
	// Opened GPUs are denied to unconfined jobs.
	Open(job Job, minors []int) error
	// Ready says that the job's Prolog comes to its end.
	Ready(job Job) error
	// Close closes all GPUs here to a job. slurmd may start a job again without a Prolog,
	// if its Prolog has not come to its end: such a job opens no GPU until Forget.
	Close(job Job) error
	// Forget removes the rest of a job that does not start again. An unknown job is no
	// error.
	Forget(job Job) error
	// Jobs are the jobs that Open or Close was called for and that are not forgotten.
	Jobs() ([]Job, error)
	// Unconfined are jobs that Open was not called for and that may open GPUs.
	Unconfined() ([]Job, error)
	// Exact tells whether each job opens its own GPUs only, and not the GPUs of its
	// user's other jobs too.
	Exact() bool
	// String names the way to confine jobs, for logs and the doctor.
	String() string
}

// Host is where a guard looks and works.
type Host struct {
	Node      string
	SlurmConf string // path of slurm.conf; cgroup.conf stands beside slurm.conf
	Devices   string // directory of the device nodes
	RunDir    string
	Pins      string // directory of the node's in the BPF file system, beside other nodes'
	// Users tells who holds a lease on the GPU of each minor now.
	Users func() (map[int][]uint32, error)
}

// errNot begins the reason why a way is not available.
var errNot = errors.New("not here")

// Find returns the guard that devices.confine of carma.toml asks for. Without a guard and
// with an error known to Unavailable, jobs are not confined where devices.confine is
// "auto", and wait otherwise.
func Find(confine string, h Host) (Guard, error) {
	if confine == "none" {
		return nil, nil
	}
	var why error
	if confine != "acl" {
		g, err := findCgroup(h)
		if err == nil {
			return g, nil
		}
		if why = err; !errors.Is(err, errNot) {
			return nil, err
		}
	}
	if confine != "cgroup" {
		g, err := findACL(h, confine == "acl")
		if err == nil {
			return g, nil
		}
		why = errors.Join(why, err)
	}
	return nil, why
}

// Undo removes what guards other than the node's present one, if it has one, have left: it would
// keep jobs from their GPUs, and Slurm from removing their cgroups. Cgroup v2 leaves something
// only after a change of carma.toml: otherwise all goes with slurmstepd.scope.
func Undo(confine string, now Guard, h Host) error {
	var errs []error
	if confine == "none" || confine == "acl" {
		errs = append(errs, h.undoPins(), h.undoGroups())
	}
	if _, ok := now.(acl); !ok {
		errs = append(errs, acl{h}.undo())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take away what confined jobs: %w", err)
	}
	return nil
}

// HasGPUs tells whether the machine has device nodes of GPUs, or a driver to make them:
// slurm.conf names hooks for nodes without GPUs too.
func (h Host) HasGPUs() bool {
	if paths, _ := filepath.Glob(filepath.Join(h.Devices, "nvidia*")); len(paths) > 0 {
		return true
	}
	_, err := os.Stat("/proc/driver/nvidia")
	return err == nil
}

// Unavailable tells whether an error of Find's means that the node does not have this way to
// confine jobs.
func Unavailable(err error) bool { return errors.Is(err, errNot) }

// place is where cgroup.conf has the cgroups.
func (h Host) place() (conf slurmconf.File, mount string, err error) {
	conf, err = slurmconf.Settings(filepath.Join(filepath.Dir(h.SlurmConf), "cgroup.conf"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return conf, "", fmt.Errorf("read cgroup.conf: %w", err)
	}
	return conf, cmp.Or(conf.Setting("CgroupMountpoint"), "/sys/fs/cgroup"), nil
}

func findCgroup(h Host) (Guard, error) {
	conf, mount, err := h.place()
	if err != nil {
		return nil, err
	}
	if isCgroup2(mount) {
		return findV2(mount, conf.Setting("CgroupSlice"), h)
	}
	if !strings.EqualFold(conf.Setting("ConstrainDevices"), "yes") {
		return nil, fmt.Errorf("cgroup v1: %w: cgroup.conf lacks ConstrainDevices=yes", errNot)
	}
	slurm, err := slurmconf.Settings(h.SlurmConf)
	if err != nil {
		return nil, fmt.Errorf("read slurm.conf: %w", err)
	}
	if !strings.Contains(slurm.Setting("TaskPlugin"), "cgroup") {
		return nil, fmt.Errorf("cgroup v1: %w: TaskPlugin of slurm.conf lacks task/cgroup", errNot)
	}
	inJob := strings.Contains(strings.ToLower(slurm.Setting("PrologFlags")), "runinjob")
	return findV1(mount, h.Node, inJob)
}

// undoGroups removes CARMA's cgroups below the jobs' cgroups, if the agent has found a guard
// since the machine has booted. GPUs denied to a job of cgroup v1 stay denied until the job
// ends.
func (h Host) undoGroups() error {
	if _, err := os.Lstat(earlyPath(h.RunDir)); err != nil {
		return nil
	}
	conf, mount, err := h.place()
	switch {
	case err != nil:
	case isCgroup2(mount):
		err = undoV2(mount, conf.Setting("CgroupSlice"), h.Node)
	default:
		err = newV1(mount, h.Node).undo()
	}
	// In a container that may write no cgroup, the cgroups there are not the
	// container's own.
	if err != nil && !errors.Is(err, unix.EROFS) {
		return err
	}
	return os.Remove(earlyPath(h.RunDir))
}

func isCgroup2(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// bpfDir is where the programs of the machine's nodes are pinned. Removing the directory
// takes them away.
const bpfDir = "/sys/fs/bpf/carma"

// ForNode is the host of a guard as carma.toml describes the node.
func ForNode(c config.Config, node, slurmConf string) Host {
	if slurmConf == "" {
		slurmConf = c.Slurm.Conf
	}
	if slurmConf == "" {
		slurmConf = "/etc/slurm/slurm.conf"
	}
	return Host{Node: node, SlurmConf: slurmConf, Devices: c.DevicesDir(node), RunDir: c.RunDir(node),
		Pins: filepath.Join(bpfDir, node)}
}

// lockWait is how long a hook waits for others, which need milliseconds: a stopped process must not stop all hooks.
const lockWait = 5 * time.Second

// lock holds the lock of the node's guard until unlock is called. No user can open the file.
func (h Host) lock() (unlock func(), err error) {
	return flock(os.OpenFile(filepath.Join(h.RunDir, "confine.lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600))
}

func flock(f *os.File, err error) (unlock func(), _ error) {
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	if err := file.LockOpen(ctx, f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock confinement: %w", err)
	}
	return func() { f.Close() }, nil
}
