// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// release is the Slurm that the tests run on, 2311 for 23.11.
func release(t *testing.T) int {
	t.Helper()
	slurmctld := "/usr/sbin/slurmctld"
	if prefix := os.Getenv("SLURM_PREFIX"); prefix != "" {
		slurmctld = prefix + "/sbin/slurmctld"
	}
	out, err := exec.Command(slurmctld, "-V").Output()
	m := regexp.MustCompile(`(\d+)\.(\d+)\.\d+`).FindStringSubmatch(string(out))
	if err != nil || m == nil {
		t.Fatalf("%s -V: %q, %v", slurmctld, out, err)
	}
	n, _ := strconv.Atoi(m[1] + m[2])
	return n
}

const doctorOfN1 = "SIMGPU_STATE=$CARMA_DEVCLUSTER/simgpu/n1 carma-node --node n1 doctor --controller --node"

// slurmsIndex is the GPU that slurmctld gave a job with shards, by its place in
// gres.conf; -1: none.
func (c *cluster) slurmsIndex(id string) int {
	m := regexp.MustCompile(`GRES=shard:\S*\(([^)]*)\)`).FindStringSubmatch(c.sh("", "scontrol show -d job "+id))
	if m == nil {
		return -1
	}
	return slices.IndexFunc(strings.Split(m[1], ","), func(of string) bool { return !strings.HasPrefix(of, "0/") })
}

// Under placement.mode "slurm" slurmctld picks the GPU, by shards; leases, limits
// and the report are the same. On a Slurm that is too old, jobs go on as written,
// and the doctor says why.
func TestPlacementSlurm(t *testing.T) {
	if release(t) < 2311 {
		tooOldForShards(t)
		return
	}
	c := up(t, "--nodes", "1", "--placement", "slurm")
	// The agent may not have seen the GPUs yet.
	c.eventually(func() string {
		out, _, _ := c.run("", doctorOfN1)
		return strings.Join(regexp.MustCompile(`(?m)^fail  .*`).FindAllString(out, -1), "\n")
	}, "^$")
	alone := c.sbatch(alice, "", strings.Replace(train("10G", "1h"), "mem=10G", "policy=exclusive mem=10G", 1))
	c.eventually(func() string { return c.job(alone, "%T %b") }, `RUNNING gres/gpu:1$`)
	// 40536 - 2048 MiB are 37 shards: two jobs of 15 GiB fill a GPU.
	var jobs []string
	for range 6 {
		id := c.sbatch(alice, "", train("15G", "1h"))
		c.eventually(func() string { return c.job(id, "%T %b") }, "RUNNING gres/shard:15$")
		jobs = append(jobs, id)
	}
	on := map[int][]string{}
	for _, id := range append(jobs, alone) {
		gpu := c.gpu(id)
		i := c.index(id)
		on[i] = append(on[i], id)
		if c.status("n1")[i].UUID != gpu || id != alone && c.slurmsIndex(id) != i {
			t.Errorf("job %s sees %s, the node leases GPU %d, slurmctld gave it GPU %d", id, gpu, i, c.slurmsIndex(id))
		}
	}
	for i, ids := range on {
		if want := 2; len(on) != 4 || len(ids) != want && ids[0] != alone {
			t.Errorf("GPU %d has jobs %v", i, ids)
		}
	}
	waits := c.sbatch(bob, "", train("15G", "1s"))
	// 23.11 without accounting says the latter
	c.eventually(func() string { return c.job(waits, "%T %r") }, "PENDING (Resources|Priority|None|InvalidAccount)")
	company := on[c.index(jobs[0])]
	c.sh(alice, "scancel "+strings.Join(company, " "))
	c.ends(waits, "COMPLETED")
	if r := c.report(waits); r.User != bob || r.EstMiB != 15360 || r.ReserveMiB != 15360 || r.PeakMiB != 9216 ||
		len(r.GPUs) != 1 || len(r.Neighbours) != 0 {
		t.Errorf("report %+v", r)
	}
	c.eventually(func() string { return c.report(company[0]).State }, "CANCELLED")
	if r := c.report(company[0]); fmt.Sprint(r.Neighbours) != "["+company[1]+"]" {
		t.Errorf("report %+v, want neighbour %s", r, company[1])
	}
	// Nobody had to be returned to the queue for what slurmctld could know.
	if out := c.sh("", "grep -c 'returned to the queue' "+c.dir+"/log/hooks.n1.log || true"); out != "0" {
		t.Errorf("%s jobs were returned to the queue", out)
	}
	c.sh(alice, "scancel -u "+alice)
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.eventually(func() string { return c.sh("", "scontrol show -d node n1") },
		`GresUsed=gpu:a100:0\(IDX:N/A\),shard:a100:0\(0/37,0/37,0/37,0/37\)`)
	c.noDrain()
}

