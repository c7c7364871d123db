// SPDX-License-Identifier: Apache-2.0

//go:build integration

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

// A GPU changes hands clean: what a user does to its MPS daemon and server, or keeps of them,
// while they serve the user's jobs, is nothing to the jobs of the next user.
func TestAttackNextUser(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1", "--time-scale", "10")
	stop := func() string { return "" } // what would stop alice's servers of the next attack before her jobs have them
	for _, a := range []struct {
		what string
		do   func(pipes []string)
	}{
		{"a stopped server", func(pipes []string) { c.stopServers(pipes) }},
		{"servers that are stopped whenever they are seen", func(pipes []string) {
			stop = c.background(alice, "while :; do pkill -STOP -u "+alice+" -f '^nvidia-cuda-mps-server'; sleep 0.05; done")
			time.Sleep(time.Second)
		}},
		{"a connection that says nothing", func(pipes []string) { c.keep("silent", pipes) }},
		{"O_PATH descriptors", func(pipes []string) { c.keep("opath", pipes) }},
		{"the lock of a daemon", func(pipes []string) { c.keep("lock", pipes) }},
		{"the log of the servers", func(pipes []string) { c.keep("log", pipes) }},
		{"all of it", func(pipes []string) { c.keep("all", pipes); c.stopServers(pipes) }},
	} {
		ids, pipes := c.onAllGPUs(alice)
		a.do(pipes)
		c.sh(alice, "scancel "+strings.Join(ids, " "))
		c.nextUser(a.what)
		stop()
	}
	c.noDrain()
}

// onAllGPUs has a user run a job on each GPU, as the GPU's MPS client.
func (c *cluster) onAllGPUs(user string) (ids, pipes []string) {
	c.t.Helper()
	for range c.status("n1") {
		ids = append(ids, c.sbatch(user, "", "#SBATCH --gres=gpu:1\n#CARMA mem=30G\necho pipe=$CUDA_MPS_PIPE_DIRECTORY end\n"+
			"exec simjob --mem 2G --smact 5 --ramp 0s --duration 10h\n"))
	}
	for _, id := range ids {
		pipes = append(pipes, c.pipe(id))
	}
	c.eventually(func() string { return c.clients("n1") }, fmt.Sprintf("^%d$", len(ids)))
	return ids, pipes
}

var toldPipe = regexp.MustCompile(`pipe=(\S*) end`)

// pipe is the pipe directory that a job was told, and printed.
func (c *cluster) pipe(id string) (dir string) {
	c.t.Helper()
	c.eventually(func() string {
		text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", "slurm-"+id+".out"))
		m := toldPipe.FindSubmatch(text)
		if m == nil {
			return "nothing"
		}
		dir = string(m[1])
		return "told"
	}, "told")
	return dir
}

