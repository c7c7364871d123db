// SPDX-License-Identifier: Apache-2.0

package oomscan

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/contrib/threadclock"
)

// fixtures lists the messages of a directory; there must be some.
func fixtures(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/" + dir + "/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal("no fixtures")
	}
	texts := map[string][]byte{}
	for _, path := range paths {
		if texts[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return texts
}

// ended is a text that ends with a line.
var ended = regexp.MustCompile(`(?:\n|\r|\\n)$`)

// The name of a file begins with the id of what must be found in it.
func TestFixtures(t *testing.T) {
	seen := map[string]bool{}
	for path, text := range fixtures(t, "oom") {
		want, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".txt"), "-")
		f := Scan(text)
		if f.ID != want || f.Kind != GPUMemory || f.Survived {
			t.Errorf("%s: got %q, %q, survived %v; want %q", path, f.ID, f.Kind, f.Survived, want)
		} else if rest := parse(text[f.Offset:]); !bytes.Contains(rest.line(0), []byte(f.text)) ||
			f.Offset > 0 && !ended.Match(text[:f.Offset]) { // it is that of the line
			t.Errorf("%s: offset %d is wrong", path, f.Offset)
		}
		seen[f.ID] = true
	}
	for _, id := range []string{"pytorch", "tensorflow", "jax", "cuda", "cublas", "cudnn", "nccl", "cupy", "onnxruntime",
		"vllm", "triton"} {
		if !seen[id] {
			t.Errorf("no fixture of %s", id)
		}
	}
}

// What ended otherwise is no lack of GPU memory, whatever words it uses. The
// name of a file begins with the kind; none: nothing is found.
func TestOthers(t *testing.T) {
	// Of these texts NVML's figures decide (docs/bench/oom.md).
	graded := map[string]Grade{"none-advice-only.txt": Hint, "none-cublas-not-initialized.txt": Disguise}
	for path, text := range fixtures(t, "other") {
		name := filepath.Base(path)
		f := Scan(text)
		switch {
		case strings.HasPrefix(name, "none-"):
			if (f.ID != "") != (graded[name] != "") || f.Grade != graded[name] {
				t.Errorf("%s: got %q, %q at %d", path, f.ID, f.Grade, f.Offset)
			}
		case !strings.HasPrefix(name, string(f.Kind)+"-"):
			t.Errorf("%s: got %q, %q", path, f.ID, f.Kind)
		}
	}
}

// unquoted are signatures of which no fixture is a quotation: the other words of a family, from the libraries' sources.
var unquoted = []string{"cusparse_status_alloc_failed", "cuda_error_illegal_address",
	"out of device memory", "insufficient device memory",
	"not enough device memory", "failed to cuda malloc",
	"was unable to find an engine to execute this computation", "failed to get convolution algorithm",
	"no algorithm worked!", "dnn library initialization failed", "dnn library is not found",
	"cudnn_status_execution_failed", "cublas_status_internal_error", "gpusolverdncreate",
	"cusolver_status_internal_error", "cusolver_status_not_initialized", "cufft_internal_error",
	"failed to load in-memory cubin", "autotuning failed for hlo", "reduce batch size", "reduce the batch size",
	"decreasing gpu_memory_utilization", "try to reduce --mem-fraction-static"}

// Every other signature has a message that it is for.
func TestEverySignatureIsNeeded(t *testing.T) {
	var all []byte
	for _, dir := range []string{"oom", "other"} {
		for _, text := range fixtures(t, dir) {
			all = append(append(all, text...), '\n')
		}
	}
	for name := range least {
		for _, q := range threads(t, name) {
			all = append(all, q.text...)
		}
	}
	all = bytes.ToLower(all)
	for _, s := range Signatures {
		if has := bytes.Contains(all, []byte(s.text)); has == slices.Contains(unquoted, s.text) {
			t.Errorf("a fixture holds %q: %v", s.text, has)
		}
	}
}

