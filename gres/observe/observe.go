// SPDX-License-Identifier: Apache-2.0

// Package observe decides which jobs of a node the ledger gets, and which jobs of the ledger have ended, where no
// hook of CARMA's says so.
package observe

import (
	"slices"

	"carma/gres"
	"carma/slurmbridge/jobenv"
)

// Job is a job that slurmctld has on the node.
type Job struct {
	jobenv.JobKey
	UID     uint32
	Ending  bool     // completing: the job gets no further GPU
	Indices []int    // of its GPUs, as slurmctld counts; none: not known, or no whole GPU
	On      []string // UUIDs of the GPUs on which it has a process
}

// Claim is a GPU that a job has.
type Claim struct {
	UUID  string
	Whole bool // all of the GPU, by slurmctld's word
}

// Begin is a job, and GPUs of the job that the ledger lacks.
type Begin struct {
	Job    Job
	Claims []Claim
}

// Plan compares the jobs on a node with the ledger. A completing job ends with its last process on a GPU: a job whose
// nodes are slow to complete is not charged for GPUs that the job no longer uses.
func Plan(gpus []gres.GPU, jobs []Job, leases []gres.Lease) (begin []Begin, end []jobenv.JobKey) {
	here := map[uint32]Job{}
	for _, j := range jobs {
		here[j.JobID] = j
	}
	has := map[uint32][]string{}
	for _, l := range leases {
		j, ok := here[l.Job.JobID]
		if !ok || j.JobKey != l.Job || j.UID != l.UID || j.Ending && len(j.On) == 0 {
			if !slices.Contains(end, l.Job) {
				end = append(end, l.Job)
			}
			continue
		}
		has[l.Job.JobID] = append(has[l.Job.JobID], l.UUID)
	}
	for _, j := range jobs {
		if j.Ending {
			continue
		}
		b := Begin{Job: j}
		for _, c := range claims(gpus, j) {
			if !slices.Contains(has[j.JobID], c.UUID) {
				b.Claims = append(b.Claims, c)
			}
		}
		if len(b.Claims) > 0 {
			begin = append(begin, b)
		}
	}
	return begin, end
}

// claims are the GPUs of a job: those that slurmctld names, and those with a process of the job. Where all processes
// are on other GPUs than slurmctld names, the indices mean other devices here, and processes alone count.
func claims(gpus []gres.GPU, j Job) (list []Claim) {
	named := named(gpus, j.Indices)
	if len(j.On) > 0 && !slices.ContainsFunc(j.On, func(uuid string) bool { return slices.Contains(named, uuid) }) {
		named = nil
	}
	for _, g := range gpus {
		if whole := slices.Contains(named, g.UUID); whole || slices.Contains(j.On, g.UUID) {
			list = append(list, Claim{UUID: g.UUID, Whole: whole || g.MIG})
		}
	}
	return list
}

// named are the GPUs of slurmctld's indices: gres.conf, by hand or by AutoDetect, has GPUs in the order of
// their device files, /dev/nvidia0 first. With MIG the files are others, and an index beyond the last GPU
// is no device: then no index means a GPU.
func named(gpus []gres.GPU, indices []int) (uuids []string) {
	for _, i := range indices {
		at := slices.IndexFunc(gpus, func(g gres.GPU) bool { return g.Minor == i })
		if at < 0 {
			return nil
		}
		uuids = append(uuids, gpus[at].UUID)
	}
	if slices.ContainsFunc(gpus, func(g gres.GPU) bool { return g.MIG }) {
		return nil
	}
	return uuids
}
