// SPDX-License-Identifier: Apache-2.0

package oomscan

import (
	"fmt"
	"strings"
	"testing"
)

// Other ranks end after the first rank ran out of memory: the ranks' tracebacks, with the prefix of PyTorch (2.2 and
// later, torch.distributed's excepthook) or srun -l before each line, are no work of the program.
func TestTracebacksOfOtherRanksAreNoWork(t *testing.T) {
	frames := func(prefix string, n int) string {
		var b strings.Builder
		b.WriteString(prefix + "Traceback (most recent call last):\n")
		for i := range n {
			fmt.Fprintf(&b, "%s  File \"/home/u/train.py\", line %d, in f%d\n%s    return self.step_%d(batch)\n", prefix, i, i,
				prefix, i)
		}
		return b.String()
	}
	const oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of " +
		"79.10 GiB of which 1.02 GiB is free.\n"
	text := map[string]string{}
	ranks := frames("[rank0]: ", 6) + "[rank0]: " + oom
	for r := 1; r < 8; r++ {
		p := fmt.Sprintf("[rank%d]: ", r)
		ranks += frames(p, 6) + p + "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and " +
			"retrieving ncclUniqueId from [0] via c10d key-value store by store->get('0:1'), but store->get('0:1') got error: " +
			"Connection reset by peer\n"
	}
	text["seven other ranks"] = ranks
	text["one other rank, Gloo"] = frames("[rank0]: ", 6) + "[rank0]: " + oom + frames("[rank1]: ", 6) +
		"[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:5\n"
	text["srun -l, an exception while Python ends"] = frames("0: ", 6) + "0: " + oom +
		"0: Exception ignored in: <function Loader.__del__ at 0x7f00>\n" + frames("0: ", 3) +
		"0: TypeError: 'NoneType' object is not callable\n"
	// The same without prefixes is found.
	text["the last, without srun -l"] = strings.ReplaceAll(text["srun -l, an exception while Python ends"], "0: ", "")
	for name, s := range text {
		if f := Scan([]byte(s)); f.ID != "pytorch" || f.Survived || f.OtherEnd {
			t.Errorf("%s: got %q, survived %v, other end %v", name, f.ID, f.Survived, f.OtherEnd)
		}
	}
}

// XLA's list of the 15 largest buffers stands behind the message (buffer_assignment.cc, ToVerboseString), with tabs.
func TestPeakBuffersAreNoWork(t *testing.T) {
	s := "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9031036208 " +
		"bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:    2.78GiB\n" +
		"                 total allocation:   11.62GiB\nPeak buffers:"
	for i := range 15 {
		s += fmt.Sprintf("\n\tBuffer %d:\n\t\tSize: 1.52GiB\n\t\tOperator: op_name=\"jit(step)/mul\" "+
			"source_file=\"/m2/model/modules.py\" source_line=1446\n\t\tXLA Label: fusion\n\t\tShape: f32[5120,1248,64]\n"+
			"\t\t==========================\n", i+1)
	}
	if f := Scan([]byte(s + "\n")); f.ID != "jax" || f.Survived || f.OtherEnd {
		t.Errorf("got %q, survived %v, other end %v", f.ID, f.Survived, f.OtherEnd)
	}
}

// Frames of a stack trace of Julia.
func TestFramesOfJuliaAreNoWork(t *testing.T) {
	s := "ERROR: LoadError: Out of GPU memory trying to allocate 1.221 GiB\n" +
		"Effective GPU memory usage: 99.12% (9.9/10.0 GiB)\nStacktrace:\n"
	for i := range 60 {
		s += fmt.Sprintf("%5s pullback(f::Function, x::CuArray{Float32, 4})\n"+
			"      @ Zygote ~/.julia/packages/Zygote/a.jl:%d\n", fmt.Sprintf("[%d]", i+1), i)
	}
	if f := Scan([]byte(s)); f.ID == "" || f.Survived || f.OtherEnd {
		t.Errorf("got %q, survived %v, other end %v", f.ID, f.Survived, f.OtherEnd)
	}
	s = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
	for i := range 60 {
		s += fmt.Sprintf("[%d] loss 0.5 (best 0.4)\n", i+1)
	}
	if f := Scan([]byte(s)); !f.Survived {
		t.Errorf("numbered lines of progress are no work: %+v", f)
	}
}

// A quoted text with an f at its end is no f-string of Python.
func TestQuotedTextThatEndsInF(t *testing.T) {
	s := `{"level": "ERROR", "amp": "off", "message": "torch.OutOfMemoryError: CUDA out of memory. ` +
		`Tried to allocate 2.00 GiB."}` + "\n"
	if f := Scan([]byte(s)); f.ID != "pytorch" {
		t.Errorf("got %q", f.ID)
	}
}
