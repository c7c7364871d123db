// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// v2 has a BPF program at the cgroup of all slurmstepds, slurmstepd.scope, which asks a map for
// the GPUs open to the job above a process. A job not in the map opens no GPU, so that nothing
// has to be done in time. The program is not at the job's own cgroup, for there it would keep
// Slurm's program away, which cannot stand beside others (plugins/cgroup/v2/ebpf.c).
type v2 struct {
	Host
	scope string
	level int32 // of the jobs' cgroups
}

// initNamespace is the first cgroup namespace (include/linux/proc_ns.h): elsewhere nobody
// tells how deep a cgroup lies.
const initNamespace = "cgroup:[4026531835]"

func findV2(mount, slice string, h Host) (Guard, error) {
	if ns, err := os.Readlink("/proc/self/ns/cgroup"); err != nil || ns != initNamespace {
		return nil, fmt.Errorf("cgroup v2: %w: this process is in a cgroup namespace", errNot)
	}
	scope := scopeOf(mount, slice, h.Node)
	if scope == "" {
		return nil, fmt.Errorf("cgroup v2: %w: no slurmstepd.scope in %s: ProctrackType of slurm.conf is not "+
			"proctrack/cgroup", errNot, filepath.Join(mount, cmp.Or(slice, usualSlice)))
	}
	below, err := filepath.Rel(mount, scope)
	if err != nil {
		return nil, err
	}
	g := &v2{Host: h, scope: scope, level: int32(strings.Count(below, "/") + 2)}
	if err := g.probe(); err != nil {
		return nil, fmt.Errorf("cgroup v2: %w", err)
	}
	return g, nil
}

const usualSlice = "system.slice"

// scopeNames are the names that the cgroup of all slurmstepds may have. With --enable-multiple-slurmd, as
// Debian's, the name has the node's.
func scopeNames(node string) []string {
	return []string{node + "_slurmstepd.scope", "slurmstepd.scope"}
}

// scopeOf is the cgroup of all slurmstepds; empty: there is none.
func scopeOf(mount, slice, node string) string {
	for _, name := range scopeNames(node) {
		scope := filepath.Join(mount, cmp.Or(slice, usualSlice), name)
		if _, err := os.Stat(scope); err == nil {
			return scope
		}
	}
	return ""
}

func undoV2(mount, slice, node string) error {
	scope := scopeOf(mount, slice, node)
	if scope == "" {
		return nil
	}
	keepers, err := filepath.Glob(filepath.Join(scope, "*", keeper))
	for _, dir := range keepers {
		err = errors.Join(err, removeKeeper(dir))
		os.Remove(filepath.Dir(dir)) // with a step in it, Slurm will
	}
	return err
}

// probe tells whether the machine can run the program; errNot: no.
func (g *v2) probe() error {
	top := filepath.Dir(filepath.Dir(g.Pins))
	for _, dir := range []string{top, filepath.Dir(g.Pins), g.Pins} {
		if err := rootsAlone(dir); err != nil {
			return fmt.Errorf("%w: %w", errNot, err)
		}
	}
	if g.links() != nil {
		return nil // the machine could
	}
	var st unix.Statfs_t
	if err := unix.Statfs(top, &st); err != nil {
		return fmt.Errorf("%w: look for the BPF file system on %s: %w", errNot, top, err)
	} else if st.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%w: no BPF file system on %s: mount -t bpf -o mode=700 bpf %[2]s", errNot, top)
	}
	err := probe(g.level)
	if err != nil && !errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: %w", errNot, err)
	}
	return err
}

// rootsAlone is an error where others than root could take a directory's entries away, as the
// kernel's default for a BPF file system lets them (mode 1777; systemd mounts it with 700).
func rootsAlone(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || owner.Uid != 0 || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s can be changed by others than root: chown root %[1]s; chmod 700 %[1]s", dir)
	}
	return nil
}

func (g *v2) String() string { return "cgroup v2" }
func (g *v2) Exact() bool    { return true }

// dirs are the cgroups that the job may have: the first, or from 26.05 on the second,
// whose name is noted below the keeper of the first for callers that know only the job's
// number.
func (g *v2) dirs(job Job) []string {
	dirs := []string{jobDir(g.scope, job.ID)}
	if isSLUID(job.SLUID) {
		return append(dirs, filepath.Join(g.scope, job.SLUID))
	}
	noted, _ := os.ReadDir(filepath.Join(dirs[0], keeper))
	for _, e := range noted {
		if e.IsDir() && isSLUID(e.Name()) {
			dirs = append(dirs, filepath.Join(g.scope, e.Name()))
		}
	}
	return dirs
}

