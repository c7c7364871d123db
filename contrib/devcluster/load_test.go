// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// While small jobs arrive for ever at 120 % of what the node takes, a request
// for all GPUs, one for a whole GPU, one for half a GPU, and one of an array of
// them each start before the node has been filled three times with jobs that came
// later. On an idle machine that is 1.0 to 1.5 times the longest running job; a slow one
// takes longer, and so do its small jobs.
func TestNoStarvation(t *testing.T) {
	needsCounts(t) // the steward writes holds into nodes' Extra
	for name, script := range map[string]string{
		"four GPUs":   "#SBATCH --gres=gpu:4\n#CARMA mem=10G\nsleep 1\n",
		"a whole GPU": "#SBATCH --gres=gpu:1\n#CARMA policy=exclusive\nsleep 1\n",
		"half a GPU":  "#SBATCH --gres=gpu:1\n#CARMA mem=20G\nsleep 1\n",
		"its node":    "#SBATCH --gres=gpu:1 -w n1\n#CARMA mem=20G\nsleep 1\n",
		"an array":    "#SBATCH --gres=gpu:1 --array=1-3\n#CARMA mem=20G\nsleep 1\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := up(t, "--nodes", "1")
			c.settings(map[string]string{"hold.after": `"2s"`, "capacity.compare": `"1s"`})
			defer c.stream()()
			submitted := time.Now()
			id := c.sbatch(bob, "", script)
			if strings.Contains(script, "--array") {
				id += "_1"
			}
			c.eventually(func() string { return c.job(id, "%T") }, "RUNNING|COMPLETING|COMPLETED")
			waited := time.Since(submitted).Round(100 * time.Millisecond)
			t.Logf("waited %v, %.2f of the longest job; %s small ones wait now", waited, waited.Seconds()/longest.Seconds(),
				c.sh("", "squeue -h -t PENDING | wc -l"))
			const room = 12 // small jobs at a time
			n := c.overtaken(id)
			t.Logf("%d jobs that came later have started before", n)
			if n > 3*room {
				t.Errorf("these are more than three times what the node takes, %d", room)
			}
			c.ends(id, "COMPLETED")
			c.noDrain()
		})
	}
}

// overtaken counts the jobs that were submitted after a job and started before it.
func (c *cluster) overtaken(id string) int {
	start := func(id string) string {
		return regexp.MustCompile(`StartTime=(\S+)`).FindString(c.sh("", "scontrol show job "+id))
	}
	own, _, _ := strings.Cut(id, "_")
	mine, err := strconv.Atoi(own)
	if err != nil {
		c.t.Fatal(err)
	}
	n := 0
	for _, other := range strings.Fields(c.sh("", "squeue -h -t all -o %A")) {
		if later, err := strconv.Atoi(other); err == nil && later > mine && start(other) < start(id) {
			n++
		}
	}
	return n
}

// A GPU that is kept for a job needs to be free of its user's other jobs only as far
// as their memory is in the way: those that run on for long stay.
func TestHoldLetsOwnJobsStay(t *testing.T) {
	needsCounts(t) // the steward writes holds into nodes' Extra
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"hold.after": `"2s"`, "capacity.compare": `"1s"`})
	var long []string
	for range 4 {
		long = append(long, c.sbatch(alice, "",
			"#SBATCH --gres=gpu:1\n#CARMA mem=10G\nexec simjob --mem 8G --smact 5 --ramp 0s --duration 10h\n"))
	}
	for _, id := range long {
		c.eventually(func() string { return c.job(id, "%T") }, "RUNNING")
	}
	defer c.stream()()
	submitted := time.Now()
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=20G\nsleep 1\n")
	c.eventually(func() string { return c.job(id, "%T") }, "RUNNING|COMPLETING|COMPLETED")
	t.Logf("waited %v for jobs of %v", time.Since(submitted).Round(100*time.Millisecond), longest)
	for _, id := range long { // else it may have waited for an idle GPU
		if state := c.job(id, "%T"); state != "RUNNING" {
			t.Errorf("job %s is %s", id, state)
		}
	}
	c.ends(id, "COMPLETED")
	c.noDrain()
}

// A job that some node has returned to the queue does not wait any longer once GPUs that are kept
// for it are free. That another node is drained changes nothing.
func TestHeldJobComesAtOnce(t *testing.T) {
	needsCounts(t) // the steward writes holds into nodes' Extra
	c := up(t, "--nodes", "2")
	c.sh("", "scontrol update NodeName=n2 State=DRAIN Reason=test")
	c.settings(map[string]string{"hold.after": `"2s"`, "capacity.compare": `"1s"`})
	id := c.sbatch(bob, "", "#SBATCH --gres=gpu:1\n#CARMA off\n[ \"$SLURM_RESTART_COUNT\" ] || exec sleep 1000\n")
	c.eventually(func() string { return c.job(id, "%T") }, "RUNNING")
	for range 4 {
		c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA off\nsimjob --mem 8G --smact 5 --ramp 0s --duration 10h &\n"+
			"until [ -e over ]; do sleep 0.5; done\nkill $!\n")
	}
	c.sh("", "scontrol requeuehold "+id)
	c.eventually(func() string { return c.leased(id) + " " + c.leases("n1") }, `^none \d+ \d+ \d+ \d+$`)
	c.sh("", "scontrol release "+id)
	c.eventually(func() string { return c.sh("", "scontrol show node n1") }, `"carmahold":"`+id)
	c.sh("", "scontrol update JobId="+id+" StartTime=now+800") // as the node sets it that returns a job to the queue
	c.eventually(func() string { return c.job(id, "%r") }, "BeginTime")
	c.sh("", "touch over")
	start := time.Now()
	c.eventually(func() string { return c.job(id, "%T") }, "RUNNING|COMPLETING|COMPLETED")
	t.Logf("came after %v", time.Since(start).Round(time.Second))
	c.ends(id, "COMPLETED")
	c.eventually(func() string { return c.sh("", "sinfo -N -h -n n1 -p plain -o %T") }, "^idle$")
}

