// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"strings"
	"testing"
)

// A GPU that the driver says is broken takes no job until it is well, or somebody says so;
// what a user's program can cause closes none.
func TestBrokenGPU(t *testing.T) {
	c := up(t, "--nodes", "1")
	fault := func(gpu int, what string) {
		c.sh("", fmt.Sprintf("SIMGPU_STATE=%s/simgpu/n1 simgpu fault %d %s", c.dir, gpu, what))
	}
	closed := func(gpu int) func() string {
		return func() string { return c.status("n1")[gpu].Closed }
	}
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\necho gpu=$CUDA_VISIBLE_DEVICES\n"+
		"simjob --mem 8G --smact 10 --ramp 0s --duration 10h &\nuntil [ -e end ]; do sleep 0.2; done\nkill %1\nexit 1\n")
	gpu := c.gpu(id)
	at := -1
	for _, g := range c.status("n1") {
		if g.UUID == gpu {
			at = g.Index
		}
	}
	other := (at + 1) % 4
	fault(at, "xid=31") // an illegal access of a program
	fault(at, "xid=79")
	c.eventually(closed(at), "^Xid 79: GPU has fallen off the bus$")
	fault(other, "recovery=1")
	c.eventually(closed(other), "^the driver asks for a reset of the GPU$")
	if got := c.job(id, "%T"); got != "RUNNING" {
		t.Errorf("the job there is %s", got)
	}
	for range 3 {
		next := c.sbatch(alice, "", train("10G", "1s"))
		if g := c.gpu(next); g == gpu || g == c.status("n1")[other].UUID {
			t.Errorf("a job runs on the broken GPU %s", g)
		}
		c.ends(next, "COMPLETED")
	}
	fault(other, "recovery=0")
	c.eventually(closed(other), "^$")
	if got := closed(at)(); got == "" {
		t.Error("the other one is open, too")
	}
	if out := c.sh("", fmt.Sprintf("carma-node --node n1 readmit %d", at)); !strings.Contains(out,
		"takes jobs again: Xid 79") {
		t.Errorf("readmit says %q", out)
	}
	c.eventually(closed(at), "^$")
	c.sh("", "touch "+c.dir+"/jobs/end")
	c.ends(id, "FAILED")
	if out := c.sh("", "carma-report -j "+id); !strings.Contains(out, "Xid 79") {
		t.Errorf("the report does not say why:\n%s", out)
	}
	c.noDrain()
}

// A fault of an MPS server ends the jobs of all of its clients within a third of a second,
// before anybody asks for its status: they are requeued once, alone. A job that was the only
// client has made the fault itself, and stays failed.
func TestServerFault(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1")
	script := "#SBATCH --gres=gpu:1\n#CARMA mem=10G\necho gpu=$CUDA_VISIBLE_DEVICES retry=$CARMA_RETRY_REASON " +
		"shared=$CARMA_SHARED\n[ \"$CARMA_RETRY_REASON\" = mps-fault ] && runs=1s || runs=10h\n" +
		"exec simjob --mem 8G --smact 10 --ramp 0s --duration $runs\n"
	fault := func(index int) {
		c.sh("", fmt.Sprintf("SIMGPU_STATE=%s/simgpu/n1 simgpu mps-fault %d", c.dir, index))
	}
	var ids []string
	for range 5 { // of four GPUs: two jobs share one
		ids = append(ids, c.sbatch(alice, "", script))
	}
	gpus := map[string][]string{}
	for _, id := range ids {
		gpu, _, _ := strings.Cut(c.gpu(id), " ")
		gpus[gpu] = append(gpus[gpu], id)
	}
	c.eventually(func() string { return c.clients("n1") }, "^5$")
	c.seen(5)
	for _, g := range c.status("n1") {
		if len(gpus[g.UUID]) != 1 {
			continue
		}
		alone := gpus[g.UUID][0]
		fault(g.Index)
		c.ends(alone, "FAILED")
		if out := c.sh("", "carma-report -j "+alone); !strings.Contains(out, "its MPS server has faulted") {
			t.Errorf("report of the job that was alone:\n%s", out)
		}
		break
	}
	for _, g := range c.status("n1") {
		if len(gpus[g.UUID]) != 2 {
			continue
		}
		fault(g.Index)
		for _, id := range gpus[g.UUID] {
			c.ends(id, "COMPLETED")
			if out := c.output(id); !strings.Contains(out, "retry=mps-fault shared=0") {
				t.Errorf("job %s was requeued so: %s", id, out)
			}
			if r := c.report(id); r.RequeuedTo == "" || r.Attempts != 2 || r.OOM {
				t.Errorf("report of job %s: %+v", id, r)
			}
		}
	}
	c.eventually(func() string {
		closed := ""
		for _, g := range c.status("n1") {
			closed += g.Closed
		}
		return closed
	}, "^$")
	c.noDrain()
}

