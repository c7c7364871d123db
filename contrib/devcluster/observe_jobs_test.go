// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// seen is a job of TestObserve, with the record to expect.
type seen struct {
	user, options, script string
	interactive           string // srun or salloc in place of sbatch; the script follows the options
	state                 string // in slurmctld
	recorded              string // where the record differs
	gpus                  int
	mib                   int64   // peak on one GPU; -1: of a job beyond the GPU
	smact                 float64 // mean while a process is there, over the GPUs
	act                   string  // of the user after a while: scancel, scontrol requeue
	attempts              int     // where there are several
	older                 bool    // than the agent
	idle                  bool    // uses no GPU for long enough to be called idle
	note                  string  // of the report's page
	tasks                 int     // of an array
	cgroup                bool    // found by the cgroup alone
}

const (
	observeScale = 10 // simulated seconds in a real second
	length       = 15 // real seconds of most jobs
	unused       = "one of its GPUs was not used for"
)

// using is a program on a GPU for so many real seconds.
func using(mib int64, smact, seconds int, more ...string) string {
	return fmt.Sprintf("here simjob --mem %dM --smact %d --duration %ds %s\n", mib, smact, seconds*observeScale,
		strings.Join(append([]string{"--ramp 0s"}, more...), " "))
}

// pace is by how many real seconds jobs of TestObserve are longer where slurmctld is slow, and how much later agents may
// see jobs under user-mode-linux.
type pace struct{ busy, late int }

// measurePace goes by how long squeue takes: agents that spend at most a part of their time on questions about single
// jobs (1/20, about several at once) must see each job, and a step is longer than the time in which no agent runs.
// Beside fifty jobs squeue took three to four times as long as in an idle cluster. Under user-mode-linux the questions
// for all jobs (1/100) count, too.
func (c *observed) measurePace() pace {
	c.t.Helper()
	start := time.Now()
	for range 5 {
		c.sh("", "squeue -h")
	}
	took := 4 * time.Since(start).Seconds() / 5
	p := pace{busy: int(20 * took)}
	if underUML {
		p.late = int(100 * took)
	}
	c.t.Logf("squeue may take %.2f s: jobs are %d s longer", took, p.busy)
	return p
}

// using is using, at the machine's pace.
func (p pace) using(mib int64, smact, seconds int, more ...string) string {
	return using(mib, smact, seconds+p.busy, more...)
}

// spike is memory in use at a job's start alone, until after the agent has seen the job.
func (p pace) spike(mib int) string {
	return fmt.Sprintf("--spike %dM:%ds", mib, (4+p.busy)*observeScale)
}

// seenIdle uses nothing until the test has since seen the job as idle in carma-node status (noteIdle): how soon the test
// looks goes by how long fifty submissions take. A job that is never shown ends after half of the test's patience.
func seenIdle() string {
	return fmt.Sprintf("s=$EPOCHSECONDS; for ((i = 0; i < %d; i++)); do "+
		"(( $(stat -c %%Y idle-$SLURM_JOB_ID 2>/dev/null || echo 0) > s )) && break; sleep 0.5; done",
		int(patience.Seconds()))
}

// installHere installs here, a program that runs another with the GPUs of the node: Slurm sets no SIMGPU_STATE.
func (c *observed) installHere() {
	c.t.Helper()
	text := fmt.Sprintf("#!/bin/bash\nexport SIMGPU_STATE=%[1]s/simgpu/$SLURMD_NODENAME "+
		"SIMGPU_DEV=%[1]s/dev/$SLURMD_NODENAME\nexec \"$@\"\n", c.dir)
	if err := os.WriteFile(filepath.Join(c.dir, "bin", "here"), []byte(text), 0o755); err != nil {
		c.t.Fatal(err)
	}
}

// olderJobs start before the node's agent does.
func (p pace) olderJobs() []seen {
	return []seen{
		{user: alice, options: "-w n1 --gres=gpu:1", state: "COMPLETED", gpus: 1, mib: 5001, smact: 50, older: true,
			note: "when the agent first saw the job", script: strings.TrimSpace(p.using(5001, 50, 3600)) + " &\n" +
				"until [ -e older-seen ]; do sleep 0.5; done\nkill $!\nwait\ntrue"},
		{user: bob, options: "-w n1 --gres=gpu:2", script: seenIdle(), state: "COMPLETED", gpus: 2, older: true, idle: true},
	}
}

// mixedJobs are of every kind that a site has. Slow jobs come first.
func (p pace) mixedJobs() []seen {
	return slices.Concat(p.endedJobs(), p.plainJobs(), p.severalGPUs(), p.steppedJobs(), p.idleJobs())
}

