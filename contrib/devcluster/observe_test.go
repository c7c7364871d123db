// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// observed is a cluster of two nodes whose agents only observe, with what the test knows of the jobs.
type observed struct {
	*cluster
	truth *truthOfGPUs
	want  map[string]seen   // by carma-report's job id: 12, 10_2
	last  map[string]string // the last state in slurmctld
	idle  map[string]bool   // ids of jobs seen as idle in carma-node status
	gaps  []gap
	pace  pace

	slowest float64 // seconds, of the questions for all jobs
}

// gap is a time without an agent on a node.
type gap struct {
	node string
	span
}

var observedNodes = []string{"n1", "n2"}

// Without any line of CARMA's in slurm.conf the agents find all jobs, older jobs too, and record the use;
// stopped, killed and started again, agents harm no job, and change nothing in Slurm.
func TestObserve(t *testing.T) {
	takesMinutes(t)
	c := &observed{cluster: up(t, "--nodes", "2", "--time-scale", fmt.Sprint(observeScale), "--observe"),
		want: map[string]seen{}, last: map[string]string{}, idle: map[string]bool{}}
	for _, file := range []string{"slurm.conf", "gres.conf"} {
		text, err := os.ReadFile(filepath.Join(c.dir, "etc", file))
		ours := regexp.MustCompile(`(?i)jobsubmit|prolog=|epilog=|extra_constraints|\bName=carma\b|,carma`)
		if err != nil || ours.Match(text) {
			t.Errorf("%s, %v:\n%s", file, err, text)
		}
	}
	c.installHere()
	counter := func() (joules float64) {
		for _, n := range observedNodes {
			joules += c.joules(n) / observeScale
		}
		return joules
	}
	c.eventually(func() string { seen, _ := c.sampled(); return fmt.Sprint(seen > 0) }, "true")
	first, _ := c.sampled()
	before := counter() - first
	c.truth = follow(c.cluster)
	defer c.truth.stop()

	c.stopAgent("n1", "TERM")
	c.pace = c.measurePace()
	older := c.submitAll(c.pace.olderJobs())
	for _, id := range older {
		c.eventually(func() string { return c.job(id, "%T") }, "RUNNING")
	}
	time.Sleep(35 * time.Second)
	c.restart("agent", "n1")
	c.submitAll(c.pace.mixedJobs())
	c.peaked(older[0], 5001)
	c.sh("", "touch older-seen")
	c.untilAllHaveEnded()
	for id, s := range c.want {
		if c.last[id] != s.state {
			t.Errorf("job %s (%s %s, %s) ended %s, want %s", id, s.interactive, s.options, s.script, c.last[id], s.state)
		}
	}
	for _, n := range observedNodes {
		c.eventually(func() string { return c.leases(n) }, "^$") // of jobs on both nodes, too
	}
	c.truth.stop()
	records := c.recordsOf(len(c.want) - without(c.want))
	joules := 0.0
	for _, a := range records {
		if a.EnergyJ == nil {
			t.Errorf("job %s: energy unknown", a.ID)
			continue
		}
		joules += *a.EnergyJ
	}
	time.Sleep(5 * time.Second) // until the samples have the last of the jobs, too
	said, limit := "", (counter()-before)/100
	c.eventually(func() string { // an agent without a processor is late with its samples
		total := counter() - before
		inSamples, unowned := c.sampled()
		off := joules + unowned - total
		said = fmt.Sprintf("%d jobs submitted, %d records; counters %.0f J, samples %.0f J, jobs %.0f J, nobody %.0f J: "+
			"off by %.0f J", len(c.want), len(records), total, inSamples, joules, unowned, off)
		if math.Abs(off) > limit {
			return said + fmt.Sprintf(", more than %.0f J", limit)
		}
		return "jobs and nobody have the energy of the GPUs"
	}, "^jobs and nobody have")
	t.Log(said)
	for _, id := range slices.Sorted(maps.Keys(c.want)) {
		c.checkSeen(id, c.want[id], records)
	}
	c.killedInTheMiddle()
	c.nothingLeft()
	c.onlyAsked("has no line that has CARMA act")
}

// without counts the jobs without a GPU, and so without a record.
func without(jobs map[string]seen) (n int) {
	for _, s := range jobs {
		if s.gpus == 0 {
			n++
		}
	}
	return n
}

// noteStates notes the states of all jobs, ended jobs too: slurmctld forgets a job 300 s after the end (MinJobAge).
// noteStates returns a line for each job, and how many jobs have not ended.
func (c *observed) noteStates() (queue string, left int) {
	c.t.Helper()
	asked := time.Now()
	queue = c.sh("", "squeue -h -r -t all -o '%i %T %M'")
	c.slowest = max(c.slowest, time.Since(asked).Seconds())
	for line := range strings.Lines(queue) {
		words := strings.Fields(line)
		c.last[words[0]] = words[1]
		if slices.Contains([]string{"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED"}, words[1]) {
			left++
		}
	}
	return queue, left
}