// The end of a job with queued kernels, as by scancel, can bring a fault to neighbours (seen on an H200): neighbours
// are requeued, and cancelled jobs are not, whatever the server's log and the jobs' texts say.
func TestCancelledBeside(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1")
	others := c.sbatch(bob, "", "#SBATCH --gres=gpu:3\n#CARMA policy=exclusive\nsleep 10h\n")
	c.waiting([]string{others}, "%T %r", "RUNNING None") // it holds its GPUs: the jobs below have one left
	const one = "#SBATCH --gres=gpu:1\n#CARMA mem=8G\n"
	beside := c.sbatch(alice, "", one+"echo retry=$CARMA_RETRY_REASON shared=$CARMA_SHARED\n"+
		"exec simjob --mem 7G --smact 10 --ramp 0s --duration $([ -z $CARMA_RETRY_REASON ] && echo 10h || echo 1s)\n")
	const queued = "simjob --queued --mem 7G --smact 20 --duration 10h"
	busy := c.sbatch(alice, "", one+"exec "+queued)
	c.eventually(func() string { return c.clients("n1") }, "^2$")
	c.seen(2)
	c.sh(alice, "scancel "+busy)
	c.ends(beside, "COMPLETED")
	if out := c.output(beside); !strings.Contains(out, "retry=mps-fault shared=0") {
		t.Errorf("it was requeued so: %s", out)
	}
	// By timing the ledger finds two victims in the log, or the neighbour alone.
	if r := c.report(beside); r.RequeuedTo == "" || r.Attempts != 2 || r.OOM {
		t.Errorf("report: %+v", r)
	}
	if out := c.sh("", "carma-report -j "+beside); !strings.Contains(out, "its MPS server has faulted") {
		t.Errorf("the report does not say why:\n%s", out)
	}

	c.eventually(func() string { return c.clients("n1") }, "^0$")
	// On a slow machine the first job's end faults the MPS server before the next job has its signal: a job that
	// ended by the fault would be requeued, and rightly. So each script sleeps until its signal comes.
	const waits = "\nsleep 10h\n"
	said := c.sbatch(alice, "", one+queued+" &\nsleep 5\n"+
		"echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 384.00 MiB.' >&2\nwait"+waits)
	gone := []string{said, c.sbatch(alice, "", one+queued+waits), c.sbatch(alice, "", one+queued+waits)}
	c.eventually(func() string { return c.clients("n1") }, "^3$")
	c.eventually(func() string { return c.output(said) }, "OutOfMemoryError")
	c.seen(3)
	c.sh(alice, "scancel "+strings.Join(gone, " "))
	for _, id := range gone {
		c.ends(id, "CANCELLED")
		if r := c.report(id); r.Attempts != 1 || r.RequeuedTo != "" {
			t.Errorf("report of job %s: %+v", id, r)
		}
	}
	// The Epilog sees 0:0 of these jobs, and 143 of jobs with a signal to the batch script alone.
	c.eventually(func() string { return c.clients("n1") }, "^0$")
	var ended []string
	for range 2 {
		ended = append(ended, c.sbatch(alice, "", one+"trap 'exit 143' TERM\n"+queued+" &\nwait\nsleep 10h &\nwait\n"))
	}
	c.eventually(func() string { return c.clients("n1") }, "^2$")
	c.seen(2)
	c.sh(alice, "scancel --batch --signal=TERM "+strings.Join(ended, " "))
	for _, id := range ended {
		c.ends(id, "FAILED")
		if r := c.report(id); r.Attempts != 1 || r.RequeuedTo != "" {
			t.Errorf("report of job %s, of which the script had SIGTERM: %+v", id, r)
		}
	}
	c.sh("", "scancel "+others)
	c.noDrain()
}
