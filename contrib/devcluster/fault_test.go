// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A broken libcarma leaves slurmctld alive, and says so in one line. One that could be loaded has told
// before what is booked for jobs that it fails on, whole GPUs; else a job is as it was written.
func TestBrokenLibcarma(t *testing.T) {
	faulty := filepath.Join(t.TempDir(), "libcarma.so")
	if out, err := exec.Command("go", "build", "-buildmode=c-shared", "-tags", "carmafault", "-o", faulty,
		"../../slurmbridge/libcarma").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	whole, err := os.ReadFile(faulty)
	if err != nil {
		t.Fatal(err)
	}
	const asWritten, wholeGPU = `^gres[:/]gpu:1$`, `^gres[:/]gpu:1,gres[:/]carma:40536$`
	for _, c := range []struct {
		name, script, log string
		library           []byte // nil: none
	}{
		{"missing", "", "libcarma.so: cannot open shared object file", nil},
		{"empty", "", "is not a library, or is truncated", []byte{}},
		{"truncated", "", "is not a library, or is truncated", whole[:len(whole)/2]},
		{"no library", "", "is not a library, or is truncated", []byte(strings.Repeat("no library", 100))},
		{"panics", "# carma-fault: panic", "libcarma: panic: asked for by the script", whole},
		{"nil map", "# carma-fault: nil", "libcarma: panic: assignment to entry in nil map", whole},
		{"too much memory", "# carma-fault: allocate", "libcarma: panic: runtime error: makeslice", whole},
		{"sleeps", "# carma-fault: sleep", "did not answer within 50 ms", whole},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := up(t, "--nodes", "1")
			lib := filepath.Join(cl.dir, "plugin", "libcarma.so")
			// Not written over: slurmctld has the old one mapped.
			if err := os.Remove(lib); err != nil {
				t.Fatal(err)
			}
			if c.library != nil {
				if err := os.WriteFile(lib, c.library, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want := asWritten
			if c.script != "" {
				want = wholeGPU
			}
			// On a busy machine every answer may come late. The log has a line a minute.
			const late = "did not answer within 50 ms"
			var lines []string
			for range 5 {
				began := time.Now()
				lines = cl.unansweredBy(c.script, want)
				slow := c.log != late && strings.Contains(strings.Join(lines, "\n"), late)
				if !slow && time.Since(began) < time.Minute {
					break
				}
				t.Logf("once more after %v: %s", time.Since(began), lines)
			}
			if len(lines) != 1 || !strings.Contains(lines[0], c.log) {
				t.Errorf("%d lines: %v\nwant one with %s", len(lines), lines, c.log)
			}
			if c.script != "" { // the job takes as long as the machine does, and there is a line a minute
				cl.ends(cl.sbatch(alice, "--gres=gpu:1", c.script+"\ntrue\n"), "COMPLETED")
			}
		})
	}
}

// unansweredBy starts slurmctld anew, submits jobs with a script of faults, which ask for want then, and returns the
// new lines of slurmctld's log about libcarma.
func (c *cluster) unansweredBy(script, want string) []string {
	c.t.Helper()
	path := filepath.Join(c.dir, "log", "slurmctld.log")
	before, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	c.restart("slurmctld")
	for range 3 {
		id := c.sbatch(alice, "-H --gres=gpu:1", "#CARMA mem=banana\n"+script+"\nsleep 1\n")
		if got := c.job(id, "%b"); !regexp.MustCompile(want).MatchString(got) {
			c.t.Errorf("job asks for %s, want %s", got, want)
		}
		out := c.sh("", "scontrol show job "+id)
		if strings.Contains(out, "AdminComment") != (script != "") ||
			script != "" && !strings.Contains(out, "no answer for this job at submission") {
			c.t.Errorf("job was annotated:\n%s", out)
		}
	}
	if script != "" {
		// As (*cluster).sbatch reads it.
		if _, told, err := c.run(alice, "sbatch --parsable --gres=gpu:1 --wrap='"+script+"'"); err != nil ||
			!strings.Contains(told, "no answer for this job") {
			c.t.Errorf("sbatch tells nothing of whole GPUs: %v: %s", err, told)
		}
	}
	c.sh("", "scontrol ping | grep UP")
	log, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	return regexp.MustCompile("(?m)^.*("+unanswered+").*$").FindAllString(string(log[len(before):]), -1)
}

// The switch file turns CARMA off within a second, and removing it on again.
func TestSwitchFile(t *testing.T) {
	c := up(t, "--nodes", "1")
	file := filepath.Join(c.dir, "etc", "carma.disable")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	submit := func() string { return c.job(c.sbatch(alice, "-H --gres=gpu:1", "#CARMA mem=1G\n"), "%b") }
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		got := submit()
		if !strings.Contains(got, "carma") {
			break
		}
		if time.Since(start) > patience {
			t.Fatalf("off, but booked %s", got)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		got := submit()
		if strings.Contains(got, "carma") {
			return
		}
		if time.Since(start) > patience {
			t.Fatalf("on, but booked %s", got)
		}
	}
}

// Without agents jobs start, share and end all the same.
func TestWithoutAgents(t *testing.T) {
	c := up(t)
	stopAgents(c)
	var ids []string
	for range 12 {
		ids = append(ids, c.sbatch(alice, "", train("10G", "1s")))
	}
	oom := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=8G\nsimjob --mem 12G --smact 10 --ramp 0s --duration "+
		"1s\n")
	for _, id := range append(ids, oom) {
		c.ends(id, "COMPLETED")
	}
	c.noDrain()
	for _, node := range []string{"n1", "n2"} {
		if l := c.leases(node); l != "" {
			t.Errorf("leases left on %s: %s", node, l)
		}
	}
}