// A message is found wherever it stands on a line, and so are the words behind it that make the line something else.
func TestScanFarInALine(t *testing.T) {
	const message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."
	for _, n := range []int{0, 1, before - 1, before, before + 1, after, lastPart, 64 << 10, 1 << 20} {
		text := "Epoch 1\n" + strings.Repeat("x", n) + message + strings.Repeat("y", 100)
		if f := Scan([]byte(text)); f.Offset != 8 || f.ID != "pytorch" || f.Survived {
			t.Errorf("%d bytes before: got %q at %d", n, f.ID, f.Offset)
		}
		if f := Scan([]byte(text + strings.Repeat("z", 500) + " Ignoring this choice.\n")); f.ID != "" {
			t.Errorf("%d bytes before: got %q of a line that says it goes on", n, f.ID)
		}
	}
}

func TestScanWeightiest(t *testing.T) {
	for text, want := range map[string]string{
		"RESOURCE_EXHAUSTED: Out of memory ... torch.OutOfMemoryError: x":              "jax",
		"an illegal memory access was encountered\nCUDA error: out of memory\n":        "cuda",
		"CUDA error: out of memory\nDetected 1 oom_kill event in StepId=1.batch\n":     "oom-kill",
		"CUDA_ERROR_MPS_CLIENT_TERMINATED\nan illegal memory access was encountered\n": "mps",
	} {
		for _, gap := range []int{0, 1 << 20} {
			long := strings.Replace(text, "\n", strings.Repeat("-", gap)+"\n", 1)
			if f := Scan([]byte(long)); f.ID != want {
				t.Errorf("%q, gap %d: got %q, want %q", text, gap, f.ID, want)
			}
		}
	}
}

// A text made to cost much costs what its length allows: 1 MiB, which is what
// is read of a file, is far below the 2 s of processor time that a scan has.
func TestScanOfHostileText(t *testing.T) {
	const size = 1 << 20
	for _, unit := range []string{
		"CUDA out of memory. Tried to allocate", "CUDA error: out of memory on host ", "Cuda failure",
		"torch.OutOfMemoryError: Ignoring this choice",
		"tttttttt", "out of memory gpu\n", "e\n", "x: 1:\n", "\x1b[", "12:00:00 a\n",
		"  File \"a\", line 1\n    cuda out of memory\n",
		"e a.cc:1] cuda_error_out_of_memory\n", "half e a.cc:1] cuda_error_out_of_memory\n",
		"valueerror: cuda error: out of memory\n", "OOM when allocating tensor by allocator cpu\n", "\n", "\x00",
	} {
		text := bytes.Repeat([]byte(unit), size/len(unit))
		if rest, ok := strings.CutPrefix(unit, "half "); ok { // nothing of the program follows the refusals
			text = append(bytes.Repeat([]byte(rest), size/2/len(rest)), bytes.Repeat([]byte("killed\n"), size/2/7)...)
		}
		if took, _ := threadclock.Cost(1, func() { Scan(text) }); took > 20*time.Second {
			t.Errorf("%q repeated: %s", unit, took)
		}
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte("CUDA out of memory. Tried to allocate"))
	f.Add([]byte("\x1b[31mCUDA_ERROR_OUT_OF_MEMOR\x1b"))
	f.Add([]byte("Cuda failure 2 'out of memory'\r[16:40<00:00]\r12:00:01 x\\nDetected 1 oom_kill event"))
	f.Add([]byte("\u2502 12 \u2502 out of memory gpu 1:2:3\nvalueerror\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got := Scan(text); got.ID != "" && (got.Offset < 0 || got.Offset >= int64(len(text))) {
			t.Errorf("%q at %d of %d", got.ID, got.Offset, len(text))
		}
	})
}

func BenchmarkScan(b *testing.B) {
	for name, line := range map[string]string{
		"log":       "step 1234 loss 0.1234 lr 1e-4 mem 12.00 GiB CUDA graphs on, torch.compile off\n",
		"no-breaks": "step 1234 loss 0.1234 lr 1e-4 mem 12.00 GiB CUDA graphs on, torch.compile off ",
	} {
		b.Run(name, func(b *testing.B) {
			text := bytes.Repeat([]byte(line), 1<<20/len(line))
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if Scan(text).ID != "" {
					b.Fatal("found one")
				}
			}
		})
	}
}
