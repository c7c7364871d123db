// SPDX-License-Identifier: Apache-2.0

//go:build integration && situations

package devcluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carma/db"
	"carma/gres/lease"
)

// book opens a node's ledger.
func (c *cluster) book(node string) *lease.Ledger {
	c.t.Helper()
	b, err := lease.Open(filepath.Join(c.dir, "run", node), 10*time.Second)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { b.Close() })
	return b
}

// holders are the jobs with leases, by the ledger itself.
func holders(t *testing.T, b *lease.Ledger) string {
	t.Helper()
	s, err := b.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, l := range s.Leases {
		ids = append(ids, l.Job.String())
	}
	return strings.Join(ids, " ")
}

// The node's slurmd and the job's steps die, and slurmctld gives the node up: the job goes
// back and runs on the other node. Its lease here ends, its first attempt has a record, and
// the node serves again. So too where the job runs again on the same node.
func TestSituationNodeFails(t *testing.T) {
	c := up(t)
	c.agentAlone("n1")
	fail := func(id string) {
		t.Helper()
		// slurmd first; then the steps and what is the job's (down.sh), all of them stopped
		// before the first dies, so that none tells slurmctld how the job ended.
		c.sh("", "read -r pid _ <"+c.dir+"/pid/slurmd.n1; kill -9 $pid\n"+`for signal in STOP KILL; do
			for p in /proc/[0-9]*; do
				if grep -qa '^slurmstepd: \[`+id+`\.' $p/cmdline 2>/dev/null; then
					# its name is written over its environment (25.11); its log is open
					ls -l $p/fd 2>/dev/null | grep -q " `+c.dir+`/" || continue
				else
					grep -qazx "SLURM_CONF=$SLURM_CONF" $p/environ 2>/dev/null || continue
					grep -qazx SLURM_JOB_ID=`+id+` $p/environ || continue
				fi
				kill -$signal ${p#/proc/}
			done
		done; true`)
		c.sh("", "scontrol update NodeName=n1 State=DOWN Reason=test")
	}
	// No program on the GPU: the MPS servers of an agent with process numbers of its own
	// take no clients of others.
	const waits = "#SBATCH --gres=gpu:1\n#CARMA mem=10G\necho gpu=$CUDA_VISIBLE_DEVICES\nexec sleep 1h\n"
	n1, n2 := c.book("n1"), c.book("n2")
	c.sh("", "scontrol update NodeName=n2 State=DRAIN Reason=test")
	id := c.sbatch(alice, "", waits)
	c.gpu(id)
	c.eventually(func() string { return holders(t, n1) }, "^"+id+"$")
	c.sh("", "scontrol update NodeName=n2 State=RESUME")
	fail(id)
	c.eventually(func() string { return c.job(id, "%T %N") }, "RUNNING n2")
	c.eventually(func() string { return holders(t, n1) }, "^$")
	c.eventually(func() string { return holders(t, n2) }, "^"+id+` \(restart 1\)$`)

	c.restart("slurmd", "n1")
	c.eventually(func() string { return c.sh("", "sinfo -h -N -n n1 -p plain -o %T") }, "^idle$")
	c.wantCounts("n1", idleCounts)
	if got := c.job(id, "%T %N"); got != "RUNNING n2" {
		t.Errorf("the job is %s", got)
	}
	record := func(id uint32, attempt int, want string) {
		t.Helper()
		c.eventually(func() string {
			d, err := db.OpenRead(filepath.Join(c.dir, "var/carma.db"))
			if err != nil {
				return err.Error()
			}
			defer d.Close()
			list, err := d.Attempts(context.Background(), []uint32{id})
			if err != nil || len(list) <= attempt {
				return fmt.Sprint(list, err)
			}
			a := list[attempt]
			return fmt.Sprintf("%s %s %s %d %d", a.State, a.Node, a.User, a.ReserveMiB, len(a.GPUs))
		}, want)
	}
	record(1, 0, "^NODE_FAIL n1 carma-alice 10240 1$")
	c.sh(alice, "scancel "+id)
	c.ends(id, "CANCELLED")
	record(1, 1, "^CANCELLED n2 carma-alice 10240 1$")
	record(1, 0, "^NODE_FAIL n1 ")

	// It runs again on the node that failed, before that looked for what was left.
	c.sh("", "scontrol update NodeName=n2 State=DRAIN Reason=test")
	id = c.sbatch(alice, "", waits)
	c.gpu(id)
	fail(id)
	c.eventually(func() string { return c.job(id, "%T") }, "PENDING")
	c.restart("slurmd", "n1")
	c.eventually(func() string { return c.job(id, "%T %N") }, "RUNNING n1")
	c.eventually(func() string { return holders(t, n1) }, "^"+id+` \(restart 1\)$`)
	record(2, 0, "^(NODE_FAIL|REQUEUED) n1 carma-alice 10240 1$") // slurmd may have run an Epilog when it was back
	c.sh("", "scontrol update NodeName=n2 State=RESUME")
	c.eventually(func() string { return c.sh("", "sinfo -h -N -n n2 -p plain -o %T") }, "^idle$")
	c.nothingLeft()
}

