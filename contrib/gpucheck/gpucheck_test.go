// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What needs root and a machine of its own is rehearsed: make test-gpu-kit.

func TestNoGPU(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", "")
	var o, e bytes.Buffer
	status := run([]string{"all", "--results", filepath.Join(t.TempDir(), "r")}, &o, &e)
	if findable, _ := findGPU(0); findable != nil {
		t.Skip("this machine has a GPU")
	}
	if status != exitNoGPU || !strings.HasPrefix(e.String(), "gpucheck: no GPU to check: ") {
		t.Errorf("status %d, %s", status, e.String())
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"--short"}, {"fact"}, {"facts", "--nonsense"}, {"facts", "--seconds", "-1"}} {
		var o, e bytes.Buffer
		if status := run(args, &o, &e); status != exitUsage || !strings.Contains(e.String(), "usage: run PART") {
			t.Errorf("%q: status %d\n%s", args, status, e.String())
		}
	}
}

// All parts, and what each may take to put things away, fit into half an hour.
func TestPartsFit(t *testing.T) {
	sum := 0
	for _, p := range parts() {
		if sum += p.seconds; p.seconds > 590 {
			t.Errorf("%s takes %d s, and a command at most ten minutes", p.name, p.seconds)
		}
	}
	if sum += len(parts()) * int(grace.Seconds()); sum > 30*60 {
		t.Errorf("all parts take up to %d s", sum)
	}
	if last := parts()[len(parts())-1].name; last != "hurt" {
		t.Errorf("%s is last, and what may hurt is not", last)
	}
}

func TestVerdicts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results")
	for _, c := range []struct {
		f       func(*check) error
		verdict string
		counts  bool
	}{
		{func(c *check) error { c.judge(true, "so"); return nil }, agrees, false},
		{func(c *check) error { c.judge(false, "so"); return nil }, contradicts, true},
		{func(c *check) error { c.skip("so"); return nil }, notAsked, false},
		{func(c *check) error { c.Saw = "so"; c.text("t", strings.Repeat("x", 3*mostText)); return nil }, measured,
			false},
		{func(*check) error { return errors.New("so") }, failed, true},
	} {
		os.Remove(path)
		out, err := openResults(path)
		if err != nil {
			t.Fatal(err)
		}
		k := &kit{ctx: context.Background(), part: part{name: "facts"}, out: out}
		k.check("a", "b", "c", c.f)
		out.close()
		text, _ := os.ReadFile(path)
		var got check
		if err := json.Unmarshal(text,
			&got); err != nil || got.Verdict != c.verdict || got.Saw != "so" || got.Part != "facts" ||
			got.Assumes != "b" || got.Follows != "c" || k.contradicted != c.counts || bytes.Count(text,
			[]byte("\n")) != 1 {
			t.Errorf("%s: %v, counts %v\n%.300s", c.verdict, err, k.contradicted, text)
		}
		if len(got.Texts["t"]) > mostText+100 {
			t.Errorf("a text of %d bytes", len(got.Texts["t"]))
		}
	}
}

func TestDescendants(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 100 & echo; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.Read(make([]byte, 1))
	found := descendants(os.Getpid())
	if !slices.Contains(found, cmd.Process.Pid) || len(descendants(cmd.Process.Pid)) != 1 {
		t.Errorf("%d is not among %v", cmd.Process.Pid, found)
	}
	for _, pid := range found {
		if p, err := os.FindProcess(pid); err == nil {
			p.Kill()
		}
	}
	cmd.Wait()
}

// A convolution that runs under the limit agrees only if it took more without one.
func TestJudgeWorkspaces(t *testing.T) {
	const name = `{"convolution":"1x1","benchmark":true,`
	for _, c := range []struct{ name, free, limited, verdict, saw string }{
		{"gave up", `"tensors_mib":50,"allocated_mib":13000,"step_ms":2}`, `"allocated_mib":900,"step_ms":5}`, agrees,
			"1 of them took more than 3072 MiB"},
		{"fails", `"allocated_mib":13000,"step_ms":2}`, `"failed":true}`, contradicts, "1 failed"},
		{"no wish", `"allocated_mib":90,"step_ms":2}`, `"allocated_mib":90,"step_ms":2}`, "", "0 of them took more"},
		{"no room for the need", `"allocated_mib":90,"step_ms":2}`, `"failed":true}`, contradicts, "1 failed"},
		{"fails without a limit", `"failed":true}`, `"failed":true}`, failed, "failed on the empty GPU"},
		{"no line", `"allocated_mib":90,"step_ms":2}`, "", failed, "no answer under the limit for 1x1, benchmark"},
	} {
		var k check
		limited := "Traceback:\n"
		if c.limited != "" {
			limited += name + c.limited
		}
		k.judgeWorkspaces(convolutions(name+c.free), convolutions(limited))
		if k.Verdict != c.verdict || !strings.Contains(k.Saw, c.saw) {
			t.Errorf("%s: %q, %s", c.name, k.Verdict, k.Saw)
		}
		if c.name == "gave up" && (len(k.Figures) != 6 || k.Figures[5].Value != 5) {
			t.Errorf("%s: %+v", c.name, k.Figures)
		}
	}
}
