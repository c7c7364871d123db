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
	"time"

	"carma/db/file"
)

// Group is a job's cgroup v2.
type Group struct {
	Dir   string
	Inode uint64 // tells the cgroup from another of the same name
}

// Groups are a job's cgroups v2 on the node now: none where Slurm puts jobs into cgroups of v1,
// or into none. Where the kernel has the controller dmem (6.14 and later) the cgroups have its
// files: the driver sets no limit of GPU memory on a cgroup without.
func (h Host) Groups(job uint32) ([]Group, error) {
	conf, mount, err := h.place()
	if err != nil || !isCgroup2(mount) {
		return nil, err
	}
	return h.groups(mount, conf.Setting("CgroupSlice"), job)
}

func (h Host) groups(mount, slice string, job uint32) ([]Group, error) {
	scope := scopeOf(mount, slice, h.Node)
	if scope == "" {
		return nil, nil
	}
	g := &v2{Host: h, scope: scope}
	var groups []Group
	for _, dir := range g.dirs(Job{ID: job}) {
		inode, err := idOf(dir)
		if os.IsNotExist(err) {
			continue
		}
		if err == nil {
			err = enableDmem(mount, dir)
		}
		if err != nil {
			return nil, fmt.Errorf("find the cgroups of job %d: %w", job, err)
		}
		groups = append(groups, Group{dir, inode})
	}
	return groups, nil
}

// Scope is the cgroup v2 above the cgroups of all jobs, with dmem's files where the kernel has
// dmem; empty: there is no scope, or slurmd has not made the scope yet.
func (h Host) Scope() (string, error) {
	conf, mount, err := h.place()
	if err != nil || !isCgroup2(mount) {
		return "", err
	}
	scope := scopeOf(mount, conf.Setting("CgroupSlice"), h.Node)
	if scope == "" {
		return "", nil
	}
	return scope, enableDmem(mount, scope)
}

// limitedPath holds since when, by lease.Now, the driver holds new jobs to their memory, or a
// line with the reason why not.
func limitedPath(runDir string) string { return filepath.Join(runDir, "memory-limits") }

// SetLimited notes that the driver holds jobs that start from now on to the memory that they
// booked. A note already there stays.
func SetLimited(runDir string, now time.Duration) error {
	if since, limited := LimitedSince(runDir); limited && since <= now { // else the note is of before a reboot
		return nil
	}
	return file.Replace(limitedPath(runDir), []byte(strconv.FormatInt(int64(now), 10)+"\n"), 0o644)
}

// SetUnlimited notes why the driver limits no jobs.
func SetUnlimited(runDir string, why error) error {
	return file.Replace(limitedPath(runDir), []byte(strings.ReplaceAll(why.Error(), "\n", "; ")+"\n"), 0o644)
}

// LimitedSince tells since when, by lease.Now; false: the driver limits no jobs.
func LimitedSince(runDir string) (since time.Duration, limited bool) {
	text, err := os.ReadFile(limitedPath(runDir))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return time.Duration(n), err == nil
}

// UnlimitedBy is why the driver limits no jobs; nil: it does.
func UnlimitedBy(runDir string) error {
	if _, limited := LimitedSince(runDir); limited {
		return nil
	}
	text, err := os.ReadFile(limitedPath(runDir))
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("the agent has not found out yet")
	} else if err != nil {
		return err
	}
	return errors.New(strings.TrimSpace(string(text)))
}

// Dmem tells whether the kernel under Slurm's cgroups has the controller of device memory.
func (h Host) Dmem() bool {
	_, mount, err := h.place()
	return err == nil && isCgroup2(mount) && hasDmem(mount)
}

func hasDmem(mount string) bool {
	text, _ := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	return slices.Contains(strings.Fields(string(text)), "dmem")
}

// enableDmem hands dmem down to a cgroup, which lies some levels below mount: each cgroup
// above has to enable dmem for the cgroups below.
func enableDmem(mount, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "dmem.max")); err == nil || !hasDmem(mount) {
		return nil
	}
	below, err := filepath.Rel(mount, filepath.Dir(dir))
	if err != nil {
		return err
	}
	at := mount
	for _, name := range append([]string{"."}, strings.Split(below, "/")...) {
		at = filepath.Join(at, name)
		if err := os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte("+dmem"), 0o644); err != nil {
			return fmt.Errorf("enable the controller dmem: %w", err)
		}
	}
	return nil
}
