// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// imports returns what each package of the program imports itself, without tests.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if name, ok := strings.CutPrefix(words[0], "carma/"); ok {
			all[name] = words[1:]
		}
	}
	if len(all) < 30 {
		t.Fatalf("%d packages", len(all))
	}
	return all
}

// within tells whether name is one of list, or below one that ends with "/".
func within(name string, list []string) bool {
	return slices.ContainsFunc(list, func(r string) bool {
		return name == r || strings.HasSuffix(r, "/") &&
			strings.HasPrefix(name, r)
	})
}

const (
	goNVML = "github.com/NVIDIA/go-nvml/"
	sqlite = "github.com/mattn/go-sqlite3"
)

// TestImports: who may use what.
func TestImports(t *testing.T) {
	adapters := []string{"gres/lease", "gres/nvml", "gres/dcgm", "gres/mps", "gres/resident", "gres/confine",
		"gres/export"}
	all := imports(t)
	for _, rule := range []struct {
		what string
		in   []string // empty: everywhere
		but  []string
		no   []string
	}{
		{"NVML", nil, []string{"gres/nvml"}, []string{goNVML}},
		{"the NVML adapter", nil, []string{"cmd/carma-node", "contrib/"}, []string{"carma/gres/nvml"}},
		{"SQL", nil, []string{"db", "db/rows", "gres/lease", "contrib/"}, []string{"database/sql", sqlite}},
		{"processes", []string{"slurmbridge/", "estimator", "estimator/", "db", "cmd/carma-estimate/internal/"},
			[]string{"slurmbridge/sctl"}, []string{"os/exec"}},
		{"the network", nil, []string{"gres/sdnotify", "contrib/"}, []string{"net", "net/http"}},
		{"the commands", nil, []string{"cmd/"}, []string{"carma/cmd/"}},
		// The model's law is of the rows that gpucheck measured.
		{"contrib", nil, []string{"contrib/", "cmd/carma-sim/internal/model"}, []string{"carma/contrib/"}},
		{"the hooks", nil, []string{"cmd/", "prolog", "prolog/", "contrib/"}, []string{"carma/prolog"}},
		{"controller", []string{"slurmbridge/libcarma", "slurmbridge/annotate", "slurmbridge/directive"}, nil,
			[]string{"carma/gres/", "carma/db", "carma/slurmbridge/sctl"}},
	} {
		looked := 0
		for name, list := range all {
			if len(rule.in) > 0 && !within(name, rule.in) || within(name, rule.but) {
				continue
			}
			looked++
			for _, path := range list {
				if within(path, rule.no) && path != "net/url" {
					t.Errorf("%s imports %s: architecture.md says who may (%s)", name, path, rule.what)
				}
			}
		}
		if looked < len(rule.in) && !strings.HasSuffix(rule.in[0], "/") || looked == 0 {
			t.Errorf("%s: %d packages looked at; is one of %v gone?", rule.what, looked, rule.in)
		}
	}
	for name, list := range all {
		for _, other := range adapters {
			if within(name, adapters) && slices.Contains(list, "carma/"+other) {
				t.Errorf("%s imports %s: what is outside each is its own", name, other)
			}
		}
	}
}

// layers are the top-level folders, lowest first: a package may import its own folder
// and those before it. contrib may use all.
var layers = []string{"estimator", "slurmbridge", "db", "gres", "prolog", "cmd"}

// TestLayers: imports run one way between the top-level folders, and architecture.md names
// each package.
func TestLayers(t *testing.T) {
	page, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	top := func(name string) string { first, _, _ := strings.Cut(name, "/"); return first }
	edges := 0
	for name, list := range imports(t) {
		at := slices.Index(layers, top(name))
		if at >= 0 && !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("architecture.md does not name %s", name)
		}
		for _, path := range list {
			used, ours := strings.CutPrefix(path, "carma/")
			if !ours || at < 0 || name == "cmd/carma-sim/internal/model" && used == "contrib/gpucheck/data" {
				continue
			}
			if edges++; slices.Index(layers, top(used)) > at || top(used) == "contrib" {
				t.Errorf("%s imports %s, against the direction %s", name, used, strings.Join(layers, " <- "))
			}
		}
	}
	if edges < 50 {
		t.Errorf("%d imports looked at", edges)
	}
}

