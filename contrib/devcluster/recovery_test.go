// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"carma/gres/output"
	"carma/slurmbridge/jobenv"
)

// nearLimit is seen on the GPU near the limit of a job that books 8 GiB.
var nearLimit = "simjob --mem 7800M --smact 10" + untilPeak("7800")

// oomOnce outgrows what it booked, as NVML sees, and fits alone on a GPU.
var oomOnce = "#SBATCH --gres=gpu:1\n#CARMA mem=8G\n" + nearLimit +
	"simjob --mem 12G --smact 10 --ramp 0s --duration 1s\n"

// oomLater is one command that does the same, once the agent has found the files that it has open, too (noted).
const oomLater = "sh -c 'simjob --mem 7800M --smact 10 --ramp 0s --duration 10h & " +
	"until [ -e noted.$SLURM_JOB_ID ] && [ \"$(cat $SLURM_SUBMIT_DIR/peak-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0} " +
	"2>/dev/null || echo 0)\" -ge 7800 ]; do sleep 0.2; done; kill $!; wait $!; " +
	"exec simjob --mem 12G --smact 10 --ramp 0s --duration 1s'"

// noted waits until an agent knows that a job writes errors to a file of the name, and tells the job.
func (c *cluster) noted(id, name string) {
	c.t.Helper()
	n, _ := strconv.ParseUint(id, 10, 32)
	c.eventually(func() (names string) {
		for _, dir := range []string{"n1", "n2"} {
			for restart := range uint32(3) { // a node may have returned the job to the queue
				files, _ := output.Read(filepath.Join(c.dir, "run", dir), jobenv.JobKey{JobID: uint32(n), Restart: restart})
				for _, f := range files {
					names += filepath.Base(string(f.Path)) + "\n"
				}
			}
		}
		return names
	}, "(?m)^"+name+"$")
	c.sh(alice, "touch noted."+id)
}

func (c *cluster) adminComment(id string) string {
	m := regexp.MustCompile(`(?m)AdminComment=(.*)$`).FindStringSubmatch(c.sh("", "scontrol show job "+id))
	if m == nil {
		return ""
	}
	return m[1]
}

