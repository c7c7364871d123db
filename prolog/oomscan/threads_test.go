// SPDX-License-Identifier: Apache-2.0

package oomscan

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// quoted is what a program printed, from a public thread (testdata/threads/README.md).
type quoted struct {
	thread, program, id string
	text                string
}

// least is how many texts each file has at least.
var least = map[string]int{"oom.txt": 100, "goes-on.txt": 60, "evidence.txt": 15, "drawn-oom.txt": 51,
	"drawn-other.txt": 44, "again-oom.txt": 28, "again-other.txt": 33,
	"third-oom.txt": 18, "third-other.txt": 12}

// threads reads the texts of a file of testdata/threads.
func threads(t *testing.T, name string) (list []quoted) {
	t.Helper()
	text, err := os.ReadFile("testdata/threads/" + name)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, entry := range strings.Split("\n"+string(text), "\n@ ")[1:] {
		head, body, _ := strings.Cut(entry, "\n")
		head, id, _ := strings.Cut(head, " = ")
		thread, program, ok := strings.Cut(head, " ")
		if !ok || !strings.Contains(thread, "#") || !strings.Contains(thread, "/") || body == "" || seen[body] {
			t.Fatalf("%s: %q names no thread, no program, has no text or is there twice", name, head)
		}
		seen[body] = true
		list = append(list, quoted{thread, program, id, body + "\n"})
	}
	if len(list) < least[name] {
		t.Fatalf("%s: %d texts, want %d at least", name, len(list), least[name])
	}
	return list
}

// endings are what may follow a text after which a program went on, when the job failed
// for another reason: with them nothing may be called a want of GPU memory.
var endings = map[string]string{
	"goes on, and ends without a word": "Epoch 2/10: 100%|##########| 400/400 [01:12<00:00,  5.51it/s, " +
		"loss=0.124]\nsaving checkpoint to out/last.ckpt\n",
	"another error": "Epoch 2/10: loss=0.124\nTraceback (most recent call last):\n  File \"train.py\", line 88, in " +
		"<module>\n" +
		"    main()\nValueError: Input 0 of layer dense is incompatible with the layer\n",
	"another error at once": "Traceback (most recent call last):\n  File \"train.py\", line 88, in " +
		"<module>\nKeyError: 'valid'\n" +
		"srun: error: node1: task 0: Exited with exit code 1\n",
}

// called is what the Epilog makes of a text without NVML's evidence.
func called(t *testing.T, text string) (Finding, bool) {
	t.Helper()
	f := Scan([]byte(text))
	return f, f.Kind == GPUMemory && !f.Survived && f.Grade == Strong
}

// weighed are programs that go on after words which count only if NVML saw the job near its limit.
var weighed = map[string]Grade{"talmolab/sleap#2142": Hint, "triton-inference-server/server#6064": Weak,
	"sillsdev/machine.py#58": Weak, "facebookresearch/fairseq#1254": Weak}

func TestThreads(t *testing.T) {
	for _, q := range threads(t, "oom.txt") {
		for _, end := range []string{"", "srun: error: node1: task 0: Exited with exit code 1\n"} {
			if f, ok := called(t, q.text+end); !ok || f.ID != q.id {
				t.Errorf("%s, %s: got %q, want %q", q.thread, q.program, f.ID, q.id)
			}
		}
	}
	for _, q := range threads(t, "evidence.txt") { // strong, or for NVML's figures to confirm
		if f := Scan([]byte(q.text)); f.ID != q.id || f.Survived {
			t.Errorf("%s, %s: got %q, %q, want %q", q.thread, q.program, f.ID, f.Grade, q.id)
		}
	}
	for _, q := range threads(t, "goes-on.txt") {
		for name, end := range endings {
			f := Scan([]byte(q.text + end))
			wants := f.Kind == GPUMemory && !f.Survived
			if allowed, ok := weighed[q.thread]; wants && (!ok || f.Grade != allowed) ||
				f.Survived && name != "goes on, and ends without a word" {
				t.Errorf("%s, %s, %s: got %q, %q at %d", q.thread, q.program, name, f.ID, f.Grade, f.Offset)
			}
		}
	}
}

