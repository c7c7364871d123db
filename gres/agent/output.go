// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"carma/gres"
	"carma/gres/output"
)

// watchOutputs lets the Epilog know where the processes on shared GPUs write
// their errors. A job that had its GPUs alone does not come back, so nobody
// will ask.
func (a *Agent) watchOutputs(samples []gres.Sample, leases []gres.Lease) {
	if a.Outputs == nil {
		return
	}
	var found []output.Process
	for _, s := range samples {
		for _, p := range s.Processes {
			job := ownerOf(a.Owners.Owner(p.PID), leases, s.UUID)
			for _, l := range leases {
				if l.UUID == s.UUID && l.Job.JobID == job && !l.Exclusive {
					found = append(found, output.Process{PID: p.PID, Job: l.Job, Since: time.Now().Add(-l.Age)})
				}
			}
		}
	}
	a.Outputs.Look(found)
}
