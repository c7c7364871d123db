// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/pflag"

	"carma/cmd/internal/cli"
	"carma/slurmbridge/policy"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"carma-sim": main})
}

// TestScripts runs the program itself, with the records of a week in carma.db.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			base, conf := filepath.Join(e.WorkDir, "carma.db"), filepath.Join(e.WorkDir, "carma.toml")
			e.Setenv("CARMA_CONF", conf)
			if err := os.WriteFile(conf, fmt.Appendf(nil, "[paths]\ndb = %q\n", base), 0o644); err != nil {
				return err
			}
			return week(base, 30)
		},
	})
}

var update = flag.Bool("update", false, "write the golden files anew")

const traces = "../../contrib/traces/"

func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if rounded(got) != rounded(string(want)) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
}

var fractions = regexp.MustCompile(`\d+\.\d{5,}(e[-+]\d+)?|\d+(\.\d+)?e-\d+`)

// rounded cuts long fractions to nine decimals and twelve digits where the golden files come from another kind of
// processor: for arm64 Go makes a single instruction of x*y + z, with a single rounding.
func rounded(text string) string {
	if runtime.GOARCH == "amd64" {
		return text
	}
	return fractions.ReplaceAllStringFunc(text, func(s string) string {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return s
		}
		return strconv.FormatFloat(math.Round(v*1e9)/1e9, 'g', 12, 64)
	})
}

func mixed(args ...string) []string {
	return append(args, "--trace", traces+"mixed/trace.csv", "--jobs", traces+"mixed/jobs.csv")
}

func output(t *testing.T, args ...string) string {
	t.Helper()
	var b bytes.Buffer
	if err := execute(args, &b); err != nil && !errors.Is(err, pflag.ErrHelp) {
		t.Fatalf("%v: %v", args, err)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	t.Setenv("CARMA_CONF", "")
	golden(t, "run.txt", output(t, mixed("run")...))
	golden(t, "run-repeats.txt", output(t, mixed("run", "--repeats", "3", "--policy", "lug", "--estimator", "oracle",
		"--queue", "fifo", "--recovery", "ladder", "--share", "streams",
		"--smact-cap", "75", "--min-free", "5G", "--margin", "1G", "--gpus", "2", "--nodes", "2", "--gpu-mem", "80G",
		"--max-jobs", "3", "--hold-after", "60")...))
	golden(t, "run.json", output(t, mixed("run", "--repeats", "2", "--json")...))
	golden(t, "compare.txt", output(t, mixed("compare", "--repeats", "2")...))
	golden(t, "compare.json", output(t, mixed("compare", "--repeats", "2", "--json", "a: --policy exclusive",
		"b: --mode paper-v2 --estimator none")...))
	golden(t, "help.txt", output(t, "--help")+output(t, "run", "--help")+output(t, "compare", "--help")+output(t,
		"forecast", "--help")+output(t, "import", "--help")+output(t, "synth", "--help")+output(t, "submit", "--help"))
}

func TestJSONKeys(t *testing.T) {
	var got map[string]json.RawMessage
	if err := json.Unmarshal([]byte(output(t, mixed("run", "--json")...)), &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"makespan_s", "wait_s", "exec_s", "jct_s", "p95_slowdown", "oom", "energy_j",
		"smact_pct", "mem_mib"} {
		var s map[string]float64
		if err := json.Unmarshal(got[key], &s); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		for _, k := range []string{"mean", "sd", "min", "max"} {
			if _, ok := s[k]; !ok {
				t.Errorf("%s has no %s", key, k)
			}
		}
	}
}

// The page is well-formed, whole, and asks nothing of any server.
func TestPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.html")
	output(t, mixed("compare", "--repeats", "2", "--html", path)...)
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(page, []byte("<svg")); n != 8 {
		t.Errorf("%d charts", n)
	}
	if bytes.Contains(page, []byte("http")) || bytes.Contains(page, []byte("<script")) {
		t.Error("the page loads something")
	}
	_, body, _ := bytes.Cut(page, []byte("<body>"))
	body, _, _ = bytes.Cut(body, []byte("</body>"))
	if err := xml.Unmarshal(append(append([]byte("<x>"), body...), "</x>"...), new(struct{})); err != nil {
		t.Error(err)
	}
}

// What is shipped is what synth makes (contrib/traces/README.md).
func TestShippedTraces(t *testing.T) {
	for name, args := range map[string][]string{
		"mixed": {"--submissions", "90", "--gap", "300", "--seed", "1"},
		"heavy": {"--submissions", "60", "--gap", "400", "--arrivals", "bursty", "--mix", "medium=83,heavy=17", "--kinds",
			"20", "--seed", "2"},
		"day": {"--submissions", "400", "--gap", "215", "--arrivals", "diurnal", "--users", "4", "--kinds", "40", "--seed",
			"3"},
	} {
		dir := t.TempDir()
		output(t, append([]string{"synth", "--out", dir}, args...)...)
		for _, file := range []string{"trace.csv", "jobs.csv"} {
			got, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join(traces, name, file))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s/%s is not what its command makes", name, file)
			}
		}
	}
}

