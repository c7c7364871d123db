// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// later adds a plugin to plugstack.conf that notes what a plugin after CARMA's sees.
func (c *cluster) later() {
	c.t.Helper()
	so := filepath.Join(c.dir, "plugin", "later.so")
	args := []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o", so, "testdata/later.c"}
	if prefix := os.Getenv("SLURM_PREFIX"); prefix != "" {
		args = append(args, "-I"+prefix+"/include")
	}
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		c.t.Fatalf("cc: %v\n%s", err, out)
	}
	c.sh("", "echo 'required "+so+"' >>"+c.dir+"/etc/plugstack.conf")
}

// told prints what a task was told of its GPUs, and what the later plugin saw.
const told = `told() { echo "$1: $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY; later $LATER;" \
	"$NVIDIA_VISIBLE_DEVICES $CARMA_RESERVE_MIB $CARMA_SHARED $XLA_PYTHON_CLIENT_PREALLOCATE"; }
export -f told
`

// line is what told printed for a kind of task, once for each of its tasks.
func (c *cluster) line(id, kind string) []string {
	c.t.Helper()
	var found []string
	for _, m := range regexp.MustCompile("(?m)^"+kind+": (.*)$").FindAllStringSubmatch(c.output(id), -1) {
		found = append(found, m[1])
	}
	if found == nil {
		c.t.Fatalf("job %s: no line %s in\n%s", id, kind, c.output(id))
	}
	return found
}

// With the SPANK plugin, and no TaskProlog, every kind of task is told what TaskProlog tells
// it, before another plugin of the stack runs.
func TestSpank(t *testing.T) {
	c := up(t, "--nodes", "1", "--spank")
	c.later()
	// Ten thousand variables may take longer than the ten seconds of devcluster.
	c.sh("", "sed -i s/cred_expire=10/cred_expire=120/ "+c.dir+"/etc/slurm.conf")
	c.restart("slurmctld")
	c.restart("slurmd")
	found := c.dir + "/etc/plugstack.conf has spank_carma.so, for Slurm "
	if out := c.sh("", "carma-node --node n1 doctor --node || true"); !strings.Contains(out, found) {
		t.Errorf("the doctor says\n%s", out)
	}
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1 -n 2\n#CARMA mem=10G\n"+told+
		"told batch\nsrun --overlap bash -c 'told step'\n"+
		"srun --overlap --export=NONE /bin/bash -c "+quote(told+"told none")+"\n"+
		"LD_PRELOAD=/no/such.so LD_LIBRARY_PATH=/no CARMA_TASK=1:1 CUDA_VISIBLE_DEVICES=3 "+
		"srun --overlap -n 1 bash -c 'told hostile' 2>/dev/null\n"+
		"for i in $(seq 10000); do export V$i=x; done\nsrun --overlap -n 1 bash -c 'told many'\n"+
		"XLA_PYTHON_CLIENT_PREALLOCATE=true srun --overlap -n 1 bash -c 'told own'\n")
	c.ends(id, "COMPLETED")
	batch := c.line(id, "batch")[0]
	pattern := `^(GPU-[-0-9a-f]+) (` + c.dir + `/run/n1/mps/GPU-[-0-9a-f]+); later (\S+ \S+); (\S+) 10240 1 false$`
	want := regexp.MustCompile(pattern).FindStringSubmatch(batch)
	if want == nil || want[3] != want[1]+" "+want[2] || want[4] != want[1] {
		t.Fatalf("the batch script was told %s\n%s", batch, c.output(id))
	}
	for kind, tasks := range map[string]int{"step": 2, "none": 2, "hostile": 1, "many": 1, "own": 1} {
		want := batch
		if kind == "own" {
			want = strings.TrimSuffix(batch, "false") + "true"
		}
		got := c.line(id, kind)
		if len(got) != tasks {
			t.Errorf("%s: %d lines, want %d", kind, len(got), tasks)
		}
		for _, line := range got {
			if line != want {
				t.Errorf("%s was told\n%s\nwant\n%s", kind, line, want)
			}
		}
	}

	// Each task its own GPU, in a step of a job with several.
	id = c.sbatch(bob, "", "#SBATCH --gres=gpu:2 -n 2\n#CARMA mem=4G\n"+told+
		"told batch\nsrun --gpus-per-task=1 bash -c 'told each'\n")
	c.ends(id, "COMPLETED")
	both, _, _ := strings.Cut(c.line(id, "batch")[0], " ")
	each := map[string]bool{}
	for _, line := range c.line(id, "each") {
		gpu, _, _ := strings.Cut(line, " ")
		each[gpu] = true
		if !strings.Contains(both, gpu) || strings.Contains(gpu, ",") || !strings.Contains(line, "; later "+gpu+" ") {
			t.Errorf("a task of a job with %s was told %s", both, line)
		}
	}
	if len(each) != 2 {
		t.Errorf("two tasks were told %v", each)
	}

	// Without a GPU, and interactive.
	id = c.sbatch(alice, "-p plain", told+"told batch\n")
	c.ends(id, "COMPLETED")
	if got := c.line(id, "batch")[0]; !strings.HasPrefix(got, " ; later  unset; void ") {
		t.Errorf("a task without a GPU was told %q", got)
	}
	out := c.sh(alice, "salloc -Q --gres=gpu:1 srun --interactive bash -c 'echo $CUDA_VISIBLE_DEVICES'")
	if !strings.HasPrefix(out, "GPU-") {
		t.Errorf("an interactive step was told %q", out)
	}
	c.noDrain()
}