// The driver was upgraded and its module was not: NVML answers nobody, and the agent has gone. A job that the Prolog
// returns waits no longer than on a node with an agent.
func TestReturnedWhereNoAgentRuns(t *testing.T) {
	c := up(t, "--nodes", "1", "--time-scale", "10")
	c.stopAgent("n1", "TERM")
	c.sh("", "echo none >"+c.dir+"/lib/libnvidia-ml.so.1")
	c.eventually(func() string { return c.sh("", "carma-node --node n1 status") }, `\b0 open`)
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=4G\nexec sleep 1h\n")
	c.eventually(func() string { return c.sh("", "scontrol show job "+id) }, `(?s)JobState=PENDING.*Restarts=1`)
	c.eventually(func() string { return c.hookLog(id) }, "msg=\"returned to the queue\"") // its start time follows
	// On 22.05 credentials must have expired; elsewhere a few seconds are enough. A start time counts from the first
	// look that sees the time on.
	for begin, text, seen := time.Now(), "", time.Now(); ; time.Sleep(time.Second) {
		shown := c.sh("", "scontrol show job "+id)
		if now := regexp.MustCompile(`\bStartTime=(\S+)`).FindStringSubmatch(shown)[1]; now != text {
			text, seen = now, time.Now()
		}
		at, err := time.ParseInLocation("2006-01-02T15:04:05", text, time.Local)
		if err == nil && at.Sub(seen) <= 30*time.Second {
			break
		}
		if time.Since(begin) > patience {
			t.Fatalf("the job starts at %s\n%s", text, shown)
		}
	}
	c.sh(alice, "scancel "+id)
	c.noDrain()
}

func stopAgents(c *cluster) {
	c.t.Helper()
	for _, node := range []string{"n1", "n2"} {
		pid, _, _ := strings.Cut(c.sh("", "cat "+c.dir+"/pid/agent."+node), " ")
		c.sh("", "kill "+pid)
		c.eventually(func() string { out, _, _ := c.run("", "kill -0 "+pid+" 2>/dev/null || echo gone"); return out }, "gone")
	}
}

// Reconfigurations and restarts lose no count, and no node drains.
func TestRestarts(t *testing.T) {
	c := up(t)
	long := c.sbatch(alice, "-w n1", train("10G", "1h"))
	c.gpu(long)
	// n1 gives 40536 beside the job's 10240, n2 is idle.
	right := func() {
		c.wantCounts("n1", "^carma1:40536 carma2:40536 carma3:40536 carma4:0 carmaall:4$")
		c.wantCounts("n2", idleCounts)
	}
	right()
	for name, disturb := range map[string]func(){
		"scontrol reconfigure": func() { c.sh("", "scontrol reconfigure") },
		"slurmctld restarted":  func() { c.restart("slurmctld") },
		"slurmd restarted":     func() { c.restart("slurmd") },
		"agents restarted":     func() { c.restart("agent") },
	} {
		before := c.counts("n1")
		disturb()
		if after := c.counts("n1"); after != before {
			t.Errorf("%s: n1 counts %s, and %s before", name, after, before)
		}
		right()
		c.noDrain()
		id := c.sbatch(bob, "", train("10G", "1s"))
		c.ends(id, "COMPLETED")
		right()
		if t.Failed() {
			t.Fatal(name)
		}
	}
	if got := c.job(long, "%T"); got != "RUNNING" {
		t.Errorf("the job that ran through it all is %s", got)
	}
}

// A node registers while jobs hold GPUs: by a slurmd that restarts, and when slurmctld asks
// for it as it does twice an hour. slurmctld drains nodes whose GRES are not what they were.
func TestRegistration(t *testing.T) {
	c := up(t, "--nodes", "1")
	var ids []string
	for range 3 {
		ids = append(ids, c.sbatch(alice, "", train("10G", "1h")))
		c.gpu(ids[len(ids)-1])
		c.restart("slurmd")
		// Not by sinfo, whose answer of 22.05 is one change of the node behind: "allocated 0/64/0/64".
		c.eventually(func() string { return c.sh("", "scontrol show node n1 | grep -o 'State=[^ ]*'") }, "^State=MIXED$")
	}
	c.sh(alice, "scancel "+ids[0])
	c.eventually(func() string { return c.job(ids[0], "%T") }, "CANCELLED")
	c.restart("slurmd")
	id := c.sbatch(bob, "", train("10G", "1s"))
	c.ends(id, "COMPLETED")
	c.noDrain()
	if log := c.sh("", "grep -c 'jobs are using them' "+c.dir+"/log/slurmctld.log || true"); log != "0" {
		t.Errorf("slurmctld has complained %s times", log)
	}
}

// Two clusters side by side do not know of each other.
func TestSideBySide(t *testing.T) {
	a, b := up(t, "--nodes", "1"), up(t, "--nodes", "1", "--gpu-model", "h100")
	ida, idb := a.sbatch(alice, "", train("10G", "1s")), b.sbatch(alice, "", train("10G", "1s"))
	a.ends(ida, "COMPLETED")
	b.ends(idb, "COMPLETED")
	b.wantCounts("n1", "^carma1:81559 .*carma8:81559 carmaall:8$")
}
