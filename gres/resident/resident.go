// SPDX-License-Identifier: Apache-2.0

// Package resident tells which Slurm job a process on a GPU belongs to, from
// /proc.
package resident

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Owner is whose a process is.
type Owner struct {
	Gone      bool   // the process has ended
	JobID     uint32 // 0: of no job
	Claimed   bool   // JobID is only what the process's own environment says
	UID       uint32
	MPSServer bool // a server that root's MPS control daemon started
}

// Proc reads a proc file system.
type Proc struct {
	Root string // "/proc"
}

// slurmd puts every task into a cgroup .../job_<id>/...: cgroup v1 and v2,
// 22.05 to 26.05. The outermost one counts; those below are the user's to make.
var jobCgroup = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/job_([0-9]+)(?:/|$)`) })

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
	if text, err := os.ReadFile(p.file(pid, "cgroup")); err == nil {
		if m := jobCgroup().FindSubmatch(text); m != nil {
			o.JobID = number(m[1])
			return o
		}
	}
	// What root's control daemon starts is a server of it.
	if parent, ok := p.stat(st.ppid); ok && parent.uid == 0 && strings.HasPrefix(parent.comm, "nvidia-cuda-mps") {
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

// Stepds returns the jobs that have a slurmstepd on this machine.
func (p Proc) Stepds() (map[uint32]bool, error) {
	entries, err := os.ReadDir(p.Root)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	jobs := map[uint32]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, ok := p.stat(pid); ok {
			if job := p.stepd(pid, st); job != 0 {
				jobs[job] = true
			}
		}
	}
	return jobs, nil
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

// stepd returns the job of a slurmstepd, 0 for other processes. A user can
// give a process any title but not root's uid.
func (p Proc) stepd(pid int, st stat) uint32 {
	if st.uid != 0 || !strings.HasPrefix(st.comm, "slurmstepd") {
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

type stat struct {
	comm string
	ppid int
	uid  uint32 // effective
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
		case key == "Name":
			st.comm = strings.TrimSpace(value)
		case key == "State" && len(fields) > 0 && fields[0] == "Z":
			return st, false // a zombie holds nothing
		case key == "PPid" && len(fields) > 0:
			st.ppid, _ = strconv.Atoi(fields[0])
		case key == "Uid" && len(fields) > 1:
			st.uid = number([]byte(fields[1]))
			return st, true
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
