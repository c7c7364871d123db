// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// starts are the places where the product starts a program or has one of Slurm's
// commands asked, and whose words that is given. No shell is between, and no text that
// a user can write says which program, which option or which job. A new place needs its
// line here, and a thought about whose text it hands over.
var starts = map[string]string{
	"cmd/carma-node/internal/doctor/facts hardwareOf": "slurmd of carma.toml, a constant",
	"gres/sampler InChild":                            "itself; the path of carma.toml",
	"gres/dcgm Monitor.command":                       "smact.dcgmi; constants and numbers",
	"gres/mps Control.do":                             "mps.control; a command of ours on its stdin",
	"gres/mps Control.launch":                         "mps.control; a constant",
	"cmd/carma-estimate tracing.of":                   "carma-trace of the caller's PATH; the caller's own words",
	"cmd/carma-sim/internal/live output":              "carma-sim's, as the one who calls it",
	"prolog/userfile command": "itself, and a number; a user's path goes over stdin to a process that has that " +
		"user's rights",
	"prolog/userfile/credentials.c": "nothing: execve(2) stands in its comment",
	"slurmbridge/spank/helper.c":    "plugstack.conf; as the job's user, whose environment it gets",
	"prolog/hook settleLater":       "itself; the path of carma.toml",

	"slurmbridge/sctl Client.command": "slurm.bin_dir; the callers' words",
	"slurmbridge/sctl Client.run":     "the callers' words",
	"slurmbridge/sctl Client.rows":    "the callers' words",
	"slurmbridge/sctl Client.squeue":  "the callers' words; the names of fields in the environment",
	"slurmbridge/sctl rowsOf":         "numbers",
	"slurmbridge/sctl Client.act":     "a job by its numbers (Target)",
	"slurmbridge/sctl Client.update":  "a job by its numbers (Target); the callers' words",

	"slurmbridge/sctl Client.Cancel":            "a job by its numbers",
	"slurmbridge/sctl needs":                    "a number",
	"slurmbridge/sctl reserved":                 "the name of a reservation, of characters that Slurm's names have",
	"slurmbridge/sctl Client.Job":               "a number",
	"slurmbridge/sctl Client.ofNode":            "names of nodes",
	"slurmbridge/sctl Client.NodeStatus":        "the node's own name",
	"slurmbridge/sctl Client.Federation":        "constants",
	"slurmbridge/sctl Reservations":             "constants",
	"slurmbridge/sctl Client.NodeNames":         "constants",
	"slurmbridge/sctl Client.Nodes":             "partitions of carma.toml",
	"slurmbridge/sctl Client.Notify":            "a number, and a sentence of ours",
	"slurmbridge/sctl Client.Partition":         "recovery of carma.toml",
	"slurmbridge/sctl Client.Queue":             "partitions of carma.toml and slurm.conf",
	"slurmbridge/sctl Client.Release":           "a job by its numbers",
	"slurmbridge/sctl Client.Booked":            "constants",
	"slurmbridge/sctl Accounting.Limits":        "the cluster's name, as slurm.conf has it",
	"slurmbridge/sctl Client.Unbook":            "a job by its numbers; its GRES, made of checked names and numbers",
	"slurmbridge/sctl Client.CheckCron":         "a job by its numbers",
	"slurmbridge/sctl Client.RequeueHold":       "a job by its numbers",
	"slurmbridge/sctl Client.RequeueIncomplete": "a job by its numbers",
	"slurmbridge/sctl Accounting.SetComment":    "a number; a comment that administrators and we write",
	"slurmbridge/sctl Client.SetNodeExtra":      "names of nodes; their Extra, which administrators and we write",
	"slurmbridge/sctl Client.SetStart":          "a job by its numbers, and a time",
	"slurmbridge/sctl Client.ShowConfig":        "constants",
	"slurmbridge/sctl Client.Time":              "constants",
	"slurmbridge/sctl Client.Update": "a job by its numbers; its own GRES, of characters that GRES have; " +
		"partitions; a node's name; the comment as above",
	"slurmbridge/sctl Client.Version":    "constants",
	"slurmbridge/sctl Client.Warn":       "a job by its numbers",
	"slurmbridge/sctl Client.Words":      "a number",
	"slurmbridge/sctl partitionRules":    "constants",
	"slurmbridge/sctl qosRules":          "constants",
	"slurmbridge/sctl Client.ReleaseBad": "a job, or a task, by its numbers",
	"slurmbridge/sctl Accounting.sacct":  "numbers and times; words of the one who calls carma-report",
	"slurmbridge/sctl Finder.OnNode":     "the node's own name",
	"slurmbridge/sctl Finder.GPUs":       "a job by its numbers",
	"slurmbridge/sctl Client.task":       "a task by its numbers",
}

