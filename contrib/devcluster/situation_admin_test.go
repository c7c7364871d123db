// SPDX-License-Identifier: Apache-2.0

//go:build integration && situations

package devcluster_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Situations that administrators bring about (docs/situations.md).

// remember is a command that tells devcluster which process runs under a name.
func (c *cluster) remember(name, pid string) string {
	return "pid=" + pid + "; echo $pid $(sed 's/.*) //' /proc/$pid/stat | cut -d' ' -f20) >" + c.dir + "/pid/" + name
}

// A suspended job keeps its GPU and its memory; that it does nothing then is not held
// against it when it runs again.
func TestSituationSuspended(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"idle.after": `"40s"`, "idle.action": `"cancel"`})
	c.restart("agent")
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\necho gpu=$CUDA_VISIBLE_DEVICES\nuntil [ -e go ]; "+
		"do sleep 0.1; done\nexec simjob --mem 9G --smact 30 --ramp 0s --duration 5s\n")
	c.gpu(id)
	c.sh("", "scontrol suspend "+id)
	beside := c.sbatch(alice, "", train("20G", "1s"))
	c.ends(beside, "COMPLETED")
	c.eventually(func() string { return c.sh("", "carma-node --node n1 status") },
		id+` carma-alice 10.0G idle (4[5-9]|5\ds|1m)`)
	if got := c.job(id, "%T") + c.leases("n1"); got != "SUSPENDED"+id {
		t.Errorf("the job is %s", got)
	}
	c.sh("", "scontrol resume "+id)
	time.Sleep(8 * time.Second) // the agent looks for idle jobs every 5 s
	if got := c.job(id, "%T"); got != "RUNNING" {
		t.Fatalf("the job is %s after it was resumed\n%s", got, c.story(id))
	}
	c.sh(alice, "touch go")
	c.ends(id, "COMPLETED")

	ended := c.sbatch(alice, "", train("10G", "1h"))
	c.gpu(ended)
	c.sh("", "scontrol suspend "+ended)
	c.sh(alice, "scancel "+ended)
	c.ends(ended, "CANCELLED")
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.noDrain()
}

// Jobs wait for the end of a maintenance, and those of a reservation run in it. A node that
// is rebooted, and knows nothing of before, serves again; the job that ran there is requeued.
func TestSituationMaintenance(t *testing.T) {
	c := up(t)
	runs := c.sbatch(alice, "-w n1", train("10G", "1h"))
	c.gpu(runs)
	c.sh("", "scontrol create reservation=work starttime=now duration=60 flags=maint,ignore_jobs nodes=n1 users=root")
	c.sh("", "scontrol create reservation=class starttime=now duration=60 flags=ignore_jobs nodes=n2 users="+alice)
	waits := c.sbatch(bob, "-t 5", train("10G", "1s"))
	inside := c.sbatch(alice, "-t 5 --reservation=class", train("10G", "1s"))
	c.ends(inside, "COMPLETED")
	time.Sleep(5 * time.Second)
	if got := c.job(waits, "%T") + c.restarts(waits) + c.job(runs, "%T"); got != "PENDING0RUNNING" {
		t.Errorf("%s", got)
	}
	c.sh("", "scontrol delete reservation=class")
	c.ends(waits, "COMPLETED")
	c.sh("", "scontrol delete reservation=work")

	reboot := filepath.Join(c.dir, "hooks", "reboot")
	if err := os.WriteFile(reboot, []byte("#!/bin/sh\ntouch "+c.dir+"/rebooted\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c.slurmConf("RebootProgram="+reboot, "ResumeTimeout=120")
	c.restart("slurmd")
	c.eventually(func() string { return c.gres("n1") }, "carma4:2,")
	c.sh("", "scontrol reboot nextstate=resume reason=kernel n1")
	time.Sleep(3 * time.Second)
	if got := c.job(runs, "%T"); got != "RUNNING" {
		t.Errorf("scontrol reboot did not wait for the job: %s", got)
	}
	c.sh(alice, "scancel "+runs)
	c.ends(runs, "CANCELLED")
	c.eventually(func() string { return c.sh("", "ls "+c.dir+"/rebooted 2>/dev/null || true") }, "rebooted")
	// What a reboot takes away: processes, /run.
	c.sh("", `for p in slurmd.n1 agent.n1; do read -r pid _ <`+c.dir+`/pid/$p; kill -9 $pid; done
		for p in /proc/[0-9]*; do
			if grep -qaz '^CUDA_MPS_PIPE_DIRECTORY=`+c.dir+`/run/n1/' $p/environ 2>/dev/null; then kill -9 ${p#/proc/}; fi
		done; rm -rf `+c.dir+`/run/n1/* `+c.dir+`/pid/slurmd.n1*`)
	time.Sleep(2 * time.Second) // a boot takes time
	c.sh("", "slurmd -f $SLURM_CONF -N n1 -b </dev/null >>"+c.dir+"/log/slurmd.n1.out 2>&1; until [ "+
		"-s "+c.dir+"/pid/slurmd.n1.raw ]; do sleep 0.1; done; "+
		c.remember("slurmd.n1", "$(cat "+c.dir+"/pid/slurmd.n1.raw)"))
	c.restart("agent", "n1")
	c.eventually(func() string { return c.sh("", "sinfo -h -N -n n1 -p plain -o %T") }, "^idle$")
	c.eventually(func() string { return c.gres("n1") }, idleNode)
	c.ends(c.sbatch(alice, "-w n1", train("10G", "1s")), "COMPLETED")
	c.noDrain()
}
