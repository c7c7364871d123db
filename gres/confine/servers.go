// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// serversDir is the cgroup above the cgroups of the MPS daemons: at the top, where root alone makes
// cgroups (package resident recognises servers by it). Slurm's cgroups are for jobs, and servers
// belong to no job.
const serversDir = "carma-mps"

// Servers are the cgroups of MPS daemons and their servers.
type Servers struct{ above string }

// Servers finds out where the servers' cgroups can be made: in cgroup v2, or in the devices
// controller of v1. Unavailable tells whether an error means that they can be made nowhere.
func (h Host) Servers() (*Servers, error) {
	_, mount, err := h.place()
	if err != nil {
		return nil, err
	}
	if !isCgroup2(mount) {
		mount = filepath.Join(mount, "devices")
		if _, err := os.Stat(filepath.Join(mount, "cgroup.procs")); err != nil {
			return nil, fmt.Errorf("cgroups of MPS servers: %w: %w", errNot, err)
		}
	}
	s := &Servers{filepath.Join(mount, serversDir)}
	if err := makeGroups(s.above, 1); err != nil {
		return nil, fmt.Errorf("cgroups of MPS servers: %w: %w", errNot, err)
	}
	return s, nil
}

// Put puts a process into the cgroup of a name, and makes the cgroup if need be.
func (s *Servers) Put(name string, pid int) (dir string, err error) {
	dir = filepath.Join(s.above, name)
	if err = makeGroups(dir, 1); err == nil {
		err = write(filepath.Join(dir, "cgroup.procs"), []string{strconv.Itoa(pid)})
	}
	if err != nil {
		return "", fmt.Errorf("put process %d into the cgroup %s: %w", pid, dir, err)
	}
	return dir, nil
}

// Kill ends all processes in a cgroup, stopped or not, and their new children, and removes the
// cgroup. A cgroup already gone is no error.
func (s *Servers) Kill(ctx context.Context, dir string) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove a cgroup of MPS servers: %w", err)
		}
		if err := killIn(dir); err != nil {
			return fmt.Errorf("end the MPS servers in %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end the MPS servers in %s: processes %v do not end: %w", dir, pidsIn(dir), ctx.Err())
		case <-time.After(pause):
		}
	}
}

// killIn sends SIGKILL to the processes in a cgroup now.
func killIn(dir string) error {
	// All at once, from Linux 5.14 on (cgroup v2).
	err := write(filepath.Join(dir, "cgroup.kill"), []string{"1"})
	if !errors.Is(err, fs.ErrNotExist) {
		return gone(err)
	}
	for _, pid := range pidsIn(dir) {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		} else if err != nil { // Linux before 5.3
			if err = unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			continue
		}
		// Else the number may be another's by now.
		if slices.Contains(pidsIn(dir), pid) {
			err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

func pidsIn(dir string) (pids []int) {
	text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, word := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}
