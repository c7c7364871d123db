// SPDX-License-Identifier: Apache-2.0

package oomscan

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
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

// The name of a file begins with the id of what must be found in it.
func TestFixtures(t *testing.T) {
	seen := map[string]bool{}
	for path, text := range fixtures(t, "oom") {
		want, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".txt"), "-")
		f, ok, err := Scan(bytes.NewReader(text))
		if err != nil || !ok || f.ID != want || f.Kind != GPUMemory {
			t.Errorf("%s: got %q, %q, %v; want %q", path, f.ID, f.Kind, err, want)
		} else if !bytes.HasPrefix(text[f.Offset:], []byte(f.text)) {
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
	for path, text := range fixtures(t, "other") {
		name := filepath.Base(path)
		f, ok, err := Scan(bytes.NewReader(text))
		switch {
		case err != nil:
			t.Errorf("%s: %v", path, err)
		case strings.HasPrefix(name, "none-"):
			if ok {
				t.Errorf("%s: got %q at %d", path, f.ID, f.Offset)
			}
		case !ok || !strings.HasPrefix(name, string(f.Kind)+"-"):
			t.Errorf("%s: got %q, %q", path, f.ID, f.Kind)
		}
	}
}

// Every signature but those for whole families has a message that it is for.
func TestEverySignatureIsNeeded(t *testing.T) {
	all := bytes.Join(slices.Collect(func(yield func([]byte) bool) {
		for _, dir := range []string{"oom", "other"} {
			for _, text := range fixtures(t, dir) {
				if !yield(text) {
					return
				}
			}
		}
		for _, q := range threads(t, "oom.txt") {
			if !yield([]byte(q.text)) {
				return
			}
		}
	}), []byte("\n"))
	for _, s := range Signatures {
		if !bytes.Contains(all, []byte(s.text)) && s.ID != "cusparse" && s.text != "CUDA_ERROR_ILLEGAL_ADDRESS" {
			t.Errorf("no fixture holds %q", s.text)
		}
	}
}

// A signature is found wherever it lies, also across what is read at once, and
// so are the words that make its line something else.
func TestScanAcrossChunks(t *testing.T) {
	const message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."
	for _, n := range []int{0, 1, chunk - after - 1, chunk - after, chunk - len(message), chunk - 1, chunk, chunk + 1,
		chunk + after + before, 2*chunk - 3, 2*chunk + 100} {
		for name, reader := range map[string]func(string) io.Reader{
			"whole":  func(s string) io.Reader { return strings.NewReader(s) },
			"halves": func(s string) io.Reader { return iotest.HalfReader(strings.NewReader(s)) },
			"bytes":  func(s string) io.Reader { return iotest.OneByteReader(strings.NewReader(s)) },
		} {
			text := strings.Repeat("x", n) + message + strings.Repeat("y", 100)
			f, ok, err := Scan(reader(text))
			if err != nil || !ok || f.Offset != int64(n) || f.ID != "pytorch" {
				t.Errorf("%s, %d bytes before: got %q at %d, %v, %v", name, n, f.ID, f.Offset, ok, err)
			}
			if f, ok, _ := Scan(reader(text + strings.Repeat("z", 500) + " Ignoring this choice.\n")); ok {
				t.Errorf("%s, %d bytes before: got %q of a line that says it goes on", name, n, f.ID)
			}
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
		for _, gap := range []int{0, 3 * chunk} {
			long := strings.Replace(text, "\n", strings.Repeat("-", gap)+"\n", 1)
			if f, ok, _ := Scan(strings.NewReader(long)); !ok || f.ID != want {
				t.Errorf("%q, gap %d: got %q, want %q", text, gap, f.ID, want)
			}
		}
	}
}

func TestScanError(t *testing.T) {
	if _, ok, err := Scan(iotest.ErrReader(os.ErrDeadlineExceeded)); ok || err == nil {
		t.Errorf("got %v, %v", ok, err)
	}
}

// A text made to cost much costs what its length allows: 1 MiB, which is what
// is read of a file, is far below the 2 s of processor time that a scan has.
func TestScanOfHostileText(t *testing.T) {
	const size = 1 << 20
	for _, unit := range []string{
		"CUDA out of memory. Tried to allocate", "CUDA error: out of memory on host ", "Cuda failure",
		"torch.OutOfMemoryError: Ignoring this choice",
		"tttttttt", "OOM when allocating tensor by allocator cpu\n", "\n", "\x00",
	} {
		text := bytes.Repeat([]byte(unit), size/len(unit))
		start := time.Now()
		if _, _, err := Scan(bytes.NewReader(text)); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%q repeated: %s", unit, took)
		}
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte("CUDA out of memory. Tried to allocate"), 3)
	f.Add([]byte("CUDA_ERROR_OUT_OF_MEMOR"), chunk)
	f.Add([]byte("Cuda failure 2 'out of memory'\nDetected 1 oom_kill event"), chunk-7)
	f.Add([]byte("(GPU_0_bfc) ran out of memory trying to allocate 1 this is not a failure"), chunk-after)
	f.Fuzz(func(t *testing.T, text []byte, pad int) {
		text = append(bytes.Repeat([]byte{'.'}, min(max(pad, 0), 2*chunk)), text...)
		got, ok, err := Scan(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		// At once instead of in pieces, the same is found.
		s, at, weight := first(text, 0, len(text), 0)
		want, found := lastWord(Finding{s, int64(at), weight == backOff}, at >= 0, text, 0)
		if ok != found || ok && (got.ID != want.ID || got.Offset != want.Offset || got.BackOff != want.BackOff) {
			t.Errorf("found %q at %d, %v, want %q at %d, %v", got.ID, got.Offset, got.BackOff, want.ID, want.Offset,
				want.BackOff)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	for name, line := range map[string]string{
		"log":       "step 1234 loss 0.1234 lr 1e-4 mem 12.00 GiB CUDA graphs on, torch.compile off\n",
		"no-breaks": "step 1234 loss 0.1234 lr 1e-4 mem 12.00 GiB CUDA graphs on, torch.compile off ",
	} {
		b.Run(name, func(b *testing.B) {
			text := bytes.Repeat([]byte(line), 100<<20/len(line))
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, ok, _ := Scan(bytes.NewReader(text)); ok {
					b.Fatal("found one")
				}
			}
		})
	}
}