// A TaskProlog beside the plugin changes nothing, also not of a task that has one of its
// job's GPUs; and whatever becomes of the plugin's program, the job runs.
func TestSpankBeside(t *testing.T) {
	c := up(t, "--nodes", "1", "--spank")
	c.later()
	conf := filepath.Join(c.dir, "etc", "slurm.conf")
	c.sh("", fmt.Sprintf("echo TaskProlog=%s/hooks/task-prolog >>%s; scontrol reconfigure", c.dir, conf))
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:2 -n 2\n#CARMA mem=4G\n"+told+
		"told batch\nsrun bash -c 'told step'\nsrun --gpus-per-task=1 bash -c 'told each'\n")
	c.ends(id, "COMPLETED")
	lines := append(append(c.line(id, "batch"), c.line(id, "step")...), c.line(id, "each")...)
	for i, line := range lines {
		gpus, _, _ := strings.Cut(line, " ")
		commas := 0
		if i < 3 {
			commas = 1
		}
		if strings.Count(gpus, ",") != commas || !strings.Contains(line, "; later "+gpus+" ") {
			t.Errorf("task %d was told %s", i, line)
		}
	}
	if lines[3] == lines[4] {
		t.Errorf("two tasks were told %v", lines[3:])
	}

	c.sh("", fmt.Sprintf("sed -i /^TaskProlog/d %s; scontrol reconfigure", conf))
	hook := filepath.Join(c.dir, "hooks", "task-prolog")
	good := c.sh("", "cat "+hook)
	for _, test := range []struct{ name, script, want string }{
		{"fails", "#!/bin/sh\necho export CUDA_VISIBLE_DEVICES=GPU-x\nexit 1\n", ""},
		{"is no program", "garbage", ""},
		{"is missing", "", "[0-9]+"},
	} {
		os.Remove(hook)
		if test.script != "" {
			c.sh("", "cat >"+hook+" <<'END'\n"+test.script+"\nEND\nchmod 755 "+hook)
		}
		id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n"+told+"told batch\n")
		c.ends(id, "COMPLETED")
		want := regexp.MustCompile("^" + test.want + " ; later " + test.want + " unset;")
		if got := c.line(id, "batch")[0]; !want.MatchString(got) {
			t.Errorf("with a program that %s a task was told %q", test.name, got)
		}
		if log := c.output(id); !strings.Contains(log, "spank/carma: ") {
			t.Errorf("with a program that %s nothing is said", test.name)
		}
	}
	c.sh("", "cat >"+hook+" <<'END'\n"+good+"\nEND\nchmod 755 "+hook)
	// Nothing of CARMA's is there but the program: no agent, no ledger, no file of the job.
	c.sh("", "rm -rf "+c.dir+"/run/n1/jobs/*")
	id = c.sbatch(alice, "-p plain", told+"told batch\n")
	c.ends(id, "COMPLETED")
	c.noDrain()
}

// A task whose program hangs keeps its own job waiting and no other. The program ends with
// the job that is cancelled, and with a slurmstepd that is killed; the node stays up.
func TestSpankHangs(t *testing.T) {
	c := up(t, "--nodes", "1", "--spank")
	hook := filepath.Join(c.dir, "hooks", "task-prolog")
	c.sh("", "sed -i '1a [ $SLURM_JOB_NAME != hangs ] || { echo $$ >helper; exec sleep 1h; }' "+hook)
	gone := func(pid string) {
		t.Helper()
		c.eventually(func() string { out, _, _ := c.run("", "ps -o stat= -p "+pid); return out }, "^(Z.*)?\\s*$")
	}
	for _, kill := range []func(id, helper string){
		func(id, _ string) { c.sh(alice, "scancel "+id) },
		func(id, helper string) {
			stepd := c.sh("", "ps -o ppid= -p $(ps -o ppid= -p "+helper+")")
			if name := c.sh("", "ps -o comm= -p "+stepd); name != "slurmstepd" {
				t.Fatalf("the program's parent's parent is %s", name)
			}
			c.sh("", "kill -9 "+stepd)
		},
	} {
		c.sh("", "rm -f helper")
		id := c.sbatch(alice, "-J hangs", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\n")
		c.eventually(func() string { out, _, _ := c.run("", "cat helper"); return out }, "^[0-9]+\n$")
		helper := c.sh("", "cat helper")
		other := c.sbatch(bob, "", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\nsrun true\n")
		c.ends(other, "COMPLETED")
		kill(id, helper)
		gone(helper)
		c.sh("", "scancel "+id+" || true")
		c.eventually(func() string { return c.leased(id) }, "^none$")
	}
	c.noDrain()
}

// Without CARMA the plugin changes nothing.
func TestSpankWithoutCARMA(t *testing.T) {
	c := up(t, "--nodes", "1", "--spank", "--no-carma")
	c.later()
	for _, missing := range []bool{false, true} {
		if missing {
			c.sh("", "rm "+c.dir+"/hooks/task-prolog")
		}
		id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n"+told+"told batch\nsrun bash -c 'told step'\n")
		c.ends(id, "COMPLETED")
		for _, kind := range []string{"batch", "step"} {
			if got := c.line(id, kind)[0]; !regexp.MustCompile(`^[0-9]+ ; later [0-9]+ unset;`).MatchString(got) {
				t.Errorf("%s was told %q", kind, got)
			}
		}
	}
	c.noDrain()
}
