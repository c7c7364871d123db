// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// seen is a job of the test, and what its record should say.
type seen struct {
	user, options, script string
	state                 string // in slurmctld
	recorded              string // where it is another
	gpus                  int
	mib                   int64
	smact                 float64
	cancel                bool
	note                  string // of the report's page
}

// Without any line of CARMA's in slurm.conf the agent finds all jobs, older ones too, and records what
// they used; stopped, killed and started again it harms no job, and it changes nothing in Slurm.
func TestObserve(t *testing.T) {
	takesMinutes(t)
	const scale = 10
	c := up(t, "--nodes", "1", "--time-scale", fmt.Sprint(scale), "--observe")
	for _, file := range []string{"slurm.conf", "gres.conf"} {
		text, err := os.ReadFile(filepath.Join(c.dir, "etc", file))
		ours := regexp.MustCompile(`(?i)jobsubmit|prolog=|epilog=|extra_constraints|\bName=carma\b|,carma`)
		if err != nil || ours.Match(text) {
			t.Errorf("%s, %v:\n%s", file, err, text)
		}
	}
	here := "export SIMGPU_STATE=" + c.dir + "/simgpu/$SLURMD_NODENAME SIMGPU_DEV=" + c.dir + "/dev/$SLURMD_NODENAME\n"
	run := func(mib int64, smact, seconds int) string {
		return fmt.Sprintf("simjob --mem %dM --smact %d --ramp 0s --duration %ds", mib, smact, seconds*scale)
	}
	var jobs []seen
	ids := map[string]seen{}
	submit := func(s seen) string {
		id := c.sbatch(s.user, "-o /dev/null -e /dev/null "+s.options, here+s.script+"\n")
		ids[id] = s
		return id
	}
	counter := func() float64 { return c.joules("n1") / scale }
	c.eventually(func() string { seen, _ := c.sampled(); return fmt.Sprint(seen > 0) }, "true")
	first, _ := c.sampled()
	before := counter() - first

	// Older than the agent.
	c.stopAgent("n1", "TERM")
	older := submit(seen{user: alice, options: "--gres=gpu:1", script: run(5000, 50, 55), state: "COMPLETED", gpus: 1,
		mib: 5000, smact: 50, note: "when the agent first saw the job"})
	c.eventually(func() string { return c.job(older, "%T") }, "RUNNING")
	time.Sleep(35 * time.Second)
	c.restart("agent", "n1")

	for i := range 8 {
		mib := int64(4096 + 1000*i)
		jobs = append(jobs, seen{user: []string{alice, bob}[i%2], options: "--gres=gpu:1", script: run(mib, 20+10*i, 25),
			state: "COMPLETED", gpus: 1, mib: mib, smact: float64(20 + 10*i)})
	}
	two := "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%,*} " + run(6000, 40, 25) + " &\n" +
		"CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES#*,} " + run(7000, 60, 25) + " &\nwait"
	jobs = append(jobs,
		seen{user: bob, options: "--gres=gpu:2", script: two, state: "COMPLETED", gpus: 2, mib: 7000, smact: 50},
		seen{user: alice, options: "--gres=gpu:2", script: two, state: "COMPLETED", gpus: 2, mib: 7000, smact: 50},
		seen{user: bob, options: "--gres=gpu:2", script: "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%,*} " + run(2600, 50, 25),
			state: "COMPLETED", gpus: 2, mib: 2600, smact: 25, note: "one of its GPUs was not used for"},
		seen{user: alice, options: "--gres=gpu:1", script: "sleep 20", state: "COMPLETED", gpus: 1,
			note: "one of its GPUs was not used for"},
		seen{user: bob, options: "--gres=gpu:1", script: "sleep 20; exit 4", state: "FAILED", gpus: 1},
		seen{user: alice, options: "--gres=gpu:1", script: run(3000, 50, 20) + "; exit 3", state: "FAILED", gpus: 1,
			mib: 3000, smact: 50},
		// It grows beyond what there is, and says so where the agent sees it write.
		seen{user: bob, options: "--gres=gpu:1 -e oom.txt", state: "FAILED", recorded: "OUT_OF_MEMORY", gpus: 1,
			mib: -1, smact: 50,
			script: "simjob --mem 50000M --smact 50 --ramp 300s --duration 900s", note: "ran out of GPU memory"},
		seen{user: bob, options: "--gres=gpu:1", script: "exec " + run(2000, 50, 600), state: "CANCELLED", gpus: 1, mib: 2000,
			smact: 50, cancel: true},
		seen{user: alice, options: "--gres=gpu:1 -t 1", script: "exec " + run(2500, 30, 600), state: "TIMEOUT", gpus: 1,
			mib: 2500, smact: 30},
		seen{user: carol, options: "", script: "sleep 5", state: "COMPLETED"}, // no GPU
	)
	for _, s := range jobs {
		submit(s)
	}
	array := c.sbatch(carol, "-o /dev/null --gres=gpu:1 --array=1-3", here+run(1500, 20, 20)+"\n")
	all := func(each func(id string, s seen)) {
		for id, s := range ids {
			each(id, s)
		}
	}
	idle := false
	c.eventually(func() string {
		all(func(id string, s seen) {
			if s.cancel && regexp.MustCompile(`^RUNNING 0:(1[5-9]|[2-5])`).MatchString(c.job(id, "%T %M")) {
				c.sh("", "scancel "+id)
			}
		})
		for _, g := range c.status("n1") {
			for _, l := range g.Leases {
				idle = idle || l.Idle
			}
		}
		return c.sh("", "squeue -h -o %i | wc -l")
	}, "^0$")
	all(func(id string, s seen) {
		c.ends(id, s.state)
		if s.gpus > 0 {
			c.recorded(id)
		}
	})
	if !idle {
		t.Error("carma-node status has shown no idle job")
	}
	time.Sleep(5 * time.Second) // until the samples have the last of the jobs, too
	total := counter() - before
	inSamples, unowned := c.sampled()
	joules := 0.0
	records := c.accounts("")
	for _, a := range records {
		if a.EnergyJ == nil {
			t.Errorf("job %s: energy unknown", a.ID)
			continue
		}
		joules += *a.EnergyJ
	}
	t.Logf("counters %.0f J, samples %.0f J, jobs %.0f J, nobody %.0f J", total, inSamples, joules, unowned)
	if off := (joules + unowned - total) / total; math.Abs(off) > 0.01 {
		t.Errorf("jobs and nobody are off by %.2f %%", 100*off)
	}
	all(func(id string, s seen) { c.checkSeen(id, s, records) })
	for id, a := range records {
		if a.Start == 0 || a.Submit == 0 || a.End < a.Start {
			t.Errorf("job %d: %+v", id, a)
		}
	}
	if n := strings.Count(c.sh("", "carma-report -n -t -o JobID -j "+array), "\n"); n != 2 {
		t.Errorf("array %s: %d tasks", array, n+1)
	}
	c.killedInTheMiddle(here, run)
	c.nothingLeft()
	// What the agent asked Slurm for.
	asked := c.sh("", "cut -d' ' -f1-3 "+c.dir+"/log/asked | sort | uniq -c")
	t.Logf("asked:\n%s", asked)
	reads := regexp.MustCompile(`^ *\d+ (squeue|scontrol (--version|show|--details show))`)
	for line := range strings.Lines(asked) {
		if !reads.MatchString(line) {
			t.Errorf("the agent ran %s", line)
		}
	}
	doctor, words, err := c.run("", "SIMGPU_STATE="+c.dir+"/simgpu/n1 carma-node --node n1 doctor --node")
	if err != nil || strings.Contains(doctor, "fail  ") || !strings.Contains(doctor, "no line that has CARMA act") {
		t.Errorf("%v\n%s%s", err, doctor, words)
	}
}