// TestMains: a command's main says which function does what, and no more.
func TestMains(t *testing.T) {
	mains, err := filepath.Glob(filepath.Join(root, "cmd", "*", "main.go"))
	if err != nil || len(mains) < 4 {
		t.Fatal(mains, err)
	}
	for _, file := range mains {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); n > 110 {
			t.Errorf("%s has %d lines; its logic belongs into a package", file, n)
		}
	}
}

// pure are the packages that architecture.md calls so.
func pure(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\nPure (no files, clocks, processes or state between calls):")
	text, _, _ = strings.Cut(text, "\n\n")
	var list []string
	for _, m := range regexp.MustCompile("`([a-z/-]+)`").FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	if len(list) < 20 {
		t.Fatalf("architecture.md names %d pure packages", len(list))
	}
	return list
}

// TestPure: what architecture.md calls pure imports nothing that does I/O, not by way of
// another package of ours either, and reads no clock and no environment.
func TestPure(t *testing.T) {
	list, all := pure(t), imports(t)
	io := []string{"os", "os/exec", "os/user", "io/fs", "net", "net/http", "database/sql", "golang.org/x/sys/unix",
		"log/slog",
		"crypto/rand", "math/rand", goNVML, sqlite}
	clock := regexp.MustCompile(`\btime\.(Now|Since|Until|Sleep|After|AfterFunc|Tick|NewTicker|NewTimer)\(`)
	for _, name := range list {
		if all[name] == nil {
			t.Errorf("architecture.md: there is no package %s", name)
		}
		for _, path := range all[name] {
			if ours, ok := strings.CutPrefix(path, "carma/"); within(path, io) || ok && !slices.Contains(list, ours) {
				t.Errorf("%s imports %s, and is to be pure", name, path)
			}
		}
		for _, file := range sources(t, name) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if found := clock.Find(text); found != nil {
				t.Errorf("%s: %s) in a pure package: take the time as a parameter", file, found)
			}
		}
	}
}

// sources are the files of a package, without tests.
func sources(t *testing.T, name string) (files []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(root, name, "*.go"))
	if err != nil || len(all) == 0 {
		t.Fatalf("%s has no sources: %v", name, err)
	}
	for _, f := range all {
		if !strings.HasSuffix(f, "_test.go") {
			files = append(files, f)
		}
	}
	return files
}

// TestSlurmWords: the words in which Slurm says states and reasons of jobs stand in
// slurmbridge/jobstate, so that a new release is looked at in one place.
func TestSlurmWords(t *testing.T) {
	words := map[string]bool{}
	literals(t, filepath.Join(root, "slurmbridge/jobstate/state.go"), func(_ token.Position, s string) {
		if regexp.MustCompile(`^[A-Z_]{4,}$`).MatchString(s) {
			words[s] = true
		}
	})
	if len(words) < 15 {
		t.Fatalf("%d words", len(words))
	}
	looked := 0
	for name := range imports(t) {
		if top, _, _ := strings.Cut(name, "/"); !slices.Contains(layers, top) || name == "slurmbridge/jobstate" {
			continue
		}
		for _, file := range sources(t, name) {
			looked++
			literals(t, file, func(at token.Position, s string) {
				if words[s] {
					t.Errorf("%s: %q: take it from slurmbridge/jobstate", at, s)
				}
			})
		}
	}
	if looked < 200 {
		t.Errorf("%d files looked at", looked)
	}
}

// literals calls f for each string of a Go file.
func literals(t *testing.T, file string, f func(at token.Position, s string)) {
	t.Helper()
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if s, err := strconv.Unquote(l.Value); err == nil {
				f(set.Position(l.Pos()), s)
			}
		}
		return true
	})
}

