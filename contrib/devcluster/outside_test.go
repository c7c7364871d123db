// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"strings"
	"testing"
)

// slurm.conf names the hooks for all nodes. On one with GPUs of its own in gres.conf, in no partition of carma.toml,
// Slurm's numbers are those of the GPUs: jobs keep them, and CARMA leases none.
func TestNodeOutsideThePilot(t *testing.T) {
	c := up(t, "--nodes", "2")
	c.sh("", "cd "+c.dir+"\nfor i in 0 1 2 3; do mknod dev/own$i c 195 $i; done\n"+
		"sed -i '/^PartitionName=gpu/s/Nodes=n1,n2/Nodes=n1/; /^NodeName=n2/s/Gres=[^ ]*/Gres=gpu:4/' etc/slurm.conf\n"+
		"sed -i '/^NodeName=n2/d' etc/gres.conf\necho NodeName=n2 Name=gpu File=$PWD/dev/own[0-3] >>etc/gres.conf")
	// Twice: a slurmd that registered once more, with the old gres.conf, has given its node back the slots.
	c.restart("slurmctld")
	c.restart("slurmd")
	c.restart("slurmctld")
	c.eventually(func() string { return c.sh("", "sinfo -h -N -p plain -o '%N %T %G'") }, `(?m)^n2 idle gpu:4`)
	script := "#SBATCH --gres=gpu:2\necho gpu=$CUDA_VISIBLE_DEVICES job=$SLURM_JOB_GPUS\n" +
		"srun --mpi=none sh -c 'echo step=$CUDA_VISIBLE_DEVICES'\n"
	none := c.sbatch(alice, "-p plain -w n2", "echo all=${CUDA_VISIBLE_DEVICES-unset}\n")
	c.ends(none, "COMPLETED")
	if text := c.output(none); text != "all=unset\n" {
		t.Errorf("a job without GPUs printed %q", text)
	}
	for node, want := range map[string]string{"n2": "gpu=0,1 job=0,1\nstep=0,1\n", "n1": "gpu=GPU-"} {
		id := c.sbatch(alice, "-p plain -w "+node, script)
		c.ends(id, "COMPLETED")
		if text := c.output(id); !strings.HasPrefix(text, want) {
			t.Errorf("a job on %s printed %q, want %q", node, text, want)
		}
		leased := c.sh("", "cat "+c.dir+"/log/hooks."+node+".log")
		if strings.Contains(leased, "msg=leased") != (node == "n1") {
			t.Errorf("leases on %s: %s", node, leased)
		}
		c.eventually(func() string { return c.sh("", "find "+c.dir+" -path '*/jobs/"+id+".json'") }, "^$")
	}
	// As of a job that was running before slurm.conf named the hooks.
	id := c.sbatch(alice, "-p plain -w n2 --gres=gpu:1", "echo began\nuntil [ -e go ]; do sleep 0.1; done\n"+
		"srun --mpi=none sh -c 'echo step=$CUDA_VISIBLE_DEVICES'\n")
	c.eventually(func() string { return c.sh("", "cat "+c.dir+"/jobs/slurm-"+id+".out || true") }, "began")
	c.sh("", "rm $(find "+c.dir+" -path '*/jobs/"+id+".json'); touch "+c.dir+"/jobs/go")
	c.ends(id, "COMPLETED")
	if text := c.output(id); text != "began\nstep=0\n" {
		t.Errorf("a job without its Prolog's word printed %q", text)
	}
	c.nothingLeft()
}
