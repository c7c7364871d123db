// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// train is a job that books and uses memory until its file appears or it has
// run long enough.
func train(mem, duration string) string {
	return "#SBATCH --gres=gpu:1\n#CARMA mem=" + mem +
		"\necho gpu=$CUDA_VISIBLE_DEVICES\nexec simjob --mem 9G --smact 10 --ramp 0s --duration " + duration + "\n"
}

var visible = regexp.MustCompile(`(?m)^gpu=(.*)$`)

// gpu is what a running job saw in CUDA_VISIBLE_DEVICES.
func (c *cluster) gpu(id string) string {
	c.t.Helper()
	var got string
	c.eventually(func() string {
		text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", "slurm-"+id+".out"))
		if m := visible.FindSubmatch(text); m != nil {
			got = string(m[1])
		}
		return got
	}, "GPU-")
	return got
}

// Two jobs share a GPU, an exclusive one does not, a job that fits nowhere
// waits, and slurmctld's counts follow.
func TestShareAndWait(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.wantCounts("n1", idleCounts)
	alone := c.sbatch(alice, "", strings.Replace(train("10G", "1h"), "mem=10G", "policy=exclusive mem=10G", 1))
	c.eventually(func() string { return c.job(alone, "%T") }, "RUNNING")
	var jobs []string
	for range 6 {
		id := c.sbatch(alice, "", train("10G", "1h"))
		c.eventually(func() string { return c.job(id, "%T") }, "RUNNING")
		if jobs = append(jobs, id); len(jobs) == 3 {
			c.seen(4) // else some of the GPUs settle while others take a third job
		}
	}
	users := map[string][]string{}
	for _, id := range jobs {
		users[c.gpu(id)] = append(users[c.gpu(id)], id)
	}
	if len(users) != 3 {
		t.Errorf("6 jobs on GPUs %v, want 3", users)
	}
	for gpu, ids := range users {
		if len(ids) != 2 {
			t.Errorf("%d jobs on %s", len(ids), gpu)
		}
		if gpu == c.gpu(alone) {
			t.Error("an exclusive job has company")
		}
	}
	// 40503 - 2 x 10240 - 2048 in steps of 256; each GPU has an MPS daemon of its
	// own in use, so that no job on several can join.
	c.wantCounts("n1", "^carma1:0 carma1-alice:17920 carma2:0 carma3:0 carma4:0 carmaall:4$")

	waits := c.sbatch(bob, "", strings.NewReplacer("exec ", "", " --ramp 0s --duration 1s\n", untilPeak("9216")).
		Replace(train("30G", "1s")))
	// Slurm 23.11 without accounting says InvalidAccount for a moment. One that is told no counts may start
	// the job, whose Prolog returns the job.
	waiting := `^PENDING (Constraints|Resources|Priority|None|InvalidAccount)`
	if !c.publishes() {
		waiting += `|^PENDING (BeginTime|Prolog)|^(RUNNING|COMPLETING) Prolog$`
	}
	for range 30 {
		if got := c.job(waits, "%T %r"); !regexp.MustCompile(waiting).MatchString(got) {
			t.Fatalf("a job that fits nowhere: %s", got)
		}
		if slices.Contains(strings.Fields(c.leases("n1")), waits) {
			t.Fatal("a job that fits nowhere has a GPU")
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.sh(alice, "scancel "+strings.Join(users[c.gpu(jobs[0])], " "))
	c.ends(waits, "COMPLETED")
	r := c.report(waits)
	if r.User != bob || r.EstMiB != 30720 || r.ReserveMiB != 30720 || r.PeakMiB != 9216 || len(r.Neighbours) != 0 {
		t.Errorf("report %+v", r)
	}
	c.sh(alice, "scancel "+alone+" "+strings.Join(jobs, " "))
	c.wantCounts("n1", idleCounts)
	c.eventually(func() string { return c.leases("n1") }, "^$")
	// A shared job that was cancelled has company in its record.
	c.eventually(func() string { return c.report(jobs[0]).State }, "CANCELLED")
	if r := c.report(jobs[0]); len(r.Neighbours) != 1 {
		t.Errorf("report %+v", r)
	}
	c.noDrain()
}

// Jobs that name nodes, or a reservation, wait for these nodes while they are
// full, however they came to them.
func TestNamedNodes(t *testing.T) {
	c := up(t)
	c.settings(map[string]string{"capacity.compare": `"2s"`, "hooks.wait": `"1s"`})
	var full []string
	for _, node := range []string{"n1", "n2"} {
		for range 4 {
			full = append(full, c.sbatch(alice, "-w "+node, train("26G", "10h")))
		}
		for _, id := range full {
			c.gpu(id)
		}
		c.wantCounts(node, "^carma1:0 carma1-alice:11776 ")
	}
	c.sh("", "scontrol create reservation ReservationName=r StartTime=now Duration=60 Nodes=n2 Users="+bob+" "+
		"Flags=ignore_jobs")
	waiting := map[string]string{
		"-w":            c.sbatch(bob, "-w n1", train("20G", "1s")),
		"a whole GPU":   c.sbatch(bob, "-w n1 --gres=gpu:1", "sleep 1\n"),
		"two GPUs":      c.sbatch(bob, "-w n1 --gres=gpu:2", "#CARMA mem=20G\nsleep 1\n"),
		"--gpus":        c.sbatch(bob, "-w n1 --gpus=1", "#CARMA mem=20G\nsleep 1\n"),
		"--exclude":     c.sbatch(bob, "--exclude=n2", train("20G", "1s")),
		"a reservation": c.sbatch(bob, "--reservation=r", train("20G", "1s")),
		"an array":      c.sbatch(bob, "-w n1 --array=1-3", train("20G", "1s")),
	}
	// Others get their nodes by an update.
	moved := c.sbatch(bob, "", train("20G", "1s"))
	movedArray := c.sbatch(bob, "--array=1-2", train("20G", "1s"))
	waiting["an update"], waiting["an update of an array"] = moved, movedArray
	c.sh("", "scontrol update JobId="+moved+" ReqNodeList=n1 && scontrol update JobId="+movedArray+" ReqNodeList=n1")
	for name, id := range waiting {
		if got := c.job(id, "%T %r"); regexp.MustCompile("BadConstraints|COMPLETED|FAILED|CANCELLED").MatchString(got) {
			t.Errorf("%s, its node is full: %s", name, got)
		}
	}
	c.sh("", "scancel "+strings.Join(full, " "))
	for name, id := range waiting {
		c.eventually(func() string {
			left := ""
			for line := range strings.Lines(c.job(id, "%T %r")) {
				if !strings.HasPrefix(line, "COMPLETED") {
					left += name + ": " + line
				}
			}
			return left
		}, "^$")
		if nodes := strings.Fields(c.job(id, "%N")); len(nodes) == 0 || slices.Compact(nodes)[0] != "n1" &&
			name != "a reservation" {
			t.Errorf("%s ran on %v", name, nodes)
		}
	}
	c.noDrain()
}

// Every kind of step sees the leased GPUs and nothing else.
func TestSteps(t *testing.T) {
	c := up(t, "--nodes", "1")
	script := `#SBATCH --gres=gpu:2 --ntasks=2
#CARMA mem=10G
show() { echo "$1 $CUDA_VISIBLE_DEVICES"; }
both() { show both; touch both.$SLURM_STEP_ID; until [ "$(ls both.* | wc -l)" = 2 ]; do sleep 0.1; done; }
export -f show both
show batch
srun -n1 bash -c 'show plain'
srun -n1 --gres=gpu:1 bash -c 'show gres'
srun -n1 --gpus=1 bash -c 'show gpus'
srun -n1 --gres=none bash -c 'show none'
srun -n1 --gres=gpu:1 --exact bash -c both &
srun -n1 --gpus=1 --exact bash -c both &
wait
srun -n2 --gpus-per-task=1 bash -c 'show task'
`
	id := c.sbatch(alice, "", script)
	c.ends(id, "COMPLETED")
	leased := c.report(id).GPUs
	got := map[string][]string{}
	for line := range strings.Lines(c.output(id)) {
		word, gpus, _ := strings.Cut(strings.TrimSpace(line), " ")
		got[word] = append(got[word], gpus)
	}
	for _, g := range got {
		slices.Sort(g)
	}
	a, b := leased[0], leased[1]
	each := []string{a, b}
	slices.Sort(each)
	for word, want := range map[string][]string{
		"batch": {a + "," + b}, "plain": {a + "," + b}, "gres": {a}, "gpus": {a}, "none": {""}, "both": each, "task": each,
	} {
		if !slices.Equal(got[word], want) {
			t.Errorf("%s sees %q, want %q\n%s", word, got[word], want, c.output(id))
		}
	}
	// srun without a job of sbatch around it.
	for _, options := range []string{"--gpus=1", "--gres=gpu:1", "--gres=gpu:a100:1", "--gpus-per-node=1",
		"-n1 --gpus-per-task=1"} {
		if out := c.sh(bob, "srun "+options+" bash -c 'echo "+
			"$CUDA_VISIBLE_DEVICES'"); !regexp.MustCompile(`^GPU-[0-9a-f-]+$`).MatchString(out) {
			t.Errorf("srun %s sees %q", options, out)
		}
	}
	if out := c.sh(bob, "srun bash -c 'echo .$CUDA_VISIBLE_DEVICES.'"); out != ".." {
		t.Errorf("srun without GPUs sees %q", out)
	}
	c.eventually(func() string { return c.leases("n1") }, "^$")
}

// What tasks inherit from another job's script or step, or lack in a user's shell, hides no GPU of
// their job's and shows none of another's.
func TestVariablesOfAnotherJob(t *testing.T) {
	c := up(t, "--nodes", "1")
	inner := "#!/bin/bash\n#SBATCH --gres=gpu:1\n#CARMA mem=8G\necho batch $CUDA_VISIBLE_DEVICES\n" +
		"srun -n1 bash -c 'echo step $CUDA_VISIBLE_DEVICES'\n"
	if err := os.WriteFile(filepath.Join(c.dir, "jobs", "inner.sh"), []byte(inner), 0o755); err != nil {
		t.Fatal(err)
	}
	again := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=8G\n"+
		"[ \"$SLURM_RESTART_COUNT\" ] || exec sleep 1000\necho gpu=$CUDA_VISIBLE_DEVICES\n"+
		"sbatch --parsable inner.sh >of-script\nsrun -n1 sbatch --parsable inner.sh >of-step\n"+
		"until [ -e go ]; do sleep 0.2; done\n")
	c.eventually(func() string { return c.job(again, "%T") }, "RUNNING")
	c.sh("", "scontrol requeue "+again)
	gpu := c.gpu(again)
	if got := c.sh(alice, "srun --jobid="+again+" --overlap -n1 bash -c 'echo $CUDA_VISIBLE_DEVICES'"); got != gpu {
		t.Errorf("srun --jobid sees %q, the requeued job %q", got, gpu)
	}
	for _, file := range []string{"of-script", "of-step"} {
		path := filepath.Join(c.dir, "jobs", file)
		c.eventually(func() string {
			text, _ := os.ReadFile(path)
			return strings.TrimSpace(string(text))
		}, `^\d+$`)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		id := strings.TrimSpace(string(text))
		c.ends(id, "COMPLETED")
		gpus := c.report(id).GPUs
		if len(gpus) != 1 {
			t.Fatalf("%s: job %s had GPUs %q", file, id, gpus)
		}
		want := "batch " + gpus[0] + "\nstep " + gpus[0] + "\n"
		if got := c.output(id); got != want {
			t.Errorf("%s: job %s sees\n%swant\n%s", file, id, got, want)
		}
	}
	c.sh(alice, "touch go")
	c.ends(again, "COMPLETED")
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.noDrain()
}

// A job in another partition is what it would be without the plugin.
func TestOtherPartitionIsUntouched(t *testing.T) {
	show := func(c *cluster) string {
		var all strings.Builder
		for _, options := range []string{"--gres=gpu:1", "--gpus=2", "-n2 --gpus-per-task=1",
			"--gpus-per-node=1 --comment=x", "-N2", "--array=1-3 --gres=gpu:a100:1"} {
			id := c.sbatch(alice, "-H -p plain -J same "+options, "#CARMA mem=banana\n#CARMA frobnicate\nsleep 1\n")
			out := c.sh("", "scontrol show job "+id)
			for _, varies := range []string{`\S+Time=\S+`, `JobId=\S+`, `Priority=\S+`, `/tmp/cdc\d+`, `s\d{10,}\.sh`,
				`slurm-\S+`, `ArrayJobId=\d+`, `AllocNode:Sid=\S+`, `LastSchedEval=\S+`} {
				out = regexp.MustCompile(varies).ReplaceAllString(out, "#")
			}
			all.WriteString(out + "\n")
		}
		return all.String()
	}
	with, without := show(up(t)), show(up(t, "--no-carma"))
	a, b := strings.Split(with, "\n"), strings.Split(without, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Errorf("with the plugin:    %s\nwithout: %s", a[i], b[i])
		}
	}
	if len(a) != len(b) {
		t.Errorf("%d lines with the plugin, %d without", len(a), len(b))
	}
	if !strings.Contains(with, "TresPerNode=gres:gpu:1\n") && !strings.Contains(with, "TresPerNode=gres/gpu:1\n") {
		t.Errorf("the comparison compares nothing:\n%s", with)
	}
}

