// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// A scope has a single program, whatever node's name the program is pinned by: a node may have had another name since
// the machine booted, or the agent has another name than the hooks. Of two programs, each would refuse all GPUs to the
// jobs in the other program's map.

// links are the pinned links of all names.
func (h Host) links() []string {
	links, _ := filepath.Glob(filepath.Join(filepath.Dir(h.Pins), "*", linkPin)) // an error means a malformed pattern
	return links
}

// pinsAt are the directories whose link is at a cgroup of the given numbers; 0: at a cgroup that has gone.
func (h Host) pinsAt(cgroups ...uint64) (dirs []string, err error) {
	for _, link := range h.links() {
		cgroup, err := cgroupOf(link)
		if errors.Is(err, fs.ErrNotExist) { // removed since
			continue
		} else if err != nil {
			return nil, err
		}
		if slices.Contains(cgroups, cgroup) {
			dirs = append(dirs, filepath.Dir(link))
		}
	}
	return dirs, nil
}

// attached returns the map of the program at a cgroup and the directory of its pins; fs.ErrNotExist: the map is not
// there, and a program is to be pinned in this directory.
func (h Host) attached(cgroup uint64) (m bpfMap, pins string, err error) {
	dirs, err := h.pinsAt(cgroup)
	if err != nil {
		return bpfMap{}, "", err
	} else if dirs == nil {
		return bpfMap{}, h.Pins, fs.ErrNotExist
	}
	fd, err := pinned(filepath.Join(dirs[0], mapPin))
	return bpfMap{fd}, dirs[0], err
}

// lock holds the lock of all names' guards until unlock is called, for two names may share a scope. No user can open
// the directory.
func (g *v2) lock() (unlock func(), err error) {
	dir := filepath.Dir(g.Pins)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return flock(os.Open(dir))
}

// undoPins removes the program of the node's name, the program at the node's scope, and programs whose scope has gone.
func (h Host) undoPins() error {
	dir := filepath.Dir(h.Pins)
	if rootsAlone(dir) != nil {
		return nil // no guard pins a program there, and the directory's owner could hold the lock
	}
	unlock, err := flock(os.Open(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer unlock()
	cgroups := []uint64{0}
	conf, mount, err := h.place()
	if err == nil {
		if id, err := idOf(scopeOf(mount, conf.Setting("CgroupSlice"), h.Node)); err == nil {
			cgroups = append(cgroups, id)
		}
	}
	dirs, errPins := h.pinsAt(cgroups...)
	errs := []error{err, errPins}
	for _, dir := range append(dirs, h.Pins) {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}