// TestLinked: the programs of the product, and libcarma, link nothing of contrib, where
// published estimators are compared with ours, and of the estimator what they need.
func TestLinked(t *testing.T) {
	for name, needs := range map[string][]string{
		"cmd/carma-node":   {"carma/estimator/history", "carma/estimator/method"},
		"cmd/carma-report": {"carma/estimator/history", "carma/estimator/method"},
		// These estimate.
		"cmd/carma-estimate":   nil,
		"slurmbridge/libcarma": nil,
	} {
		cmd := exec.Command("go", "list", "-deps", "./"+name)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list -deps ./%s: %v", name, err)
		}
		linked := strings.Fields(string(out))
		if !slices.Contains(linked, "carma/"+name) {
			t.Errorf("%s is not among its own packages", name)
		}
		for _, path := range linked {
			estimates := strings.HasPrefix(path, "carma/estimator") && needs != nil && !slices.Contains(needs, path)
			if strings.HasPrefix(path, "carma/contrib/") || estimates {
				t.Errorf("%s links %s", name, path)
			}
		}
	}
}

// TestLineLength: lines of Go have at most 120 columns; a tab is one. Raw strings, which are
// texts of others, may have more.
func TestLineLength(t *testing.T) {
	const most = 120
	looked := 0
	for name := range imports(t) {
		files, err := filepath.Glob(filepath.Join(root, name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			raw := false
			for i, line := range strings.Split(string(text), "\n") {
				looked++
				within := raw || strings.Contains(line, "`")
				raw = raw != (strings.Count(line, "`")%2 == 1)
				if !within && utf8.RuneCountInString(line) > most {
					t.Errorf("%s:%d: %d columns", file, i+1, utf8.RuneCountInString(line))
				}
			}
		}
	}
	if looked < 50000 {
		t.Errorf("%d lines looked at", looked)
	}
}

// TestWires: the estimate and the booking travel from job_submit to the record in these forms
// alone, and what writes and reads each stands in one place. The text is one that no other
// form has.
func TestWires(t *testing.T) {
	wires := []struct{ form, text, in string }{
		{"variables for the hooks", "SPANK_CARMA_", "slurmbridge/jobenv/carma.go"},
		{"variables for the hooks", "EST_MIB", "slurmbridge/jobenv/carma.go"},
		{"constraints on a node's Extra", ")&(", "slurmbridge/extra/job.go"},
		{"records", "json:\"stderr\"", "prolog/jobmeta.go"}, // begun, in the ledger
		{"records", "carma1:", "db/comment.go"},
		{"records", "job_id, cluster, restart", "db/"},
		// For people; what is read back of it decides nothing.
		{"tokens in AdminComment", "carma-retry=", "slurmbridge/admincomment/admincomment.go"},
		{"tokens in AdminComment", "carma-advice=", "slurmbridge/admincomment/admincomment.go"}, // its key teaches
		{"tokens in AdminComment", `carma={"v"`, "slurmbridge/admincomment/admincomment.go"},
	}
	found := map[string]int{}
	for name := range imports(t) {
		if top, _, _ := strings.Cut(name, "/"); !slices.Contains(layers, top) {
			continue
		}
		for _, file := range sources(t, name) {
			path, err := filepath.Rel(root, file)
			if err != nil {
				t.Fatal(err)
			}
			literals(t, file, func(at token.Position, s string) {
				for _, w := range wires {
					if !strings.Contains(s, w.text) {
						continue
					}
					found[w.text]++
					if !strings.HasPrefix(path, w.in) {
						t.Errorf("%s: %q is of the form %q, which %s writes and reads", at, s, w.form, w.in)
					}
				}
			})
		}
	}
	for _, w := range wires {
		if found[w.text] == 0 {
			t.Errorf("nothing writes %q (%s); is the form gone?", w.text, w.form)
		}
	}
}
