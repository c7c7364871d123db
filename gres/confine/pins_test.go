// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// groups makes cgroups in a slice of this test's, of cgroup v2.
func groups(t *testing.T, names ...string) (mount, slice string) {
	t.Helper()
	mount = "/sys/fs/cgroup"
	if !isCgroup2(mount) {
		mount += "/unified" // beside v1, where Slurm does not use it
	}
	slice = fmt.Sprintf("carma-test%d.slice", os.Getpid())
	t.Cleanup(func() {
		var dirs []string // the deepest first
		filepath.WalkDir(filepath.Join(mount, slice), func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				dirs = append([]string{path}, dirs...)
			}
			return nil
		})
		remove(t, dirs...)
	})
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(mount, slice, name), 0o755); err != nil {
			t.Skipf("no cgroup v2 that can be written: %v", err)
		}
	}
	return mount, slice
}

// machine has guards of several names, with cgroups and pins of this test's.
type machine struct {
	*testing.T
	mount, slice string
	pins, list   string
}

func newMachine(t *testing.T, scopes ...string) machine {
	t.Helper()
	_, list := nodes(t, 3)
	mount, slice := groups(t, scopes...)
	return machine{t, mount, slice, filepath.Dir(pins(t)), list}
}

func (m machine) host(node string) Host {
	dir := m.TempDir()
	conf := fmt.Sprintf("CgroupMountpoint=%s\nCgroupSlice=%s\n", m.mount, m.slice)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.conf"), []byte(conf), 0o644); err != nil {
		m.Fatal(err)
	}
	return Host{Node: node, SlurmConf: filepath.Join(dir, "slurm.conf"), RunDir: dir, Pins: filepath.Join(m.pins, node)}
}

func (m machine) guard(node string) Guard {
	m.Helper()
	g, err := findV2(m.mount, m.slice, m.host(node))
	if err != nil {
		m.Skip(err)
	}
	return g
}

func (m machine) open(g Guard, job uint32, minors ...int) {
	m.Helper()
	if err := g.Open(Job{ID: job}, minors); err != nil {
		m.Fatal(err)
	}
}

func (m machine) opens(scope string, job uint32) string {
	m.Helper()
	return opened(m.T, m.list, jobDir(filepath.Join(m.mount, m.slice, scope), job), 0)
}

func (m machine) want(scope string, job uint32, want string) {
	m.Helper()
	if got := m.opens(scope, job); got != want {
		m.Errorf("a task of job %d opens %s, want %s", job, got, want)
	}
}

// settle waits for the kernel's delayed work: to detach a program, to let go of a cgroup.
func settle(done func() bool) {
	for range 600 {
		if done() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (m machine) pinned(want string) {
	m.Helper()
	entries, err := os.ReadDir(m.pins)
	if got := fmt.Sprint(entries); err != nil || got != want {
		m.Errorf("pinned: %s, %v; want %s", got, err, want)
	}
}

// A node has another name since a change of slurm.conf, or its agent has another name than the hooks.
func TestV2OtherName(t *testing.T) {
	const scope, other = "slurmstepd.scope", "n3_slurmstepd.scope"
	m := newMachine(t, scope, other)
	before, after, beside := m.guard("n1"), m.guard("n2"), m.guard("n3")
	m.open(before, 7, 0)
	m.open(beside, 7, 1)
	m.open(after, 8, 1)
	m.open(before, 9, 2)
	m.want(scope, 7, "ENXIO EPERM EPERM")
	m.want(scope, 8, "EPERM ENXIO EPERM")
	m.want(scope, 9, "EPERM EPERM ENXIO")
	m.want(other, 7, "EPERM ENXIO EPERM")
	m.pinned("[d n1/ d n3/]")
	step := filepath.Join(jobDir(filepath.Join(m.mount, m.slice, scope), 7), "step_0")
	if err := errors.Join(os.Mkdir(step, 0o755), after.Close(Job{ID: 7})); err != nil {
		t.Fatal(err)
	}
	m.want(scope, 7, "EPERM EPERM EPERM")
	m.want(other, 7, "EPERM ENXIO EPERM")
	// A program whose map is lost does not stay beside another.
	remove(t, filepath.Join(m.pins, "n1", mapPin))
	m.open(after, 10, 0)
	settle(func() bool { return m.opens(scope, 10) == "ENXIO EPERM EPERM" })
	m.want(scope, 10, "ENXIO EPERM EPERM")
	m.pinned("[d n1/ d n3/]")
}

// Guards of two names find a scope without a program at once.
func TestV2NamesAtOnce(t *testing.T) {
	const scope = "slurmstepd.scope"
	for i := range 15 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			m := newMachine(t, scope)
			opened := make(chan error)
			names := []string{"n1", "n2", "n1", "n2"}
			for job, name := range names {
				g := m.guard(name)
				go func() { opened <- g.Open(Job{ID: uint32(job)}, []int{job % 2}) }()
			}
			for range names {
				if err := <-opened; err != nil {
					t.Error(err)
				}
			}
			m.want(scope, 0, "ENXIO EPERM EPERM")
			m.want(scope, 1, "EPERM ENXIO EPERM")
		})
	}
}

// Without confinement, no name's program keeps the node's jobs from GPUs; another slurmd's program stays.
func TestV2UndoOtherName(t *testing.T) {
	const scope, other, gone = "slurmstepd.scope", "n3_slurmstepd.scope", "n4_slurmstepd.scope"
	m := newMachine(t, scope, other, gone)
	m.open(m.guard("n1"), 7, 0)
	m.open(m.guard("n3"), 7, 1)
	last := m.guard("n4")
	m.open(last, 7, 2)
	if err := last.Forget(Job{ID: 7}); err != nil {
		t.Error(err)
	}
	remove(t, filepath.Join(m.mount, m.slice, gone))
	settle(func() bool {
		cgroup, err := cgroupOf(filepath.Join(m.pins, "n4", linkPin))
		return err != nil || cgroup == 0
	})
	m.pinned("[d n1/ d n3/ d n4/]")
	for range 2 {
		if err := Undo("none", nil, m.host("n2")); err != nil {
			t.Error(err)
		}
		m.pinned("[d n3/]")
	}
	settle(func() bool { return m.opens(scope, 7) == "ENXIO ENXIO ENXIO" })
	m.want(scope, 7, "ENXIO ENXIO ENXIO")
	m.want(other, 7, "EPERM ENXIO EPERM")
}

// Where a user could make the directory of pins, no program of CARMA's is, and the user's lock keeps no job waiting.
func TestUndoBesideUsersLock(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	unlock, err := flock(os.Open(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := (Host{Pins: filepath.Join(dir, "n1")}).undoPins(); err != nil {
		t.Error(err)
	}
}