// Wherever a job's errors go, a message there requeues it, and one that is
// not its own does not.
func TestOutputs(t *testing.T) {
	needsServer(t)
	c := up(t)
	jobs := filepath.Join(c.dir, "jobs")
	if err := os.WriteFile(filepath.Join(jobs, "old.err"),
		[]byte("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(jobs, "old.err"), 0o666); err != nil {
		t.Fatal(err)
	}
	const head = "#SBATCH --gres=gpu:1\n#CARMA mem=8G\n"
	type wanted struct {
		oom  bool
		note string
	}
	ids := map[string]string{}
	want := map[string]wanted{}
	for name, j := range map[string]struct {
		options, script string
		wanted
	}{
		"default":            {"", oomOnce, wanted{oom: true}},
		"patterns":           {"-J 'a b' -e 'e-%x-%A_%a-%j-%05j-%N-%n-%t-%u-%s-%%.err'", oomOnce, wanted{oom: true}},
		"merged":             {"-o out-%j.txt", oomOnce, wanted{oom: true}},
		"backslash":          {`-e 'e\%j.err'`, oomOnce, wanted{oom: true}},
		"append":             {"--open-mode=append -e appended.err", oomOnce, wanted{oom: true}},
		"redirected":         {"", head + oomLater + " 2>redirected.err\n", wanted{oom: true}},
		"step":               {"", head + "srun -e step-%t.err " + oomLater + "\n", wanted{oom: true}},
		"step through batch": {"", head + nearLimit + "srun simjob --mem 12G --smact 10 --ramp 0s --duration 1s\n", wanted{oom: true}},
		"no file":            {"-o /dev/null", oomOnce, wanted{note: "/dev/null"}},
		"of an earlier job":  {"--open-mode=append -e old.err", head + "exit 3\n", wanted{}},
		"exit 0": {"", head + "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate' >&2\n",
			wanted{}},
		"alone": {"", "#SBATCH --gres=gpu:1\n#CARMA policy=exclusive\necho 'torch.OutOfMemoryError: CUDA " +
			"out of memory' >&2\nexit 1\n", wanted{}},
		"host memory": {"", head + "echo 'slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch.' " +
			">&2\nexit 137\n", wanted{note: "out of the node's memory"}},
		"array": {"--array=3-4 -e a-%A_%a.err", oomOnce, wanted{oom: true}},
	} {
		ids[name] = c.sbatch(alice, j.options, j.script)
		want[name] = j.wanted
	}
	if ptrace(t) {
		c.noted(ids["redirected"], "redirected.err")
		c.noted(ids["step"], "step-0.err")
	} else {
		c.sh(alice, "touch noted."+ids["redirected"]+" noted."+ids["step"])
	}
	ids["array"] += "_3"
	for name, w := range want {
		t.Run(name, func(t *testing.T) {
			if name == "redirected" || name == "step" {
				needsPtrace(t)
			}
			id := ids[name]
			c.t = t
			c.eventually(func() string { return c.job(id, "%T") }, "COMPLETED|FAILED")
			record := strings.TrimSuffix(id, "_3")
			if w.oom {
				c.ends(id, "COMPLETED")
			}
			c.eventually(func() string { return c.sh("", "carma-report --json -j "+record) }, `"state"`)
			text := c.sh("", "carma-report --json -j "+record)
			if got := strings.Contains(text, `"requeued_to": "gpu-recovery"`); got != w.oom {
				t.Errorf("requeued: %v, want %v\n%s\n%s", got, w.oom, text, c.adminComment(id))
			}
			if !strings.Contains(text, w.note) {
				t.Errorf("no note %q in\n%s", w.note, text)
			}
		})
	}
	c.t = t
	c.noDrain()
}

// needsPtrace skips what the node learns from the open files of a user's process,
// which root without CAP_SYS_PTRACE, as in a container, may not look at (proc(5)).
func needsPtrace(t *testing.T) {
	t.Helper()
	if !ptrace(t) {
		t.Skip("root may not look at the open files of other users' processes here: no CAP_SYS_PTRACE")
	}
}

// ptrace tells whether root may look at the open files of other users' processes.
func ptrace(t *testing.T) bool {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "CapEff:")
	word, _, _ := strings.Cut(strings.TrimSpace(after), "\n")
	effective, err := strconv.ParseUint(word, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return effective&(1<<unix.CAP_SYS_PTRACE) != 0
}

// What cannot be requeued says why, and what can be is not lost for want of
// the recovery partition. Nobody acts on the attempt that failed.
func TestRequeueRules(t *testing.T) {
	takesMinutes(t)
	needsServer(t)
	c := up(t)
	never := c.sbatch(alice, "--no-requeue", oomOnce)
	c.ends(never, "FAILED")
	if r := c.report(never); !r.OOM || r.RequeuedTo != "" || r.Attempts != 1 {
		t.Errorf("report %+v", r)
	}
	if text := c.sh("", "carma-report --json -j "+never); !strings.Contains(text, "may not be requeued") {
		t.Errorf("report:\n%s", text)
	}

	// afterok must not see the failed attempt, nor --wait return with it.
	script := strings.Replace(oomOnce, "simjob",
		"set -e\necho reason=$CARMA_RETRY_REASON restart=$SLURM_RESTART_COUNT\nsimjob", 1)
	first := c.sbatch(alice, "", script)
	second := c.sbatch(alice, "-d afterok:"+first, "echo after\n")
	third := c.sbatch(alice, "-d afternotok:"+first, "echo after\n")
	any := c.sbatch(alice, "-d afterany:"+first, "echo $(squeue -h -t all -j "+first+" -o %T)\n")
	wait := make(chan error, 1)
	// sbatch looks after 2 s and after 10 s, and takes a job that completes for one that has ended (docs/situations.md).
	waited := c.file(alice, "waited.sh", "#!/bin/bash\n"+strings.Replace(oomOnce, nearLimit, "sleep 4\n"+nearLimit, 1))
	go func() {
		out, stderr, err := c.run(alice, "sbatch --wait --wrap 'true' --gres=gpu:1 >/dev/null; sbatch --wait "+waited)
		if err != nil {
			err = fmt.Errorf("%w: %s%s", err, out, stderr)
		}
		wait <- err
	}()
	c.ends(first, "COMPLETED")
	c.ends(second, "COMPLETED")
	c.ends(any, "COMPLETED")
	if got := c.output(any); !strings.HasPrefix(got, "COMPLETED") {
		t.Errorf("afterany ran when the job was %s", got)
	}
	if got := c.job(third, "%T %r"); !strings.Contains(got, "Dependency") {
		t.Errorf("afternotok: %s", got)
	}
	if got := c.adminComment(first); !strings.Contains(got, `carma={"v":1`) ||
		!strings.Contains(got, `carma-retry={"reason":"oom","signature":"pytorch","from":"gpu"}`) {
		t.Errorf("AdminComment %s", got)
	}
	if got := c.output(first); !strings.Contains(got, "reason=oom restart=1") {
		t.Errorf("the second attempt says %s", got)
	}
	if err := <-wait; err != nil {
		t.Errorf("sbatch --wait: %v", err)
	}

	// A recovery partition that is down, or not for the user.
	for _, change := range []string{"State=DOWN AllowGroups=ALL", "State=UP AllowGroups=root"} {
		c.sh("", "scontrol update PartitionName=gpu-recovery "+change)
		id := c.sbatch(alice, "", oomOnce)
		c.ends(id, "COMPLETED")
		if r := c.report(id); !r.OOM || r.RequeuedTo != "gpu" || r.Attempts != 2 {
			t.Errorf("%s: report %+v", change, r)
		}
	}
	c.sh("", "scontrol update PartitionName=gpu-recovery State=UP AllowGroups=ALL")

	// Cancelled while it waits to be requeued: it stays cancelled.
	var full []string
	for range 4 { // on each GPU, so that the job waits for as long as it takes to look
		full = append(full, c.sbatch(alice, "-w n1", train("10G", "10h")))
	}
	for _, id := range full {
		c.gpu(id)
	}
	id := c.sbatch(alice, "-w n1", oomOnce)
	c.eventually(func() string { return c.job(id, "%T %P") }, "PENDING gpu-recovery")
	c.sh(alice, "scancel "+id)
	c.ends(id, "CANCELLED")
	c.eventually(func() string { return c.report(id).State }, "^CANCELLED$")
	c.sh(alice, "scancel "+strings.Join(full, " "))

	c.noDrain()
}

// All components of a heterogeneous job return to the queue; the one that ran out gets a
// GPU alone, the others book what they did.
func TestHeterogeneousJob(t *testing.T) {
	needsServer(t)
	c := up(t)
	het := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=8G\n#SBATCH hetjob\n#SBATCH --gres=gpu:2\nset "+
		"-e\n"+nearLimit+"simjob --mem 12G --smact 10 --ramp 0s --duration 1s\n")
	c.eventually(func() string { return c.sh("", "squeue -h -t all -j "+het+" -o '%i %T %b' | sort") },
		`\+0 COMPLETED.*carma:40536\S*\n.*\+1 COMPLETED.*carma:81072`)
	if r := c.report(het); !r.OOM || r.Attempts != 2 || r.RequeuedTo != "gpu-recovery" {
		t.Errorf("report %+v", r)
	}
	c.nothingLeft()
}

// The ladder lets the job share again with 5 GiB more.
func TestLadderLive(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1")
	conf := filepath.Join(c.dir, "etc", "carma.toml")
	text, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, append(text, "\n[recovery]\nretry = \"ladder\"\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	id := c.sbatch(alice, "", strings.ReplaceAll(oomOnce, "12G", "14G"))
	c.ends(id, "COMPLETED")
	r := c.report(id)
	if !r.OOM || r.Attempts != 3 || r.RequeuedTo != "gpu" || r.ReserveMiB != 8192+2*5120 {
		t.Errorf("report %+v", r)
	}
	c.noDrain()
}
