// SPDX-License-Identifier: Apache-2.0

//go:build integration && situations

package devcluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Situations of jobs (docs/situations.md).

// A job that has the node to itself gets the GPUs that it asked for, whole, however its
// user says so; nothing else is placed there meanwhile.
func TestSituationExclusive(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.managed("whole", true)
	c.slurmConf("PartitionName=whole Nodes=n1 OverSubscribe=EXCLUSIVE MaxTime=INFINITE DefMemPerCPU=100")
	const script = "#CARMA mem=8G\necho gpu=$CUDA_VISIBLE_DEVICES of $SLURM_GPUS_ON_NODE\nsrun --gres=gpu:1 bash -c " +
		"'echo step=$CUDA_VISIBLE_DEVICES'\nuntil [ -e go ]; do sleep 0.1; done\n"
	const uuid = `GPU-[0-9a-f-]+`
	for options, want := range map[string]string{
		"--exclusive --gres=gpu:1": "^gpu=" + uuid + " of 1\nstep=" + uuid + "\n",
		"--exclusive --gpus=2":     "^gpu=" + uuid + "," + uuid + " of 2\nstep=" + uuid + "\n",
		"-p whole --gres=gpu:1":    "^gpu=" + uuid + " of 1\nstep=" + uuid + "\n",
	} {
		id := c.sbatch(alice, options, script)
		c.eventually(func() string {
			text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", "slurm-"+id+".out"))
			return string(text)
		}, want)
		beside := c.sbatch(alice, "--gres=gpu:1", "#CARMA mem=1G\ntrue\n")
		c.eventually(func() string { return c.job(beside, "%T %r") }, "PENDING (Resources|Priority|Nodes|ReqNode)")
		if got, want := len(strings.Fields(c.leases("n1"))), strings.Count(want[:strings.Index(want, " of")],
			uuid); got != want {
			t.Errorf("%s: %d leases, want %d", options, got, want)
		}
		c.sh(alice, "touch go")
		c.ends(id, "COMPLETED")
		c.ends(beside, "COMPLETED")
		c.sh(alice, "rm go")
	}
	for command, want := range map[string]string{
		"srun --exclusive --gres=gpu:1":           "^" + uuid + "$",
		"srun --exclusive=user --gres=gpu:1":      "^" + uuid + "$",
		"srun --exclusive=mcs --gres=gpu:2":       "^" + uuid + "," + uuid + "$",
		"salloc -Q --exclusive --gres=gpu:3 srun": "^" + uuid + "," + uuid + "," + uuid + "$",
		// of the four that it holds, as its step asks for one
		"srun -p plain --exclusive --gres=gpu:1":              "^" + uuid + "$",
		"srun -p whole -n1 --gpus-per-task=1 --cpu-bind=none": "^" + uuid + "$",
	} {
		out, stderr, err := c.run(alice, "timeout 60 "+command+" bash -c 'echo $CUDA_VISIBLE_DEVICES'")
		if err != nil || !regexp.MustCompile(want).MatchString(strings.TrimSpace(out)) {
			t.Errorf("%s: %v, %q, %s", command, err, out, stderr)
		}
	}
	c.nothingLeft()
}

// A job that names several partitions waits for what it booked, and is returned to the queue by
// nobody; it starts in either.
func TestSituationSeveralPartitions(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.managed("second", true)
	c.slurmConf("PartitionName=second Nodes=n1 MaxTime=INFINITE DefMemPerCPU=100 PriorityTier=3")
	full := c.sbatch(bob, "", "#SBATCH --gres=gpu:4\nuntil [ -e go ]; do sleep 0.1; done\n")
	c.eventually(func() string { return c.leases("n1") }, strings.Repeat(full+" ", 3)+full)
	ids := map[string]string{}
	for _, names := range []string{"gpu,plain", "plain,gpu", "gpu,second", "second,gpu"} {
		ids[names] = c.sbatch(alice, "-p "+names+" --gres=gpu:1", "#CARMA mem=8G\ntrue\n")
	}
	ids["moved"] = c.sbatch(alice, "-p gpu --gres=gpu:1", "#CARMA mem=8G\ntrue\n")
	c.update(alice, "JobId="+ids["moved"]+" Partition=second,gpu")
	time.Sleep(8 * time.Second) // some rounds of slurmctld's schedulers
	for name, id := range ids {
		if got := c.job(id, "%T"); got != "PENDING" || c.hookLog(id) != "" {
			t.Errorf("%s: %s\n%s", name, got, c.hookLog(id))
		}
	}
	c.sh(bob, "touch go")
	for name, id := range ids {
		c.ends(id, "COMPLETED")
		if got := c.sh("", "squeue -h -t all -j "+id+" -O RestartCnt"); got != "0" {
			t.Errorf("%s was returned to the queue %s times", name, got)
		}
	}
	if _, stderr, err := c.run(alice, "sbatch -p second,gpu --gres=gpu:5 --wrap true"); err == nil ||
		!strings.Contains(stderr, "a node has 4") {
		t.Errorf("five GPUs: %v, %s", err, stderr)
	}
	c.nothingLeft()
}

