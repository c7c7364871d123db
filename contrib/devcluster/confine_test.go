// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// confined starts a cluster whose GPUs have device nodes and whose tasks are in cgroups.
func confined(t *testing.T, args ...string) *cluster {
	t.Helper()
	needsCgroups(t)
	if note(t.Name(), false) {
		t.Parallel() // before it waits: one that is put off would hold the lock meanwhile
	}
	lockCgroups(t)
	return up(t, append([]string{"--nodes", "1", "--confine"}, args...)...)
}

// opens prints which GPUs a task opens: as it was started, with nothing in its environment,
// with a variable of its own, and from a child.
const opens = `o() { echo "$1: $(simgpu devices $SIMGPU_DEV)" \
	"$(env -i PATH=$PATH simgpu devices $SIMGPU_DEV)" \
	"$(CUDA_VISIBLE_DEVICES=0,1,2,3 simgpu devices $SIMGPU_DEV)"; }
`

// leased are the numbers of a job's GPUs as one word, "0,2", or "none".
func (c *cluster) leased(id string) string {
	var numbers []string
	for _, g := range c.status("n1") {
		for _, l := range g.Leases {
			if strconv.FormatUint(uint64(l.JobID), 10) == id {
				numbers = append(numbers, strconv.Itoa(g.Index))
			}
		}
	}
	if numbers == nil {
		return "none"
	}
	return strings.Join(numbers, ",")
}

// groups lists what CARMA has made for jobs among the cgroups.
func (c *cluster) groups() string {
	var found []string
	for _, pattern := range []string{
		c.dir + "/cgroup/devices/slurm*/uid_*/job_*",
		"/sys/fs/cgroup/system.slice/*slurmstepd.scope/job_*",
	} {
		dirs, _ := filepath.Glob(pattern)
		found = append(found, dirs...)
	}
	return strings.Join(found, " ")
}

// kept lists the cgroups that CARMA itself has made. Slurm leaves its own behind when a
// slurmstepd is killed.
func (c *cluster) kept() string {
	var found []string
	for _, pattern := range []string{
		c.dir + "/cgroup/devices/slurm*/uid_*/job_*/carma",
		"/sys/fs/cgroup/system.slice/*slurmstepd.scope/*/carma",
	} {
		dirs, _ := filepath.Glob(pattern)
		found = append(found, dirs...)
	}
	return strings.Join(found, " ")
}

// extern runs a command where pam_slurm_adopt would put a login: among the processes of
// the extern step.
func (c *cluster) extern(id, user, command string) string {
	c.t.Helper()
	var dirs []string
	for _, pattern := range []string{
		c.dir + "/cgroup/devices/slurm*/uid_*/job_" + id + "/step_extern/task_*",
		c.dir + "/cgroup/devices/slurm*/uid_*/job_" + id + "/step_extern",
		"/sys/fs/cgroup/system.slice/*slurmstepd.scope/job_" + id + "/step_extern/user/task_*",
	} {
		found, _ := filepath.Glob(pattern)
		dirs = append(dirs, found...)
	}
	if len(dirs) == 0 {
		c.t.Fatalf("job %s has no extern step", id)
	}
	return c.sh("", "echo $$ >"+dirs[0]+"/cgroup.procs; exec runuser -u "+user+" -- bash -c '"+command+"'")
}