// A wrong line is refused with its number and key, and in our partitions only.
func TestWrongDirectives(t *testing.T) {
	c := up(t, "--nodes", "1")
	for line, want := range map[string]string{
		"mem=banana":   "carma: line 2: mem=banana: not a size",
		"frobnicate=1": "carma: line 2: frobnicate: unknown key",
		"mem=-1":       "carma: line 2: mem=-1: not a size",
		"mem=900T":     "carma: line 2: mem=900T: more than any GPU has",
		"mem=60G":      "carma: line 2: mem: 60.0 GiB is more than a GPU of partition gpu has",
	} {
		out, stderr, err := c.answered(alice, `printf '#!/bin/sh\n#CARMA `+line+`\n' | sbatch --gres=gpu:1`)
		if err == nil || !strings.Contains(stderr, want) {
			t.Errorf("%s: got %q %q %v", line, out, stderr, err)
		}
	}
	if _, stderr, err := c.answered(alice, "sbatch --gres=gpu:5 --wrap true"); err == nil ||
		!strings.Contains(stderr, "a node has 4") {
		t.Errorf("gpu:5: %q %v", stderr, err)
	}
	// On success sbatch says nothing but the job id.
	if out, stderr, err := c.answered(alice, `printf '#!/bin/sh\n#CARMA mem=1G\n' | sbatch --gres=gpu:1`); err != nil ||
		stderr != "" || !strings.HasPrefix(out, "Submitted batch job") {
		t.Errorf("got %q %q %v", out, stderr, err)
	}
}

