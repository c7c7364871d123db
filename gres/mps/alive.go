// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"carma/gres"
)

// A daemon's leftovers in its pipe directory: all after a kill, without "log" and
// the pid file after a quit command (535 and 550).
var leftovers = []string{"control", "control_lock", "control_privileged", "log", "nvidia-cuda-mps-control.pid"}

// Listens tells whether the daemon runs. No command is sent, which would cost 221 bytes
// of its log and wait for whoever has connected and says nothing.
func Listens(runDir string, d gres.Daemon) bool {
	t, _ := readTenure(PipeDir(runDir, d))
	return t.runs()
}

// founder is the daemon in a pipe directory not yet reachable by users: while alive, the founder
// has the lock of control_lock; should a later daemon not take the lock, the founder listens. In a
// directory reached by a user both can be made to name another process.
func founder(pipeDir string) process {
	for _, pid := range []int{lockHolder(filepath.Join(pipeDir, "control_lock")),
		listener(filepath.Join(pipeDir, "control"))} {
		if pid > 0 && uidOf(pid) == os.Getuid() && filepath.Base(exeOf(pid)) == daemonProgram {
			return processOf(pid)
		}
	}
	return process{}
}

func lockHolder(path string) int {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil || lock.Type == unix.F_UNLCK {
		return 0
	}
	return int(lock.Pid)
}

// listener is the maker of the socket, listening there. A full queue is no sign of
// life: the kernel keeps the queue for as long as somebody has the socket, perhaps
// not a process of ours.
func listener(path string) int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return 0
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}

// tidy removes the leftovers of a dead daemon. A lock taken meanwhile by somebody then
// keeps no new daemon from starting, and no client waits at a pipe without a reader.
func tidy(pipeDir string) error {
	var err error
	for _, name := range leftovers {
		if removeErr := os.Remove(filepath.Join(pipeDir, name)); !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	return err
}
