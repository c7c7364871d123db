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
	pause, tries := 50*time.Millisecond, 1
	undisturbed, late := c.nextUser("nothing", patience)
	most := max(time.Minute, 30*time.Second+undisturbed)
	if late != "" { // a slow machine, on which daemons answer late without an attack
		tries = 4
	}
	if underUML {
		pause, tries = time.Second, 4
	}
	stop := func() string { return "" } // what would stop alice's servers of the next attack before her jobs have them
	for _, a := range []struct {
		what string
		do   func(pipes []string)
	}{
		{"a stopped server", func(pipes []string) { c.stopServers(pipes) }},
		{"servers that are stopped whenever they are seen", func(pipes []string) {
			// Children of this cluster's daemons: alice has servers in the clusters of other tests, too.
			stop = c.background(alice, fmt.Sprintf("while :; do pkill -STOP -u %s -f '^nvidia-cuda-mps-server' "+
				"-P \"$(pgrep -d, -f '^%s/lib/nvidia-cuda-mps-control -d')\"; sleep %.2f; done", alice, c.dir, pause.Seconds()))
			c.eventually(func() (states string) {
				for _, pid := range c.servers(alice) {
					text, _ := os.ReadFile("/proc/" + pid + "/stat")
					_, state, _ := strings.Cut(string(text), ") ")
					states += state
				}
				return states
			}, "T ")
			time.Sleep(20 * pause)
		}},
		{"a connection that says nothing", func(pipes []string) { c.keep("silent", pipes) }},
		{"O_PATH descriptors", func(pipes []string) { c.keep("opath", pipes) }},
		{"the lock of a daemon", func(pipes []string) { c.keep("lock", pipes) }},
		{"the log of the servers", func(pipes []string) { c.keep("log", pipes) }},
		{"all of it", func(pipes []string) { c.keep("all", pipes); c.stopServers(pipes) }},
	} {
		for try := 1; ; try++ {
			ids, pipes := c.onAllGPUs(alice)
			a.do(pipes)
			c.sh(alice, "scancel "+strings.Join(ids, " "))
			_, late := c.nextUser(a.what, most)
			stop()
			if late == "" {
				break
			} else if try == tries {
				t.Errorf("%s, at try %d: %s", a.what, try, late)
				break
			}
		}
	}
	c.noDrain()
}

// onAllGPUs has a user run a job on each GPU, as the GPU's MPS client.
func (c *cluster) onAllGPUs(user string) (ids, pipes []string) {
	c.t.Helper()
	for range c.status("n1") {
		id, pipe := c.asClient(user, "30G")
		ids, pipes = append(ids, id), append(pipes, pipe)
	}
	c.eventually(func() string { return c.clients("n1") }, fmt.Sprintf("^%d$", len(ids)))
	return ids, pipes
}

// asClient has a user run a job as a GPU's MPS client, and another job where a slow machine's daemon has not answered.
func (c *cluster) asClient(user, mem string) (id, pipe string) {
	c.t.Helper()
	for range 5 {
		id = c.sbatch(user, "", "#SBATCH --gres=gpu:1\n#CARMA mem="+mem+"\necho pipe=$CUDA_MPS_PIPE_DIRECTORY end\n"+
			"exec simjob --mem 2G --smact 5 --ramp 0s --duration 10h\n")
		pipe = c.pipe(id)
		if !noAnswer.MatchString(c.hookLog(id)) {
			return id, pipe
		}
		c.t.Logf("job %s: its MPS daemon did not answer in time: submitted again", id)
		c.sh("", "scancel "+id)
		c.ends(id, "CANCELLED")
	}
	c.t.Fatal("the MPS daemon did not answer in time for five jobs in turn")
	return "", ""
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

// noAnswer is a hook's line on a daemon that does not answer in time.
var noAnswer = regexp.MustCompile(`(?m)^.*the job's MPS daemon is not ready.*signal: killed.*$`)

// nextUser requires that bob's jobs run on all GPUs as clients of MPS and end within a time, and that no failed job is
// said to be the victim of a server's fault. nextUser returns how long the jobs took together, and what hooks said of
// daemons without an answer in time: of an earlier user, or of a slow machine.
func (c *cluster) nextUser(after string, most time.Duration) (took time.Duration, late string) {
	c.t.Helper()
	start := time.Now()
	var ids []string
	for range c.status("n1") {
		ids = append(ids, c.sbatch(bob, "", "#SBATCH --gres=gpu:1\n#CARMA mem=30G\necho pipe=$CUDA_MPS_PIPE_DIRECTORY end\n"+
			"simjob --mem 2G --smact 5 --ramp 0s --duration 20s && echo worked && exit 7\n"))
	}
	for _, id := range ids {
		if c.pipe(id) == "" && !noAnswer.MatchString(c.hookLog(id)) {
			c.t.Errorf("%s: job %s of the next user runs without MPS\n%s", after, id, c.hookLog(id))
		}
	}
	for _, id := range ids {
		for until := time.Now().Add(most); c.job(id, "%T") != "FAILED"; time.Sleep(100 * time.Millisecond) {
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
		log := c.hookLog(id)
		late += strings.Join(noAnswer.FindAllString(log, -1), "\n")
		if strings.Contains(noAnswer.ReplaceAllString(log, ""), "MPS") || blamed != "" {
			c.t.Errorf("%s: job %s of the next user: %s\n%s", after, id, blamed, log)
		}
	}
	took = time.Since(start)
	attacked(c.t, after, fmt.Sprintf("%d jobs of the next user in %s", len(ids), took.Round(time.Second)))
	return took, late
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
		_, pipe := c.asClient(alice, "60G")
		pipes = append(pipes, pipe)
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
	for good, tries := 0, 0; good < 5; tries++ {
		start := time.Now()
		id := c.sbatch(bob, "", "#SBATCH --gres=gpu:2\n#CARMA mem=60G\necho pipe=$CUDA_MPS_PIPE_DIRECTORY end\n"+
			"simjob --gpus 2 --mem 2G --smact 5 --ramp 0s --duration 1s\n")
		c.ends(id, "COMPLETED")
		slowest = max(slowest, time.Since(start))
		pipe, log := c.pipe(id), c.hookLog(id)
		if underUML && tries < 15 && noAnswer.MatchString(log) {
			continue
		}
		good++
		if pipe == "" || strings.Contains(log, "MPS") {
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