// A job that runs out of memory beside others is requeued with the GPU in place of
// its shards, and nobody else gets a part of that.
func TestRecoveryBySlurm(t *testing.T) {
	if release(t) < 2311 {
		tooOldForShards(t)
		return
	}
	c := up(t, "--nodes", "1", "--placement", "slurm")
	fillers := c.fill("14G")
	id := c.sbatch(alice, "", "#SBATCH --gpus=a100:1\n#CARMA mem=15G\necho run=$SLURM_RESTART_COUNT "+
		"gpu=$CUDA_VISIBLE_DEVICES shared=$CARMA_SHARED >>runs\n"+
		"simjob --mem 14500M --smact 10 --ramp 0s --duration 4s\nsrun simjob --mem 20G --smact 10 --ramp 0s --duration 1s\n")
	c.ends(id, "COMPLETED")
	for _, f := range fillers {
		c.ends(f, "COMPLETED")
	}
	if got := c.job(id, "%P %b"); got != "gpu-recovery gres/gpu:a100:1" {
		t.Errorf("the job was requeued as %s", got)
	}
	if r := c.report(id); !r.OOM || r.RequeuedTo != "gpu-recovery" || r.Attempts != 2 || r.State != "COMPLETED" ||
		r.PeakMiB != 20480 || len(r.Neighbours) != 1 {
		t.Errorf("report %+v", r)
	}
	runs, err := os.ReadFile(filepath.Join(c.dir, "jobs", "runs"))
	if err != nil || !regexp.MustCompile(`^run= gpu=GPU-\S+ shared=1\nrun=1 gpu=GPU-\S+ shared=0\n$`).Match(runs) {
		t.Errorf("runs %v\n%s", err, runs)
	}
	c.noDrain()
}

// slurmctld does not know SM activity: the node sends a job back from a GPU that is
// busy, and it runs when that is over.
func TestSMActGateBySlurm(t *testing.T) {
	if release(t) < 2311 {
		tooOldForShards(t)
		return
	}
	c := up(t, "--nodes", "1", "--placement", "slurm", "--time-scale", "10")
	var busy []string
	for i := range 4 {
		busy = append(busy, c.sbatch(alice, "", resident("14G", 90)))
		c.eventually(func() string { return fmt.Sprint(c.index(busy[i]) >= 0) }, "true")
	}
	for i := range 4 {
		c.smact(i, 90)
	}
	id := c.sbatch(alice, "", train("14G", "10s"))
	c.eventually(func() string { return c.hookLog(id) },
		`(?s)no GPU fits.*SM activity (89|90|91)\.\d % above 85 %.*returned to the queue`)
	c.eventually(func() string { return c.job(id, "%T") }, "PENDING")
	c.sh(alice, "scancel "+strings.Join(busy, " "))
	c.ends(id, "COMPLETED")
	c.noDrain()
}

