// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"carma/cmd/carma-estimate/internal/script"
	"carma/db/texttable"
	"carma/estimator"
	"carma/estimator/graph"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"carma-estimate": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("CARMA_CONF", filepath.Join(e.WorkDir, "carma.toml"))
			for _, name := range []string{"resnet.txt", "mlp.txt", "keras.txt"} {
				text, err := os.ReadFile("../../estimator/testdata/" + name)
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(e.WorkDir, name), text, 0o644); err != nil {
					return err
				}
			}
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"make": makeHostile,
			"pipe": makePipe,
			"ends": endsWith,
		},
	})
}

// makeHostile makes files that no text archive can hold: make KIND FILE.
func makeHostile(ts *testscript.TestScript, _ bool, args []string) {
	const header = "#!/bin/sh\n#SBATCH -p gpu --gres=gpu:1\n#CARMA mem=7G\necho hi\n"
	texts := map[string]string{
		"empty":   "",
		"binary":  "\x7fELF\x02\x01\x01\x00\x00\x00\n\x00",
		"crlf":    strings.ReplaceAll(header, "\n", "\r\n"),
		"noeol":   "#!/bin/sh\n#SBATCH -p gpu --gres=gpu:1",
		"4mib":    header + strings.Repeat("x", script.MaxBytes-len(header)),
		"4mib+1":  header + strings.Repeat("x", script.MaxBytes-len(header)+1),
		"header":  header[:len(header)-len("echo hi\n")] + strings.Repeat("# a comment\n", 3<<20/12),
		"summary": strings.Repeat("x", 1<<20+1),
	}
	text, ok := texts[args[0]]
	if !ok {
		ts.Fatalf("make: no kind %q", args[0])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o644))
}

// makePipe makes a named pipe, to which nobody writes: pipe FILE.
func makePipe(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(unix.Mkfifo(ts.MkAbs(args[0]), 0o600))
}

// endsWith compares the end of a file with a text, in which \r\n are written
// out: ends FILE TEXT.
func endsWith(ts *testscript.TestScript, neg bool, args []string) {
	want := strings.NewReplacer(`\r`, "\r", `\n`, "\n").Replace(args[1])
	if got := ts.ReadFile(args[0]); strings.HasSuffix(got, want) == neg {
		ts.Fatalf("%s ends with %q", args[0], got[max(len(got)-2*len(want)-20, 0):])
	}
}

// fixed are estimates in which everything occurs; the estimator's own figures
// are its own tests' affair.
func fixed(_ string, s estimator.Spec) (estimator.Estimate, error) {
	if bytes.Contains(s.Summary, []byte("(None,")) {
		return estimator.Estimate{Confidence: estimator.Bound, FloorMiB: 900, MiB: 900, ReserveMiB: 900,
			Parts:   []estimator.Part{{Name: "parameters", MiB: 900}},
			Reasons: []string{"TensorFlow takes all of a GPU's memory by default: book a whole GPU"}}, nil
	}
	e := estimator.Estimate{
		Path: estimator.FromSummary, FloorMiB: 11800, MiB: 12345, ReserveMiB: 17411, WishMiB: 4100,
		Confidence: estimator.Unsure,
		Parts: []estimator.Part{{Name: "base", MiB: 1720}, {Name: "parameters", MiB: 97}, {Name: "gradients", MiB: 97},
			{Name: "optimizer", MiB: 195},
			{Name: "activations", MiB: 10000}, {Name: "workspace", MiB: 236}, {Name: "fragmentation"}},
		Reasons: []string{"precision=bf16 has not been measured",
			"7 modules with parameters show neither kind nor children: print the summary with more depth"},
		Assumed: []string{"batch 32, as printed in the summary"},
		Unknown: []estimator.Unknown{{Kind: "Mixer\x1b[2J", Count: 12}, {Kind: "Gate", Count: 1}},
		Remedy:  estimator.MoreDepth,
		Params:  25557032, Rows: 175, CuDNN: true,
	}
	if s.Precision == graph.FP32 {
		e.Confidence, e.Reasons, e.ReserveMiB, e.Unknown, e.Remedy = estimator.Sure, nil, 13707, nil, estimator.NoRemedy
	}
	return e, nil
}

