// SPDX-License-Identifier: Apache-2.0

//go:build integration && situations

package devcluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Situations that users bring about (docs/situations.md).

// written is what a job has written by now; empty: nothing yet.
func (c *cluster) written(id string) string {
	text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", "slurm-"+id+".out"))
	return string(text)
}

// What users do to their jobs while they run or wait does what it does without CARMA; what
// was booked stays.
func TestSituationUsersOperations(t *testing.T) {
	c := up(t, "--nodes", "1")
	id := c.sbatch(alice, "", train("10G", "1h"))
	runs := func(restarts string) {
		t.Helper()
		c.eventually(func() string { return c.job(id, "%T") + c.restarts(id) + " " + c.leases("n1") },
			"^RUNNING"+restarts+" "+id+"$")
	}
	runs("0")
	c.sh(alice, "scontrol requeue "+id)
	runs("1")
	c.sh(alice, "scontrol requeuehold "+id)
	c.eventually(func() string { return c.job(id, "%T") + c.leases("n1") }, "^PENDING$")
	c.sh(alice, "scontrol release "+id)
	runs("2")
	c.sh(alice, "scontrol update JobId="+id+" TimeLimit=60")
	if _, stderr, err := c.run(alice, "scontrol update JobId="+id+" TimeLimit=600"); err == nil {
		t.Errorf("a user raises a time limit: %s", stderr)
	}
	c.sh("", "scontrol update JobId="+id+" TimeLimit=600")
	if got := c.job(id, "%T %l"); got != "RUNNING 10:00:00" {
		t.Errorf("the job is %s", got)
	}

	waits := c.sbatch(alice, "--hold", train("10G", "1s"))
	other := c.sbatch(alice, "--hold", train("10G", "1s"))
	booked := c.job(waits, "%b")
	for _, change := range []string{"TimeLimit=30", "Nice=10", "NumCPUs=2", "Comment=x", "JobName=x", "NumNodes=2",
		"NumNodes=1", "Partition=plain", "Partition=gpu"} {
		c.update(alice, "JobId="+waits+" "+change)
		if got := c.job(waits, "%b"); got != booked || !strings.Contains(got, "carma:10240") {
			t.Errorf("after %s it books %s", change, got)
		}
	}
	for _, change := range []string{"Gres=gpu:2", "TresPerNode=gres/gpu:2"} {
		if _, _, err := c.run(alice, "scontrol update JobId="+waits+" "+change); err == nil {
			t.Errorf("%s by its user: %s", change, c.job(waits, "%b"))
		}
	}
	c.sh(alice, "scontrol top "+waits+" || true") // where the site lets users
	c.sh(alice, "scontrol release "+waits+" "+other)
	c.ends(waits, "COMPLETED")
	c.ends(other, "COMPLETED")

	// In a partition that CARMA does not manage it is alone on its GPU, and books on.
	plain := c.sbatch(alice, "--hold", train("10G", "1s"))
	c.update(alice, "JobId="+plain+" Partition=plain")
	c.sh(alice, "scontrol release "+plain)
	c.ends(plain, "COMPLETED")

	// More GPUs than it booked, by an administrator: it gets those that it booked, whole.
	more := c.sbatch(alice, "--hold", train("10G", "1s"))
	c.sh("", "scontrol update JobId="+more+" Gres=gpu:2")
	c.sh("", "scontrol release "+more)
	c.ends(more, "COMPLETED")
	if r := c.report(more); len(r.GPUs) != 1 {
		t.Errorf("of two GPUs by scontrol update: %+v", r)
	}

	c.sh(alice, "scontrol hold "+id) // while it runs: it stays, and would not be requeued
	c.sh(alice, "scontrol requeue "+id)
	c.eventually(func() string { return c.job(id, "%T %r") + c.leases("n1") }, "^PENDING .*[Hh]eld")
	c.sh(alice, "scancel "+id)
	c.ends(id, "CANCELLED")
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.nothingLeft()
}