// What a user writes under our names counts for nothing.
func TestForgedBooking(t *testing.T) {
	c := up(t, "--nodes", "1")
	id := c.sbatch(alice, "-H --gres=gpu:1,carma:1", "#CARMA mem=10G\nsleep 1\n")
	if got := c.job(id, "%b"); !regexp.MustCompile(`^gres[:/]gpu:1,gres[:/]carma:10240$`).MatchString(got) {
		t.Errorf("booked %s", got)
	}
	if _, stderr, err := c.run(alice, "scontrol update JobId="+id+" Gres=gpu:1,carma:1"); err == nil {
		t.Errorf("a user changed a booking: %s", stderr)
	}
	if got := c.job(id, "%b"); !strings.HasSuffix(got, "carma:10240") {
		t.Errorf("booked %s", got)
	}
	c.sh("", "scontrol update JobId="+id+" Gres=gpu:1,carma:20480") // the administrator may
	if got := c.job(id, "%b"); !regexp.MustCompile(`carma:(20480|20K)`).MatchString(got) {
		t.Errorf("booked %s", got)
	}
}

// fill starts a job that books 10 GiB on each of a node's four GPUs. The jobs complete once they are told to.
func (c *cluster) fill() (ids []string, complete func()) {
	c.t.Helper()
	for range 4 {
		ids = append(ids, c.sbatch(alice, "", strings.NewReplacer("exec ", "", "10h\n", "10h &\n").Replace(train("10G", "10h"))+
			"until [ -e complete ]; do sleep 0.5; done\nkill $!\nwait\ntrue\n"))
	}
	for _, id := range ids {
		c.gpu(id)
	}
	return ids, func() {
		if err := os.WriteFile(filepath.Join(c.dir, "jobs", "complete"), nil, 0o644); err != nil {
			c.t.Fatal(err)
		}
	}
}