// A step on a node whose carma.toml or task file is broken or gone sees no GPU, and no
// slot for one; a job whose Prolog has no carma.toml returns to the queue.
func TestSituationWithoutConfiguration(t *testing.T) {
	c := up(t, "--nodes", "1")
	script := "#CARMA mem=8G\nsrun bash -c 'echo first=$CUDA_VISIBLE_DEVICES'\nuntil [ -e go ]; do sleep 0.1; " +
		"done\nsrun bash -c 'echo second=$CUDA_VISIBLE_DEVICES'\n"
	id := c.sbatch(alice, "--gres=gpu:1", script)
	gone := c.sbatch(bob, "--gres=gpu:1", script)
	output := func(id string) func() string {
		return func() string {
			text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", "slurm-"+id+".out"))
			return string(text)
		}
	}
	for _, id := range []string{id, gone} {
		c.eventually(output(id), "first=GPU-")
	}
	c.sh("", "rm "+c.dir+"/run/n1/jobs/"+gone+".json; chmod 600 "+c.dir+"/etc/carma.toml; touch "+c.dir+"/jobs/go")
	for _, id := range []string{id, gone} {
		c.eventually(output(id), "(?m)^second=$")
	}
	c.sh("", "chmod 644 "+c.dir+"/etc/carma.toml; cp -p "+c.dir+"/etc/carma.toml "+c.dir+"/etc/good; echo '[' "+
		">>"+c.dir+"/etc/carma.toml")
	if os.Getenv("SLURM_PREFIX") == "" { // the default bin_dir has this Slurm's commands
		back := c.sbatch(alice, "--gres=gpu:1", "echo second=$CUDA_VISIBLE_DEVICES\n")
		c.eventually(func() string { return c.sh("", "squeue -h -t all -j "+back+" -O RestartCnt") }, "1")
		c.sh("", "cp -p "+c.dir+"/etc/good "+c.dir+"/etc/carma.toml")
		c.ends(back, "COMPLETED")
		c.eventually(output(back), "(?m)^second=GPU-")
	}
	c.sh("", "cp -p "+c.dir+"/etc/good "+c.dir+"/etc/carma.toml")
	c.nothingLeft()
}

// The errors of a step are looked at when others have run since, and an agent anew.
func TestSituationStderrOfEarlierSteps(t *testing.T) {
	c := up(t, "--nodes", "1")
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=8G\n"+
		"srun -e one-%t.err bash -c 'simjob --mem 4G --smact 10 --ramp 0s --duration 4s; simjob --mem 12G --smact 10 "+
		"--ramp 0s --duration 1s'\n"+
		"touch one; until [ -e go ]; do sleep 0.1; done\n"+
		"[ \"$CARMA_RETRY_REASON\" = oom ] && exit\n"+
		"srun -e two-%t.err simjob --mem 4G --smact 10 --ramp 0s --duration 4s; exit 1\n")
	c.eventually(func() string {
		out, _, _ := c.run("", "ls one; cat "+c.dir+"/run/n1/jobs/"+id+".0.stderr")
		return out
	}, "(?s)one\n.*[Pp]ath")
	c.restart("agent", "n1")
	c.sh(alice, "touch go")
	c.ends(id, "COMPLETED")
	if r := c.report(id); !r.OOM {
		t.Errorf("%+v", r)
	}
	c.nothingLeft()
}

