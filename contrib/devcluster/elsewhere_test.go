// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"path/filepath"
	"testing"
)

// Nodes that a job cannot have have room, those that the job can have are full: slurmctld holds the job
// (BadConstraints), and the job starts when one of its own nodes has room.
func TestRoomElsewhere(t *testing.T) {
	needsServer(t)
	needsCounts(t)
	c := up(t, "--nodes", "2", "--time-scale", "20")
	c.settings(map[string]string{"capacity.compare": `"2s"`, "hooks.wait": `"1s"`})
	c.sh("", "scontrol update NodeName=n1 Features=a; scontrol update NodeName=n2 Features=b")
	c.sh("", "scontrol create PartitionName=one Nodes=n1 State=UP")
	c.managed("one", true)
	c.known("one")
	var fill []string
	for range 4 {
		id := c.sbatch(alice, "-w n1", "#SBATCH --gres=gpu:1\n#CARMA off\nexec sleep 1h\n")
		c.waiting([]string{id}, "%T %r", "RUNNING None")
		fill = append(fill, id)
	}
	c.wantCounts("n1", "^carma1:0 ")
	const script = "#SBATCH --gres=gpu:1\n#CARMA mem=2G\necho on $SLURMD_NODENAME\n"
	held := map[string]string{}
	for _, options := range []string{"-w n1", "-C a", "-C a --array=1-2", "-p one", "--prefer=a -C a", "-x n2"} {
		held[options] = c.sbatch(bob, options, script)
	}
	held["a hold of the user"] = c.sbatch(bob, "-H -w n1", script)
	srun := filepath.Join(c.dir, "jobs", "srun.out")
	c.background(bob, "exec srun -C a --gres=gpu:1 sh -c 'echo on $SLURMD_NODENAME' >"+srun)
	for options, id := range held {
		c.eventually(func() string { return c.job(id, "%T %r") }, "^PENDING (BadConstraints|Constraints|JobHeldUser)")
		t.Logf("%-20s %s", options, c.job(id, "%T %r %Q"))
	}
	c.sh("", "scancel "+fill[0]+" "+fill[1])
	for options, id := range held {
		if options == "a hold of the user" {
			continue
		}
		c.eventually(func() string {
			return c.sh("", "squeue -h -t all -o '%T %N' -j "+id+" | sort -u")
		}, "^COMPLETED n1$")
	}
	c.eventually(func() string { return c.sh("", "cat "+srun) }, "^on n1$")
	if got := c.job(held["a hold of the user"], "%T %r"); got != "PENDING JobHeldUser" {
		t.Errorf("held by its user: %s", got)
	}
}
