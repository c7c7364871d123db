// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// change puts text before a place in a file. An empty place makes the file.
type change struct{ file, place, text string }

// test is a file that tests what the changes brought.
func test(file, imports, body string) change {
	pkg, name := filepath.Base(filepath.Dir(file)), strings.TrimSuffix(filepath.Base(file), "_recipe_test.go")
	return change{file, "", "// SPDX-License-Identifier: Apache-2.0\n\npackage " + pkg + "\n\nimport (\n\t\"testing\"\n" +
		imports + ")\n\nfunc TestRecipeOf_" + name + "(t *testing.T) {\n" + body + "}\n"}
}

// recipes make one of each thing that recipes.md tells how to add, in the files that it
// names and no other.
var recipes = map[string][]change{
	"a placement policy": {
		{"slurmbridge/policy/policy.go", "\tCarma Name =", "\tLast Name = \"last\"\n"},
		{"slurmbridge/policy/policy.go", "Carma, MAGM", "Last, "},
		{"contrib/slurm/carma.toml", "#policy = \"magm\"\n", "# \"last\" takes the last.\n"},
		{"docs/user.md", "`best-fit`", "`last`, "},
		{"gres/choose/order.go", "\tcase policy.MAGM:", "\tcase policy.Last:\n\t\treturn true\n"},
		test("gres/choose/policy_recipe_test.go", "\n\t\"carma/gres\"\n", `
	d := GPUs("last", Input{Readings: []gres.Reading{gpu("a"), gpu("b")}, Request: shared(1, 1000), Thresholds: defaults})
	if len(d.UUIDs) != 1 || d.UUIDs[0] != "b" {
		t.Error(d)
	}
`),
		test("slurmbridge/directive/policy_recipe_test.go", "", `
	if d, err := Parse([]byte("#CARMA policy=last\n")); err != nil || d.Policy != "last" {
		t.Error(d, err)
	}
`),
		test("slurmbridge/config/policy_recipe_test.go", "", `
	c := Default()
	c.Placement.Policy = "last"
	if err := c.check(); err != nil {
		t.Error(err)
	}
`),
	},
	"an estimator method": {
		{"estimator/method/method.go", "} }", ", \"flat\""},
		{"estimator/methods.go", "\tmethod.Analytic: Analytic,", "\t\"flat\": Flat,\n"},
		{"estimator/flat.go", "", "// SPDX-License-Identifier: Apache-2.0\n\npackage estimator\n\n" +
			"// Flat is 7 MiB.\nfunc Flat(Spec) (Estimate, error) { return Estimate{MiB: 7}, " +
			"nil }\n"},
		{"contrib/slurm/carma.toml", "#estimator = \"analytic\"\n", "# \"flat\" is 7 MiB.\n"},
		test("estimator/method_recipe_test.go", "", `
	if e, err := ByMethod("flat", Spec{}); err != nil || e.MiB != 7 {
		t.Error(e, err)
	}
`),
		test("slurmbridge/config/method_recipe_test.go", "", `
	c := Default()
	c.Submit.Estimator = "flat"
	if err := c.check(); err != nil {
		t.Error(err)
	}
`),
		test("cmd/carma-estimate/internal/script/method_recipe_test.go", "", `
	if err := KnownMethod("flat"); err != nil {
		t.Error(err)
	}
`),
	},
	"a #CARMA key": {
		{"slurmbridge/directive/directive.go", "\tParams    int64  //", "\tFrozen int // frozen=, layers\n"},
		{"slurmbridge/directive/keys.go", "\t\"params\": {",
			"\t\"frozen\": {example: \"frozen=3\", set: func(d *Directive, v string) error {\n" +
				"\t\treturn count(&d.Frozen, v, 9)\n\t}},\n"},
		{"docs/user.md", "| `params` |", "| `frozen` | number | frozen layers |\n"},
		test("slurmbridge/directive/key_recipe_test.go", "\t\"fmt\"\n", `
	if d, err := Parse([]byte("#CARMA frozen=3\n")); err != nil || d.Frozen != 3 {
		t.Error(d, err)
	}
	_, err := Parse([]byte("#CARMA frozen=10\n"))
	if want := "line 1: frozen=10: must be at most 9; write frozen=3"; fmt.Sprint(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
`),
	},
	"a report column": {
		{"cmd/carma-report/internal/report/field.go", "\t{\"Note\", ",
			"\t{\"Twice\", \"TWICE\", \"twice\", integer, \"twice the attempts\",\n" +
				"\t\tfunc(j *job) value { return num(int64(2 * j.Attempts)) }},\n"},
		{"docs/json.md", "| `jobs[].note` |", "| `jobs[].twice` | number | twice the attempts |\n"},
		test("cmd/carma-report/internal/report/column_recipe_test.go", "\t\"strings\"\n", `
	columns, err := parseColumns("JobID,twice")
	if err != nil || len(columns) != 2 || columns[1].of(&job{Attempts: 3}).num != 6 {
		t.Error(columns, err)
	}
	var help strings.Builder
	HelpFormat(&help)
	if !strings.Contains(help.String(), "twice the attempts") {
		t.Error(help.String())
	}
`),
	},
	"a figure of a record that is not recorded yet": {
		{"db/attempt.go", "\tclean      bool", "\tTries      int64        `json:\"tries,omitempty\"`\n"},
		test("db/figure_recipe_test.go", "\t\"path/filepath\"\n", `
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	a := attempt(7, 0)
	a.Tries = 3
	if err := d.Put(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	all, err := d.Attempts(t.Context(), nil)
	if err != nil || len(all) != 1 || all[0].Tries != 3 {
		t.Error(all, err)
	}
`),
	},
	"a key of carma.toml": {
		{"slurmbridge/config/config.go", "\tAfter Duration `toml:\"after\"` // a large request",
			"\tMost int `toml:\"most\"` // holds at a time\n"},
		{"slurmbridge/config/config.go", "After: Duration(2 * time.Hour)}", "Most: 3, "},
		{"contrib/slurm/carma.toml", "#after = \"2h\"\n", "# Holds at a time.\n#most = 3\n"},
		test("slurmbridge/config/key_recipe_test.go", "", `
	c, err := Parse("[hold]\nmost = 4\n")
	if err != nil || c.Hold.Most != 4 || Default().Hold.Most != 3 {
		t.Error(c.Hold, err)
	}
`),
	},
}