// A waiting job that its user moves to a partition of smaller GPUs has booked more than any of
// them has. It books whole ones of these, and runs.
func TestSituationMovedToSmallerGPUs(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"partition.big.share": "true", "partition.big.gpus_per_node": "4",
		"partition.big.gpu_mem_mib": "81072",
		"capacity.compare":          `"1s"`})
	c.slurmConf("PartitionName=big Nodes=n1 MaxTime=INFINITE DefMemPerCPU=100")
	for options, script := range map[string]string{
		"--gres=gpu:1":        "#CARMA policy=exclusive\n",
		"--gres=gpu:1 -J mem": "#CARMA mem=60G\n",
		"--gres=gpu:3":        "",
		"-w n1 --gres=gpu:4":  "",
	} {
		id := c.sbatch(alice, "-p big --hold "+options, script+"true\n")
		c.update(alice, "JobId="+id+" Partition=gpu")
		c.sh(alice, "scontrol release "+id)
		if c.publishes() {
			c.eventually(func() string { return c.job(id, "%T %r") }, "^PENDING (Constraints|Resources|BadConstraints)")
			c.sh(alice, "scancel "+id)
			continue
		}
		c.ends(id, "COMPLETED")
		if got, want := c.job(id, "%P"), "gpu"; got != want {
			t.Errorf("%s: it ran in partition %s", options, got)
		}
		if log := c.hookLog(id); !strings.Contains(log, "exclusive=true") {
			t.Errorf("%s: it did not run exclusively:\n%s", options, log)
		}
	}
	c.nothingLeft()
}

// preemption is a cluster where jobs may preempt others.
type preemption struct {
	*cluster
	high, requeue, cancel, safe string // options of jobs: who preempts, how they are preempted, who is not
}

// A booked job of a higher tier or QOS gets its GPUs from jobs of a lower one: as few of them
// as it needs, the youngest first, return to the queue, or end after the time that they are
// given, and those whom slurmctld does not preempt stay.
func TestSituationPreemption(t *testing.T) {
	c := up(t, "--nodes", "2")
	c.managed("high", true)
	c.managed("cancel", true)
	c.managed("safe", true)
	const nodes = " Nodes=n1,n2 LLN=YES MaxTime=INFINITE DefMemPerCPU=100 "
	c.slurmConf("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", "PartitionName=high PriorityTier=10"+nodes,
		"PartitionName=cancel PreemptMode=CANCEL GraceTime=5"+nodes, "PartitionName=safe PreemptMode=OFF"+nodes)
	preemption{c, "-p high", "", "-p cancel", "-p safe"}.test()
	c.nothingLeft()
}

func TestSituationPreemptionByQOS(t *testing.T) {
	needsMySQL(t)
	c := up(t, "--nodes", "2", "--slurmdbd")
	for _, qos := range []string{"low PreemptMode=requeue", "scavenge PreemptMode=cancel GraceTime=5",
		"new PreemptMode=requeue PreemptExemptTime=1:00:00",
		"high Preempt=low,scavenge,new"} {
		c.sh("", "sacctmgr -iQ add qos "+qos)
	}
	c.sh("", "sacctmgr -iQ modify user "+alice+","+bob+" set qos=low,scavenge,new,high defaultqos=low")
	c.slurmConf("PreemptType=preempt/qos", "PreemptMode=REQUEUE", "AccountingStorageEnforce=qos")
	preemption{c, "--qos=high", "--qos=low", "--qos=scavenge", "--qos=new"}.test()
	c.nothingLeft()
}