// endedJobs end otherwise than well.
func (p pace) endedJobs() []seen {
	grow := "--ramp 600s" // the agent looks between 30,000 MiB and the end
	oom := func(options string, more ...string) seen {
		return seen{user: bob, options: options, script: p.using(50000, 50, 90, append(more, grow)...), state: "FAILED",
			recorded: "OUT_OF_MEMORY", gpus: 1, mib: -1, smact: 50, note: "ran out of GPU memory"}
	}
	return []seen{
		{user: alice, options: "--gres=gpu:1 -t 1", script: "exec " + p.using(2501, 30, 600), state: "TIMEOUT", gpus: 1,
			mib: 2501, smact: 30},
		{user: bob, options: "--gpus-per-node=1 -t 1", script: p.using(2502, 40, 600), state: "TIMEOUT", gpus: 1,
			mib: 2502, smact: 40},
		oom("--gres=gpu:1 -e oom1.txt"),
		oom("--gres=gpu:1 -o oom2.txt", "--framework jax"),
		oom("--gpus=1 -N1 -o oom3.txt -e oom3.txt", "--framework tensorflow"),
		{user: carol, options: "--gres=gpu:1 -e oom4.txt", script: "srun " + p.using(50001, 50, 90, grow), state: "FAILED",
			gpus: 1, mib: -1, smact: 50},
		{user: bob, options: "--gres=gpu:1", script: "exec " + p.using(2001, 50, 600), state: "CANCELLED", gpus: 1, mib: 2001,
			smact: 50, act: "scancel"},
		{user: carol, options: "--gres=gpu:2", script: p.using(2002, 30, 600, "--gpus 2"), state: "CANCELLED", gpus: 2,
			mib: 2002, smact: 30, act: "scancel"},
		{user: alice, options: "--gres=gpu:1 --requeue", state: "COMPLETED", gpus: 1, mib: 2003, smact: 50, attempts: 2,
			act: "scontrol requeue", script: "[ -n \"$SLURM_RESTART_COUNT\" ] || exec " + p.using(2003, 50, 600) +
				p.using(1003, 50, length)},
		{user: alice, options: "--gres=gpu:1", script: p.using(3001, 50, length) + "exit 3", state: "FAILED", gpus: 1,
			mib: 3001, smact: 50},
		{user: bob, options: "--gres=gpu:1", script: p.using(3002, 50, length) + "kill -SEGV $$", state: "FAILED", gpus: 1,
			mib: 3002, smact: 50},
	}
}

// plainJobs have one GPU, requested in several ways, and a peak that no other job has.
func (p pace) plainJobs() (jobs []seen) {
	ask := []string{"--gres=gpu:1", "--gpus-per-node=1", "--gpus=1 -N1", "--gres=gpu:a100:1", "-n1 --gpus-per-task=1"}
	users := []string{alice, bob, carol}
	for i := range 11 {
		mib, smact := int64(4096+1001*i), 15+8*i
		jobs = append(jobs, seen{user: users[i%3], options: ask[i%len(ask)], script: p.using(mib, smact, length),
			state: "COMPLETED", gpus: 1, mib: mib, smact: float64(smact)})
	}
	return append(jobs,
		seen{user: alice, options: "--gres=gpu:1", script: p.using(9001, 60, length, "--ramp 50s"), state: "COMPLETED",
			gpus: 1, mib: 9001, smact: 60},
		seen{user: bob, options: "--gres=gpu:1", script: p.using(9002, 60, length, p.spike(15002)), state: "COMPLETED",
			gpus: 1, mib: 15002, smact: 60},
		seen{user: carol, options: "--gres=gpu:1", script: p.using(3003, 40, length/2), state: "COMPLETED", gpus: 1, mib: 3003,
			smact: 40},
		// Two processes on a GPU, by turns.
		seen{user: carol, options: "--gres=gpu:1", state: "COMPLETED", gpus: 1, mib: 7004, smact: 50,
			script: strings.TrimSpace(p.using(3002, 40, 7)) + " &\n" + strings.TrimSpace(p.using(4002, 60, 7)) + " &\nwait"},
		// A process outlives the shell, without a word of Slurm in the environment: the cgroup alone tells.
		seen{user: bob, options: "--gres=gpu:1", state: "COMPLETED", gpus: 1, mib: 3005, smact: 50, cgroup: true,
			script: "(setsid env -u SLURM_JOB_ID " + strings.TrimSpace(p.using(3005, 50, length)) + " </dev/null &)\nsleep " +
				fmt.Sprint(length+1+p.busy)},
		seen{user: alice, options: "--gres=gpu:1 --array=1-3", script: p.using(1501, 20, length), state: "COMPLETED", gpus: 1,
			mib: 1501, smact: 20, tasks: 3},
		seen{user: carol, options: "--gres=gpu:1 --array=1-4%2", script: p.using(1502, 70, length), state: "COMPLETED", gpus: 1,
			mib: 1502, smact: 70, tasks: 4},
	)
}

