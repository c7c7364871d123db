// SPDX-License-Identifier: Apache-2.0

// Package accesslist sets access control lists (acl(5)) as Linux keeps them, in an
// extended attribute (include/uapi/linux/posix_acl.h, posix_acl_xattr.h).
package accesslist

import (
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// Attribute is the extended attribute that has a file's list.
const Attribute = "system.posix_acl_access"

// Permissions of an entry.
const (
	Execute = 1 << iota
	Write
	Read
)

const version = 2

const (
	tagOwner = 0x01
	tagUser  = 0x02
	tagGroup = 0x04
	tagMask  = 0x10
	tagOther = 0x20
)

// list is the kernel's form: a version, then entries of tag, permissions and id, users in
// order.
func list(owner, user uint16, uids []uint32) []byte {
	const nobody = ^uint32(0)
	b := binary.LittleEndian.AppendUint32(nil, version)
	entry := func(tag, permissions uint16, id uint32) {
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, permissions)
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	entry(tagOwner, owner, nobody)
	uids = slices.Sorted(slices.Values(uids))
	for _, uid := range slices.Compact(uids) {
		entry(tagUser, user, uid)
	}
	entry(tagGroup, 0, nobody)
	entry(tagMask, user, nobody)
	entry(tagOther, 0, nobody)
	return b
}

// Set gives a file's owner and some users these permissions, and nobody else any. A file
// that has this list already is left alone. The error is ENOTSUP where the file system has
// no access lists.
func Set(path string, owner, user uint16, uids ...uint32) error {
	want := list(owner, user, uids)
	have := make([]byte, len(want)+1)
	if n, err := unix.Getxattr(path, Attribute, have); err == nil && string(have[:n]) == string(want) {
		return nil
	}
	return unix.Setxattr(path, Attribute, want, 0)
}

// Remove takes a file's list away, if it has one; its mode counts alone then.
func Remove(path string) error {
	err := unix.Removexattr(path, Attribute)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}