// isSLUID tells whether sluid is a SLUID: a letter and digits of base 32 (common/sluid.c).
func isSLUID(sluid string) bool {
	return sluid != "" && len(sluid) <= 20 && !strings.ContainsFunc(sluid, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}

func (g *v2) Open(job Job, minors []int) error {
	var mask uint64
	for _, minor := range minors {
		if minor < 0 || minor >= most {
			return fmt.Errorf("confine job %d: no GPU has the minor %d", job.ID, minor)
		}
		mask |= 1 << minor
	}
	m, done, err := g.guard()
	if err != nil {
		return fmt.Errorf("confine job %d by %s: %w", job.ID, g.scope, err)
	}
	defer done()
	if mask != 0 {
		if err := g.denyUnconfined(m, mask); err != nil {
			return fmt.Errorf("deny the GPUs of job %d to jobs that are not confined: %w", job.ID, err)
		}
	}
	if isSLUID(job.SLUID) {
		if err := makeGroups(filepath.Join(jobDir(g.scope, job.ID), keeper, job.SLUID), 3); err != nil {
			return fmt.Errorf("confine job %d by %s: %w", job.ID, g.scope, err)
		}
	}
	for _, dir := range g.dirs(job) {
		err := makeGroups(filepath.Join(dir, keeper), 2)
		var id uint64
		if err == nil {
			id, err = idOf(dir)
		}
		if err == nil {
			err = m.set(id, mask)
		}
		if err != nil {
			return fmt.Errorf("confine job %d by %s: %w", job.ID, dir, err)
		}
	}
	return nil
}

// guard returns the map, and attaches the program if need be: slurmd makes the scope anew
// when the scope has gone.
func (g *v2) guard() (bpfMap, func(), error) {
	unlock, err := g.lock()
	if err != nil {
		return bpfMap{}, nil, err
	}
	defer unlock()
	dir, err := os.Open(g.scope)
	if err != nil {
		return bpfMap{}, nil, err
	}
	defer dir.Close()
	id, err := idOf(g.scope)
	if err != nil {
		return bpfMap{}, nil, err
	}
	m, pins, err := g.attached(id)
	if errors.Is(err, fs.ErrNotExist) {
		// Jobs already started stay as they are.
		var jobs []uint64
		entries, errDir := os.ReadDir(g.scope)
		if errDir != nil {
			return bpfMap{}, nil, errDir
		}
		for _, e := range entries {
			if id, err := idOf(filepath.Join(g.scope, e.Name())); e.IsDir() && err == nil {
				jobs = append(jobs, id)
			}
		}
		m, err = attach(int(dir.Fd()), g.level, jobs, pins)
	}
	if err != nil {
		return bpfMap{}, nil, err
	}
	return m, func() { unix.Close(m.fd) }, nil
}

// idOf is a cgroup's number: the number of its inode.
func idOf(dir string) (uint64, error) {
	st, err := os.Stat(dir)
	if err != nil {
		return 0, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("%s: no inode", dir)
	}
	return sys.Ino, nil
}

// unconfined calls do for each job's cgroup that Open was not called for, and that the map
// lets open GPUs: the cgroup was there before the program.
func (g *v2) unconfined(m bpfMap, do func(dir string, id, mask uint64) error) error {
	entries, err := os.ReadDir(g.scope)
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir := filepath.Join(g.scope, e.Name())
		if _, err := os.Stat(filepath.Join(dir, keeper)); !e.IsDir() || !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		id, err := idOf(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var mask uint64
		if err == nil {
			mask, err = m.get(id)
		}
		if err == nil && mask != 0 {
			err = do(dir, id, mask)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (g *v2) denyUnconfined(m bpfMap, mask uint64) error {
	unlock, err := g.lock() // two at once would undo each other's
	if err != nil {
		return err
	}
	defer unlock()
	return g.unconfined(m, func(_ string, id, has uint64) error { return m.set(id, has&^mask) })
}

func (g *v2) Unconfined() ([]Job, error) {
	m, done, err := g.guard()
	if err != nil {
		return nil, fmt.Errorf("find jobs that are not confined below %s: %w", g.scope, err)
	}
	defer done()
	var jobs []Job
	err = g.unconfined(m, func(dir string, _, _ uint64) error {
		if id, ok := numbered(filepath.Base(dir), "job_"); ok {
			jobs = append(jobs, Job{ID: id})
		}
		return nil
	})
	return jobs, err
}

// Ready has nothing to do: a job not in the map opens no GPU.
func (g *v2) Ready(Job) error { return nil }

func (g *v2) Forget(job Job) error { return g.Close(job) }

func (g *v2) Close(job Job) error {
	scope, err := idOf(g.scope)
	var m bpfMap
	if err == nil {
		m, _, err = g.attached(scope)
	}
	stands := err == nil
	if stands {
		defer unix.Close(m.fd)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget job %d: %w", job.ID, err)
	}
	for _, dir := range slices.Backward(g.dirs(job)) { // the note last
		id, err := idOf(dir)
		if err == nil && stands {
			err = m.unset(id)
		}
		if err == nil {
			err = removeKeeper(filepath.Join(dir, keeper))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget job %d: %w", job.ID, err)
		}
		os.Remove(dir) // with a step in it, Slurm will
	}
	return nil
}

func removeKeeper(dir string) error {
	noted, _ := os.ReadDir(dir)
	for _, e := range noted {
		if e.IsDir() {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

func (g *v2) Jobs() ([]Job, error) {
	dirs, err := filepath.Glob(filepath.Join(g.scope, "job_*", keeper))
	if err != nil {
		return nil, err
	}
	var jobs []Job
	for _, dir := range dirs {
		if id, ok := numbered(filepath.Base(filepath.Dir(dir)), "job_"); ok {
			jobs = append(jobs, Job{ID: id})
		}
	}
	return jobs, nil
}