// untilAllHaveEnded waits for the end of all jobs, cancels and requeues as the jobs' act says, and kills an agent in the
// middle.
func (c *observed) untilAllHaveEnded() {
	c.t.Helper()
	killed, done := false, map[string]bool{}
	for start, last := time.Now(), time.Now(); ; {
		// The test leaves half of a slow machine to the cluster.
		time.Sleep(max(time.Second, time.Since(last)))
		last = time.Now()
		queue, left := c.noteStates()
		if left == 0 {
			break
		}
		if time.Since(start) > 4*patience {
			c.t.Fatalf("jobs do not end:\n%s", queue)
		}
		for line := range strings.Lines(queue) {
			id, state, _ := strings.Cut(strings.TrimSpace(line), " ")
			s, ran := c.want[id], regexp.MustCompile(`^RUNNING (0:(1[2-9]|[2-5])|[1-9])`).MatchString(state)
			if s.act != "" && ran && !done[id] {
				c.sh(s.user, s.act+" "+id)
				done[id] = true
			}
		}
		c.noteIdle()
		if !killed && left < len(c.want)/2 {
			killed = true
			g := gap{node: "n2", span: span{seen: now()}}
			c.stopAgent("n2", "KILL")
			time.Sleep(5 * time.Second)
			c.restart("agent", "n2")
			g.gone = now()
			c.gaps = append(c.gaps, g)
		}
	}
	if !killed {
		c.t.Error("no agent was killed in the middle")
	}
}

// noteIdle notes the jobs that carma-node status shows as idle, and ends their wait (seenIdle).
func (c *observed) noteIdle() {
	c.t.Helper()
	for _, n := range observedNodes {
		for _, g := range c.status(n) {
			for _, l := range g.Leases {
				if id := fmt.Sprint(l.JobID); l.Idle {
					c.idle[id] = true
					c.sh("", "touch idle-"+id)
				}
			}
		}
	}
}

// recordsOf waits until there are so many records, each with slurmctld's word on the job's end, and returns the records by
// carma-report's job ids.
func (c *observed) recordsOf(n int) map[string]account {
	c.t.Helper()
	var records map[string]account
	c.eventually(func() string {
		records = map[string]account{}
		complete := 0
		for _, a := range c.accounts("") {
			records[a.ID] = a
			if strings.HasSuffix(a.Name, ".sh") {
				complete++
			}
		}
		return fmt.Sprintf("%d of %d", complete, len(records))
	}, fmt.Sprintf("^%d of %d$", n, n))
	return records
}

// recorded waits until a job has a record with slurmctld's word on the end.
func (c *observed) recorded(id string) {
	c.t.Helper()
	c.eventually(func() string { out, _, _ := c.run("", "carma-report -n -t -o JobName%30 "+id); return out }, `\.sh`)
}

// killedInTheMiddle kills the agent while jobs run, some of which end before the next agent starts.
func (c *observed) killedInTheMiddle() {
	c.t.Helper()
	var ids []string
	for i, until := range []string{"killed", "killed", "started", "started"} {
		script := strings.TrimSpace(using(int64(2000+i), 50, 36000)) + " &\nuntil [ -e agent-" + until +
			" ]; do sleep 0.5; done\nkill $!\nwait\ntrue\n"
		ids = append(ids, c.sbatch(alice, "-w n1 -o /dev/null --gres=gpu:1", script))
	}
	c.eventually(func() string { return c.leases("n1") }, strings.Repeat(`\d+ ?`, 4))
	for i, id := range ids {
		c.peaked(id, int64(2000+i))
	}
	c.stopAgent("n1", "KILL")
	c.sh("", "touch agent-killed")
	c.ends(ids[0], "COMPLETED")
	c.ends(ids[1], "COMPLETED")
	c.restart("agent", "n1")
	time.Sleep(2 * time.Second) // the agent measures the others again
	c.sh("", "touch agent-started")
	for i, id := range ids {
		c.ends(id, "COMPLETED")
		c.recorded(id)
		if r := c.report(id); r.PeakMiB != int64(2000+i) || r.State != "COMPLETED" {
			c.t.Errorf("the agent was killed; job %s: %+v", id, r)
		}
	}
}

// onlyAsked requires the agents to have run reading commands alone, and the doctor to say so of slurm.conf.
func (c *observed) onlyAsked(says string) {
	c.t.Helper()
	asked := c.sh("", "cut -d' ' -f1-3 "+c.dir+"/log/asked | sort | uniq -c")
	c.t.Logf("asked:\n%s", asked)
	reads := regexp.MustCompile(`^ *\d+ (squeue|scontrol (--version|show|--details show))`)
	for line := range strings.Lines(asked) {
		if !reads.MatchString(line) {
			c.t.Errorf("the agent ran %s", line)
		}
	}
	doctor, words, err := c.run("", "SIMGPU_STATE="+c.dir+"/simgpu/n1 carma-node --node n1 doctor --node")
	if err != nil || strings.Contains(doctor, "fail  ") || !strings.Contains(doctor, says) {
		c.t.Errorf("%v\n%s%s", err, doctor, words)
	}
}

// stopAgent ends the agent of a node by a signal.
func (c *cluster) stopAgent(node, signal string) {
	c.t.Helper()
	pid, _, _ := strings.Cut(c.sh("", "cat "+c.dir+"/pid/agent."+node), " ")
	c.sh("", "kill -"+signal+" "+pid)
	c.eventually(func() string { _, out, _ := c.run("", "kill -0 "+pid); return out }, "No such")
}