// A log line about a refused allocation counts where nothing of the program follows it,
// or NVML saw the job as near its limit; an error of another kind behind it is the end.
func TestBackOff(t *testing.T) {
	const refused = "2019-07-21 23:23:06.228049: E tensorflow/stream_executor/cuda/cuda_driver.cc:828] failed to " +
		"allocate 2.00G (2147483648 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
	// JAX 0.11 on an H200 (contrib/gpucheck/data).
	const traced = "E1128 06:32:09.538719    2164 cuda_executor.cc:1365] [0] Failed to allocate device memory of " +
		"104.85GiB (112583507968 bytes): RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of memory\n" +
		"=== Source Location Trace: === \nexternal/xla+/xla/stream_executor/cuda/cuda_status.cc:45\n" +
		"external/xla+/xla/stream_executor/cuda/cuda_device_allocator.cc:487\n\n"
	for _, c := range []struct {
		name, text   string
		ok, survived bool
	}{
		{"the last word, with XLA's trace", "Epoch 1\n" + traced, true, false},
		{"XLA's trace, then it went on", traced + "Epoch 1\n", true, true},
		{"XLA's trace, then killed", traced + traced + "slurm_script: line 4: 99 Killed python train.py\n", true, false},
		{"XLA's trace, then another error", traced + "Epoch 1\nValueError: nan\n", false, false},
		{"the last word", "Epoch 1\n" + refused, true, false},
		{"then killed", refused + refused + "/var/spool/slurmd/job7/slurm_script: line 4: 99 Killed python " +
			"train.py\nsrun: error: n1: task 0: Killed\n", true, false},
		{"then aborted", refused + "2019-07-21 23:23:07.000000: F tensorflow/core/kernels/conv_ops.cc:672] Check failed: " +
			"ok\nAborted (core dumped)\n", true, false},
		{"it went on", refused + "Epoch 1/5\n", true, true},
		{"it went on for long", refused + strings.Repeat("step\n", 1<<18), true, true},
		{"once more at the end", refused + strings.Repeat("step\n", 1<<18) + refused, true, false},
		{"another error", refused + "Epoch 1/5\nValueError: nan\n", false, false},
		{"another error much later", refused + strings.Repeat("step\n", 1<<18) +
			"[rank1]: torch.distributed.DistBackendError: NCCL\n", false, false},
		{"the error itself", refused + "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when " +
			"allocating tensor with shape[3] by allocator GPU_0_bfc\n", true, false},
		{"caught, then not", "CUDA out of memory. Tried to allocate 1 GiB\nretrying with batch size 8\nRuntimeError: " +
			"CUDA out of memory. Tried to allocate 1 GiB\n", true, false},
	} {
		f := Scan([]byte(c.text))
		if (f.ID != "") != c.ok || f.Survived != c.survived {
			t.Errorf("%s: got %q at %d, survived %v", c.name, f.ID, f.Offset, f.Survived)
		}
	}
}

// A program that survived its message and was ended by an error that another process passed on has had another end.
func TestPassedOnEndAfterASurvivedMessage(t *testing.T) {
	f := Scan([]byte("CUDA out of memory. Tried to allocate 1 GiB\nretrying with batch size 8\n" +
		strings.Repeat("step\n", 50) +
		"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"))
	if f.ID != "" || !f.OtherEnd {
		t.Errorf("got %q, another end: %v", f.ID, f.OtherEnd)
	}
}

func TestAdvice(t *testing.T) {
	for _, c := range []struct {
		id       string
		reserve  int64
		fraction float64
		want     string
	}{
		{"vllm", 14000, 0.3108, "vLLM takes a part of the whole GPU: set gpu_memory_utilization to at most 0.31, or book " +
			"more"},
		{"sglang", 20268, 0.45, "SGLang takes a part of the whole GPU: set mem_fraction_static to at most 0.45, or book " +
			"more"},
		{"tgi", 10240, 0.119, "text-generation-inference takes a part of the whole GPU: set cuda_memory_fraction to at " +
			"most 0.11, or book more"},
		{"tritonserver", 8192, 0.2, "Triton did not start with 8192 MiB: load fewer models or instances, or book more"},
		{"pytorch", 8192, 0.2, ""},
	} {
		if got := Advice(c.id, c.reserve, c.fraction); got != c.want {
			t.Errorf("%s: %q", c.id, got)
		}
	}
}

// table is the confusion table of docs/bench/oom.md.
func table(t *testing.T) string {
	type row struct{ oom, missed, goesOn, wrong int }
	rows, sum := map[string]row{}, row{}
	program := func(q quoted) string {
		name, _, _ := strings.Cut(q.program, ",")
		return strings.TrimRight(name, "0123456789. ")
	}
	for _, q := range threads(t, "oom.txt") {
		r := rows[program(q)]
		if _, ok := called(t, q.text); ok {
			r.oom++
		} else {
			r.missed++
		}
		rows[program(q)] = r
	}
	for _, q := range threads(t, "goes-on.txt") {
		r := rows[program(q)]
		wrong := 0
		for _, end := range endings {
			if _, ok := called(t, q.text+end); ok {
				wrong = 1
			}
		}
		r.wrong += wrong
		r.goesOn += 1 - wrong
		rows[program(q)] = r
	}
	for dir, r := range map[string]row{"oom": {}, "other": {}} {
		for _, text := range fixtures(t, dir) {
			_, ok := called(t, string(text))
			switch {
			case dir == "oom" && ok:
				r.oom++
			case dir == "oom":
				r.missed++
			case ok:
				r.wrong++
			default:
				r.goesOn++
			}
		}
		name := map[string]string{"oom": "testdata/oom", "other": "testdata/other"}[dir]
		rows[name] = r
	}
	var b strings.Builder
	b.WriteString("| program | OOM, found | OOM, missed | goes on, ignored | goes on, called OOM " +
		"|\n|---|---|---|---|---|\n")
	for _, name := range slices.SortedFunc(maps.Keys(rows), func(a,
		b string) int {
		return cmp.Compare(strings.ToLower(a), strings.ToLower(b))
	}) {
		r := rows[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", name, r.oom, r.missed, r.goesOn, r.wrong)
		sum = row{sum.oom + r.oom, sum.missed + r.missed, sum.goesOn + r.goesOn, sum.wrong + r.wrong}
	}
	fmt.Fprintf(&b, "| **all** | **%d** | **%d** | **%d** | **%d** |\n", sum.oom, sum.missed, sum.goesOn, sum.wrong)
	return b.String()
}

func TestConfusionTable(t *testing.T) {
	text, err := os.ReadFile("../../docs/bench/oom.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := table(t); !strings.Contains(string(text), want) {
		t.Errorf("docs/bench/oom.md holds another table; this is it now:\n%s", want)
	}
}
