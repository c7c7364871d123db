// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"carma/gres"
	"carma/gres/output"
	"carma/gres/resident"
	"carma/slurmbridge/jobenv"
)

// counted answers for one job and counts the questions.
type counted struct {
	owners
	asked int
}

func (c *counted) Owner(pid int) resident.Owner {
	c.asked++
	return resident.Owner{JobID: uint32(pid / 10)}
}

// Only processes of jobs that share are watched, and whose one is is looked up
// once.
func TestWatchOutputs(t *testing.T) {
	c := &counted{}
	a := &Agent{Owners: c, Outputs: &output.Watch{RunDir: t.TempDir(), Proc: t.TempDir()}}
	leases := []gres.Lease{{Job: jobenv.JobKey{JobID: 1}, UUID: "GPU-0"},
		{Job: jobenv.JobKey{JobID: 2}, UUID: "GPU-1", Exclusive: true}}
	samples := []gres.Sample{
		{GPU: gres.GPU{UUID: "GPU-0"}, Processes: []gres.Process{{PID: 11}, {PID: 12}, {PID: 91}}},
		{GPU: gres.GPU{UUID: "GPU-1"}, Processes: []gres.Process{{PID: 21}}},
	}
	a.watchOutputs(samples, leases)
	if len(a.known) != 2 || a.known[11].Job.JobID != 1 || a.known[12].Job.JobID != 1 || c.asked != 4 {
		t.Errorf("known %v after %d questions", a.known, c.asked)
	}
	a.watchOutputs(samples, leases)
	if c.asked != 6 { // the two that are of no sharing job
		t.Errorf("%d questions", c.asked)
	}
	// Another attempt of the job is another job.
	leases[0].Job.Restart = 1
	a.watchOutputs(samples, leases)
	if a.known[11].Job.Restart != 1 {
		t.Errorf("known %v", a.known)
	}
	a.watchOutputs(nil, leases)
	if len(a.known) != 0 {
		t.Errorf("kept %v", a.known)
	}
}
