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
	"time"
)

// The attack_*_test.go files attack a cluster as an ordinary user would. Each test
// states what must hold for the victim, not how: an attack may be refused, or be
// accepted and harmless. `make test` runs them in their short form, `make
// test-abuse` (tag abuse) in the long one.

// client builds a program of testdata that is linked with libslurm, where every
// user of the cluster can run it.
func (c *cluster) client(name string) string {
	c.t.Helper()
	args := []string{"-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"}
	if prefix := os.Getenv("SLURM_PREFIX"); prefix != "" {
		args = append(args, "-I"+prefix+"/include", "-L"+prefix+"/lib", "-Wl,-rpath,"+prefix+"/lib")
	}
	bin := filepath.Join(c.dir, "plugin", name)
	// The machine of make test-cgroup2 has no compiler, and the programs are built already.
	if built, err := os.ReadFile(filepath.Join("testdata", name)); err == nil {
		os.Remove(bin) // a running program cannot be written
		if err := os.WriteFile(bin, built, 0o755); err != nil {
			c.t.Fatal(err)
		}
		return bin
	}
	args = append(args, "-o", bin, filepath.Join("testdata", name+".c"))
	if name == "request" || name == "rawjob" {
		args = append(args, "-lslurm")
	}
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		c.t.Fatalf("cc: %v\n%s", err, out)
	}
	return bin
}

// quote makes one word of a text for a shell, whatever bytes it has.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// itself are fields that slurmctld changes while it only looks at a job.
var itself = regexp.MustCompile(`\b(RunTime|StartTime|EndTime|AccrueTime|LastSchedEval|Scheduler|SuspendTime|` +
	`SecsPreSuspend|PreemptTime|PreemptEligibleTime)=\S*`)

// shown is what scontrol shows of jobs, times aside: SubmitTime and EligibleTime
// stay, as a job that was requeued, or may start later, has others.
func (c *cluster) shown(ids ...string) map[string]string {
	c.t.Helper()
	shown := map[string]string{}
	for _, id := range ids {
		shown[id] = itself.ReplaceAllString(c.sh("", "scontrol -d show job "+id), "")
	}
	return shown
}

// unchanged requires jobs to be as they were.
func (c *cluster) unchanged(what func(victim string) string, before map[string]string) {
	c.t.Helper()
	for id, was := range before {
		now := c.shown(id)[id]
		if now == was {
			continue
		}
		old := map[string]bool{}
		for line := range strings.Lines(was) {
			old[line] = true
		}
		var changed strings.Builder
		for line := range strings.Lines(now) {
			if !old[line] {
				changed.WriteString(line)
			}
		}
		c.t.Errorf("%s: job %s of another user is now\n%s", what(id), id, changed.String())
	}
}

// waiting waits until squeue shows what want says of each job.
func (c *cluster) waiting(ids []string, format, want string) {
	c.t.Helper()
	for _, id := range ids {
		c.eventually(func() string { return c.job(id, format) }, want)
	}
}

// file writes a file that a user owns, below jobs/.
func (c *cluster) file(user, name, text string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, "jobs", name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		c.t.Fatal(err)
	}
	c.sh("", "chown "+user+" "+path)
	return path
}

// background starts a command of a user, which ends with the test or by stop.
func (c *cluster) background(user, command string) (stop func() string) {
	c.t.Helper()
	var out strings.Builder
	cmd := exec.Command("setsid", "bash", "-c", command)
	if user != "" {
		cmd = exec.Command("setsid", "setpriv", "--reuid", user, "--regid", user, "--init-groups", "bash", "-c", command)
	}
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Dir = filepath.Join(c.dir, "jobs")
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	ended := false
	stop = func() string {
		if !ended {
			ended = true
			c.sh("", fmt.Sprintf("kill -CONT -%d 2>/dev/null; kill -TERM -%[1]d 2>/dev/null || true", cmd.Process.Pid))
			cmd.Wait()
		}
		return out.String()
	}
	c.t.Cleanup(func() { stop() })
	return stop
}

// shares is a job that books some memory of a GPU and runs until it is cancelled.
func shares(mem string) string {
	return "#SBATCH --gres=gpu:1\n#CARMA mem=" + mem + "\nexec simjob --mem 3G --smact 10 --ramp 0s --duration 10h\n"
}

// oomText is what a job prints that asks for its recovery.
const oomText = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."

// attacked is one of the attacks in the report of a run with -v.
func attacked(t *testing.T, what, result string) { atEnd(t, "%-52s %s", what, result) }