// The trace goes in as CSV again.
func TestImportRuns(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "cluster.csv")
	if err := os.WriteFile(in, []byte("t,s,g\n0,600,1\n60,1200,2\n90,30,1\nx,3,1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	trace := output(t, "import", "csv", in, "--jobs", traces+"mixed/jobs.csv", "--arrival", "t", "--duration", "s",
		"--gpus", "g", "--skip-bad")
	if n := strings.Count(trace, "\n"); n != 4 {
		t.Fatalf("got\n%s", trace)
	}
	path := filepath.Join(dir, "trace.csv")
	if err := os.WriteFile(path, []byte(trace), 0o644); err != nil {
		t.Fatal(err)
	}
	schedule := filepath.Join(dir, "schedule.csv")
	output(t, "run", "--trace", path, "--jobs", traces+"mixed/jobs.csv", "--schedule", schedule)
	text, err := os.ReadFile(schedule)
	if err != nil || strings.Count(string(text), "\n") != 4 {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestUsage(t *testing.T) {
	t.Setenv("CARMA_DEVCLUSTER", "")
	unsorted := filepath.Join(t.TempDir(), "t.csv")
	if err := os.WriteFile(unsorted, []byte("arrival_s,job\n5,light0\n4,light0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{nil, cli.ExitUsage, "which command? run, compare, forecast, import, synth or submit; see carma-sim --help"},
		{[]string{"fly"}, cli.ExitUsage, `no command "fly"; see carma-sim --help`},
		{[]string{"run"}, cli.ExitUsage, "no --trace; carma-sim synth makes one"},
		{[]string{"run", "--trace", "x"}, cli.ExitUsage, "no --jobs; which job table does the trace belong to?"},
		{[]string{"run", "--trace", "none", "--jobs", traces + "mixed/jobs.csv"}, cli.ExitNotFound,
			"open none: no such file or directory"},
		{[]string{"run", "--trace", unsorted, "--jobs", traces + "mixed/jobs.csv"}, cli.ExitUsage,
			unsorted + ": line 3: arrival_s: 4 comes after 5; sort the trace by arrival"},
		{mixed("run", "--policy", "x"), cli.ExitUsage,
			`policy "x" is not one of ` + strings.Join(policy.Names(), ", ")},
		{mixed("run", "--share", "x"), cli.ExitUsage, `share "x" is not one of mps, streams`},
		{mixed("run", "--margin", "x"), cli.ExitUsage, `--margin: "x": `},
		{mixed("run", "--repeats", "0"), cli.ExitUsage, "repeats 0: must be between 1 and 100000"},
		{mixed("run", "--mode", "paper-v1", "--queue", "backfill"), cli.ExitUsage,
			"mode paper-v1: the reference system knows the queue fifo only"},
		{mixed("run", "--estimator", "horus"), cli.ExitUsage, "estimator horus: job medium24 has no number of it"},
		{mixed("run", "more"), cli.ExitUsage, `unexpected argument "more"; see carma-sim run --help`},
		{mixed("run", "--gpus", "1"), cli.ExitUsage,
			traces + "mixed/trace.csv: line 4: job heavy2 requests 2 GPUs, but a node has 1"},
		{mixed("compare", "nothing"), cli.ExitUsage,
			`configuration "nothing": write "NAME: OPTIONS"; see carma-sim compare --help`},
		{mixed("compare", "a: --policy"), cli.ExitUsage, `configuration "a": flag needs an argument: --policy`},
		{[]string{"synth"}, cli.ExitUsage, "synth takes --out DIR and no argument; see carma-sim synth --help"},
		{[]string{"synth", "--out", "x", "--mix", "light=1"}, cli.ExitUsage, `mix "light=1": the shares make 1 %, not 100`},
		{[]string{"import", "csv"}, cli.ExitUsage, "import takes a kind and a file; see carma-sim import --help"},
		{[]string{"import", "pbs", unsorted, "--jobs", traces + "mixed/jobs.csv"}, cli.ExitUsage,
			`import "pbs" is not one of sacct, philly, csv`},
		{[]string{"submit", "--trace", "x"}, cli.ExitUnavailable,
			"no development cluster in the environment; start one with"},
	} {
		err := execute(c.args, &bytes.Buffer{})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || cli.Status(err) != c.status {
			t.Errorf("%v: %v (status %d)\nwant %s (%d)", c.args, err, cli.Status(err), c.want, c.status)
		}
		var e *cli.Error
		if !errors.As(err, &e) {
			t.Errorf("%v: %T", c.args, err)
		}
	}
}
