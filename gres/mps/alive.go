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

// What a daemon leaves in its pipe directory: all of these files when it is
// killed, all but "log" and the pid file when it is told to quit (535 and 550).
var leftovers = []string{"control", "control_lock", "control_privileged", "log", "nvidia-cuda-mps-control.pid"}

// Listens tells whether the daemon runs. No command is sent, which would cost 221 bytes
// of its log and wait for whoever has connected and says nothing.
func Listens(runDir string, d gres.Daemon) bool {
	t, _ := readTenure(PipeDir(runDir, d))
	return t.runs()
}

// founder is the daemon in a pipe directory that no user can reach yet: as long as the daemon
// lives, it has the lock of control_lock; a daemon of a later driver may not take the lock, but
// then it listens. In a directory that a user has reached, lock and socket can be made to name
// another process.
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

// listener is the process that made the socket and listens on it. A full queue is
// no sign of life: the kernel keeps the queue for as long as somebody has the
// socket, perhaps not a process of ours.
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

// tidy removes the leftovers of a dead daemon. Then a lock that somebody has taken
// meanwhile keeps no new daemon from starting, and no client waits at a pipe that
// nobody reads.
func tidy(pipeDir string) error {
	var err error
	for _, name := range leftovers {
		if removeErr := os.Remove(filepath.Join(pipeDir, name)); !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	return err
}