// A job that outgrows what it booked dies of its own limit, its neighbour does
// not notice, and it is requeued alone, once.
func TestRecovery(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1")
	fillers, complete := c.fill()
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=8G\necho run=$SLURM_RESTART_COUNT "+
		"gpu=$CUDA_VISIBLE_DEVICES >>runs\n"+nearLimit+"simjob --mem 12G --smact 10"+untilPeak("12288"))
	c.eventually(func() string { return c.job(id, "%P") }, "gpu-recovery")
	complete()
	c.ends(id, "COMPLETED")
	for _, f := range fillers {
		c.ends(f, "COMPLETED")
	}
	r := c.report(id)
	if !r.OOM || r.RequeuedTo != "gpu-recovery" || r.Attempts != 2 || r.State != "COMPLETED" || r.PeakMiB != 12288 ||
		len(r.Neighbours) != 1 {
		t.Errorf("report %+v", r)
	}
	runs, err := os.ReadFile(filepath.Join(c.dir, "jobs", "runs"))
	twice := `^run= gpu=GPU-\S+\nrun=1 gpu=GPU-\S+\n$`
	if !c.publishes() { // a Prolog may return it in between
		twice = `^run=\d* gpu=GPU-\S+\nrun=[1-9] gpu=GPU-\S+\n$`
	}
	if err != nil || !regexp.MustCompile(twice).Match(runs) {
		t.Errorf("runs %v\n%s", err, runs)
	}
	if out := c.sh(alice, "carma-report -j "+id); !strings.Contains(out, "requeued to run alone on gpu-recovery") {
		t.Errorf("report:\n%s", out)
	}
	c.noDrain()
}

