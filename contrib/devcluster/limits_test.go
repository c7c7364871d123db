// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"strings"
	"testing"
)

// Where the driver limits the memory of cgroups, a job cannot have more than it booked, without
// MPS and whatever it does with its variables: who overshoots runs out of memory, and the other
// user's job on the GPU does not notice. Frameworks take their part of the limit. The limit
// ends with the job.
func TestMemoryHeld(t *testing.T) {
	if !underUML {
		t.Skip("Slurm's cgroups are not of v2 alone here; make test-cgroup2 runs it")
	}
	c := confined(t, "--time-scale", "10")
	c.settings(map[string]string{"mps.enabled": "false", "placement.cross_user": `"timeslice"`, "placement.settle": `"0s"`})
	c.restart("agent")
	c.restart("slurmctld")
	log := func() string { return c.sh("", "cat "+c.dir+"/log/agent.n1.log") }
	c.eventually(log, "the driver holds jobs to the GPU memory")
	// Other GPUs have no room for a second job: both are on one.
	for range 3 {
		c.gpu(c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA policy=exclusive\necho gpu=$CARMA_GPU_UUIDS\nexec sleep 1h\n"))
	}
	stays := c.sbatch(bob, "", "#SBATCH --gres=gpu:1\n#CARMA mem=6G\necho gpu=$CARMA_GPU_UUIDS\nuntil [ -e go ]; do "+
		"sleep 0.1; done\nexec simjob --mem 5G --smact 5 --ramp 0s --duration 10s\n")
	c.gpu(stays)
	over := c.sbatch(alice, "--open-mode=append", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\necho gpu=$CARMA_GPU_UUIDS "+
		"part=$XLA_PYTHON_CLIENT_MEM_FRACTION\nsleep 3\nsimjob --mem 9G --smact 5 --ramp 0s --duration 1s && echo fits\n"+
		"exec env -i PATH=$PATH LD_LIBRARY_PATH=$LD_LIBRARY_PATH SIMGPU_STATE=$SIMGPU_STATE SIMGPU_DEV=$SIMGPU_DEV "+
		"simjob --mem 20G --smact 5 --ramp 0s --duration 1s\n")
	c.eventually(func() string { return c.restarts(over) }, "^1$")
	if out := c.output(over); !strings.Contains(out, "part=1\n") || !strings.Contains(out, "fits") ||
		!strings.Contains(out, "total capacity of 10.00 GiB") {
		t.Errorf("the job that overshoots:\n%s", out)
	}
	c.sh("", "touch "+c.dir+"/jobs/go")
	c.ends(stays, "COMPLETED")
	c.ends(over, "COMPLETED")
	if r := c.report(over); !r.OOM || r.Attempts != 2 {
		t.Errorf("report %+v", r)
	}
	c.nothingLeft()
	if got := c.groups(); got != "" {
		t.Errorf("cgroups are left: %s", got)
	}
	if strings.Contains(log(), "does not hold jobs") {
		t.Errorf("the agent's log:\n%s", log())
	}
}