// However a job asks for its GPU, it shares where shards can stand for the GPU, has
// the GPU where they cannot, and its steps see it.
func TestSpellingsBySlurm(t *testing.T) {
	if release(t) < 2311 {
		tooOldForShards(t)
		return
	}
	c := up(t, "--placement", "slurm")
	script := "#CARMA mem=14G\nshow() { echo $CARMA_SHARED $CUDA_VISIBLE_DEVICES; }\nexport -f show\nshow\nsrun -n1 " +
		"bash -c show\n"
	type asked struct{ options, line, shared, books string }
	jobs := map[string]asked{}
	for _, a := range []asked{
		{"--gres=gpu:1", "", "1", "gres/shard:14"},
		{"--gres=gpu:a100:1", "", "1", "gres/shard:a100:14"},
		{"--gpus=1", "", "1", "gres/shard:14"},
		{"--gpus=a100:1", "", "1", "gres/shard:a100:14"},
		{"--gpus=2 -N2", "", "1", "gres/shard:14"},
		{"--gpus-per-node=1", "", "1", "gres/shard:14"},
		{"-n1 --gpus-per-task=1", "", "1", "gres/shard:14"},
		{"-n1 -c2 --gpus-per-task=a100:1", "", "1", "gres/shard:a100:14"},
		{"--gpus-per-socket=1 --sockets-per-node=1", "", "1", "gres/shard:14"},
		{"--gres=gpu:1 --gpu-bind=single:1", "", "1", "gres/shard:14"},
		{"--gres=gpu:1 --array=0", "", "1", "gres/shard:14"},
		{"--gres=gpu:1 --cpus-per-gpu=2", "", "0", "gres/gpu:1"},
		{"--gres=gpu:1 --mem-per-gpu=200", "", "0", "gres/gpu:1"},
		{"--gres=gpu:1 --ntasks-per-gpu=1", "", "0", "gres/gpu:1"},
		{"--gres=gpu:1 --gpu-freq=low", "", "0", "gres/gpu:1"},
		{"--gres=gpu:2", "", "0", "gres/gpu:2"},
		{"--gres=gpu:1", "srun -n1 --gres=gpu:1 bash -c show", "0", "gres/gpu:1"},
		{"--gpus-per-node=1", "test -n $SLURM_GPUS_PER_NODE", "0", "gres/gpu:1"},
	} {
		jobs[c.sbatch(alice, a.options, script+a.line+"\n")] = a
	}
	for id, a := range jobs {
		c.ends(id, "COMPLETED")
		output := id
		if strings.Contains(a.options, "--array") {
			output += "_0"
		}
		lines := strings.Split(strings.TrimSpace(c.output(output)), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.Contains(l, "GPU-") })
		if got := c.job(id, "%b"); got != a.books || len(lines) < 2 || !strings.HasPrefix(lines[0], a.shared+" GPU-") ||
			lines[1] != lines[0] {
			t.Errorf("%s %s books %s, and sees %q", a.options, a.line, got, lines)
		}
	}
	if _, stderr, err := c.run(alice, "sbatch --gres=shard:3 --wrap true"); err == nil ||
		!strings.Contains(stderr, "ask for a GPU, such as --gres=gpu:1") {
		t.Errorf("shards by hand: %s", stderr)
	}
	for _, options := range []string{"--gpus=1", "--gres=gpu:a100:1", "-n1 --gpus-per-task=1",
		"--exclusive --gres=gpu:1"} {
		if out := c.sh(bob, "srun "+options+" bash -c 'echo "+
			"$CUDA_VISIBLE_DEVICES'"); !regexp.MustCompile(`^GPU-[0-9a-f-]+(,GPU-[0-9a-f-]+)*$`).MatchString(out) {
			t.Errorf("srun %s sees %q", options, out)
		}
	}
	c.noDrain()
}

// tooOldForShards is what all of this is on a Slurm without LL_SHARED_GRES.
func tooOldForShards(t *testing.T) {
	t.Helper()
	c := up(t, "--nodes", "1", "--placement", "slurm")
	out, _, err := c.run("", doctorOfN1)
	if err == nil || !regexp.MustCompile(`fail  slurm +placement.mode = "slurm" needs Slurm 23.11, this is \d+\.\d+\.\d+: jobs are accepted as written`).MatchString(out) {
		t.Errorf("doctor: %v\n%s", err, out)
	}
	id := c.sbatch(alice, "", train("10G", "1s"))
	c.ends(id, "COMPLETED")
	if got := c.job(id, "%b"); !regexp.MustCompile(`^gres[:/]gpu:1$`).MatchString(got) {
		t.Errorf("booked %s", got)
	}
	if log := c.sh("", "cat "+c.dir+"/log/slurmctld.log"); !strings.Contains(log,
		`placement.mode = "slurm" needs Slurm 23.11 or later`) {
		t.Errorf("slurmctld says nothing of it:\n%s", tail([]byte(log), 2000))
	}
	c.noDrain()
}
