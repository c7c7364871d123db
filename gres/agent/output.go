// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"time"

	"carma/gres"
	"carma/gres/output"
	"carma/slurmbridge/jobenv"
)

// watchOutputs lets the Epilog, or the Observer, know where the processes on GPUs write their errors. Under hooks
// a job alone on its GPUs is not requeued, so nobody will ask.
func (a *Agent) watchOutputs(samples []gres.Sample, leases []gres.Lease) {
	if a.Outputs == nil {
		return
	}
	var found []output.Process
	known := map[int]output.Process{}
	for _, s := range samples {
		for _, p := range s.Processes {
			f, ok := a.known[p.PID]
			if !ok || !a.watches(leases, s.UUID, f.Job) {
				f, ok = a.process(p.PID, s.UUID, leases)
			}
			if ok {
				known[p.PID] = f
				found = append(found, f)
			}
		}
	}
	a.known = known // the owner of a process is looked up once
	a.Outputs.Look(found)
}

// process finds the job of a process whose output is watched.
func (a *Agent) process(pid int, uuid string, leases []gres.Lease) (output.Process, bool) {
	job := ownerOf(a.Owners.Owner(pid), leases, uuid)
	for _, l := range leases {
		if l.Job.JobID == job && a.watches(leases, uuid, l.Job) {
			return output.Process{PID: pid, Job: l.Job, Since: time.Now().Add(-l.Age)}, true
		}
	}
	return output.Process{}, false
}

// watches tells whether the output of a job on a GPU is watched.
func (a *Agent) watches(leases []gres.Lease, uuid string, job jobenv.JobKey) bool {
	return slices.ContainsFunc(leases, func(l gres.Lease) bool {
		return l.UUID == uuid && l.Job == job && (!l.Exclusive || a.Observer != nil)
	})
}
