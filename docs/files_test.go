// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFiles: the files that the tables of architecture.md name are in the package of the row, and the files that
// recipes.md names are somewhere.
func TestFiles(t *testing.T) {
	page, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	var paths []string
	for _, top := range []string{"cmd", "slurmbridge", "gres", "prolog", "estimator", "db", "contrib", "docs"} {
		err := filepath.WalkDir(filepath.Join("..", top), func(path string, _ fs.DirEntry, err error) error {
			there[strings.TrimPrefix(path, "../")] = true
			paths = append(paths, path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	name, folder := regexp.MustCompile(`[a-z0-9_/]+\.(go|c)\b`), regexp.MustCompile("^\\| `([a-z/0-9-]+)` \\|")
	pkg, files := "", 0
	for line := range strings.Lines(string(page)) {
		switch {
		case strings.HasPrefix(line, "| part of `gres/agent`"):
			pkg = "gres/agent"
		case strings.HasPrefix(line, "| part | file"):
			pkg = "prolog"
		case !strings.HasPrefix(line, "|"):
			pkg = ""
		}
		if m := folder.FindStringSubmatch(line); m != nil && there[m[1]] {
			pkg = m[1]
		}
		for _, file := range name.FindAllString(line, -1) {
			if files++; strings.HasPrefix(line, "|") && !there[file] && !there[pkg+"/"+file] {
				t.Errorf("architecture.md: %s is not in %q", file, pkg)
			}
		}
	}
	if files < 60 {
		t.Errorf("architecture.md names %d files", files)
	}
	page, err = os.ReadFile("recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("`([a-z0-9_/-]+\\.(go|c))`").FindAllStringSubmatch(string(page), -1) {
		if !slices.ContainsFunc(paths, func(path string) bool { return strings.HasSuffix(path, "/"+m[1]) }) {
			t.Errorf("recipes.md: there is no %s", m[1])
		}
	}
}

// Each test that a page or .ci/run names is there: go test -run with a name that no test has passes, and
// .ci/run named one for months that was gone.
func TestNamedTests(t *testing.T) {
	defined := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "build") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(text, -1) {
			defined[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := filepath.Glob("*.md")
	more, _ := filepath.Glob("*/*.md")
	name := regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w*\b`)
	outside := []string{"../README.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../.ci/run", "../Makefile",
		"../contrib/long.sh"}
	for _, path := range slices.Concat(pages, more, outside) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range name.FindAllString(string(text), -1) {
			if !defined[n] && !begins(defined, n) {
				t.Errorf("%s names %s, which is no test", path, n)
			}
		}
	}
}

// begins tells whether a name is the beginning of tests, as in "-run TestAbuse".
func begins(defined map[string]bool, name string) bool {
	for d := range defined {
		if strings.HasPrefix(d, name) {
			return true
		}
	}
	return false
}