// severalGPUs are jobs on several GPUs, of a node and of two.
func (p pace) severalGPUs() []seen {
	two := "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%,*} " + strings.TrimSpace(p.using(6001, 40, length)) + " &\n" +
		"CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES#*,} " + strings.TrimSpace(p.using(7001, 60, length)) + " &\nwait"
	return []seen{
		{user: bob, options: "--gres=gpu:2", script: two, state: "COMPLETED", gpus: 2, mib: 7001, smact: 50},
		{user: alice, options: "--gres=gpu:2", script: two, state: "COMPLETED", gpus: 2, mib: 7001, smact: 50},
		{user: carol, options: "-N1 --gpus=3", script: p.using(6003, 55, length, "--gpus 3"), state: "COMPLETED", gpus: 3,
			mib: 6003, smact: 55},
		{user: alice, options: "--gres=gpu:4", script: p.using(6004, 35, length, "--gpus 4"), state: "COMPLETED", gpus: 4,
			mib: 6004, smact: 35},
		{user: bob, options: "--gres=gpu:2", state: "COMPLETED", gpus: 2, mib: 2601, smact: 25, note: unused,
			script: "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%,*} " + p.using(2601, 50, length+5)},
		{user: alice, options: "-N2 --gres=gpu:1", script: "srun " + p.using(6005, 45, length), state: "COMPLETED", gpus: 2,
			mib: 6005, smact: 45},
		{user: carol, options: "-N2 --gpus-per-node=2", script: "srun " + p.using(6006, 65, length, "--gpus 2"),
			state: "COMPLETED", gpus: 4, mib: 6006, smact: 65},
	}
}

// steppedJobs have steps, or are interactive.
func (p pace) steppedJobs() []seen {
	return []seen{
		{user: alice, options: "--gres=gpu:1", script: "srun " + p.using(5101, 30, 8) + "srun " + p.using(5102, 30, 8),
			state: "COMPLETED", gpus: 1, mib: 5102, smact: 30},
		{user: bob, options: "-n2 --gres=gpu:2", state: "COMPLETED", gpus: 2, mib: 5104, smact: 40,
			script: "srun -n1 --gres=gpu:1 --exact " + strings.TrimSpace(p.using(5103, 40, length)) +
				" &\nsrun -n1 --gres=gpu:1 --exact " + strings.TrimSpace(p.using(5104, 40, length)) + " &\nwait"},
		{user: alice, interactive: "srun", options: "--gres=gpu:1", script: p.using(5105, 50, length), state: "COMPLETED",
			gpus: 1, mib: 5105, smact: 50},
		{user: carol, interactive: "srun", options: "-N1 --gpus=2", script: p.using(5106, 50, length, "--gpus 2"),
			state: "COMPLETED", gpus: 2, mib: 5106, smact: 50},
		{user: bob, interactive: "salloc", options: "--gres=gpu:1", script: "srun " + p.using(5107, 60, length),
			state: "COMPLETED", gpus: 1, mib: 5107, smact: 60},
		{user: carol, options: "-n1 --time=5", script: "sleep 5", state: "COMPLETED"}, // no GPU
	}
}

// idleJobs leave GPUs idle, all the time or at the end.
func (p pace) idleJobs() []seen {
	return []seen{
		{user: alice, options: "--gres=gpu:1", script: seenIdle(), state: "COMPLETED", gpus: 1, idle: true, note: unused},
		{user: bob, options: "--gres=gpu:1", script: seenIdle() + "; exit 4", state: "FAILED", gpus: 1, idle: true, note: unused},
		{user: carol, options: "--gres=gpu:2", script: seenIdle(), state: "COMPLETED", gpus: 2, idle: true, note: unused},
		{user: bob, options: "--gres=gpu:1", script: p.using(2603, 80, 6) + seenIdle(), state: "COMPLETED", gpus: 1, mib: 2603,
			smact: 80, idle: true, note: unused},
		{user: alice, interactive: "salloc", options: "--gres=gpu:1", script: "bash -c '" + seenIdle() + "'",
			state: "COMPLETED", gpus: 1, idle: true, note: unused},
	}
}

// submitAll submits jobs and returns the ids.
func (c *observed) submitAll(jobs []seen) (ids []string) {
	c.t.Helper()
	noted := time.Now()
	for i, s := range jobs {
		if time.Since(noted) > time.Minute { // on a slow machine jobs end before all are submitted
			c.noteStates()
			noted = time.Now()
		}
		if s.cgroup && !c.inCgroups() {
			continue
		}
		options := s.options
		if s.interactive != "" {
			options = fmt.Sprintf("-J %s%d.sh %s", s.interactive, i, options)
			go c.run(s.user, s.interactive+" "+options+" "+s.script)
			var id string
			c.eventually(func() string {
				id = c.sh("", fmt.Sprintf("squeue -h -t all -n %s%d.sh -o %%A", s.interactive, i))
				return id
			}, `^\d+$`)
			c.want[id] = s
			ids = append(ids, id)
			continue
		}
		if !regexp.MustCompile(`(^| )-o `).MatchString(options) {
			options = "-o /dev/null " + options
		}
		id := c.sbatch(s.user, options, s.script+"\n")
		ids = append(ids, id)
		if s.tasks == 0 {
			c.want[id] = s
		}
		for task := range s.tasks {
			c.want[fmt.Sprintf("%s_%d", id, task+1)] = s
		}
	}
	return ids
}
