// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"carma/db/accesslist"
	"carma/gres"
)

// acl lets the users who hold a lease on a GPU open its device node, in each of their
// processes, and nobody else. There is no better way without a cgroup: a user's jobs
// without GPUs can open a GPU as long as another job of the user may.
type acl struct{ Host }

func findACL(h Host, asked bool) (Guard, error) {
	nodes := h.nodes()
	if len(nodes) == 0 {
		if asked { // the driver makes device nodes with the first program
			return acl{h}, nil
		}
		return nil, fmt.Errorf("access lists: %w: no device node %s/nvidia0", errNot, h.Devices)
	}
	if resets("/proc/driver/nvidia/params") && h.Devices == "/dev" {
		return nil, fmt.Errorf("access lists: %w: nvidia-modprobe restores access to the device nodes for every user's "+
			"program;"+
			" set NVreg_ModifyDeviceFiles=0 for the nvidia module", errNot)
	}
	for _, path := range nodes {
		if _, err := unix.Getxattr(path, accesslist.Attribute, nil); err != nil && !errors.Is(err, unix.ENODATA) {
			return nil, fmt.Errorf("access lists: %w: %s: %w", errNot, path, err)
		}
	}
	return acl{h}, nil
}

// resets tells whether the driver lets nvidia-modprobe, which is set-uid root and which each
// CUDA program may start, set the mode of device nodes (NVIDIA driver's README, "How and why
// NVIDIA device files are created").
func resets(params string) bool {
	text, err := os.ReadFile(params)
	return err == nil && strings.Contains(string(text), "ModifyDeviceFiles: 1")
}

// nodes are the device nodes of GPUs by minor.
func (h Host) nodes() map[int]string {
	nodes := map[int]string{}
	paths, _ := filepath.Glob(filepath.Join(h.Devices, "nvidia[0-9]*"))
	for _, path := range paths {
		minor, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), "nvidia"))
		st, errStat := os.Lstat(path)
		if err == nil && errStat == nil && minor < most && st.Mode()&fs.ModeCharDevice != 0 {
			nodes[minor] = path
		}
	}
	return nodes
}

func (g acl) String() string       { return "access lists" }
func (g acl) Exact() bool          { return false }
func (g acl) Jobs() ([]Job, error) { return nil, nil }

func (g acl) Unconfined() ([]Job, error) { return nil, nil }

func (g acl) Open(Job, []int) error { return g.follow() }
func (g acl) Ready(Job) error       { return nil }
func (g acl) Close(Job) error       { return g.follow() }
func (g acl) Forget(Job) error      { return nil }

// follow brings the access lists in line with the ledger.
func (g acl) follow() error {
	unlock, err := g.lock()
	if err != nil {
		return fmt.Errorf("set access lists: %w", err)
	}
	defer unlock()
	users, err := g.Users()
	if err == nil {
		err = os.WriteFile(g.mark(), nil, 0o600)
	}
	if err != nil {
		return fmt.Errorf("set access lists: %w", err)
	}
	for minor, path := range g.nodes() {
		// The file's mode stays as before for programs that look: 0660.
		const readWrite = accesslist.Read | accesslist.Write
		if err := accesslist.Set(path, readWrite, readWrite, users[minor]...); err != nil {
			return fmt.Errorf("set access list of %s: %w", path, err)
		}
	}
	return nil
}

// mark is a file that tells of access lists set since the machine has booted.
func (g acl) mark() string { return filepath.Join(g.RunDir, "access-lists") }

// undo gives the device nodes back as the driver makes them, if lists were set.
func (g acl) undo() error {
	if _, err := os.Lstat(g.mark()); err != nil {
		return nil
	}
	unlock, err := g.lock()
	if err != nil {
		return err
	}
	defer unlock()
	for _, path := range g.nodes() {
		if err := unix.Removexattr(path, accesslist.Attribute); err != nil && !errors.Is(err, unix.ENODATA) {
			return fmt.Errorf("remove access list of %s: %w", path, err)
		}
		if err := os.Chmod(path, deviceMode("/proc/driver/nvidia/params")); err != nil {
			return err
		}
	}
	return os.Remove(g.mark())
}

// deviceMode is the mode of device nodes by the driver's parameters, in decimal digits there.
func deviceMode(params string) os.FileMode {
	const usual = 0o666
	text, err := os.ReadFile(params)
	if err != nil {
		return usual
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "DeviceFileMode: "); ok {
			if mode, err := strconv.ParseUint(strings.TrimSpace(value), 10, 9); err == nil {
				return os.FileMode(mode)
			}
		}
	}
	return usual
}

// Users tells by the leases who may open the GPU of each minor.
func Users(readings []gres.Reading, leases []gres.Lease) map[int][]uint32 {
	minors, users := map[string]int{}, map[int][]uint32{}
	for _, r := range readings {
		minors[r.UUID] = r.Minor
	}
	for _, l := range leases {
		if minor, ok := minors[l.UUID]; ok {
			users[minor] = append(users[minor], l.UID)
		}
	}
	return users
}