func (c preemption) test() {
	c.t.Helper()
	c.restart("agent") // it asks once a minute who may preempt whom
	start := time.Now()
	waited := func(id string) time.Duration {
		c.eventually(func() string { return c.job(id, "%T %r") }, "RUNNING None|COMPLETED")
		return time.Since(start).Round(time.Second)
	}
	control := map[string]time.Duration{} // processors, that CARMA has no part in
	for _, low := range []string{c.requeue, c.cancel} {
		for range 2 {
			c.sbatch(bob, "-n 64 -N 1 --requeue "+low, "exec sleep 1000\n")
		}
		c.eventually(func() string { return c.sh("", "squeue -h -t R -o %i | wc -l") }, "^2$")
		start = time.Now()
		id := c.sbatch(alice, "-n 64 -N 1 "+c.high, "exec sleep 1000\n")
		control[low] = waited(id)
		c.sh("", "scancel -u "+alice+"; scancel -u "+bob)
		c.eventually(func() string { return c.sh("", "squeue -h") }, "^$")
	}
	const script = "#CARMA mem=26G\ntrap 'echo warned' TERM\nsimjob --mem 4G --smact 5 --ramp 0s --duration 10h & " +
		"until wait; do :; done\n"
	for _, k := range []struct {
		how, low string
		gpus     int
	}{{"requeue", c.requeue, 1}, {"cancel", c.cancel, 1}, {"requeue", c.requeue, 2}} {
		var ids []string
		for i := range 8 { // one on each GPU
			options := "--gres=gpu:1 --requeue "
			if i%4 < 2 {
				options += c.safe
			} else {
				options += k.low
			}
			ids = append(ids, c.sbatch(bob, options, script))
			c.eventually(func() string { return c.job(ids[i], "%T %r") }, "RUNNING None")
		}
		start = time.Now()
		id := c.sbatch(alice, fmt.Sprintf("%s --gres=gpu:%d", c.high, k.gpus),
			"echo gpu=$CUDA_VISIBLE_DEVICES\nexec sleep 1000\n")
		took := waited(id)
		c.t.Logf("%s for %d GPUs: they were there after %s; processors of a job without GPUs after %s", k.how, k.gpus, took,
			control[k.low])
		c.gpu(id)
		var gone []string
		for i, low := range ids {
			state := c.job(low, "%T")
			if state == "RUNNING" && c.sh("", "squeue -h -j "+low+" -O RestartCnt") == "0" {
				continue
			}
			gone = append(gone, low)
			if want := map[string]string{"requeue": "PENDING",
				"cancel": "CANCELLED|PREEMPTED"}[k.how]; !regexp.MustCompile(want).MatchString(state) || i%4 < 2 {
				c.t.Errorf("%s: job %d of 8 is %s", k.how, i, state)
			}
			if told := c.sh("", "grep -hE 'is to be preempted.* job="+low+" ' "+c.dir+"/log/hooks.*.log || "+
				"true"); k.how == "cancel" &&
				(told == "" || !strings.Contains(c.output(low), "warned")) {
				c.t.Errorf("job %s was not told that it is to be preempted", low)
			}
		}
		if len(gone) != k.gpus {
			c.t.Errorf("%s: %s were preempted, want %d", k.how, gone, k.gpus)
		}
		c.sh("", "scancel "+id)
		if k.how == "requeue" {
			for _, low := range gone {
				c.eventually(func() string { return c.job(low, "%T %r") }, "RUNNING None")
			}
		}
		c.sh("", "scancel -u "+alice+"; scancel -u "+bob)
		c.eventually(func() string { return c.sh("", "squeue -h") + c.leases("n1") + c.leases("n2") }, "^$")
		c.wantCounts("n1", idleCounts)
		c.wantCounts("n2", idleCounts)
		c.noDrain()
	}
	c.wholeNodes(script, waited, &start, control[c.requeue])
}

// wholeNodes: slurmctld itself makes room for a job that takes all GPUs of several nodes.
func (c preemption) wholeNodes(script string, waited func(id string) time.Duration, start *time.Time,
	control time.Duration) {
	c.t.Helper()
	var ids []string
	for range 8 {
		ids = append(ids, c.sbatch(bob, "--gres=gpu:1 --requeue "+c.requeue, script))
	}
	for _, low := range ids {
		c.eventually(func() string { return c.job(low, "%T %r") }, "RUNNING None")
	}
	*start = time.Now()
	id := c.sbatch(alice, c.high+" -N 2 --gres=gpu:4", "exec sleep 1000\n")
	c.t.Logf("all GPUs of two nodes: they were there after %s; processors of a job without GPUs after %s", waited(id),
		control)
	for _, low := range ids {
		if got := c.job(low, "%T"); got != "PENDING" {
			c.t.Errorf("job %s is %s", low, got)
		}
	}
	if got := c.restarts(id); got != "0" {
		c.t.Errorf("the job on two nodes was returned to the queue %s times", got)
	}
	c.sh("", "scancel -u "+alice+"; scancel -u "+bob)
	c.eventually(func() string { return c.sh("", "squeue -h") + c.leases("n1") + c.leases("n2") }, "^$")
	c.noDrain()
}