// agentAlone restarts a node's agent with process numbers of its own. All nodes, and other
// tests' too, are on one machine: only an agent that does not see their steps is like one at a
// site. Its MPS servers take no clients: the jobs run no program on a GPU.
func (c *cluster) agentAlone(node string) {
	c.t.Helper()
	c.end("agent." + node)
	c.sh("", "SIMGPU_STATE="+c.dir+"/simgpu/"+node+" setsid unshare --pid --fork --kill-child --mount-proc "+c.dir+
		"/bin/carma-node --config $CARMA_CONF --node "+node+" agent >>"+c.dir+"/log/agent."+node+".log 2>&1 </dev/null &\n"+
		c.remember("agent."+node, "$!"))
}

// readings counts how often the node's GPUs were read while f ran.
func readings(t *testing.T, b *lease.Ledger, f func()) int {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	n, last := 0, lease.Now()
	for {
		age, ok, err := b.Oldest(context.Background())
		if err != nil || !ok {
			t.Fatalf("no readings: %v", err)
		}
		if at := lease.Now() - age; at-last > 100*time.Millisecond {
			n, last = n+1, at
		}
		select {
		case <-done:
			return n
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// An MPS control daemon that does not answer, and a slurmctld that does not, delay no
// reading of the GPUs, and the first no publication.
func TestSituationNothingAnswers(t *testing.T) {
	c := up(t, "--nodes", "1")
	b := c.book("n1")
	id := c.sbatch(alice, "", train("10G", "1h"))
	c.gpu(id)
	c.sh("", "cd "+c.dir+"/lib && mv nvidia-cuda-mps-control real && printf '#!/bin/sh\\necho "+
		">>"+c.dir+"/log/mps.calls\\nexec sleep 600\\n' >new && chmod 755 new && mv new nvidia-cuda-mps-control")
	calls := func() string { return c.sh("", "cat "+c.dir+"/log/mps.calls 2>/dev/null | wc -l") }
	c.eventually(calls, "^[1-9]")
	n := readings(t, b, func() {
		c.eventually(calls, "^([4-9]|..+)$") // 5 s each
	})
	if n < 6 {
		t.Errorf("the GPUs were read %d times while three commands of MPS hung", n)
	}
	another := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA policy=exclusive\nexec simjob --mem 9G --smact 10 "+
		"--ramp 0s --duration 1h\n")
	c.eventually(func() string { return c.job(another, "%T") }, "RUNNING")
	c.wantCounts("n1", "carma2:40536 carma3:0 carma4:0 ")
	c.sh("", "cd "+c.dir+"/lib && mv real nvidia-cuda-mps-control")

	pid, _, _ := strings.Cut(c.sh("", "cat "+c.dir+"/pid/slurmctld"), " ")
	c.sh("", "kill -STOP "+pid)
	defer c.run("", "kill -CONT "+pid)
	if n := readings(t, b, func() { time.Sleep(20 * time.Second) }); n < 6 {
		t.Errorf("the GPUs were read %d times in 20 s while slurmctld did not answer", n)
	}
	c.sh("", "kill -CONT "+pid)
	c.sh(alice, "scancel "+another)
	c.ends(another, "CANCELLED")
	c.wantCounts("n1", "carma3:40536 ")
	if got := c.job(id, "%T"); got != "RUNNING" || holders(t, b) != id {
		t.Errorf("the job is %s, leases %s", got, holders(t, b))
	}
	c.noDrain()
	os.Remove(filepath.Join(c.dir, "log/mps.calls"))
	c.nothingLeft()
}
