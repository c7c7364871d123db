// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// change puts text before a place in a file. An empty place makes the file.
type change struct{ file, place, text string }

// test is a file that tests what the changes brought.
func test(file, imports, body string) change {
	pkg := filepath.Base(filepath.Dir(file))
	return change{file, "", "package " + pkg + "\n\nimport (\n\t\"testing\"\n" + imports +
		")\n\nfunc TestRecipe(t *testing.T) {\n" + body + "}\n"}
}

// TestRecipes: what CONTRIBUTING says to touch for something new suffices. The changes lie
// over the tree (go test -overlay) and not in it.
func TestRecipes(t *testing.T) {
	for name, changes := range map[string][]change{
		"a placement policy": {
			{"slurmbridge/policy/policy.go", "\tBestFit    Name =", "\tLast Name = \"last\"\n"},
			{"slurmbridge/policy/policy.go", "BestFit}\n", "Last, "},
			{"gres/choose/order.go", "\tcase MAGM:", "\tcase \"last\":\n\t\treturn true\n"},
			test("gres/choose/recipe_test.go", "\n\t\"carma/gres\"\n", `
	d := GPUs("last", Input{Readings: []gres.Reading{gpu("a"), gpu("b")}, Request: shared(1, 1000), Thresholds: defaults})
	if len(d.UUIDs) != 1 || d.UUIDs[0] != "b" {
		t.Error(d)
	}
`),
			test("slurmbridge/directive/recipe_test.go", "", `
	if d, err := Parse([]byte("#CARMA policy=last\n")); err != nil || d.Policy != "last" {
		t.Error(d, err)
	}
`),
			test("slurmbridge/config/recipe_test.go", "", `
	c := Default()
	c.Placement.Policy = "last"
	if err := c.check(); err != nil {
		t.Error(err)
	}
`),
		},
		"an estimator method": {
			{"estimator/method/method.go", "Analytic} }", "\"flat\", "},
			{"estimator/methods.go", "\tmethod.Analytic: Analytic,", "\t\"flat\": Flat,\n"},
			{"estimator/flat.go", "", "package estimator\n\nfunc Flat(Spec) (Estimate, error) { return Estimate{MiB: 7}, " +
				"nil }\n"},
			test("estimator/recipe_test.go", "", `
	if e, err := ByMethod("flat", Spec{}); err != nil || e.MiB != 7 {
		t.Error(e, err)
	}
`),
			test("slurmbridge/config/recipe_test.go", "", `
	c := Default()
	c.Submit.Estimator = "flat"
	if err := c.check(); err != nil {
		t.Error(err)
	}
`),
			test("slurmbridge/script/recipe_test.go", "", `
	if err := KnownMethod("flat"); err != nil {
		t.Error(err)
	}
`),
		},
		"a report column": {
			{"db/report/field.go", "\t{\"Note\", ", "\t{\"Twice\", \"TWICE\", \"twice\", integer, \"twice the attempts\",\n" +
				"\t\tfunc(j *job) value { return num(int64(2 * j.Attempts)) }},\n"},
			test("db/report/recipe_test.go", "\t\"strings\"\n", `
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
		"a key of carma.toml": {
			{"slurmbridge/config/config.go", "\tTimeout Duration `toml:\"timeout\"`",
				"\tMost int `toml:\"most\"` // holds at a time\n"},
			{"slurmbridge/config/config.go", "Timeout: Duration(30 * time.Minute)}", "Most: 3, "},
			test("slurmbridge/config/recipe_test.go", "", `
	c, err := Parse("[hold]\nmost = 4\n")
	if err != nil || c.Hold.Most != 4 || Default().Hold.Most != 3 {
		t.Error(c.Hold, err)
	}
`),
		},
	} {
		t.Run(name, func(t *testing.T) { recipe(t, changes) })
	}
}

func recipe(t *testing.T, changes []change) {
	dir, texts, packages := t.TempDir(), map[string]string{}, []string{}
	for _, c := range changes {
		text, known := texts[c.file]
		if !known && c.place != "" {
			whole, err := os.ReadFile(filepath.Join(root, c.file))
			if err != nil {
				t.Fatal(err)
			}
			text = string(whole)
		}
		if strings.Count(text, c.place) != 1 && c.place != "" {
			t.Fatalf("%s has not one %q", c.file, c.place)
		}
		before, after, _ := strings.Cut(text, c.place)
		texts[c.file] = before + c.text + c.place + after
		if strings.HasSuffix(c.file, "_test.go") {
			packages = append(packages, "./"+filepath.Dir(c.file))
		}
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range texts {
		instead := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(instead, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(top, file)] = instead
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, list, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", append([]string{"test", "-overlay", path, "-run", "^TestRecipe$", "-v"}, packages...)...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "--- PASS: TestRecipe") != len(packages) {
		t.Errorf("%v\n%s", err, out)
	}
}
