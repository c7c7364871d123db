// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// keeper is a cgroup below the job's that keeps it. Slurm removes the job's cgroup with
// its last step, and a job of salloc may have none for a while: what comes then would be
// made anew, and open.
const keeper = "carma"

// v1 writes into devices.deny of the job's cgroup, which it makes before slurmstepd does;
// slurmstepd takes what is there (cgroup/common, common_cgroup_instantiate), and no cgroup
// below can be given back what one above is denied.
type v1 struct {
	root  string   // of the devices hierarchy
	homes []string // cgroups that hold uid_U/job_J
}

func findV1(mount, node string) (Guard, error) {
	g := &v1{root: filepath.Join(mount, "devices")}
	if _, err := os.Stat(filepath.Join(g.root, "cgroup.procs")); err != nil {
		return nil, fmt.Errorf("cgroup v1: %w: %w", errNot, err)
	}
	// With --enable-multiple-slurmd, as Debian's, the name has the node's
	// (interfaces/cgroup.c, cgroup_prepend). What lies there already may be of an
	// earlier Slurm: so both.
	for _, name := range []string{"slurm_" + node, "slurm"} {
		g.homes = append(g.homes, filepath.Join(g.root, name))
	}
	return g, nil
}

func (g *v1) String() string { return "cgroup v1" }
func (g *v1) Exact() bool    { return true }

func userDir(home string, uid uint32) string {
	return filepath.Join(home, "uid_"+strconv.FormatUint(uint64(uid), 10))
}

func jobDir(above string, job uint32) string {
	return filepath.Join(above, "job_"+strconv.FormatUint(uint64(job), 10))
}

func (g *v1) Open(job Job, minors []int) error {
	for _, home := range g.homes {
		dir := jobDir(userDir(home, job.UID), job.ID)
		if err := g.open(dir, minors); err != nil {
			return fmt.Errorf("confine job %d by %s: %w", job.ID, dir, err)
		}
	}
	return nil
}

func (g *v1) open(dir string, minors []int) error {
	// Slurm may remove a user's cgroup between the two.
	var err error
	for range 10 {
		if err = makeGroups(filepath.Join(dir, keeper), 4); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return err
	}
	deny := make([]string, 0, most)
	allow := make([]string, 0, len(minors))
	for minor := range most {
		if slices.Contains(minors, minor) {
			allow = append(allow, device(minor))
		} else {
			deny = append(deny, device(minor))
		}
	}
	// What is denied is denied below too. What is allowed is not: tasks that wait, or
	// the job's earlier attempt, have cgroups there.
	if err := write(filepath.Join(dir, "devices.deny"), deny); err != nil {
		return err
	}
	if len(allow) == 0 {
		return nil
	}
	return allowBelow(dir, allow)
}

func device(minor int) string { return fmt.Sprintf("c %d:%d rwm", nvidiaMajor, minor) }

// allowBelow goes from above to below: a cgroup that is made meanwhile has what the one
// above it has.
func allowBelow(dir string, allow []string) error {
	err := write(filepath.Join(dir, "devices.allow"), allow)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return nil // a step that has ended
	} else if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := allowBelow(filepath.Join(dir, e.Name()), allow); err != nil {
				return err
			}
		}
	}
	return nil
}

// write writes lines, each by a call of its own, as the kernel wants it.
func write(path string, lines []string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, line := range lines {
		if _, err := f.WriteString(line); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
	}
	return nil
}

func (g *v1) Close(job Job) error {
	for _, home := range g.homes {
		dir := jobDir(userDir(home, job.UID), job.ID)
		if err := os.Remove(filepath.Join(dir, keeper)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget job %d: %w", job.ID, err)
		}
		g.remove(dir, filepath.Dir(dir), home)
	}
	return nil
}

// remove removes what is empty of a job's cgroup and those above, as Slurm does and under
// its lock, which it takes when it makes cgroups (cgroup/v1, cgroup_p_step_create). Anybody
// can hold that lock: then those above stay.
func (g *v1) remove(dirs ...string) {
	f, err := os.Open(g.root)
	if err != nil {
		return
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		dirs = dirs[:1] // another job may be about to start in the others
	}
	for _, dir := range dirs {
		if os.Remove(dir) != nil {
			return
		}
	}
}

func (g *v1) Jobs() ([]Job, error) {
	var jobs []Job
	for _, home := range g.homes {
		dirs, err := filepath.Glob(filepath.Join(home, "uid_*", "job_*", keeper))
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			dir = filepath.Dir(dir)
			id, ok := numbered(filepath.Base(dir), "job_")
			uid, ok2 := numbered(filepath.Base(filepath.Dir(dir)), "uid_")
			if ok && ok2 {
				jobs = append(jobs, Job{ID: id, UID: uid})
			}
		}
	}
	return jobs, nil
}

func numbered(name, prefix string) (uint32, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), ok && err == nil
}
