// SPDX-License-Identifier: Apache-2.0

//go:build integration && abuse

package devcluster_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// looker opens every device node as long as it runs, whatever its variables say, and prints
// a line when it finds others open than before. First it prints what it was leased.
const looker = "export CUDA_VISIBLE_DEVICES=0,1,2,3\necho \"leased $CARMA_GPU_UUIDS\"\n" +
	"while [ ! -e go ]; do simgpu devices $SIMGPU_DEV; sleep 0.5; done | uniq\n"

// ofSlurmstepd is what slurmstepd adds to a job's output: that its socket had been removed, by another slurmstepd.
var ofSlurmstepd = regexp.MustCompile(`(?m)^slurmstepd-\w+: error: Unable to unlink domain socket .*\n`)

// starts runs jobs beside 20 lookers until all have ended or time is up, and disturbs
// meanwhile. Then it requires that each opened what it was leased, and nothing else.
//
// Where slurmd has started a job without its Prolog, as it may when one was killed, the job
// has no lease and must open none; how many looks were of such jobs is returned.
func (c *cluster) starts(jobs int, disturb func()) (unleased int) {
	c.t.Helper()
	indices := map[string]string{}
	for _, g := range c.status("n1") {
		indices[g.UUID] = strconv.Itoa(g.Index)
	}
	user := func(i int) string { return []string{alice, bob, carol}[i%3] }
	gpu := "#SBATCH --gres=gpu:1\n#CARMA mem=2G\n"
	const looking = 3
	var lookers []string
	for i := range 20 {
		head, who := "#SBATCH -p plain\n", user(i)
		if i < looking { // alice's, on one GPU: what a GPU takes of them leaves others for the jobs
			head, who = gpu, alice
		}
		lookers = append(lookers, c.sbatch(who, fmt.Sprintf("--no-requeue -o looker.%d.out", i), head+looker))
	}
	c.eventually(func() string { return c.sh("", "cat looker.*.out | grep -c leased || true") }, "^20$")
	look := "echo \"$SLURM_RESTART_COUNT|$CARMA_GPU_UUIDS|$(CUDA_VISIBLE_DEVICES=0,1,2,3 simgpu devices $SIMGPU_DEV)\"\n"
	step := "srun -n 1 bash -c '" + strings.TrimSpace(look) + "'\n"
	body := look + "sleep 0.$((RANDOM % 9))\n" + step + look
	c.sbatch(alice, "--array=1-"+strconv.Itoa(jobs/4)+" --open-mode=append -e /dev/null -o a.%a.out", gpu+body)
	c.sbatch(bob, "--array=1-"+strconv.Itoa(jobs/4)+" --open-mode=append -e /dev/null -o b.%a.out", gpu+body)
	c.sbatch(carol, "--array=1-"+strconv.Itoa(jobs/2)+" --open-mode=append -e /dev/null -o c.%a.out",
		"#SBATCH -p plain\n"+body)
	left := func() string {
		out, _, err := c.run("", "squeue -h -r -t PD,R,CG,CF -o %A | wc -l")
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(out)
	}
	for start := time.Now(); left() != strconv.Itoa(len(lookers)) && time.Since(start) < 15*time.Minute; {
		disturb()
	}
	c.t.Logf("%s jobs are left, of them %d lookers", left(), len(lookers))
	c.sh("", "touch go")
	for _, id := range lookers {
		c.ends(id, "COMPLETED")
	}
	c.sh("", "scancel -u "+alice+"; scancel -u "+bob+"; scancel -u "+carol)

	opened := func(uuids string) string {
		if uuids == "" {
			return "none"
		}
		return indices[uuids]
	}
	for i := range lookers {
		text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", fmt.Sprintf("looker.%d.out", i)))
		text = ofSlurmstepd.ReplaceAll(text, nil)
		leased, found, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		if want := opened(strings.TrimPrefix(leased, "leased ")); found != want || want == "" ||
			(want == "none") != (i >= looking) {
			c.t.Errorf("looker %d printed %q, want %s", i, text, want)
		}
	}
	looks, after := 0, 0
	files, _ := filepath.Glob(filepath.Join(c.dir, "jobs", "[abc].*.out"))
	for _, file := range files {
		var lines [][]string
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			if field := strings.Split(strings.TrimSpace(line), "|"); len(field) == 3 { // else Slurm's, or cut off
				lines = append(lines, field)
			}
		}
		plain := strings.HasPrefix(filepath.Base(file), "c.")
		for _, field := range lines {
			looks++
			want, got := opened(field[1]), field[2]
			switch {
			case got == "none" && want != "none" && field[0] != lines[len(lines)-1][0]:
				after++ // its slurmstepd was killed, and its lease is over: it was requeued later
			case got != want || plain && want != "none":
				c.t.Errorf("%s: leased %q, opened %q, want %q", filepath.Base(file), field[1], got, want)
			case !plain && want == "none":
				unleased++
			}
		}
	}
	c.t.Logf("%d jobs looked %d times, %d times without a lease, %d times after its end", len(files), looks,
		unleased, after)
	if len(files) < jobs*9/10 {
		c.t.Errorf("only %d of %d jobs have started", len(files), jobs)
	}
	return unleased
}

