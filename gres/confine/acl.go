// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"carma/gres"
)

// acl lets the users who hold a lease on a GPU open its device node, in each of their
// processes, and nobody else. Without a cgroup there is no better: what a user's jobs
// without GPUs must not open they can as long as another job of his may.
type acl struct{ Host }

// access is the extended attribute in which the kernel keeps a file's access list.
const access = "system.posix_acl_access"

func findACL(h Host, asked bool) (Guard, error) {
	nodes := h.nodes()
	if len(nodes) == 0 {
		if asked { // the driver makes them with the first program
			return acl{h}, nil
		}
		return nil, fmt.Errorf("access lists: %w: no device node %s/nvidia0", errNot, h.Devices)
	}
	if resets("/proc/driver/nvidia/params") && h.Devices == "/dev" {
		return nil, fmt.Errorf("access lists: %w: nvidia-modprobe gives every user's program the device nodes back;"+
			" set NVreg_ModifyDeviceFiles=0 for the nvidia module", errNot)
	}
	for _, path := range nodes {
		if _, err := unix.Getxattr(path, access, nil); err != nil && !errors.Is(err, unix.ENODATA) {
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

func (g acl) Open(Job, []int) error { return g.follow() }
func (g acl) Close(Job) error       { return g.follow() }

// follow has the access lists say what the ledger says.
func (g acl) follow() error {
	unlock, err := g.lock()
	if err != nil {
		return fmt.Errorf("set access lists: %w", err)
	}
	defer unlock()
	users, err := g.Users()
	if err != nil {
		return fmt.Errorf("set access lists: %w", err)
	}
	for minor, path := range g.nodes() {
		if err := grant(path, users[minor]); err != nil {
			return fmt.Errorf("set access list of %s: %w", path, err)
		}
	}
	return nil
}

// grant lets root and these users read and write a file. The file's mode is what it was
// for programs that look: 0660.
func grant(path string, users []uint32) error {
	want := list(users)
	have := make([]byte, len(want)+1)
	if n, err := unix.Getxattr(path, access, have); err == nil && bytes.Equal(have[:n], want) {
		return nil
	}
	return unix.Setxattr(path, access, want, 0)
}

// Tags and permissions of an entry (include/uapi/linux/posix_acl.h).
const (
	tagOwner, tagUser, tagGroup, tagMask, tagOther = 0x01, 0x02, 0x04, 0x10, 0x20
	readWrite                                      = 6
)

// list is an access list in the kernel's form (posix_acl_xattr.h): a version, then entries
// of tag, permissions and id, users in order.
func list(users []uint32) []byte {
	users = slices.Clone(users)
	slices.Sort(users)
	b := binary.LittleEndian.AppendUint32(nil, 2)
	entry := func(tag, perm uint16, id uint32) {
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, perm)
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	const none = ^uint32(0)
	entry(tagOwner, readWrite, none)
	for _, uid := range slices.Compact(users) {
		entry(tagUser, readWrite, uid)
	}
	entry(tagGroup, 0, none)
	entry(tagMask, readWrite, none)
	entry(tagOther, 0, none)
	return b
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