// TestRecipes: what recipes.md says to touch for something new suffices, to build and to
// pass the tests of the packages that take part, in a copy of the tree.
func TestRecipes(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a second tree: make test-all runs it")
	}
	copied := copyTree(t)
	var packages []string
	for name, changes := range recipes {
		for _, c := range changes {
			file := filepath.Join(copied, c.file)
			whole, err := os.ReadFile(file)
			if err != nil && c.place != "" {
				t.Fatal(err)
			}
			if strings.Count(string(whole), c.place) != 1 && c.place != "" {
				t.Fatalf("%s: %s has not one %q", name, c.file, c.place)
			}
			before, after, _ := strings.Cut(string(whole), c.place)
			if c.place == "" && err == nil { // of two recipes
				t.Fatalf("%s: there is a %s", name, c.file)
			}
			if err := os.WriteFile(file, []byte(before+c.text+c.place+after), 0o644); err != nil {
				t.Fatal(err)
			}
			if dir := "./" + filepath.Dir(c.file); strings.HasSuffix(c.file, "_test.go") && !slices.Contains(packages, dir) {
				packages = append(packages, dir)
			}
		}
	}
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command("go", append([]string{"test"}, args...)...)
		cmd.Dir = copied
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("go test %v: %v\n%s", args, err, out)
		}
	}
	commands := []string{"./cmd/carma-estimate", "./cmd/carma-node", "./cmd/carma-report", "./cmd/carma-sim"}
	run(append(commands, "-update")...)
	run(append(packages, commands...)...)
	run("./docs", "-run", "^(TestConfigKeys|TestDirectiveKeys|TestJSONContract|TestLineLength)$")
}

// copyTree copies the sources.
func copyTree(t *testing.T) string {
	t.Helper()
	to := t.TempDir()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && slices.Contains([]string{".git", "bin", "build", "data", "dist", "lib"}, rel):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), text, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}