// CONFINE_JOBS jobs start and end beside programs that open everything.
func TestConfineManyStarts(t *testing.T) {
	c := confined(t, "--time-scale", "10")
	if n := c.starts(number(t, "CONFINE_JOBS", 1000), func() { time.Sleep(time.Second) }); n > 0 {
		t.Errorf("jobs with a GPU looked %d times without a lease", n)
	}
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.eventually(c.kept, "^$")
	c.noDrain()
}

// Agent, slurmd, slurmstepds, Prologs and Epilogs are killed at random places.
func TestConfineKilled(t *testing.T) {
	c := confined(t, "--time-scale", "10")
	orphans := func() { // what slurmstepds that were killed have left, of n1 alone
		c.run("", "kill -9 $(cat "+c.dir+"/cgroup/freezer/slurm_n1/uid_*/job_*/step_*/cgroup.procs)")
	}
	t.Cleanup(orphans)
	rng := rand.New(rand.NewPCG(1, 2))
	killed := map[string]int{}
	daemon := func(name string) {
		text, err := os.ReadFile(filepath.Join(c.dir, "pid", name+".n1"))
		if err != nil {
			return
		}
		pid, err := strconv.Atoi(strings.Fields(string(text))[0])
		if err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed[name]++
		}
		time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
		c.restart(name, "n1")
	}
	// A hook, or the slurmstepd of a job that is not a looker (theirs have the ids 1 to 20).
	find := func(what string) (pids []int) {
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range files {
			text, _ := os.ReadFile(file)
			environ, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "environ"))
			command := strings.ReplaceAll(string(text), "\x00", " ")
			ours := strings.Contains(string(environ), "SLURM_CONF="+c.dir+"/")
			if what == "slurmstepd" {
				var job int
				n, _ := fmt.Sscanf(command, "slurmstepd: [%d.", &job)
				ours = ours && n == 1 && job > 20
			} else {
				ours = strings.Contains(command, c.dir+"/etc/carma.toml "+what+" ")
			}
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && ours {
				pids = append(pids, pid)
			}
		}
		return pids
	}
	process := func(what string) {
		for range 20 { // hooks are short
			pids := find(what)
			if len(pids) == 0 {
				continue
			}
			time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
			if syscall.Kill(pids[rng.IntN(len(pids))], syscall.SIGKILL) == nil {
				killed[what]++
			}
			return
		}
	}
	n, jobs := 0, number(t, "CONFINE_JOBS", 200)
	c.starts(jobs, func() {
		// slurmd drains a node whose Prolog goes with it.
		c.run("", "scontrol update NodeName=n1 State=RESUME")
		n++
		switch {
		case n > jobs: // the rest may end: each requeue takes its time
			if n%20 == 0 { // slurmctld learns of slurmstepds that have gone when slurmd registers
				c.restart("slurmd", "n1")
			}
			time.Sleep(time.Second)
		case n%40 == 0:
			daemon("agent")
		case n%40 == 20:
			daemon("slurmd")
		default:
			process([]string{"slurmstepd", "prolog", "prolog", "epilog"}[rng.IntN(4)])
		}
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
	})
	t.Logf("killed: %v", killed)
	for _, what := range []string{"agent", "slurmd", "slurmstepd", "prolog"} {
		if killed[what] == 0 {
			t.Errorf("no %s was killed", what)
		}
	}
	c.run("", "scontrol update NodeName=n1 State=RESUME")
	c.restart("slurmd", "n1")
	c.eventually(func() string { return c.leases("n1") }, "^$")
	// Processes that outlive their job keep its cgroup, and open nothing.
	steps, _ := filepath.Glob(c.dir + "/cgroup/devices/slurm_n1/uid_*/job_*/step_*")
	for _, step := range steps {
		out, _, err := c.run("", "echo $$ >"+step+"/cgroup.procs && exec runuser -u "+carol+" -- simgpu devices "+
			c.dir+"/dev/n1")
		if err == nil && strings.TrimSpace(out) != "none" { // else the agent has removed it meanwhile
			t.Errorf("%s opens %s after its job", step, out)
		}
	}
	t.Logf("%d steps have outlived their jobs", len(steps))
	orphans()
	c.eventually(c.kept, "^$")
}