// GPUs are kept for no job that its user holds, or lets start later or wait for another.
func TestHoldEndsWithItsUsersHold(t *testing.T) {
	needsCounts(t) // the steward writes holds into nodes' Extra
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"hold.after": `"2s"`, "capacity.compare": `"1s"`})
	long := ""
	for range 4 {
		long = c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\nsleep 1000\n")
	}
	c.eventually(func() string { return c.leases("n1") }, `^\d+ \d+ \d+ \d+$`)
	id := c.sbatch(bob, "", "#SBATCH --gres=gpu:1\n#CARMA off\nsleep 1\n")
	state := func() string {
		kept := 0
		if err := c.ledger("n1").QueryRow("SELECT count(*) FROM hold WHERE job_id=?", id).Scan(&kept); err != nil {
			t.Fatal(err)
		}
		word, _, _ := c.run("", "scontrol show node n1 | grep -o 'carmahold\":\"[0-9]*'")
		return strings.TrimSpace(fmt.Sprint(kept, " ", word))
	}
	// Later than any back-off of ours: a Prolog may have returned the job to the queue before.
	for _, change := range []string{"scontrol hold " + id, "scontrol update JobId=" + id + " StartTime=now+3600",
		"scontrol update JobId=" + id + " Dependency=afterany:" + long} {
		c.eventually(state, `^1 carmahold":"`+id+"$")
		c.sh(bob, change)
		c.eventually(state, "^0$")
		c.sh(bob, "scontrol release "+id)
		c.sh(bob, "scontrol update JobId="+id+" StartTime=now")
		c.sh(bob, "scontrol update JobId="+id+" Dependency=")
	}
	c.noDrain()
}

// GPUs are also kept for a job that the steward sees first when a Prolog has returned it to the queue,
// as the node had not published yet that it is full.
func TestHoldOfAReturnedJob(t *testing.T) {
	needsCounts(t) // the steward writes holds into nodes' Extra
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"hold.after": `"2s"`, "capacity.compare": `"1s"`, "hooks.wait": `"1s"`})
	c.wantCounts("n1", "^carma1:40536 ")
	c.sh("", "read -r pid _ <"+c.dir+"/pid/agent.n1; kill -9 $pid")
	for range 4 {
		c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\nsleep 1000\n")
	}
	c.eventually(func() string { return c.leases("n1") }, `^\d+ \d+ \d+ \d+$`)
	id := c.sbatch(bob, "", "#SBATCH --gres=gpu:1\n#CARMA off\nsleep 1\n")
	c.eventually(func() string { return c.hookLog(id) }, "returned to the queue")
	c.restart("agent", "n1")
	c.eventually(func() string { return c.sh("", "scontrol show node n1") }, `"carmahold":"`+id+":")
	c.noDrain()
}

// longest is how long the small jobs of stream run.
const longest = 40 * time.Second

