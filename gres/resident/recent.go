// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"bytes"
	"sync"
	"syscall"
)

// Recent remembers owners: the owner of a process does not change while the process
// lives, and finding out costs a walk through /proc. A number that the kernel gave
// away anew is known by its start time.
type Recent struct {
	Proc
	lock sync.Mutex
	seen map[int]remembered
}

type remembered struct {
	start string
	owner Owner
}

// maxRemembered bounds the number of owners kept; then all are found out anew.
const maxRemembered = 4096

// Owner is Proc.Owner with a memory. Owner is safe for concurrent use.
func (r *Recent) Owner(pid int) Owner {
	start := r.started(pid)
	r.lock.Lock()
	m, ok := r.seen[pid]
	r.lock.Unlock()
	if ok && start != "" && m.start == start {
		return m.owner
	}
	o := r.Proc.Owner(pid)
	// A task may not be in its job's cgroup yet: of no job is not remembered.
	if o.Gone || start == "" || o.JobID == 0 && !o.MPSServer {
		return o
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.seen == nil || len(r.seen) >= maxRemembered {
		r.seen = map[int]remembered{}
	}
	r.seen[pid] = remembered{start, o}
	return o
}

// started is a process's start time, in ticks since boot; empty if the process is
// gone, or a zombie, which holds nothing.
func (p Proc) started(pid int) string {
	var line [4096]byte // a page, the most the kernel writes
	text := line[:readOnce(p.file(pid, "stat"), line[:])]
	if len(text) == 0 {
		return ""
	}
	// The name may hold blanks and parentheses; the rest of the line does not.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const state, starttime = 0, 19 // fields 3 and 22 of proc(5)
	if len(fields) <= starttime || fields[state][0] == 'Z' {
		return ""
	}
	return string(fields[starttime])
}

// readOnce reads a file of /proc whole by a single read, and returns the length; 0 where there is no file. The agent
// reads a file for each process every second: os.ReadFile takes seven system calls, readOnce three.
func readOnce(path string, into []byte) int {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer syscall.Close(fd)
	n, _ := syscall.Read(fd, into)
	return max(n, 0)
}
