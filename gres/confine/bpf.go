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
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The few calls of bpf(2) for v2, with the numbers of include/uapi/linux/bpf.h.

// guardName is the name of program and map, for those who look with bpftool.
const guardName = "carma_devices"

// jobsMost is how many jobs a node may have at once.
const jobsMost = 16384

type bpfMap struct{ fd int }

// bpf calls with a member of union bpf_attr.
func bpf[T any](command int, attr *T) (int, error) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
		runtime.KeepAlive(attr)
		if errno == unix.EAGAIN || errno == unix.EINTR { // the verifier was interrupted
			continue
		} else if errno != 0 {
			return -1, errno
		}
		return int(r), nil
	}
}

func pointer(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

type element struct {
	fd    uint32
	_     uint32
	key   uint64
	value uint64
	_     uint64 // flags: none
}

func (m bpfMap) set(job, mask uint64) error {
	key, value := binary.NativeEndian.AppendUint64(nil, job), binary.NativeEndian.AppendUint64(nil, mask)
	_, err := bpf(unix.BPF_MAP_UPDATE_ELEM, &element{fd: uint32(m.fd), key: pointer(key), value: pointer(value)})
	runtime.KeepAlive(key)
	runtime.KeepAlive(value)
	if err != nil {
		return fmt.Errorf("write into the map %s: %w", guardName, err)
	}
	return nil
}

// get returns the GPUs open to the job; 0 also for a job not in the map.
func (m bpfMap) get(job uint64) (uint64, error) {
	key, value := binary.NativeEndian.AppendUint64(nil, job), make([]byte, 8)
	_, err := bpf(unix.BPF_MAP_LOOKUP_ELEM, &element{fd: uint32(m.fd), key: pointer(key), value: pointer(value)})
	runtime.KeepAlive(key)
	runtime.KeepAlive(value)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("read the map %s: %w", guardName, err)
	}
	return binary.NativeEndian.Uint64(value), nil
}

func (m bpfMap) unset(job uint64) error {
	key := binary.NativeEndian.AppendUint64(nil, job)
	_, err := bpf(unix.BPF_MAP_DELETE_ELEM, &element{fd: uint32(m.fd), key: pointer(key)})
	runtime.KeepAlive(key)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("write into the map %s: %w", guardName, err)
	}
	return nil
}

func name() (n [16]byte) {
	copy(n[:], guardName)
	return n
}

func newMap() (bpfMap, error) {
	attr := struct {
		kind, key, value, entries, flags, inner, numa uint32
		name                                          [16]byte
	}{kind: unix.BPF_MAP_TYPE_HASH, key: 8, value: 8, entries: jobsMost, flags: unix.BPF_F_NO_PREALLOC, name: name()}
	fd, err := bpf(unix.BPF_MAP_CREATE, &attr)
	if err != nil {
		return bpfMap{}, fmt.Errorf("make the map %s: %w", guardName, err)
	}
	return bpfMap{fd}, nil
}

// instruction is an instruction of BPF.
func instruction(code, dst, src uint8, off int16, imm int32) []byte {
	b := []byte{code, src<<4 | dst}
	b = binary.NativeEndian.AppendUint16(b, uint16(off))
	return binary.NativeEndian.AppendUint32(b, uint32(imm))
}

// program returns 1 if the job above the process, at the level, may open the device. Its
// argument is struct bpf_cgroup_dev_ctx: access and type, major, minor.
func program(m bpfMap, level int32) []byte {
	const (
		load32, load64, store64   = 0x61, 0x79, 0x7b
		mov, movImm, addImm       = 0xbf, 0xb7, 0x07
		shiftRight, andImm        = 0x7f, 0x57
		jumpNot, jumpAbove, jump0 = 0x55, 0x35, 0x15
		call, exit, wide          = 0x85, 0x95, 0x18
		lookup, ancestor          = 1, 123 // helpers: map_lookup_elem, get_current_ancestor_cgroup_id
	)
	return bytes.Join([][]byte{
		instruction(load32, 2, 1, 4, 0),
		instruction(jumpNot, 2, 0, 15, NVIDIAMajor), // to open
		instruction(load32, 7, 1, 8, 0),
		instruction(jumpAbove, 7, 0, 13, most), // to open: nvidiactl and the like
		instruction(movImm, 1, 0, 0, level),
		instruction(call, 0, 0, 0, ancestor),
		instruction(store64, 10, 0, -8, 0),
		instruction(wide, 1, 1, 0, int32(m.fd)), instruction(0, 0, 0, 0, 0),
		instruction(mov, 2, 10, 0, 0),
		instruction(addImm, 2, 0, 0, -8),
		instruction(call, 0, 0, 0, lookup),
		instruction(jump0, 0, 0, 3, 0), // no such job: 0
		instruction(load64, 0, 0, 0, 0),
		instruction(shiftRight, 0, 7, 0, 0),
		instruction(andImm, 0, 0, 0, 1),
		instruction(exit, 0, 0, 0, 0),
		instruction(movImm, 0, 0, 0, 1), // open
		instruction(exit, 0, 0, 0, 0),
	}, nil)
}

