// SPDX-License-Identifier: Apache-2.0

// Package jobenv is a typed view of the environment that slurmd gives to
// Prolog, Epilog and TaskProlog.
package jobenv

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"carma/slurmbridge/hostlist"
)

// Getenv looks up a variable, as os.Getenv does.
type Getenv func(string) string

// Hook is what Prolog and Epilog are told about a job.
type Hook struct {
	JobKey
	UID, GID  uint32
	User      string
	Partition string
	Node      string // Slurm's name of this node
	Cluster   string
	Conf      string // SLURM_CONF
	WorkDir   string
	StdErr    string // pattern as submitted; empty: not given
	StdOut    string
	SLUID     string // the job's other name, from 25.11 on; empty before
	BatchHost bool   // the batch script runs here
	OneNode   bool   // the job's only node
	Beside    bool   // other jobs may run on the job's nodes; false before 26.05: slurmd does not say
	HetJobID  uint32 // leader of a heterogeneous job, whose script it is; 0: none
	Slots     []int  // of gres/gpu on this node
	Exit      Exit   // Epilog only
	Carma     Carma
}

// Exit is how a job ended.
type Exit struct {
	Code   int
	Signal int
}

// Failed tells whether the job did not end well.
func (e Exit) Failed() bool { return e.Code != 0 || e.Signal != 0 }

// Cancelled tells whether a signal ended the job as scancel, a time limit and preemption do.
func (e Exit) Cancelled() bool {
	return e.Code == 0 && (e.Signal == int(syscall.SIGTERM) || e.Signal == int(syscall.SIGKILL))
}

// Stopped tells whether SIGTERM or SIGKILL ended the job, or a program of which the job's shell gives the status.
func (e Exit) Stopped() bool {
	const ofShell = 128
	return e.Cancelled() || e.Code == ofShell+int(syscall.SIGTERM) || e.Code == ofShell+int(syscall.SIGKILL)
}

// FromEnv reads a Prolog's or Epilog's environment. An error means that slurmd
// did not call the hook.
func FromEnv(get Getenv) (Hook, error) {
	n := numbers{get: get}
	h := Hook{
		JobKey: JobKey{JobID: uint32(n.required("SLURM_JOB_ID", 32)),
			Restart: uint32(n.optional("SLURM_JOB_RESTART_COUNT", 32))},
		UID:       uint32(n.required("SLURM_JOB_UID", 32)),
		GID:       uint32(n.optional("SLURM_JOB_GID", 32)),
		HetJobID:  uint32(n.optional("SLURM_HET_JOB_ID", 32)),
		User:      get("SLURM_JOB_USER"),
		Partition: get("SLURM_JOB_PARTITION"),
		Node:      get("SLURMD_NODENAME"),
		Cluster:   get("SLURM_CLUSTER_NAME"),
		Conf:      get("SLURM_CONF"),
		WorkDir:   get("SLURM_JOB_WORK_DIR"),
		StdErr:    get("SLURM_JOB_STDERR"),
		StdOut:    get("SLURM_JOB_STDOUT"),
		SLUID:     get("SLURM_JOB_SLUID"),
	}
	if h.Node == "" {
		n.err = errors.Join(n.err, errors.New("SLURMD_NODENAME is not set"))
	}
	if n.err != nil {
		return Hook{}, fmt.Errorf("read the hook's environment: %w; only slurmd can start it", n.err)
	}
	var err error
	if h.Slots, err = Indices(get("SLURM_JOB_GPUS")); err != nil {
		return Hook{}, fmt.Errorf("read SLURM_JOB_GPUS: %w", err)
	}
	// SLURM_JOB_NODELIST from 23.02 on.
	nodes := get("SLURM_NODELIST")
	if nodes == "" {
		nodes = get("SLURM_JOB_NODELIST")
	}
	h.BatchHost, h.OneNode = hostlist.First(nodes) == h.Node, nodes == h.Node
	switch get("SLURM_JOB_EXCLUSIVE") { // prep_script_slurmd.c, job_exclusive_display_string
	case "NO", "USER", "MCS":
		h.Beside = true
	}
	h.Exit = exit(get("SLURM_JOB_EXIT_CODE2"))
	h.Carma = carmaFromEnv(get)
	return h, nil
}

// numbers collects the errors of several conversions.
type numbers struct {
	get Getenv
	err error
}

func (n *numbers) required(name string, bits int) uint64 {
	v, err := strconv.ParseUint(n.get(name), 10, bits)
	if err != nil {
		n.err = errors.Join(n.err, fmt.Errorf("%s=%q is not a number", name, n.get(name)))
	}
	return v
}

func (n *numbers) optional(name string, bits int) uint64 {
	if n.get(name) == "" {
		return 0
	}
	return n.required(name, bits)
}

// exit reads "code:signal".
func exit(s string) Exit {
	code, signal, _ := strings.Cut(s, ":")
	var e Exit
	e.Code, _ = strconv.Atoi(code)
	e.Signal, _ = strconv.Atoi(signal)
	return e
}

// Indices reads a list of device numbers: "0,2-3".
func Indices(list string) ([]int, error) {
	var all []int
	for word := range strings.SplitSeq(list, ",") {
		if word == "" {
			continue
		}
		from, to, isRange := strings.Cut(word, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(to)
		}
		if err != nil || first < 0 || last < first || last > 4096 {
			return nil, fmt.Errorf("%q is not a list of device numbers", list)
		}
		for i := first; i <= last; i++ {
			all = append(all, i)
		}
	}
	return all, nil
}