// A job that is requeued after it ran out of GPU memory has not ended: jobs that depend on it
// see how its last attempt ended.
func TestSituationDependencies(t *testing.T) {
	c := up(t)
	const back = "#SBATCH --gres=gpu:1\n#CARMA mem=8G\nsimjob --mem 12G --smact 10 --ramp 0s --duration 1s\n"
	ends := strings.Replace(back, "12G", "90G", 1) // on any GPU
	waited := make(chan string, 1)
	path := c.file(alice, "waited.sh", "#!/bin/bash\n"+back)
	go func() {
		out, _, _ := c.run(alice, "sbatch --wait "+path+"; echo status $?")
		waited <- out
	}()
	first, last := c.sbatch(alice, "", back), c.sbatch(alice, "", ends)
	depends := func(on, how string) string { return c.sbatch(alice, "-d "+how+":"+on, "true\n") }
	type end struct{ id, want string }
	var all []end
	for how, want := range map[string]string{"after": "COMPLETED", "afterok": "COMPLETED", "afterany": "COMPLETED",
		"afternotok": "PENDING DependencyNeverSatisfied"} {
		all = append(all, end{depends(first, how), want})
	}
	for how, want := range map[string]string{"after": "COMPLETED", "afterok": "PENDING DependencyNeverSatisfied",
		"afterany": "COMPLETED", "afternotok": "COMPLETED"} {
		all = append(all, end{depends(last, how), want})
	}
	single := c.sbatch(alice, "-J one -d singleton", back)
	second := c.sbatch(alice, "-J one -d singleton", "date +%s >second\n")
	c.ends(first, "COMPLETED")
	c.ends(last, "FAILED")
	for _, e := range all {
		c.eventually(func() string { return c.job(e.id, "%T %r") }, "^"+e.want)
	}
	// slurmctld does not count a job that completes (job_scheduler.c,
	// SLURM_DEPEND_SINGLETON), so the second may run between the first one's attempts.
	c.ends(single, "COMPLETED")
	c.ends(second, "COMPLETED")
	for _, id := range []string{first, last, single} {
		if r := c.report(id); !r.OOM || r.Attempts != 2 {
			t.Errorf("job %s: %+v", id, r)
		}
	}
	// sbatch takes a job that completes for one that has ended (sbatch.c, IS_JOB_FINISHED), and
	// asks every few seconds: it may hit on the moment between the attempts.
	said := regexp.MustCompile(`^Submitted batch job (\d+)\nstatus (\d+)\n$`).FindStringSubmatch(<-waited)
	if said == nil {
		t.Fatal("sbatch --wait has not ended by itself")
	}
	c.ends(said[1], "COMPLETED")
	if r := c.report(said[1]); !r.OOM || r.Attempts != 2 {
		t.Errorf("the job of sbatch --wait: %+v", r)
	}
	c.nothingLeft()
}