func loadProgram(m bpfMap, level int32) (int, error) {
	code, license := program(m, level), []byte("Apache-2.0\x00")
	attr := struct {
		kind, count            uint32
		code, license          uint64
		logLevel, logSize      uint32
		log                    uint64
		kernelVersion, flags   uint32
		name                   [16]byte
		ifindex, expectsAttach uint32
	}{
		kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(len(code) / 8), code: pointer(code), license: pointer(license),
		name: name(), expectsAttach: unix.BPF_CGROUP_DEVICE,
	}
	fd, err := bpf(unix.BPF_PROG_LOAD, &attr)
	runtime.KeepAlive(code)
	runtime.KeepAlive(license)
	if err != nil {
		return -1, fmt.Errorf("load a BPF program that asks for a process's job, as Linux 6.1 and later can: %w", err)
	}
	return fd, nil
}

// probe tells whether the kernel can run the program.
func probe(level int32) error {
	m, err := newMap()
	if err != nil {
		return err
	}
	defer unix.Close(m.fd)
	fd, err := loadProgram(m, level)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// attach puts the program at a cgroup, beside others' programs, for as long as both the
// cgroup is there and the link, which is pinned in dir beside the map. The jobs may open
// all GPUs.
func attach(cgroup int, level int32, jobs []uint64, dir string) (bpfMap, error) {
	m, err := newMap()
	if err != nil {
		return m, err
	}
	if err := m.attach(cgroup, level, jobs, dir); err != nil {
		unix.Close(m.fd)
		return m, err
	}
	return m, nil
}

func (m bpfMap) attach(cgroup int, level int32, jobs []uint64, dir string) error {
	for _, job := range jobs {
		if err := m.set(job, ^uint64(0)); err != nil {
			return err
		}
	}
	program, err := loadProgram(m, level)
	if err != nil {
		return err
	}
	defer unix.Close(program)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The link last: where the link is, the map is the link's.
	if err := pin(filepath.Join(dir, mapPin), m.fd); err != nil {
		return err
	}
	attr := struct{ program, target, kind, flags uint32 }{uint32(program), uint32(cgroup), unix.BPF_CGROUP_DEVICE, 0}
	link, err := bpf(unix.BPF_LINK_CREATE, &attr)
	if err != nil {
		return fmt.Errorf("attach the BPF program: %w", err)
	}
	defer unix.Close(link)
	return pin(filepath.Join(dir, linkPin), link)
}

// linkPin and mapPin are the names of link and map in the BPF file system.
const linkPin, mapPin = "link", "jobs"

// object is the member of union bpf_attr for pins.
type object struct {
	path uint64
	fd   uint32
	_    uint32 // file_flags
}

func pin(path string, fd int) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	name := append([]byte(path), 0)
	_, err := bpf(unix.BPF_OBJ_PIN, &object{path: pointer(name), fd: uint32(fd)})
	runtime.KeepAlive(name)
	if err != nil {
		return fmt.Errorf("pin %s: %w", path, err)
	}
	return nil
}

func pinned(path string) (int, error) {
	name := append([]byte(path), 0)
	fd, err := bpf(unix.BPF_OBJ_GET, &object{path: pointer(name)})
	runtime.KeepAlive(name)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return fd, nil
}

// cgroupOf is the number of the cgroup that a pinned link is at: 0 once the cgroup has gone.
func cgroupOf(path string) (uint64, error) {
	link, err := pinned(path)
	if err != nil {
		return 0, err
	}
	defer unix.Close(link)
	// struct bpf_link_info, as far as used.
	var info struct {
		kind, id, program, _ uint32
		cgroup               uint64
		attachKind, _        uint32
	}
	attr := struct {
		fd, size uint32
		info     uint64
	}{uint32(link), uint32(unsafe.Sizeof(info)), uint64(uintptr(unsafe.Pointer(&info)))}
	_, err = bpf(unix.BPF_OBJ_GET_INFO_BY_FD, &attr)
	runtime.KeepAlive(&info)
	if err != nil {
		return 0, fmt.Errorf("look at %s: %w", path, err)
	}
	return info.cgroup, nil
}