// servers are the MPS servers of a user.
func (c *cluster) servers(user string) []string {
	var pids []string
	for _, pid := range strings.Fields(c.sh("", "pgrep -u "+user+" -f '^nvidia-cuda-mps-server' || true")) {
		if exe, _ := os.Readlink("/proc/" + pid + "/exe"); strings.HasPrefix(exe, c.dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (c *cluster) stopServers(pipes []string) {
	c.t.Helper()
	pids := c.servers(alice)
	if len(pids) != len(pipes) {
		c.t.Fatalf("alice has %d servers on %d GPUs", len(pids), len(pipes))
	}
	c.sh(alice, "kill -STOP "+strings.Join(pids, " "))
}

// keep has alice keep something of pipe directories until the test ends.
func (c *cluster) keep(what string, pipes []string) (said func() string) {
	c.t.Helper()
	out := c.file(alice, fmt.Sprintf("keep%d", time.Now().UnixNano()), "")
	c.background(alice, "exec "+c.client("keep")+" "+what+" "+strings.Join(pipes, " ")+" >"+out)
	said = func() string {
		text, _ := os.ReadFile(out)
		return string(text)
	}
	c.eventually(said, "kept")
	c.t.Cleanup(func() {
		if strings.Contains(said(), "reached ") {
			c.t.Errorf("what was kept reaches the next user's daemon:\n%s", said())
		}
	})
	return said
}

// nextUser requires that bob's jobs run on all GPUs as clients of MPS and end at once, and
// that one that fails is not said to be the victim of a server's fault.
func (c *cluster) nextUser(after string) {
	c.t.Helper()
	start := time.Now()
	var ids []string
	for range c.status("n1") {
		ids = append(ids, c.sbatch(bob, "", "#SBATCH --gres=gpu:1\n#CARMA mem=30G\necho pipe=$CUDA_MPS_PIPE_DIRECTORY end\n"+
			"simjob --mem 2G --smact 5 --ramp 0s --duration 20s && echo worked && exit 7\n"))
	}
	for _, id := range ids {
		if c.pipe(id) == "" {
			c.t.Errorf("%s: job %s of the next user runs without MPS\n%s", after, id, c.hookLog(id))
		}
	}
	for _, id := range ids {
		for until := time.Now().Add(time.Minute); c.job(id, "%T") != "FAILED"; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(until) {
				c.t.Errorf("%s: job %s of the next user is %s, restarts %s\n%s", after, id, c.job(id, "%T"), c.restarts(id),
					c.hookLog(id))
				c.sh("", "scancel "+id)
				break
			}
		}
		if text := c.output(id); !strings.Contains(text, "worked") {
			c.t.Errorf("%s: job %s of the next user wrote %q", after, id, text)
		}
		agent, _ := os.ReadFile(filepath.Join(c.dir, "log", "agent.n1.log"))
		blamed := regexp.MustCompile(`has logged a fault.*jobs=.*\b` + id + `\b.*`).FindString(string(agent))
		if log := c.hookLog(id); strings.Contains(log, "MPS") || blamed != "" {
			c.t.Errorf("%s: job %s of the next user: %s\n%s", after, id, blamed, log)
		}
	}
	attacked(c.t, after, fmt.Sprintf("%d jobs of the next user in %s", len(ids), time.Since(start).Round(time.Second)))
}

// A user reaches nothing in the user's own MPS server, which is outside of the job and of what
// confines it, but signals.
func TestAttackOwnServer(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1", "--time-scale", "10")
	c.onAllGPUs(alice)
	pids := c.servers(alice)
	said := c.sh(alice, c.client("trace")+" "+strings.Join(pids, " "))
	if strings.Count(said, "looked at ") != 4 || strings.Contains(said, "reached ") {
		t.Errorf("alice's %d servers:\n%s", len(pids), said)
	}
	// What a server leaves behind ends with its user's time at the GPU, wherever it runs.
	for _, pid := range pids {
		if status, _ := os.ReadFile("/proc/" + pid + "/status"); !regexp.MustCompile(`(?m)^Gid:\t0\t0\t0\t0$`).Match(status) {
			t.Errorf("server %s:\n%s", pid, status)
		}
	}
	c.sh("", "scancel -u "+alice)
	c.eventually(func() string { return fmt.Sprint(len(c.servers(alice))) }, "^0$")
	c.noDrain()
}

var replaced = regexp.MustCompile(`(?m)daemon that does not answer.*gpus="?(GPU-[0-9a-f-]+)`)

// A user whose daemons say nothing costs the jobs of others, on other GPUs, no time; and what
// the user writes into a log fills no disk.
func TestAttackSilentDaemons(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1", "--gpu-model", "h100", "--time-scale", "10")
	var pipes []string
	for range 6 {
		id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=60G\necho pipe=$CUDA_MPS_PIPE_DIRECTORY end\n"+
			"exec simjob --mem 2G --smact 5 --ramp 0s --duration 10h\n")
		pipes = append(pipes, c.pipe(id))
	}
	c.eventually(func() string { return c.clients("n1") }, "^6$")
	logs := filepath.Join(c.dir, "log", "hooks.n1-mps")
	stop := c.background(alice, "exec "+c.client("keep")+" flood "+strings.Join(pipes[:1], " "))
	most := int64(0)
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		used, _ := strconv.ParseInt(strings.Fields(c.sh("", "du -sm "+logs))[0], 10, 64)
		most = max(most, used)
	}
	stop()
	attacked(t, "a log that is written without end", fmt.Sprintf("at most %d MiB on the disk", most))
	if most > mostOnDisk>>20 {
		t.Errorf("the logs of the MPS daemons had %d MiB", most)
	}
	// All the time somebody says nothing: a daemon that was started anew is reached again.
	for _, pipe := range pipes {
		c.background(alice, "while :; do timeout --foreground 40 "+c.client("keep")+" silent "+pipe+"; done")
	}
	time.Sleep(5 * time.Second)
	slowest := time.Duration(0)
	for range 5 {
		start := time.Now()
		id := c.sbatch(bob, "", "#SBATCH --gres=gpu:2\n#CARMA mem=60G\necho pipe=$CUDA_MPS_PIPE_DIRECTORY end\n"+
			"simjob --gpus 2 --mem 2G --smact 5 --ramp 0s --duration 1s\n")
		c.ends(id, "COMPLETED")
		slowest = max(slowest, time.Since(start))
		if pipe, log := c.pipe(id), c.hookLog(id); pipe == "" || strings.Contains(log, "MPS") {
			t.Errorf("beside silent daemons of alice's, job %s of bob is told %q\n%s", id, pipe, log)
		}
	}
	attacked(t, "six daemons that say nothing", fmt.Sprintf("5 jobs of another user on two GPUs, the slowest %s",
		slowest.Round(time.Second)))
	// They are replaced, each by itself.
	c.eventually(func() string {
		text, _ := os.ReadFile(filepath.Join(c.dir, "log", "agent.n1.log"))
		var seen []string
		for _, m := range replaced.FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(seen, m[1]) {
				seen = append(seen, m[1])
			}
		}
		return fmt.Sprint(len(seen))
	}, "^6$")
	c.noDrain()
}