// A job that the Prolog refuses for what no node's Extra tells is returned to the queue hooks.vetoes times and no
// more; then it waits for something that comes. One that books nothing, as its partition is none of CARMA's, gives way
// to all, and no GPU is held for it; it runs when nobody else waits for one.
func TestSituationReturnsEnd(t *testing.T) {
	c := up(t, "--nodes", "1", "--time-scale", "10")
	c.settings(map[string]string{
		"placement.settle": `"0s"`, "hooks.wait": `"1s"`,
		"hooks.wait_interactive": `"2s"`,
		"hooks.deadline":         `"2s"`, "hooks.vetoes": "1",
	})
	c.restart("slurmctld")
	for range 4 {
		id := c.sbatch(alice, "--gres=gpu:1", "#CARMA mem=4G smact=60\nsimjob --mem 3G --smact 2 --ramp 0s --duration "+
			"10h & until [ -e go ]; do sleep 0.1; done; kill %1\n")
		c.eventually(func() string { return fmt.Sprint(c.index(id) >= 0) }, "true")
	}
	uncounted := c.sbatch(alice, "--gres=gpu:1", "#CARMA mem=4G smact=30 slowdown=1.01\ntrue\n")
	c.eventually(func() string { return c.hookLog(uncounted) }, "returned often; waits for idle GPUs now")
	unbooked := c.sbatch(alice, "-p plain --gres=gpu:1", "true\n")
	c.eventually(func() string { return c.hookLog(unbooked) }, "returned to the queue")
	time.Sleep(10 * time.Second)
	if log := c.hookLog(unbooked); strings.Contains(log, "GPUs are held for the job") {
		t.Errorf("GPUs are held for a job that books nothing:\n%s", log)
	}
	c.sh(alice, "touch go")
	c.ends(uncounted, "COMPLETED")
	if n := strings.Count(c.hookLog(uncounted), `msg="returned to the queue"`); n > 2 {
		t.Errorf("returned to the queue %d times", n)
	}
	c.ends(unbooked, "COMPLETED")
	c.nothingLeft()
}

// srun for more GPUs than the node has is told so, and ends; so does a batch job that cannot be requeued and has
// got its GPUs later, which would keep all slots for nothing. One that can be requeued is held.
func TestSituationMoreThanTheNodeHas(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"hooks.wait": `"1s"`})
	for _, options := range []string{"--gres=gpu:5", "--gpus=5", "--gpus=5 --exclusive", "--gpus-per-task=5"} {
		const want = "carma: the job asks for 5 GPUs on node n1, which has 4, and cannot start; end it and ask for at most 4"
		if _, stderr, _ := c.run(alice, "srun -n 1 -p plain "+options+" true"); !strings.Contains(stderr, want) {
			t.Errorf("%s: told %q", options, stderr)
		}
	}
	for option, end := range map[string]string{"--no-requeue": "^CANCELLED", "--requeue": "^PENDING JobHeldAdmin|held"} {
		id := c.sbatch(alice, "-H -p plain "+option, "true\n")
		c.sh(alice, "scontrol update JobId="+id+" Gres=gpu:16")
		c.sh(alice, "scontrol release "+id)
		c.eventually(func() string { return c.sh("", "squeue -h -t all -j "+id+" -o '%T %r'") }, end)
		if option == "--requeue" {
			c.eventually(func() string { return c.sh("", "scontrol show job "+id) },
				"AdminComment=.*the job asks for 16 GPUs on node n1, which has 4")
			c.sh(alice, "scancel "+id)
		}
	}
	if _, stderr, err := c.run(alice, "srun --gres=gpu:5 true"); err == nil || !strings.Contains(stderr, "a node has 4") {
		t.Errorf("in a partition of CARMA's: %v, %s", err, stderr)
	}
	c.nothingLeft()
}

// A job that takes all GPUs of several nodes starts in its turn, though small jobs fill the nodes
// and more of them wait behind it: slurmctld plans its start, as it does without CARMA.
func TestSituationLargeJob(t *testing.T) {
	c := up(t)
	const before, behind = 8, 40
	small := "#SBATCH --gres=gpu:1 -t 1\n#CARMA mem=30G\nsleep 20\n"
	for range before {
		c.sbatch(bob, "", small)
	}
	count := func(states string) string {
		return c.sh("", "squeue -h -u "+bob+" -t "+states+" | wc -l")
	}
	c.eventually(func() string { return count("running") }, fmt.Sprint("^", before, "$"))
	large := c.sbatch(alice, "", "#SBATCH -N 2 --gres=gpu:4 -t 1\nsleep 5\n")
	if got := c.job(large, "%b"); !strings.Contains(got, "carma:162144") {
		t.Errorf("it books %s", got)
	}
	file := filepath.Join(c.dir, "jobs", "small.sh")
	if err := os.WriteFile(file, []byte("#!/bin/bash\n"+small), 0o755); err != nil {
		t.Fatal(err)
	}
	c.sh(bob, fmt.Sprintf("for i in $(seq %d); do sbatch %s; done", behind, file))
	c.eventually(func() string { return c.job(large, "%T") }, "^RUNNING$")
	if got := count("pending"); got != fmt.Sprint(behind) {
		t.Errorf("%s of %d small jobs behind it still wait", got, behind)
	}
	c.ends(large, "COMPLETED")
	if got := c.restarts(large); got != "0" {
		t.Errorf("it was returned to the queue %s times", got)
	}
	c.sh(bob, "scancel -u "+bob)
	c.eventually(func() string { return c.leases("n1") + c.leases("n2") }, "^$")
	c.nothingLeft()
}

