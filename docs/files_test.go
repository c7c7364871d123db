// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestFiles: the files that the tables of architecture.md name are there, each in the package of its row.
func TestFiles(t *testing.T) {
	page, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, top := range []string{"cmd", "slurmbridge", "gres", "prolog", "estimator", "db"} {
		err := filepath.WalkDir(filepath.Join("..", top), func(path string, _ fs.DirEntry, err error) error {
			there[strings.TrimPrefix(path, "../")] = true
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
}