// recorded waits until a job has a record with slurmctld's word on its end: no Epilog writes one before the job has
// ended.
func (c *cluster) recorded(id string) {
	c.t.Helper()
	c.eventually(func() string { out, _, _ := c.run("", "carma-report -n -t -o JobName%30 "+id); return out }, `\.sh`)
}

// checkSeen compares the record of a job with what the job did.
func (c *cluster) checkSeen(id string, s seen, records map[uint32]account) {
	c.t.Helper()
	n, _ := strconv.Atoi(id)
	a, ok := records[uint32(n)]
	if s.gpus == 0 {
		if ok {
			c.t.Errorf("a job without a GPU has a record: %+v", a)
		}
		return
	}
	peak, smact := int64(0), 0.0
	if a.PeakMiB != nil {
		peak = *a.PeakMiB
	}
	if a.SMActPct != nil {
		smact = *a.SMActPct
	}
	user, state := c.sh("", "carma-report -n -t -o User%20 -j "+id), cmp.Or(s.recorded, s.state)
	switch {
	case !ok || a.State != state || a.OOM != (state == "OUT_OF_MEMORY") || strings.TrimSpace(user) != s.user ||
		len(a.GPUs) != s.gpus:
		c.t.Errorf("job %s (%s, %s): record %+v of %s", id, s.options, s.script, a, user)
	case s.mib < 0 && peak < 30000, s.mib >= 0 && peak != s.mib:
		c.t.Errorf("job %s: peak %d MiB, used %d", id, peak, s.mib)
	case s.smact > 0 && math.Abs(smact-s.smact) > 0.15*s.smact, s.smact == 0 && smact > 1:
		c.t.Errorf("job %s: SM activity %.1f %%, was %.0f %%: %+v", id, smact, s.smact, a)
	case a.ReserveMiB < 40000:
		c.t.Errorf("job %s: %d MiB requested", id, a.ReserveMiB)
	}
	if s.note != "" {
		if page := c.sh("", "carma-report -j "+id); !strings.Contains(page, s.note) {
			c.t.Errorf("job %s: no %q in\n%s", id, s.note, page)
		}
	}
}

// killedInTheMiddle kills the agent while jobs run, some of which end before the next agent starts.
func (c *cluster) killedInTheMiddle(here string, run func(mib int64, smact, seconds int) string) {
	c.t.Helper()
	var ids []string
	for i, seconds := range []int{12, 12, 40, 40} {
		ids = append(ids, c.sbatch(alice, "-o /dev/null --gres=gpu:1", here+run(int64(2000+i), 50, seconds)+"\n"))
	}
	c.eventually(func() string { return c.leases("n1") }, strings.Repeat(`\d+ ?`, 4))
	time.Sleep(2 * time.Second) // the agent measures them
	c.stopAgent("n1", "KILL")
	c.ends(ids[0], "COMPLETED")
	c.restart("agent", "n1")
	for i, id := range ids {
		c.ends(id, "COMPLETED")
		c.recorded(id)
		if r := c.report(id); r.PeakMiB != int64(2000+i) || r.State != "COMPLETED" {
			c.t.Errorf("the agent was killed; job %s: %+v", id, r)
		}
	}
}

// stopAgent ends the agent of a node by a signal.
func (c *cluster) stopAgent(node, signal string) {
	c.t.Helper()
	pid, _, _ := strings.Cut(c.sh("", "cat "+c.dir+"/pid/agent."+node), " ")
	c.sh("", "kill -"+signal+" "+pid)
	c.eventually(func() string { _, out, _ := c.run("", "kill -0 "+pid); return out }, "No such")
}