// An array of a thousand tasks keeps to its limit, also one that is changed, and each task
// is a job of its own for what its user does to it.
func TestSituationLargeArray(t *testing.T) {
	c := up(t)
	const script = "#SBATCH --gres=gpu:1 -o /dev/null\n#CARMA mem=4G\n[ -n \"$CUDA_VISIBLE_DEVICES\" ] || exit 3\n"
	id := c.sbatch(alice, "--array=0-999%4", script)
	look := func(limit int) {
		t.Helper()
		for range 20 {
			if n := len(strings.Fields(c.sh("", "squeue -h -r -t running -j "+id+" -o %A"))); n > limit {
				t.Errorf("%d tasks run at once, with %%%d", n, limit)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	look(4)
	c.sh(alice, "scontrol update JobId="+id+" ArrayTaskThrottle=8 || true") // an error for tasks that have ended
	time.Sleep(time.Second)
	look(8)
	c.sh(alice, "scontrol hold "+id+"_900; scancel "+id+"_[901-950]")
	c.sh(alice, "scontrol update JobId="+id+" ArrayTaskThrottle=2 || true")
	c.eventually(func() string { return c.sh("", "squeue -h -t completed -j "+id+" -r -o %T | wc -l") }, "^[0-9]{2}")
	if got := c.sh("", "squeue -h -r -j "+id+"_900 -o '%T %r'"); got != "PENDING JobHeldUser" {
		t.Errorf("the held task is %s", got)
	}
	c.sh(alice, "scancel "+id)
	c.eventually(func() string { return c.sh("", "squeue -h -r -j "+id+" -o %T") + c.leases("n1") + c.leases("n2") }, "^$")
	if got := c.sh("", "squeue -h -r -t failed,timeout,node_fail -j "+id+" -o '%i %T'"); got != "" {
		t.Errorf("failed:\n%s", got)
	}
	c.nothingLeft()
}

// Whatever ways Slurm has to say which GPUs a task gets, it sees them, and no other.
func TestSituationKindsOfTasks(t *testing.T) {
	c := up(t)
	c.file(alice, "show", "#!/bin/bash\necho \"$1 $SLURM_PROCID $CUDA_VISIBLE_DEVICES\"\n")
	// tasks are the GPUs of each task, by the order in which a node's are seen first: a, b.
	tasks := func(text, word string) string {
		var rows [][3]string
		for _, m := range regexp.MustCompile(`(?m)^`+word+` (\d+) (.*)$`).FindAllStringSubmatch(text, -1) {
			rows = append(rows, [3]string{m[1], m[2]})
		}
		slices.SortFunc(rows, func(a, b [3]string) int {
			x, _ := strconv.Atoi(a[0])
			y, _ := strconv.Atoi(b[0])
			return x - y
		})
		names := map[string]string{}
		var out []string
		for _, row := range rows {
			var of []string
			for gpu := range strings.SplitSeq(row[1], ",") {
				if gpu == "" {
					continue
				}
				if names[gpu] == "" {
					names[gpu] = string(rune('a' + len(names)))
				}
				of = append(of, names[gpu])
			}
			out = append(out, strings.Join(of, "+"))
		}
		return strings.Join(out, " ")
	}
	steps := []struct{ options, want string }{
		{"-n4", "a+b a+b a+b a+b"},
		{"-n4 --gres=gpu:1", "a a a a"},
		{"-n4 --ntasks-per-gpu=2", "a a b b"},
		{"-n4 --gpus=2 --gpu-bind=single:2", "a a b b"},
		{"-n2 --gpu-bind=map_gpu:0,1", "a b"},
		{"-n2 --gpu-bind=mask_gpu:1,2", "a b"},
		{"-n2 --gpu-bind=none", "a+b a+b"},
		{"-n2 --gpus-per-task=1", "a b"},
		{"-n2 --gpus-per-task=1 --gpu-bind=none", "a+b a+b"},
		{"-n1 --gres=none", ""},
	}
	script := "#SBATCH -N1 -n4 --gres=gpu:2\n#CARMA mem=4G\n"
	for i, s := range steps {
		script += fmt.Sprintf("srun %s ./show step%d.\n", s.options, i)
	}
	script += "srun -n1 --gres=gpu:2 bash -c './show first; touch here; until [ -e seen ]; do sleep 0.1; done' &\n" +
		"until [ -e here ]; do sleep 0.1; done; srun --overlap -n1 --gres=gpu:2 ./show beside; touch seen; wait\n"
	id := c.sbatch(alice, "", script)
	het := c.sbatch(alice, "", "#SBATCH --gres=gpu:1 -n1\n#SBATCH hetjob\n#SBATCH --gres=gpu:2 -n1\n#CARMA mem=4G\n"+
		"./show batch\nsrun --het-group=1 ./show one\nsrun ./show colon : ./show colon\nsrun --het-group=0,1 ./show both\n")
	cpu := c.sbatch(alice, "", "#SBATCH --gres=gpu:1 -n1\n#SBATCH hetjob\n#SBATCH -n1\n#CARMA mem=4G\nsrun "+
		"--het-group=0,1 ./show both\n")
	for _, id := range []string{id, het, cpu} {
		c.eventually(func() string { return c.job(id, "%T") }, "COMPLETED")
	}
	for i, s := range steps {
		if got := tasks(c.written(id), fmt.Sprintf("step%d.", i)); strings.TrimSpace(got) != s.want {
			t.Errorf("srun %s: %q, want %q\n%s", s.options, got, s.want, c.written(id))
		}
	}
	for word, want := range map[string]string{"first": "a+b", "beside": "a+b"} {
		if got := tasks(c.written(id), word); got != want {
			t.Errorf("%s: %q\n%s", word, got, c.written(id))
		}
	}
	for word, want := range map[string]string{"one": "a+b", "colon": "a b+c", "both": "a b+c"} {
		if got := tasks(c.written(het), word); got != want {
			t.Errorf("heterogeneous, %s: %q, want %q\n%s", word, got, want, c.written(het))
		}
	}
	if got := c.written(cpu); tasks(got, "both") != "a " || strings.Contains(got, "no lease") {
		t.Errorf("a component without GPUs: %s", got)
	}
	for _, j := range []struct{ options, want string }{
		{"-N1 --gpus=2 --ntasks-per-gpu=2", "a a b b"},
		{"-N1 -n4 --ntasks-per-gpu=2", "a a b b"},
		{"-N1 --gpus-per-node=2 --ntasks-per-gpu=1", "a b"},
		{"-n1 --gpus-per-task=2", "a+b"},
		{"-n2 --gres=gpu:2 --gpu-bind=none -N1", "a+b a+b"},
		{"-N1 --gpus=2 -n4", "a+b a+b a+b a+b"},
		{"-n1 --gres=gpu:1 ./show direct : -n1 --gres=gpu:2", "a b+c"},
	} {
		out, stderr, err := c.run(alice, "timeout --foreground 100 srun "+j.options+" ./show direct")
		if got := tasks(out, "direct"); err != nil || got != j.want {
			t.Errorf("srun %s: %v, %q, want %q\n%s", j.options, err, got, j.want, stderr)
		}
	}
	c.eventually(func() string { return c.leases("n1") + c.leases("n2") }, "^$")
	c.nothingLeft()
}

// A job that gives nodes back keeps its GPUs on those that stay, and has no lease on the
// others; it grows where the site lets it.
func TestSituationResize(t *testing.T) {
	c := up(t)
	id := c.sbatch(alice, "", "#SBATCH -N2 --gres=gpu:1\n#CARMA mem=10G\nsrun -l bash -c 'echo "+
		"before=$CUDA_VISIBLE_DEVICES'\n"+
		"until [ -e go ]; do sleep 0.1; done\nsrun -N1 -n1 bash -c 'echo after=$CUDA_VISIBLE_DEVICES'\n")
	c.eventually(func() string { return c.written(id) }, `(?s)before=GPU-.*before=GPU-`)
	c.sh(alice, "scontrol update JobId="+id+" NumNodes=1")
	c.eventually(func() string { return c.leases("n1") + "|" + c.leases("n2") }, `^`+id+`\|$`)
	c.eventually(func() string { return c.sh("", "carma-report -j "+id) }, "State +COMPLETED")
	_, stderr, err := c.run(alice, "scontrol update JobId="+id+" NumNodes=2")
	if err == nil {
		t.Error("the job grew without permit_job_expansion")
	}
	t.Log(stderr)
	c.sh(alice, "touch go")
	c.ends(id, "COMPLETED")
	first := regexp.MustCompile(`(?m)^0: before=(.*)$`).FindStringSubmatch(c.written(id))
	if first == nil || !strings.Contains(c.written(id), "after="+first[1]) {
		t.Errorf("%s", c.written(id))
	}
	if r := c.report(id); r.State != "COMPLETED" || r.Attempts != 1 {
		t.Errorf("%+v", r)
	}
	c.nothingLeft()
}

// salloc whose shell runs on the node (LaunchParameters=use_interactive_step) has the job's
// GPUs in the shell and in steps.
func TestSituationInteractiveStep(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.slurmConf("LaunchParameters=use_interactive_step",
		"InteractiveStepOptions=\"--interactive --preserve-env /bin/bash\"")
	c.restart("slurmd")
	const uuid = "GPU-[0-9a-f-]+"
	out, stderr, err := c.run(alice, "timeout --foreground 100 salloc -Q --gres=gpu:2 <<'E'\n"+
		"echo shell=$CUDA_VISIBLE_DEVICES\nsrun --overlap -n1 --gres=gpu:1 bash -c 'echo "+
		"step=$CUDA_VISIBLE_DEVICES'\nexit\nE")
	if err != nil || !regexp.MustCompile("shell="+uuid+","+uuid+"\n").MatchString(out) ||
		!regexp.MustCompile("step="+uuid+"\n").MatchString(out) {
		t.Errorf("%v, %s\n%s", err, out, stderr)
	}
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.nothingLeft()
}