// A job on several nodes that shares GPUs, or takes some of each node, waits for nodes that offer
// what it asks for, as one on a single node does.
func TestSituationSeveralNodes(t *testing.T) {
	c := up(t)
	for range 8 {
		c.sbatch(bob, "", "#SBATCH --gres=gpu:1 -t 1\nsleep 25\n")
	}
	c.wantCounts("n1", "^carma1:0 carma2")
	c.wantCounts("n2", "^carma1:0 carma2")
	id := c.sbatch(alice, "", "#SBATCH -N 2 --gres=gpu:1 -t 1\n#CARMA mem=10G\nsrun hostname\n")
	for range 10 {
		if got := c.job(id, "%T %r"); !strings.HasPrefix(got, "PENDING") || strings.Contains(got, "Bad") {
			t.Fatalf("the job on two nodes: %s", got)
		}
		time.Sleep(500 * time.Millisecond)
	}
	t.Log(c.job(id, "%T %r"))
	c.ends(id, "COMPLETED")
	if got := c.restarts(id); got != "0" {
		t.Errorf("it was returned to the queue %s times", got)
	}
	c.eventually(func() string { return c.leases("n1") + c.leases("n2") }, "^$")
	c.nothingLeft()
}

// A job of 64 nodes: all of its Prologs lease at once, all tasks see a GPU of their node, and
// out of GPU memory on one node it is requeued once, as a whole.
func TestSituationManyNodes(t *testing.T) {
	const nodes = 64
	c := up(t, "--nodes", fmt.Sprint(nodes), "--time-scale", "10")
	leased := func() string {
		n := 0
		for i := range nodes {
			files, err := filepath.Glob(filepath.Join(c.dir, "run", fmt.Sprint("n", i+1), "jobs", "*.json"))
			if err != nil {
				t.Fatal(err)
			}
			n += len(files)
		}
		return fmt.Sprint(n)
	}
	id := c.sbatch(alice, "-N "+fmt.Sprint(nodes), "#SBATCH --gres=gpu:1\n#CARMA mem=10G\n"+
		"srun bash -c 'echo gpu=$SLURMD_NODENAME:$CUDA_VISIBLE_DEVICES'\nuntil [ -e go ]; do sleep 0.2; done\n"+
		"if [ \"$SLURM_RESTART_COUNT\" ]; then exit; fi\n"+
		"srun bash -c 'm=9G; [ $SLURMD_NODENAME != n40 ] || m=12G; simjob --mem $m --smact 10 --ramp 0s --duration 1s'\n")
	c.eventually(func() string {
		text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", "slurm-"+id+".out"))
		return fmt.Sprint(strings.Count(string(text), "GPU-"))
	}, fmt.Sprint("^", nodes, "$"))
	if got := leased(); got != fmt.Sprint(nodes) {
		t.Errorf("%s leases", got)
	}
	beside := c.sbatch(alice, "-w n40", train("10G", "1s"))
	c.ends(beside, "COMPLETED")
	c.sh(alice, "touch go")
	c.eventually(func() string { return c.restarts(id) }, "^1$")
	c.ends(id, "COMPLETED")
	// Here all nodes write into one file: what finds it locked is in it a moment later.
	c.eventually(func() string {
		r := c.report(id)
		return fmt.Sprintf("OOM %v, %d attempts, %d GPUs", r.OOM, r.Attempts, len(r.GPUs))
	}, fmt.Sprint("^OOM true, 2 attempts, ", nodes, " GPUs$"))
	c.eventually(leased, "^0$")
	c.nothingLeft()
}