// The GPU that is kept for a job that is requeued is not offered while others are on
// it: slurmctld would send there whoever fits, to be returned to the queue. And it stays kept when
// that happens to the job itself.
func TestKeptGPU(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"capacity.compare": `"2s"`, "hooks.wait": `"8s"`})
	for range 3 {
		c.gpu(c.sbatch(bob, "", train("10G", "10h"))) // not for alice's
	}
	neighbour := c.sbatch(alice, "", train("10G", "10h"))
	c.gpu(neighbour)
	id := c.sbatch(alice, "", oomOnce)
	// it may start again; 23.11 says nothing
	c.eventually(func() string { return c.job(id, "%T %r %P") },
		"PENDING (Constraints|ReqNodeNotAvail|Resources|Priority|None).* gpu-recovery")
	// slurmctld is told at most once a second
	c.wantCounts("n1", "^carma1:0 (carma1-bob:\\d+ )?carma2")
	c.eventually(func() string {
		if c.publishes() {
			c.sh("", "scontrol update NodeName=n1 Extra='{\"carma1\":40536}'") // as if a GPU were idle; the agent mends it
		}
		return c.job(id, "%T %r")
	}, "RUNNING Prolog")
	c.eventually(func() string { return c.hookLog(id) }, "returned to the queue")
	var kept int
	if err := c.ledger("n1").QueryRow("SELECT count(*) FROM hold WHERE job_id=?", id).Scan(&kept); err != nil ||
		kept != 1 {
		t.Errorf("%d GPUs are kept for it, %v", kept, err)
	}
	if state := c.job(neighbour, "%T"); state != "RUNNING" {
		t.Fatalf("the neighbour is %s", state)
	}
	c.sh("", "scancel "+neighbour)
	c.ends(id, "COMPLETED")
	c.noDrain()
}

// A job that always dies is requeued once and then fails.
func TestRecoveryOnce(t *testing.T) {
	c := up(t, "--nodes", "1")
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=8G\nsimjob --mem 60G --smact 10 --ramp 0s --duration 1s\n")
	c.ends(id, "FAILED")
	if r := c.report(id); !r.OOM || r.Attempts != 2 || r.State != "FAILED" {
		t.Errorf("report %+v", r)
	}
	c.eventually(func() string { return c.leases("n1") }, "^$")
}

// Jobs of two users take different GPUs while there are any, and share one by
// turns, each with its own server or none, when there are not.
func TestTwoUsers(t *testing.T) {
	c := up(t, "--nodes", "1")
	var jobs []string
	for i := range 8 {
		user := []string{alice, bob}[i%2]
		jobs = append(jobs, c.sbatch(user, "", train("10G", "5s")))
	}
	for _, id := range jobs {
		c.ends(id, "COMPLETED")
	}
	c.noDrain()
}

