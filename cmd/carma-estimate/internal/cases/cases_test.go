// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"carma/estimator"
	"carma/estimator/graph"
	"carma/estimator/training"
)

// answers runs cases and returns the objects that came out, without the times.
func answers(t *testing.T, in io.Reader, estimate func(string, estimator.Spec) (estimator.Estimate,
	error)) []caseResult {
	t.Helper()
	var out bytes.Buffer
	if err := Run(in, "-", "", &out, estimate); err != nil {
		t.Fatal(err)
	}
	var all []caseResult
	for line := range bytes.Lines(out.Bytes()) {
		var r caseResult
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if (r.Error == "") != (r.Us != nil) {
			t.Errorf("us and error: %s", line)
		}
		r.Us = nil
		all = append(all, r)
	}
	return all
}

// A case is asked as the #CARMA line with the same words would be.
func TestCaseSpec(t *testing.T) {
	summary := filepath.Join(t.TempDir(), "s.txt")
	if err := os.WriteFile(summary, []byte("a summary\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var method string
	var spec estimator.Spec
	keep := func(m string, s estimator.Spec) (estimator.Estimate, error) {
		method, spec = m, s
		return estimator.Estimate{}, nil
	}
	full := estimator.Spec{
		Summary: []byte("a summary\n"), Batch: 4, Seq: 128, Input: [3]int{3, 32, 32},
		Optimizer: training.SGDMomentum, Foreach: estimator.Off,
		Precision: graph.BF16, Parallel: estimator.DDP, GPUs: 2, GradCheckpoint: true, Attention: graph.SDPA,
		Params:  7e9,
		Dropout: estimator.On, DynamicShapes: true, Base: estimator.Base{CuBLASMiB: 1700, CuDNNMiB: 1700},
	}
	for _, c := range []struct {
		keys, method string
		want         estimator.Spec
	}{
		{``, "analytic", estimator.Spec{Summary: full.Summary, GPUs: 1, Base: estimator.DefaultBase()}},
		{`, "base_mib": 0, "method": "analytic"`, "analytic", estimator.Spec{Summary: full.Summary, GPUs: 1}},
		{`, "batch": 4, "seq": 128, "input": "3x32x32", "optim": "sgdm", "foreach": false, "precision": "bf16", "parallel": "ddp", "gpus": 2,
			"grad_ckpt": true, "attn": "sdpa", "params": "7B", "dropout": true, "dynamic_shapes": true, "base_mib": 1700`, "analytic", full},
		{`, "batch": "4", "seq": "128", "input": "3x32x32", "optim": "sgdm", "foreach": "0", "precision": "bf16", "parallel": "ddp", "gpus": "2",
			"grad_ckpt": 1, "attn": "sdpa", "params": 7e9, "dropout": 1, "dynamic_shapes": "1", "base_mib": 1700.0`, "analytic", full},
	} {
		line := strings.ReplaceAll(fmt.Sprintf(`{"id": 1, "summary": %q%s}`, summary, c.keys), "\n", " ")
		r := answers(t, strings.NewReader(line), keep)
		if len(r) != 1 || r[0].Error != "" || method != c.method ||
			fmt.Sprintf("%+v", spec) != fmt.Sprintf("%+v", c.want) {
			t.Errorf("%s:\n%+v\n%s, %+v\nwant %s, %+v", line, r, method, spec, c.method, c.want)
		}
	}
}

// Whatever one case does, the next is answered.
func TestCasesGoOn(t *testing.T) {
	summary := filepath.Join(t.TempDir(), "s.txt")
	if err := os.WriteFile(summary, []byte("a summary\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	estimate := func(_ string, s estimator.Spec) (estimator.Estimate, error) {
		switch s.Batch {
		case 1:
			panic("a fault")
		case 2:
			return estimator.Estimate{}, errors.New("no")
		}
		return estimator.Estimate{MiB: 5}, nil
	}
	long := `{"id": "long", "optim": "` + strings.Repeat("x", maxCase) + `"}`
	var in strings.Builder
	for batch := range 4 {
		fmt.Fprintf(&in, "{\"id\": %d, \"summary\": %q, \"batch\": %d}\n%s\n\r\n", batch, summary, batch, long)
	}
	got := answers(t, strings.NewReader(in.String()), estimate)
	want := []string{"batch=0: must be at least 1; write batch=32", "the estimator failed: a fault", "no", ""}
	if len(got) != 8 {
		t.Fatalf("%d answers", len(got))
	}
	for i, r := range got {
		switch {
		case i%2 == 1:
			if r.Error != "the line is longer than 1 MiB" {
				t.Errorf("%+v", r)
			}
		case r.Error != want[i/2] || r.ID != float64(i/2) || (r.MiB == nil) != (r.Error != ""):
			t.Errorf("%+v, want %q", r, want[i/2])
		}
	}
}

// Who writes one case and waits gets the answer to it.
func TestCasesAnswerAtOnce(t *testing.T) {
	in, write := io.Pipe()
	read, out := io.Pipe()
	done := make(chan error)
	go func() {
		done <- errors.Join(Run(in, "-", "", out, estimator.ByMethod), out.Close())
	}()
	r := bufio.NewReader(read)
	for i := range 3 {
		fmt.Fprintf(write, "{\"id\": %d, \"mem\": \"7G\"}\n", i)
		line, err := r.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, fmt.Sprintf(`{"id":%d,"floor_mib":7168,`, i)) {
			t.Errorf("%q, %v", line, err)
		}
	}
	write.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A file is read once, however many cases name it, and what is kept is bounded.
func TestCacheReadsOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.txt")
	if err := os.WriteFile(path, []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := cache{dir: dir}
	for range 2 {
		if text, err := c.read("s.txt"); err != nil || string(text) != "a" {
			t.Fatalf("%q, %v", text, err)
		}
		if err := os.WriteFile(path, []byte("b"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text := bytes.Repeat([]byte("x"), 1<<20)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	for i := range 2 * cacheBytes / len(text) {
		if _, err := c.read(fmt.Sprintf("%s/%ss.txt", dir, strings.Repeat("./", i))); err != nil {
			t.Fatal(err)
		}
		kept := 0
		for name, e := range c.entries {
			kept += len(name) + len(e.text) + entryBytes
		}
		if kept != c.bytes || kept > cacheBytes || len(c.order) != len(c.entries) {
			t.Fatalf("%d bytes are kept, %d counted, in %d of %d entries", kept, c.bytes, len(c.order),
				len(c.entries))
		}
	}
	if got, err := c.read("s.txt"); err != nil || len(got) != len(text) {
		t.Errorf("the oldest entry was kept: %d bytes, %v", len(got), err)
	}
}

// FuzzReadCase: whatever the line, the answer is one line of JSON.
func FuzzReadCase(f *testing.F) {
	for _, s := range []string{
		`{"id": "a", "mem": "7G"}`, `{"id": 1e400, "mem": 1, "batch": 32.0, "foreach": true}`,
		`{"id": "a", "id": null, "summary": "absent"}`,
		`{"gpus": 9999999999, "base_mib": -1, "method": "horus"}`, `{"mem": {"a": []}}`, "{", "[]",
		"{\"mem\": \"1 G\x00\"}", `{"params": 1e308}`, `{"a"}`,
	} {
		f.Add([]byte(s))
	}
	c := cases{estimate: estimator.ByMethod}
	f.Fuzz(func(t *testing.T, line []byte) {
		if one, err := readCase(line); err == nil && one.summary != "" {
			return // the fuzzer is not to read files
		}
		out, err := json.Marshal(c.answer(line, false))
		if err != nil || !json.Valid(out) || bytes.IndexByte(out, '\n') >= 0 {
			t.Fatalf("%s, %v", out, err)
		}
		var r caseResult
		if err := json.Unmarshal(out, &r); err != nil && !strings.Contains(err.Error(), "number") ||
			(r.Error == "") != (r.MiB != nil) {
			t.Errorf("%s: %v", out, err)
		}
	})
}

// Memory does not grow with the number of lines.
func BenchmarkCases(b *testing.B) {
	in := &repeat{line: []byte("{\"id\": \"a\", \"mem\": \"7G\"}\n"), left: b.N}
	b.ReportAllocs()
	if err := Run(in, "-", "", io.Discard, estimator.ByMethod); err != nil {
		b.Fatal(err)
	}
}

// repeat is a text of many equal lines.
type repeat struct {
	line []byte
	left int
}

func (r *repeat) Read(to []byte) (n int, err error) {
	for r.left > 0 && len(to)-n >= len(r.line) {
		n += copy(to[n:], r.line)
		r.left--
	}
	if n == 0 {
		err = io.EOF
	}
	return n, err
}
