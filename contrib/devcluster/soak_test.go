// SPDX-License-Identifier: Apache-2.0

//go:build abuse

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

// soak is a cluster under load and faults for a long time.
type soak struct {
	*cluster
	rng   *rand.Rand
	state map[string]string // of every job submitted; empty: not seen to have ended
	fault map[string]int
}

// scripts of the soak: most share, some run out of memory once, some fail.
func (s *soak) script() (options, script string) {
	mem := 2 + s.rng.IntN(12)
	run := fmt.Sprintf("simjob --mem %dG --smact %d --ramp 2s --duration %ds\n", max(1, mem-1), 5+s.rng.IntN(40),
		10+s.rng.IntN(60))
	head := fmt.Sprintf("#SBATCH --gres=gpu:1\n#CARMA mem=%dG\n", mem)
	switch n := s.rng.IntN(100); {
	case n < 5:
		return "", head + fmt.Sprintf("simjob --mem %dG --smact 10 --ramp 0s --duration 5s\n", mem+4)
	case n < 10:
		return "", head + "exit 1\n"
	case n < 15:
		return "", "#SBATCH --gres=gpu:1\n" + run // alone
	case n < 20:
		return "--gres=gpu:2", "#CARMA mem=6G\nsrun -n1 " + run
	case n < 25:
		return "--array=1-3", head + run
	}
	return "", head + run
}

// faults that a cluster sees.
var faults = []string{"agent killed", "slurmd killed", "slurmctld restarted", "reconfigured", "GPU hangs", "GPU lost",
	"GPU errors", "GPU garbage", "MPS fault"}

// disturb does one of the faults.
func (s *soak) disturb(names []string) {
	node := []string{"n1", "n2"}[s.rng.IntN(2)]
	gpu := strconv.Itoa(s.rng.IntN(4))
	simgpu := func(args string) {
		s.run("", "SIMGPU_STATE="+s.dir+"/simgpu/"+node+" simgpu "+args)
	}
	kill := func(what string) {
		if text, err := os.ReadFile(filepath.Join(s.dir, "pid", what)); err == nil {
			if pid, err := strconv.Atoi(strings.Fields(string(text))[0]); err == nil {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	name := names[s.rng.IntN(len(names))]
	s.fault[name]++
	switch name {
	case "agent killed":
		kill("agent." + node)
		s.restart("agent", node)
	case "slurmd killed":
		kill("slurmd." + node)
		s.restart("slurmd", node)
	case "slurmctld restarted":
		s.restart("slurmctld")
	case "reconfigured":
		s.sh("", "scontrol reconfigure")
	case "GPU hangs":
		simgpu("fault " + gpu + " hang:40s")
	case "GPU lost":
		simgpu("fault " + gpu + " lost")
		time.Sleep(2 * time.Second)
		simgpu("fault " + gpu + " none")
	case "GPU errors":
		simgpu("fault " + gpu + " error=999")
		time.Sleep(time.Second)
		simgpu("fault " + gpu + " none")
	case "MPS fault":
		simgpu("mps-fault " + gpu)
	case "GPU garbage":
		simgpu("fault " + gpu + " garbage-pids")
		time.Sleep(time.Second)
		simgpu("fault " + gpu + " none")
	}
}

var ended = regexp.MustCompile(`(?m)^(\d+) (COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|BOOT_FAIL) (\d+)$`)

// look notes which jobs have ended, before slurmctld forgets them.
func (s *soak) look() (restarts int) {
	out, _, err := s.run("", "squeue -h -r -t all -O 'JobArrayID:|,State:|,RestartCnt:|' | tr -d ' ' | tr '|' ' ' | "+
		"sed 's/_[0-9]*//; s/ $//'")
	if err != nil {
		return 0
	}
	for _, m := range ended.FindAllStringSubmatch(out, -1) {
		s.state[m[1]] = m[2]
		if n, _ := strconv.Atoi(m[3]); n > restarts {
			restarts = n
		}
	}
	return restarts
}

// Two nodes, eight GPUs, a fault for every hundred jobs, for SOAK_MINUTES: no
// job is lost, no node drains, no controller dies, nothing is left.
func TestSoak(t *testing.T) {
	c := up(t, "--time-scale", "20")
	// a job that is sent around longer has lost its way
	c.sh("", "printf '[hooks]\nvetoes = 5\n' >>"+c.dir+"/etc/carma.toml")
	length := time.Duration(number(t, "SOAK_MINUTES", 10)) * time.Minute
	jobs := number(t, "SOAK_JOBS", 200*int(length.Minutes()))
	s := &soak{cluster: c, rng: rand.New(rand.NewPCG(1, 2)), state: map[string]string{}, fault: map[string]int{}}
	t.Logf("%d jobs in %s", jobs, length)
	start := time.Now()
	loops, restarts := 0, 0
	for i := 0; i < jobs; i++ {
		if wait := time.Until(start.Add(length * time.Duration(i) / time.Duration(jobs))); wait > 0 {
			time.Sleep(wait)
		}
		options, script := s.script()
		user := []string{alice, bob}[s.rng.IntN(2)]
		s.state[s.sbatch(user, "-o /dev/null -e '"+s.dir+"/jobs/e.%j' "+options, script)] = ""
		if i%100 == 99 {
			s.disturb(faults)
		}
		if i%20 == 19 {
			restarts = max(restarts, s.look())
		}
	}
	nudged := time.Now()
	for deadline := time.Now().Add(15 * time.Minute); ; time.Sleep(2 * time.Second) {
		// A slurmd that is killed while a Prolog runs forgets the job. slurmctld
		// sees that when the node registers, of its own every half an hour
		// (src/slurmctld/ping_nodes.c, MAX_REG_FREQUENCY), and requeues the job.
		if time.Since(nudged) > time.Minute {
			nudged = time.Now()
			c.sh("", "scontrol reconfigure")
		}
		restarts = max(restarts, s.look())
		left := c.sh("", "squeue -h | wc -l")
		if left == "0" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s jobs are still there:\n%s", left,
				c.sh("", "squeue -o '%i %T %P %r %b'; scontrol show node | grep -i 'gres=\\|state='"))
		}
	}
	lost, states := 0, map[string]int{}
	for id, state := range s.state {
		if states[state]++; state == "" {
			lost++
			t.Logf("job %s: not seen to have ended", id)
		}
	}
	if restarts > 8 {
		loops++
	}
	if lost > 0 || loops > 0 {
		t.Errorf("%d jobs lost, a job restarted %d times", lost, restarts)
	}
	for _, node := range []string{"n1", "n2"} {
		c.eventually(func() string { return c.leases(node) }, "^$")
	}
	c.noDrain()
	row(t, fmt.Sprintf("soak, %s, %d jobs", time.Since(start).Round(time.Second), jobs),
		fmt.Sprintf("%d lost, %d drained, most restarts of a job %d; ends %v; faults %v", lost, 0, restarts, states, s.fault))
}
