// SPDX-License-Identifier: Apache-2.0

package oomscan

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

func TestFixtures(t *testing.T) {
	oom, err := filepath.Glob("testdata/oom/*.txt")
	if err != nil || len(oom) == 0 {
		t.Fatal("no fixtures")
	}
	for _, path := range oom {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".txt"), "-")
		s, at, ok, err := Scan(bytes.NewReader(text))
		if err != nil || !ok || s.ID != want {
			t.Errorf("%s: got %q, %v, %v; want %q", path, s.ID, ok, err, want)
		} else if !bytes.HasPrefix(text[at:], []byte(s.text)) {
			t.Errorf("%s: offset %d is wrong", path, at)
		}
	}
	other, err := filepath.Glob("testdata/other/*.txt")
	if err != nil || len(other) == 0 {
		t.Fatal("no fixtures")
	}
	for _, path := range other {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if s, _, ok, err := Scan(bytes.NewReader(text)); ok || err != nil {
			t.Errorf("%s: got %q, %v", path, s.ID, err)
		}
	}
}

// A signature is found wherever it lies, also across what is read at once.
func TestScanAcrossChunks(t *testing.T) {
	const signature = "torch.OutOfMemoryError"
	for _, before := range []int{0, 1, chunk - len(signature) - 1, chunk - len(signature), chunk - 1, chunk, chunk + 1, 2*chunk - 3, 2*chunk + longest} {
		text := strings.Repeat("x", before) + signature + strings.Repeat("y", 100)
		for name, r := range map[string]io.Reader{"whole": strings.NewReader(text), "halves": iotest.HalfReader(strings.NewReader(text))} {
			s, at, ok, err := Scan(r)
			if err != nil || !ok || at != int64(before) || s.ID != "pytorch" {
				t.Errorf("%s, %d bytes before: got %q at %d, %v, %v", name, before, s.ID, at, ok, err)
			}
		}
	}
}

func TestScanFirstOfSeveral(t *testing.T) {
	s, at, ok, _ := Scan(strings.NewReader("RESOURCE_EXHAUSTED: Out of memory ... torch.OutOfMemoryError"))
	if !ok || s.ID != "jax" || at != 0 {
		t.Errorf("got %q at %d", s.ID, at)
	}
}

func TestScanError(t *testing.T) {
	if _, _, ok, err := Scan(iotest.ErrReader(os.ErrDeadlineExceeded)); ok || err == nil {
		t.Errorf("got %v, %v", ok, err)
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte("CUDA out of memory. Tried to allocate"), 3)
	f.Add([]byte("CUDA_ERROR_OUT_OF_MEMOR"), chunk)
	f.Fuzz(func(t *testing.T, text []byte, pad int) {
		text = append(bytes.Repeat([]byte{'.'}, min(max(pad, 0), 2*chunk)), text...)
		s, at, ok, err := Scan(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		any := false
		for _, sig := range Signatures {
			any = any || bytes.Contains(text, []byte(sig.text))
		}
		if ok != any || ok && !bytes.HasPrefix(text[at:], []byte(s.text)) {
			t.Errorf("found %v at %d, there is one: %v", ok, at, any)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	text := bytes.Repeat([]byte("step 1234 loss 0.1234 lr 1e-4 mem 12.00 GiB CUDA graphs on, torch.compile off\n"), 1<<17)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok, _ := Scan(bytes.NewReader(text)); ok {
			b.Fatal("found one")
		}
	}
}
