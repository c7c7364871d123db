// SPDX-License-Identifier: Apache-2.0

// Package resident tells which Slurm job a process on a GPU belongs to, from
// /proc.
package resident

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Owner is whose a process is.
type Owner struct {
	Gone      bool   // the process has ended
	JobID     uint32 // 0: of no job
	Claimed   bool   // JobID is only the word of the process's own environment
	UID       uint32 // real, or of who made the user namespace that the process is in
	MPSServer bool   // a server of root's MPS control daemon
}

// Of tells whether the process is one of job, which is of the user uid. Of root's
// processes, those that Slurm started are (sudo, programs that set their uid); what
// a process says of itself counts for its own user's jobs alone.
func (o Owner) Of(job, uid uint32) bool {
	return job != 0 && o.JobID == job && (o.UID == uid || o.UID == 0 && !o.Claimed)
}

// Proc reads a proc file system.
type Proc struct {
	Root  string // "/proc"
	Node  string // this node
	Spool string // its slurmd's SlurmdSpoolDir; empty: not known
}

// slurmstepd titles itself "slurmstepd: [<job>.<step>]".
var stepdTitle = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^slurmstepd: \[([0-9]+)\.`) })

// Owner finds the owner of pid: by its cgroup, else by the slurmstepd above it,
// else by SLURM_JOB_ID in its environment, which anybody can set.
func (p Proc) Owner(pid int) Owner {
	st, ok := p.stat(pid)
	if !ok {
		return Owner{Gone: true}
	}
	o := Owner{UID: st.uid}
	if maker := p.namespaceOf(pid); maker != 0 {
		o.UID = maker
	}
	if text, err := os.ReadFile(p.file(pid, "cgroup")); err == nil {
		init, _ := os.ReadFile(p.file(1, "cgroup"))
		above := aboveInit(string(init))
		if o.JobID = cgroupJob(string(text), above, o.UID); o.JobID != 0 {
			return o
		}
		// Also a server whose daemon has ended before.
		if ofServers(string(text), above) {
			o.MPSServer = true
			return o
		}
	}
	// A child of root's control daemon is a server of that daemon.
	if parent, ok := p.stat(st.ppid); ok && parent.uid == 0 && p.program(st.ppid) == "nvidia-cuda-mps-control" {
		o.MPSServer = true
		return o
	}
	if job := p.stepdAbove(st); job != 0 {
		o.JobID = job
		return o
	}
	if env, err := os.ReadFile(p.file(pid, "environ")); err == nil {
		for v := range bytes.SplitSeq(env, []byte{0}) {
			if id, ok := bytes.CutPrefix(v, []byte("SLURM_JOB_ID=")); ok {
				o.JobID, o.Claimed = number(id), true
			}
		}
	}
	return o
}

// Stepds returns the jobs that have a slurmstepd of this node's. Nodes of other clusters on the
// machine have jobs of the same ids, and a job's earlier attempt may have run on another node here.
func (p Proc) Stepds() (map[uint32]bool, error) {
	entries, err := os.ReadDir(p.Root)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	jobs := map[uint32]bool{}
	var sockets map[string]string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, ok := p.stat(pid); ok {
			job := p.stepd(pid, st)
			if job == 0 || jobs[job] {
				continue
			}
			if sockets == nil {
				sockets = p.listening()
			}
			if p.isHere(pid, job, sockets) {
				jobs[job] = true
			}
		}
	}
	return jobs, nil
}

// isHere tells a slurmstepd of this node's by the socket at which it listens, which is called
// SPOOL/NODE_JOB.STEP (stepd_api.c, step_connect, 22.05 to 26.05). One that has none is starting or
// ending, and counts as this node's.
func (p Proc) isHere(pid int, job uint32, sockets map[string]string) bool {
	files, err := os.ReadDir(p.file(pid, "fd"))
	if err != nil {
		return true
	}
	here, ofJob := fmt.Sprintf("%s_%d.", p.Node, job), fmt.Sprintf("_%d.", job)
	for _, f := range files {
		inode, _ := os.Readlink(p.file(pid, "fd/"+f.Name()))
		dir, name := filepath.Split(sockets[inode])
		if !strings.Contains(name, ofJob) {
			continue
		}
		return strings.HasPrefix(name, here) && (p.Spool == "" || filepath.Clean(dir) == filepath.Clean(p.Spool))
	}
	return true
}

// listening are the paths of the sockets at which processes listen, by what a file descriptor of
// one is called.
func (p Proc) listening() map[string]string {
	paths := map[string]string{}
	text, _ := os.ReadFile(p.Root + "/net/unix")
	for line := range strings.Lines(string(text)) {
		// Num RefCount Protocol Flags Type St Inode Path (proc(5))
		if f := strings.Fields(line); len(f) == 8 && f[3] == "00010000" {
			paths["socket:["+f[6]+"]"] = f[7]
		}
	}
	return paths
}

// stepdAbove walks up to the slurmstepd that started the process.
func (p Proc) stepdAbove(st stat) uint32 {
	for range 100 { // deeper than any job's process tree
		pid := st.ppid
		if pid <= 1 {
			return 0
		}
		var ok bool
		if st, ok = p.stat(pid); !ok {
			return 0
		}
		if job := p.stepd(pid, st); job != 0 {
			return job
		}
	}
	return 0
}

// stepd returns the job of a slurmstepd, 0 for other processes. A user can give a
// process any name and title, and by a set-uid program root's effective uid, but no
// process has root's real uid that root did not start.
func (p Proc) stepd(pid int, st stat) uint32 {
	// Debian's is slurmstepd-wlm.
	if program := p.program(pid); st.uid != 0 || program != "slurmstepd" && !strings.HasPrefix(program, "slurmstepd-") {
		return 0
	}
	title, err := os.ReadFile(p.file(pid, "cmdline"))
	if err != nil {
		return 0
	}
	if m := stepdTitle().FindSubmatch(title); m != nil {
		return number(m[1])
	}
	return 0
}

// namespaceOf returns the user that made the user namespace of a process, if it is not
// ours; else 0. In a user's container processes have ids of the range
// that subuid(5) gives him; the kernel knows whose it is (ioctl_nsfs(2)).
func (p Proc) namespaceOf(pid int) uint32 {
	ours, err := os.Readlink(p.Root + "/self/ns/user")
	if err != nil {
		return 0
	}
	if its, err := os.Readlink(p.file(pid, "ns/user")); err != nil || its == ours {
		return 0
	}
	f, err := os.Open(p.file(pid, "ns/user"))
	if err != nil {
		return 0
	}
	defer f.Close()
	uid, err := unix.IoctlGetUint32(int(f.Fd()), unix.NS_GET_OWNER_UID)
	if err != nil {
		return 0
	}
	return uid
}

// program is the name of the file that a process runs, which, unlike its name and its
// title, the process cannot choose. The file is not touched: it may lie on a mount that hangs.
func (p Proc) program(pid int) string {
	file, err := os.Readlink(p.file(pid, "exe"))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(file), " (deleted)") // replaced while it runs
}

type stat struct {
	ppid int
	uid  uint32 // real
}

// stat reads /proc/<pid>/status, in which no field can be forged by a comm
// with blanks or parentheses.
func (p Proc) stat(pid int) (st stat, ok bool) {
	text, err := os.ReadFile(p.file(pid, "status"))
	if err != nil {
		return st, false
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		switch {
		case key == "State" && len(fields) > 0 && fields[0] == "Z":
			return st, false // a zombie holds nothing
		case key == "PPid" && len(fields) > 0:
			st.ppid, _ = strconv.Atoi(fields[0])
		case key == "Uid" && len(fields) > 0:
			uid, err := strconv.ParseUint(fields[0], 10, 32)
			st.uid = uint32(uid)
			return st, err == nil
		}
	}
	return st, false
}

func (p Proc) file(pid int, name string) string {
	return p.Root + "/" + strconv.Itoa(pid) + "/" + name
}

func number(digits []byte) uint32 {
	n, err := strconv.ParseUint(string(digits), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}