// Each kind of task opens its job's GPUs and no other, whatever its variables say. A job
// without GPUs opens none.
func TestConfine(t *testing.T) {
	c := confined(t, "--time-scale", "10")
	if out := c.sh("", "carma-node --node n1 doctor --node || true"); !strings.Contains(out,
		"jobs are confined by cgroup v") {
		t.Errorf("the doctor says\n%s", out)
	}
	body := opens + "export -f o\no batch\nsrun -n 1 bash -c 'o step'\nsrun -n 2 bash -c 'o rank'\n" +
		"while [ ! -e go ]; do sleep 0.2; done\no late\n"
	gpu := "#SBATCH --gres=gpu:%d -p gpu -n 2\n#CARMA mem=6G\n" + body
	jobs := map[string]string{} // by name
	submit := func(user, name, script string) {
		jobs[name] = c.sbatch(user, "-J "+name+" -o "+name+".out", script)
	}
	submit(alice, "one", fmt.Sprintf(gpu, 1))
	submit(alice, "two", fmt.Sprintf(gpu, 2))
	submit(bob, "other", fmt.Sprintf(gpu, 1))
	submit(alice, "none", "#SBATCH -p gpu -n 2\n"+body)
	submit(bob, "plain", "#SBATCH -p plain -n 2\n"+body)
	want := map[string]string{}
	for name, id := range jobs {
		c.eventually(func() string {
			text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", name+".out"))
			return fmt.Sprint(strings.Count(string(text), "rank:"))
		}, "^2$")
		want[name] = c.leased(id)
	}
	for name, pattern := range map[string]string{
		"one": "^[0-3]$", "two": "^[0-3],[0-3]$", "other": "^[0-3]$", "none": "^none$", "plain": "^none$",
	} {
		if !regexp.MustCompile(pattern).MatchString(want[name]) {
			t.Errorf("job %s was leased %s", name, want[name])
		}
		user := alice
		if name == "other" || name == "plain" {
			user = bob
		}
		if got := c.extern(jobs[name], user, "simgpu devices "+c.dir+"/dev/n1"); got != want[name] {
			t.Errorf("extern step of %s opens %s, want %s", name, got, want[name])
		}
	}
	// Others come and go meanwhile.
	steps := " bash -c 'srun simgpu devices " + c.dir + "/dev/n1; sleep 2; srun --interactive simgpu devices " + c.dir +
		"/dev/n1'"
	interactive := c.sh(bob, "salloc -Q -p plain"+steps)
	if interactive != "none\nnone" {
		t.Errorf("interactive steps without a GPU open %s", interactive)
	}
	c.restart("agent")
	c.sh("", "touch go")
	for name, id := range jobs {
		c.ends(id, "COMPLETED")
		text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", name+".out"))
		lines := regexp.MustCompile("(?m)^(batch|step|rank|late): .*$").FindAllString(string(text), -1) // srun has its own
		if len(lines) != 5 {
			t.Errorf("job %s printed\n%s", name, text)
		}
		for _, line := range lines {
			if _, got, _ := strings.Cut(line, ": "); got != strings.Repeat(" "+want[name], 3)[1:] {
				t.Errorf("job %s, leased %s, opens %s", name, want[name], line)
			}
		}
	}
	// A job of one GPU in an allocation whose steps come with pauses between.
	got := c.sh(alice, "salloc -Q -p gpu --gres=gpu:1"+steps)
	if !regexp.MustCompile("^([0-3])\n[0-3]$").MatchString(got) || got[0] != got[2] {
		t.Errorf("steps of an allocation open %q", got)
	}
	// Integers for programs that read no UUIDs, where a task sees all GPUs of the job.
	echo := "echo $CUDA_VISIBLE_DEVICES"
	ordinal := c.sbatch(alice, "-o ordinal.out -e /dev/null", "#SBATCH --gres=gpu:2 -p gpu -n 2\n#CARMA mem=6G\n"+echo+
		"\nsrun -n 1 --gres=gpu:1 bash -c '"+echo+"'\nsrun -n 1 bash -c '"+echo+
		"; exec simjob --mem 3G --smact 5 --ramp 0s --duration 1s'\n")
	c.ends(ordinal, "COMPLETED")
	text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", "ordinal.out"))
	if !regexp.MustCompile("^(0,1\nGPU-.*\n0,1|1,0\nGPU-.*\n1,0)\n").Match(text) { // in the order of its slots
		t.Errorf("a job of two GPUs finds them as %q", text)
	}
	c.eventually(c.groups, "^$")
	// What is not wanted any more confines nobody.
	c.setDevices("confine = \"none\"")
	c.restart("agent")
	c.eventually(func() string {
		return c.sh(alice, "srun -Q -p plain simgpu devices "+c.dir+"/dev/n1")
	}, "^0,1,2,3$")
	if left, _ := filepath.Glob("/sys/fs/bpf/carma/n1/*"); left != nil {
		t.Errorf("left: %v", left)
	}
	c.eventually(c.groups, "^$")
	c.nothingLeft()
}

// The same user has job 1 on node n1 of two clusters on a machine: each job opens the GPUs of the job's own cluster,
// and the second job stays unharmed when the first job and cluster go.
func TestClustersSideBySide(t *testing.T) {
	if cgroup2() {
		t.Skip("systemd names slurmd's scope after the node: one cluster with cgroups v2 at a time")
	}
	var clusters []*cluster
	wants := []string{"^[0-3]$", "^[0-3],[0-3]$"}
	body := "until [ -e go ]; do simgpu devices $SIMGPU_DEV; sleep 0.2; done\n"
	for i := range wants {
		c := confined(t)
		clusters = append(clusters, c)
		if id := c.sbatch(alice, "-o opens", fmt.Sprintf("#SBATCH --gres=gpu:%d -p gpu\n#CARMA mem=6G\n", i+1)+body); id != "1" {
			t.Fatalf("the first job is job %s", id)
		}
	}
	opens := func(i int) {
		t.Helper()
		c := clusters[i]
		c.eventually(func() string {
			os.Truncate(filepath.Join(c.dir, "jobs/opens"), 0)
			time.Sleep(time.Second)
			return c.sh("", "tr -d '\\0' <opens | sort -u")
		}, wants[i])
	}
	opens(0)
	opens(1)
	clusters[0].sh("", "scancel 1")
	clusters[0].eventually(func() string { return clusters[0].leases("n1") }, "^$")
	clusters[0].restart("slurmd")
	opens(1)
	clusters[1].sh("", "touch go")
	clusters[1].ends("1", "COMPLETED")
}