// stream fills a node of four GPUs with three small jobs each and lets a fifth
// more arrive than can leave, until stop is called.
func (c *cluster) stream() (stop func()) {
	small := func(d time.Duration) {
		c.answered(alice, fmt.Sprintf("printf '#!/bin/sh\\n#SBATCH --gres=gpu:1\\n#CARMA mem=10G\\nsimjob --mem 8G --smact "+
			"5 --ramp 0s --duration 10h &\\nuntil [ -e full ]; do sleep 0.2; done\\nsleep %d\\nkill $!\\nwait\\n' | "+
			"sbatch --parsable -o /dev/null", int(d.Seconds())))
	}
	for i := range 16 {
		small(longest * time.Duration(16-i) / 16)
		if i%4 == 3 && i < 12 {
			// One of them that is returned to the queue would be passed by those that come later, and be
			// ahead of the job that is looked at: a GPU takes a job when the last one has settled.
			c.eventually(func() string { return fmt.Sprint(len(strings.Fields(c.leases("n1"))) > i) }, "true")
		}
	}
	c.wantCounts("n1", "^carma1:0 carma2") // three on each GPU
	c.sh("", "touch full")                 // from now on they are of all ages
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(longest / 12 * 10 / 12)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				small(longest)
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// end is how a job of the mix is to end.
type end struct {
	id, kind string
}

// Jobs of three users with random sizes, in bursts, with cancels, time limits,
// crashes, jobs that outgrow their booking and GPUs that fail to be read: each
// ends as its script explains, and nothing is left. $CARMA_JOBS says how many
// (CI: 300; 3000 take half an hour here).
func TestJobMix(t *testing.T) {
	takesMinutes(t)
	count := 300
	if n, err := strconv.Atoi(os.Getenv("CARMA_JOBS")); err == nil {
		count = n
	}
	nodes := []string{"n1", "n2", "n3", "n4"}
	c := up(t, "--nodes", "4", "--time-scale", "20")
	for _, n := range nodes {
		c.audit(n)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	var jobs []end
	state := map[string]string{}
	waiting := func() int { // and notes how jobs ended: slurmctld forgets them
		pending := 0
		for line := range strings.Lines(c.sh("", "squeue -h -t all -o '%A %T'")) {
			id, s, _ := strings.Cut(strings.TrimSpace(line), " ")
			state[id] = s
			if s == "PENDING" {
				pending++
			}
		}
		return pending
	}
	for len(jobs) < count {
		for range min(1+rng.IntN(20), count-len(jobs)) { // a burst
			jobs = append(jobs, c.mixed(rng))
		}
		if rng.IntN(5) == 0 { // a GPU that cannot be read for a while
			gpu := fmt.Sprint(rng.IntN(4))
			node := nodes[rng.IntN(4)]
			c.sh("", "SIMGPU_STATE="+c.dir+"/simgpu/"+node+" simgpu fault "+gpu+" "+[]string{"hang:20s", "lost",
				"error=15"}[rng.IntN(3)])
			time.AfterFunc(3*time.Second, func() {
				c.run("",
					"SIMGPU_STATE="+c.dir+"/simgpu/"+node+" simgpu fault "+gpu+" none")
			})
		}
		for waiting() > 60 {
			time.Sleep(time.Second)
		}
	}
	// Longer than a job waits that was returned to the queue often.
	for start := time.Now(); c.sh("", "squeue -h | wc -l") != "0"; time.Sleep(time.Second) {
		if waiting(); time.Since(start) > 20*time.Minute {
			t.Fatalf("still there:\n%s", c.sh("", "squeue -h -o '%i %T %r %S %b'"))
		}
	}
	waiting()
	explains := map[string]string{
		"well": "COMPLETED", "crash": "FAILED", "timeout": "TIMEOUT", "cancel": "CANCELLED COMPLETED",
		"overshoot": "COMPLETED", "two": "COMPLETED", "whole": "COMPLETED",
	}
	kinds := map[string]int{}
	for _, j := range jobs {
		kinds[j.kind]++
		if s := state[j.id]; s == "" || !strings.Contains(explains[j.kind], s) {
			t.Errorf("job %s (%s) ended %q\n%s", j.id, j.kind, s, c.story(j.id))
		}
	}
	t.Logf("%d jobs: %v", len(jobs), kinds)
	for _, n := range nodes {
		c.eventually(func() string { return c.leases(n) }, "^$")
		if files, _ := os.ReadDir(filepath.Join(c.dir, "run", n, "jobs")); len(files) != 0 {
			t.Errorf("%d files of jobs are left on %s", len(files), n)
		}
		mib, leases := c.promised(n)
		if mib > 40536 || leases == 0 {
			t.Errorf("%s: %d MiB of a GPU were promised at once, in %d leases", n, mib, leases)
		}
	}
	c.noDrain()
}

// mixed submits one random job.
func (c *cluster) mixed(rng *rand.Rand) end {
	c.t.Helper()
	user := []string{alice, bob, ""}[rng.IntN(3)]
	mem := 2 + rng.IntN(14)
	run := fmt.Sprintf("simjob --mem %dG --smact %d --ramp 0s --duration %ds", mem-1, 5+rng.IntN(30), 10+rng.IntN(90))
	head := fmt.Sprintf("#SBATCH --gres=gpu:1\n#CARMA mem=%dG\n", mem)
	kind, options := "well", "-o /dev/null"
	switch n := rng.IntN(100); {
	case n < 4:
		kind, run = "crash", run+"; exit 3"
	case n < 5:
		kind, options, run = "timeout", options+" -t 1", strings.Replace(run, "--duration", "--duration 10h #", 1)
	case n < 10:
		kind = "cancel"
	case n < 15:
		kind, options = "overshoot", "" // its stderr is to be read
		run = strings.Replace(run, fmt.Sprintf("--mem %dG", mem-1), fmt.Sprintf("--mem %dG", mem+4), 1)
	case n < 18:
		kind, head = "two", strings.Replace(head, "gpu:1", "gpu:2", 1)
		run = strings.Replace(run, "simjob", "simjob --gpus 2", 1)
	case n < 20:
		kind, head = "whole", "#SBATCH --gres=gpu:1\n#CARMA policy=exclusive\n"
	}
	id := c.sbatch(user, options, head+run+"\n")
	if kind == "cancel" {
		time.AfterFunc(time.Duration(rng.IntN(10000))*time.Millisecond, func() { c.run("", "scancel "+id) })
	}
	return end{id, kind}
}