func TestGolden(t *testing.T) {
	const conf = "--config=testdata/carma.toml"
	for name, c := range map[string]struct {
		args   []string
		colour bool
		fails  string
	}{
		"help.txt": {args: []string{"--help"}, fails: "pflag: help requested"},
		"sure.txt": {args: []string{"--summary=testdata/model.txt", "--batch=32"}},
		"unsure.txt": {args: []string{"--summary=testdata/model.txt", "--batch=32", "--precision=bf16",
			"--parallel=ddp"}},
		"unsure.json":     {args: []string{"--summary=testdata/model.txt", "--batch=32", "--precision=bf16", "--json"}},
		"ascii.txt":       {args: []string{"--summary=testdata/model.txt", "--batch=32", "--precision=bf16", "--ascii"}},
		"colour.txt":      {args: []string{"--summary=testdata/model.txt", "--batch=32", "--precision=bf16"}, colour: true},
		"bound.txt":       {args: []string{"--summary=testdata/keras.txt"}},
		"shared.txt":      {args: []string{"testdata/job/summary.sh", conf}},
		"launch.json":     {args: []string{"testdata/job/launch.sh", conf, "--json"}},
		"launch.txt":      {args: []string{"testdata/job/launch.sh", conf}},
		"shared.json":     {args: []string{"testdata/job/summary.sh", conf, "--json"}},
		"two_gpus.txt":    {args: []string{"testdata/job/mem.sh", conf, "--gres=gpu:2"}},
		"exclusive.txt":   {args: []string{"testdata/job/on.sh", conf}},
		"no_sharing.txt":  {args: []string{"testdata/job/mem.sh", conf, "-p", "gpu-recovery"}},
		"left_alone.txt":  {args: []string{"testdata/job/mem.sh", conf, "-p", "cpu"}},
		"left_alone.json": {args: []string{"testdata/job/mem.sh", conf, "-p", "cpu", "--json"}},
		"example.txt":     {args: []string{"testdata/job/mem.sh"}},
		"refused.txt": {args: []string{"testdata/job/bad.sh", conf},
			fails: "testdata/job/bad.sh: sbatch would fail: carma: line 3: mem=banana: not a size; write mem=12G"},
		"refused.json": {args: []string{"testdata/job/bad.sh", conf, "--json"},
			fails: "testdata/job/bad.sh: sbatch would fail: carma: line 3: mem=banana: not a size; write mem=12G"},
		"too_large.json": {args: []string{"testdata/job/mem.sh", conf, "--gres=gpu:9", "--json"},
			fails: "testdata/job/mem.sh: sbatch would fail: carma: partition gpu: the job can get 9 GPUs on one node, but a " +
				"node has 4; ask for at most 4 per node"},
		"preview.txt":       {args: []string{"testdata/job/on.sh", conf, "--summary=testdata/model.txt", "--batch=32"}},
		"heterogeneous.txt": {args: []string{"testdata/job/het.sh", conf}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CARMA_CONF", "/etc/carma/carma.toml.absent")
			var out, errs bytes.Buffer
			p := program{in: strings.NewReader(""), out: &out, errs: &errs, style: texttable.Style{Colour: c.colour},
				estimate: fixed}
			err := p.run(c.args)
			if got := message(err); got != c.fails {
				t.Errorf("error %q, want %q", got, c.fails)
			}
			if errs.Len() > 0 {
				out.WriteString("--- stderr\n" + errs.String())
			}
			compare(t, filepath.Join("testdata/golden", name), out.Bytes())
			if c.colour || name == "help.txt" || strings.HasSuffix(name, ".json") {
				return
			}
			for line := range strings.Lines(strings.SplitN(out.String(), "--- stderr", 2)[0]) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
					t.Errorf("%d columns: %s", n, line)
				}
			}
		})
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func compare(t *testing.T, golden string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", golden, got, want)
	}
}
