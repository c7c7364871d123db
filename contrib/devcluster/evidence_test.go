// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"strings"
	"testing"
)

// ends is a job that books 4 GiB, uses so much of them, prints a text and fails.
func ends(mib int, text string) string {
	return fmt.Sprintf("#SBATCH --gres=gpu:1\n#CARMA mem=4G\n[ \"$SLURM_RESTART_COUNT\" ] && exit 0\n"+
		"simjob --mem %dM --smact 20%scat >&2 <<'X'\n%s\nX\nexit 1\n", mib, untilPeak(fmt.Sprint(mib)), text)
}

// What NVML saw, what the text says and how the job ended decide together.
func TestOutOfMemoryByEvidence(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "3") // a GPU for each job: none has a neighbour
	const strange = "stencil3d: out of memory (cannot grow halo)"
	richContext := strings.Join([]string{
		"\x1b[31m╭───────────── \x1b[0m\x1b[1;31mTraceback (most recent call last)\x1b[0m\x1b[31m ─────────────╮\x1b[0m",
		"\x1b[31m│\x1b[0m   30 │   except torch.cuda.OutOfMemoryError:                      \x1b[31m│\x1b[0m",
		"\x1b[31m│\x1b[0m ❱ 31 │   │   log(\"CUDA out of memory. Tried to allocate\", x[key])  \x1b[31m│\x1b[0m",
		"\x1b[31m╰──────────────────────────────────────────────────────────────╯\x1b[0m",
		"\x1b[1;91mKeyError: \x1b[0m\x1b[32m'labels'\x1b[0m"}, "\n")
	optuna := []string{
		"[I 2026-11-25 15:10:11,310] Trial 1 finished with value: 0.41 and parameters: {'lr': 0.0003}. Best is trial 1.",
		"[I 2026-11-25 15:20:11,310] Trial 2 finished with value: 0.41 and parameters: {'lr': 0.0004}. Best is trial 1.",
		"[W 2026-11-25 15:24:42,103] Trial 3 failed with parameters: {'lr': 0.001} because of the following error: " +
			"OutOfMemoryError('CUDA out of memory. Tried to allocate 16.00 GiB.').",
		"Traceback (most recent call last):", "  File \"tune.py\", line 31, in objective", "    y = net(x)",
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB.",
		"[W 2026-11-25 15:24:42,105] Trial 3 failed with value None."}
	for k := 4; k < 20; k++ {
		optuna = append(optuna, fmt.Sprintf("[I 2026-11-25 16:%d:11,310] Trial %d finished with value: 0.41 and parameters: "+
			"{'lr': 0.0003}. Best is trial 1.", k+5, k))
	}
	optuna = append(optuna, "Traceback (most recent call last):", "  File \"tune.py\", line 60, in <module>",
		"FileNotFoundError: [Errno 2] No such file or directory: 'best.json'")
	jobs := map[string]struct {
		script, to, note string
		id               string
		oom              bool // with no requeue
	}{
		"faiss at 98 %": {script: ends(4014, "RuntimeError: Error in void faiss::gpu::allocMemorySpaceV(faiss::gpu::MemorySpace, "+
			"void**, size_t) at gpu/utils/MemorySpace.cpp:27: Error: 'err == cudaSuccess' failed: failed to cudaMalloc "+
			"1610612736 bytes (error 2 out of memory)"), to: "gpu-recovery", note: "faiss says so; it used"},
		"an unknown program at 97 %": {script: ends(3973, strange), to: "gpu-recovery", note: "its text says so; it used"},
		"the same text at 40 %":      {script: ends(1638, strange), note: "not taken for out of memory"},
		"cuDNN in disguise at 98 %": {script: ends(4014, "RuntimeError: Unable to find a valid cuDNN algorithm to run "+
			"convolution"), to: "gpu-recovery", note: "cuDNN says so; it used"},
		"PyTorch, hardly on the GPU": {script: ends(409, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB."),
			to: "gpu", note: "PyTorch says so; it used"},
		"an OOM class in a KeyError's context": {script: ends(4014, richContext), note: "null"},
		"Optuna's third trial":                 {script: ends(4014, strings.Join(optuna, "\n")), note: "null"},
		"a wrapper reads the first failure": {script: strings.Replace(ends(4014, "torch.OutOfMemoryError: CUDA out of "+
			"memory. Tried to allocate 9 GiB."), "mem=4G", "mem=4G requeue=no", 1), note: "the job says requeue=no", oom: true},
		"exit 0": {script: strings.Replace(ends(4014, "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9663676416 "+
			"bytes.\nDone"), "exit 1", "exit 0", 1), note: "results may be missing"},
	}
	for name, j := range jobs {
		j.id = c.sbatch(alice, "-J j", j.script)
		jobs[name] = j
	}
	for name, j := range jobs {
		t.Run(name, func(t *testing.T) {
			c.t = t
			c.ends(j.id, map[bool]string{true: "COMPLETED", false: "FAILED"}[j.to != "" || name == "exit 0"])
			r := c.report(j.id)
			text := c.sh("", "carma-report --json -j "+j.id)
			if r.RequeuedTo != j.to || r.OOM != (j.to != "" || j.oom) || j.note != "null" && !strings.Contains(text, j.note) {
				t.Errorf("requeued to %q, OOM %v, want %q, %q\n%s\n%s", r.RequeuedTo, r.OOM, j.to, j.note, text, c.hookLog(j.id))
			}
		})
	}
	c.t = t
	c.noDrain()
}

// vLLM's start fails when a co-located job ends while it measures the free memory: the job runs once more, alone, and
// in its own partition.
func TestStartBesideAnEndingNeighbour(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1")
	others := c.sbatch(bob, "", "#SBATCH --gres=gpu:3\n#CARMA policy=exclusive\nsleep 10h\n")
	c.waiting([]string{others}, "%T %r", "RUNNING None") // it holds its GPUs: the jobs below have one left
	neighbour := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=8G\nsimjob --mem 7G --smact 10 --duration 10h\n")
	c.eventually(func() string { return c.job(neighbour, "%T") }, "RUNNING")
	server := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=8G\nsimjob --mem 2G --smact 10 --duration 10h &\n"+
		"until [ -e gone ]; do sleep 0.2; done\necho 'AssertionError: Error in memory "+
		"profiling. Initial free memory 30.12 GiB, current free memory 37.12 GiB.' >&2\nkill %1\nexit 1\n")
	c.seen(2)
	c.sh(alice, "scancel "+neighbour)
	c.eventually(func() string { return c.leased(neighbour) }, "^none$") // the job's record is written before
	c.sh("", "touch gone")
	c.eventually(func() string {
		text, _, _ := c.run("", "carma-report --json -j "+server)
		return text
	}, `"requeued_to": "gpu"`)
	text := c.sh("", "carma-report --json -j "+server)
	if !strings.Contains(text, "vLLM found the free memory of the GPU changed at its start: job "+neighbour+" ended") {
		t.Errorf("%s", text)
	}
	c.sh("", "scancel "+others)
	c.ends(server, "FAILED")
	if r := c.report(server); r.OOM || r.Attempts != 2 {
		t.Errorf("%+v", r)
	}
	c.noDrain()
}