// CARMA goes while jobs run: no program, no access list and no cgroup of its own stays, and
// Slurm's go with the jobs.
func TestConfineRemoved(t *testing.T) {
	c := confined(t, "--time-scale", "10")
	wait := "touch $SLURM_JOB_NAME.began\nwhile [ ! -e go ]; do sleep 0.2; done\n"
	ids := []string{
		c.sbatch(alice, "-J one", "#SBATCH --gres=gpu:1 -p gpu\n#CARMA mem=6G\n"+wait),
		c.sbatch(bob, "-J plain", "#SBATCH -p plain\n"+wait),
	}
	c.eventually(func() string { return c.sh("", "ls | grep -c 'began$' || true") }, "^2$")
	if c.kept() == "" {
		t.Error("jobs run and have no cgroup of CARMA's")
	}
	c.sh("", "read -r pid _ <"+c.dir+"/pid/agent.n1; kill $pid; "+
		"while kill -0 $pid 2>/dev/null; do sleep 0.1; done")
	c.sh("", "sed -i -E '/^(Prolog|Epilog|TaskProlog)=/d' "+c.dir+"/etc/slurm.conf && scontrol reconfigure")
	c.eventually(func() string {
		return c.sh("", "scontrol show config | grep -cE '^(Prolog|Epilog) .*= /' || true")
	}, "^0$")
	c.sh("", "carma-node --node n1 unconfine")
	if left, _ := filepath.Glob("/sys/fs/bpf/carma/n1*"); c.kept() != "" || left != nil {
		t.Errorf("left: %s %v", c.kept(), left)
	}
	c.sh("", "touch go")
	for _, id := range ids {
		c.ends(id, "COMPLETED")
	}
	c.eventually(c.groups, "^$")
	if got := c.sh(alice, "srun -Q -p plain simgpu devices "+c.dir+"/dev/n1"); got != "0,1,2,3" {
		t.Errorf("a job that comes later opens %s", got)
	}
	c.eventually(c.groups, "^$")
}

// setDevices adds a line to the table of devices in carma.toml.
func (c *cluster) setDevices(line string) {
	c.t.Helper()
	path := filepath.Join(c.dir, "etc", "carma.toml")
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.Replace(string(text), "[devices]\n", "[devices]\n"+line+"\n", 1)), 0o644)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// While jobs start and end beside it, a job opens what it may and no other; one that comes
// back on another GPU opens that.
func TestConfineBesideOthers(t *testing.T) {
	c := confined(t, "--time-scale", "10")
	watch := "while [ ! -e go ]; do simgpu devices $SIMGPU_DEV; sleep 0.1; done | uniq\n"
	keeps := c.sbatch(alice, "-o keeps.out", "#SBATCH --gres=gpu:1\n#CARMA mem=6G\n"+watch)
	none := c.sbatch(bob, "-o none.out", watch)
	c.eventually(func() string { return c.leased(keeps) }, "^[0-3]$")
	want := c.leased(keeps)
	again := c.sbatch(bob, "--requeue --open-mode=append -o again.out -e /dev/null",
		"#SBATCH --gres=gpu:1\n#CARMA mem=30G\nsimgpu devices $SIMGPU_DEV\n[ -n \"$SLURM_RESTART_COUNT\" ] || sleep 1h\n")
	c.eventually(func() string { return c.leased(again) }, "^[0-3]$")
	first := c.leased(again)
	c.eventually(func() string { out, _, _ := c.run("", "cat again.out"); return out }, "^[0-3]\n$")
	many, atOnce := 40, 16
	if underUML {
		many, atOnce = 8, 2
	}
	ids := c.sbatch(alice, fmt.Sprintf("--array=1-%d%%%d -o a.%%a.out", many, atOnce),
		"#SBATCH --gres=gpu:1\n#CARMA mem=4G\n"+
			"simgpu devices $SIMGPU_DEV\nsimjob --mem 3G --smact 5 --ramp 0s --duration 1s || echo false denial\n")
	c.sh("", "scontrol requeue "+again)
	if !c.publishes() { // slurmd 22.05 would start a job without its Prolog that comes back while it knows the last run
		c.sh("", "scontrol update JobId="+again+" StartTime=now+30")
	}
	c.eventually(func() string {
		out, _, _ := c.run("", "squeue -h -t PD,R,CG -j "+ids+" | wc -l")
		return strings.TrimSpace(out)
	}, "^0$")
	c.ends(again, "COMPLETED")
	c.sh("", "touch go")
	c.ends(keeps, "COMPLETED")
	c.ends(none, "COMPLETED")
	if got := c.sh("", "cat keeps.out"); got != want {
		t.Errorf("the job on GPU %s opened %q", want, got)
	}
	if got := c.sh("", "cat none.out"); got != "none" {
		t.Errorf("the job without a GPU opened %q", got)
	}
	if got := c.sh("", "cat again.out"); !regexp.MustCompile("^" + first + "\n[0-3]$").MatchString(got) {
		t.Errorf("the job that was requeued opened %q, first leased %s", got, first)
	}
	for i := range many {
		text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", fmt.Sprintf("a.%d.out", i+1)))
		if !regexp.MustCompile("^[0-3]\n").Match(text) || strings.Contains(string(text), "false denial") {
			t.Errorf("task %d: %s", i+1, text)
		}
	}
	c.eventually(c.groups, "^$")
	c.noDrain()
}