// slurmctld knows whose GPUs have room: jobs of other users wait at once, and are not sent there.
func TestWaitsForIdle(t *testing.T) {
	needsCounts(t)
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"hooks.vetoes": "1", "hooks.wait": `"1s"`})
	var first []string
	for range 4 {
		first = append(first, c.sbatch(alice, "", train("10G", "10h")))
		c.gpu(first[len(first)-1])
	}
	c.wantCounts("n1", "^carma1:0 carma1-alice:28160 ")
	for _, user := range []string{bob, carol} {
		other := c.sbatch(user, "", train("10G", "1s"))
		time.Sleep(2 * time.Second)
		if got := c.job(other, "%T"); got != "PENDING" {
			t.Errorf("a job of %s is %s", user, got)
		}
		defer func() {
			c.ends(other, "COMPLETED")
			// slurmctld may start both for the GPU that becomes idle, before the node has told whose it is.
			if r := c.report(other); r.ReserveMiB != 10240 || c.restarts(other) > "1" {
				t.Errorf("returned %s times, report %+v", c.restarts(other), r)
			}
			c.noDrain()
		}()
	}
	c.ends(c.sbatch(alice, "", train("10G", "1s")), "COMPLETED")
	c.sh(alice, "scancel "+first[0])
}

// 200 short jobs in a row: none is lost, none leaves anything.
func TestManyShortJobs(t *testing.T) {
	c := up(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var ids []string
	for i := range 200 {
		user := []string{alice, bob}[i%2]
		script := fmt.Sprintf("#SBATCH --gres=gpu:1\n#CARMA mem=%dG\nsimjob --mem %dG --smact %d --ramp 0s --duration %ds\n",
			3+rng.IntN(10), 1+rng.IntN(2), 5+rng.IntN(20), 1+rng.IntN(5))
		ids = append(ids, c.sbatch(user, "-o /dev/null", script))
	}
	list := strings.Join(ids, ",")
	c.empties(func() string { return c.sh("", "squeue -h -j "+list) })
	for line := range strings.Lines(c.job(list, "%A %T")) {
		if !strings.HasSuffix(strings.TrimSpace(line), " COMPLETED") {
			t.Errorf("job %s", line)
		}
	}
	for _, node := range []string{"n1", "n2"} {
		c.eventually(func() string { return c.leases(node) }, "^$")
		if files, _ := os.ReadDir(filepath.Join(c.dir, "run", node, "jobs")); len(files) != 0 {
			t.Errorf("%d task files are left on %s", len(files), node)
		}
	}
	c.noDrain()
	c.eventually(func() string { return c.sh(alice, "carma-report | wc -l") }, "^201$")
}

// Scripts name the type of their GPUs, in each of Slurm's ways.
func TestTypedGPUs(t *testing.T) {
	c := up(t, "--nodes", "1")
	for _, ask := range []string{"--gres=gpu:a100:1", "--gres=gpu:a100", "--gpus-per-node=a100:1", "--gpus=a100:1"} {
		id := c.sbatch(alice, ask, "#CARMA mem=10G\necho gpu=$CUDA_VISIBLE_DEVICES\nexec simjob --mem 9G --smact 10 "+
			"--ramp 0s --duration 1s\n")
		c.ends(id, "COMPLETED")
		if gpu := c.gpu(id); !strings.HasPrefix(gpu, "GPU-") {
			t.Errorf("%s: the job saw %q", ask, gpu)
		}
		if r := c.report(id); r.ReserveMiB == 0 {
			t.Errorf("%s: %+v", ask, r)
		}
	}
	// There is no such GPU: slurmctld says so, as without CARMA. Where it compares constraints it takes
	// the job, as it takes any with --extra (24.11.5: for a later update of a node may satisfy it).
	_, stderr, err := c.answered(alice, "cd "+c.dir+"/jobs && sbatch --gres=gpu:h100:1 --wrap true")
	if (err == nil) != c.publishes() {
		t.Errorf("a GPU of a type that there is not: %v, %s", err, stderr)
	}
	// setup writes the type.
	if out := c.sh("", "SIMGPU_STATE="+c.dir+"/simgpu/n1 carma-node --node n1 setup"); !strings.Contains(out,
		"Gres=gpu:a100:12,") || !strings.Contains(out, "Name=gpu Type=a100 File=") {
		t.Errorf("setup:\n%s", out)
	}
}
