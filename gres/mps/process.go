// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is a process and no later one of its number: no other had that number and began in
// the same tick of the kernel's clock.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in ticks since boot
}

// processOf is the process of a number that has not ended; the zero value: there is none.
func processOf(pid int) process {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}
	}
	// The name may hold blanks and parentheses; what follows it does not (proc(5)).
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const state, start = 0, 19
	if len(fields) <= start || fields[state][0] == 'Z' {
		return process{}
	}
	ticks, err := strconv.ParseUint(string(fields[start]), 10, 64)
	if err != nil {
		return process{}
	}
	return process{pid, ticks}
}

// runs tells whether the process has not ended.
func (p process) runs() bool { return p.PID > 0 && processOf(p.PID) == p }

// killWait is how long the kernel may take to end a process.
const killWait = time.Second

// kill ends a process, stopped or not, and waits until it has ended.
func (p process) kill(ctx context.Context) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err == nil {
		defer unix.Close(fd)
		if !p.runs() { // what fd is of may be a later one
			return nil
		}
		err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	// Linux before 5.3, and a container's filter of system calls.
	if (errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM)) && p.runs() {
		err = unix.Kill(p.PID, unix.SIGKILL)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end process %d: %w", p.PID, err)
	}
	for until := time.Now().Add(killWait); p.runs(); time.Sleep(5 * time.Millisecond) {
		if ctx.Err() != nil || time.Now().After(until) {
			return fmt.Errorf("process %d does not end", p.PID)
		}
	}
	return nil
}

// exeOf is the file that a process runs.
func exeOf(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return strings.TrimSuffix(path, " (deleted)") // replaced while it runs
}

// Programs of NVIDIA's; the stand-in's server runs the daemon's.
const (
	daemonProgram = "nvidia-cuda-mps-control"
	serverProgram = "nvidia-cuda-mps-server"
)

// serversOf are the servers of a pipe directory's daemons, those whose daemon has ended too, by
// what the daemon gave them: the directory in their environment, and root's group, in which no
// user's process is.
func serversOf(pipeDir string) []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var list []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p := processOf(pid)
		switch filepath.Base(exeOf(pid)) {
		case daemonProgram, serverProgram:
		default:
			continue
		}
		uid, gid := idsOf(pid)
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil || uid < 0 || gid != os.Getgid() || os.Getuid() == 0 && uid == 0 ||
			!bytes.Contains(append([]byte{0}, environ...), []byte("\x00CUDA_MPS_PIPE_DIRECTORY="+pipeDir+"\x00")) {
			continue
		}
		if title, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil ||
			!bytes.Contains(title, []byte(serverProgram)) {
			continue // a command to the daemon
		}
		list = append(list, p)
	}
	return list
}

// uidOf is the real uid of a process that has not ended; -1: there is none.
func uidOf(pid int) int {
	uid, _ := idsOf(pid)
	return uid
}

// idsOf are the real uid and gid of a process that has not ended; -1: there is none.
func idsOf(pid int) (uid, gid int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || bytes.Contains(text, []byte("\nState:\tZ")) {
		return -1, -1
	}
	return idIn(text, "\nUid:\t"), idIn(text, "\nGid:\t")
}

func idIn(status []byte, field string) int {
	_, rest, _ := bytes.Cut(status, []byte(field))
	word, _, _ := bytes.Cut(rest, []byte("\t"))
	id, err := strconv.Atoi(string(word))
	if err != nil {
		return -1
	}
	return id
}