// startCalls are functions that start programs, by import path.
var startCalls = map[string][]string{
	"os/exec":               {"Command", "CommandContext", "Cmd"},
	"os":                    {"StartProcess"},
	"syscall":               {"Exec", "ForkExec", "StartProcess"},
	"golang.org/x/sys/unix": {"Exec", "ForkExec"},
}

// startMethods are those of sctl.Client that run a command of Slurm.
var startMethods = []string{"command", "run", "rows", "squeue", "row", "act", "update"}

// productDirs hold what runs at a site.
var productDirs = []string{"cmd", "db", "estimator", "gres", "prolog", "slurmbridge"}

// TestStartedPrograms: no command is built where nobody has thought about whose text it
// holds.
func TestStartedPrograms(t *testing.T) {
	found := map[string]string{}
	for _, dir := range productDirs {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil || d.IsDir():
				return err
			case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
				startsOfGo(t, path, found)
			case strings.HasSuffix(path, ".c") || strings.HasSuffix(path, ".h"):
				startsOfC(t, path, found)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(found) < 10 {
		t.Fatalf("only %d places found: %v", len(found), found)
	}
	for _, place := range slices.Sorted(maps.Keys(found)) {
		if starts[place] == "" {
			t.Errorf("%s: %s starts a program; say in docs/started_test.go whose text it hands over", found[place], place)
		}
	}
	for place := range starts {
		if found[place] == "" {
			t.Errorf("%s starts nothing; take it out of docs/started_test.go", place)
		}
	}
}

func startsOfGo(t *testing.T, path string, found map[string]string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string][]string{} // by the name that the file imports them under
	for _, spec := range file.Imports {
		imported := strings.Trim(spec.Path.Value, `"`)
		name := imported[strings.LastIndex(imported, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if calls := startCalls[imported]; calls != nil {
			names[name] = calls
			if name == "." || name == "_" {
				t.Errorf("%s imports %s as %s", path, imported, name)
			}
		}
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(rel)
	for _, decl := range file.Decls {
		place := dir + " " + declared(decl)
		ast.Inspect(decl, func(n ast.Node) bool {
			var at ast.Node
			switch n := n.(type) {
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if ok && slices.Contains(names[x.Name], n.Sel.Name) && n.Sel.Name != "Cmd" {
					at = n
				}
			case *ast.CompositeLit: // exec.Cmd{...}
				if s, ok := n.Type.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && s.Sel.Name == "Cmd" && slices.Contains(names[x.Name], "Cmd") {
						at = n
					}
				}
			case *ast.CallExpr:
				s, ok := n.Fun.(*ast.SelectorExpr)
				if ok && dir == "slurmbridge/sctl" && slices.Contains(startMethods, s.Sel.Name) {
					at = n
				}
			}
			if at != nil {
				found[place] = fmt.Sprintf("%s:%d", rel, files.Position(at.Pos()).Line)
			}
			return true
		})
	}
}

// declared is the name of a function, with its receiver's type.
func declared(decl ast.Decl) string {
	f, ok := decl.(*ast.FuncDecl)
	if !ok {
		return "(not in a function)"
	}
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	receiver := f.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if name, ok := receiver.(*ast.Ident); ok {
		return name.Name + "." + f.Name.Name
	}
	return f.Name.Name
}

var startsInC = regexp.MustCompile(`\b(system|popen|exec[lv]p?e?|execveat|fexecve|posix_spawnp?|run_command)\s*\(`)

func startsOfC(t *testing.T, path string, found map[string]string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		t.Fatal(err)
	}
	if m := startsInC.FindIndex(text); m != nil {
		found[rel] = fmt.Sprintf("%s:%d", rel, strings.Count(string(text[:m[0]]), "\n")+1)
	}
}
