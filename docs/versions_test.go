// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables that are made of data anew")

// versionsHead begins the table of releases in slurm-conf.md.
const versionsHead = "| Slurm | installed from | run | date | commit | passed | failed | skipped " +
	"|\n|---|---|---|---|---|---|---|---|\n"

// versionsTable makes the table of the rows that contrib/versions/record.sh has written.
func versionsTable(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "contrib", "versions", "runs.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString(versionsHead)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 8 {
			t.Fatalf("runs.tsv: %d fields in %q", len(f), line)
		}
		if f[2] == "plugin" {
			f[5] = "all"
		}
		for i := range f[6:] { // a number, and names
			n, names, _ := strings.Cut(f[6+i], " ")
			if f[6+i] = n; names != "" {
				f[6+i] += ": " + strings.ReplaceAll(names, " ", ", ")
			}
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(f, " | "))
	}
	return b.String()
}

// The table of releases holds what was run, and nothing else.
func TestVersionsTable(t *testing.T) {
	page := filepath.Join(root, "docs", "slurm-conf.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), versionsHead)
	if !found {
		t.Fatal("slurm-conf.md has no table of releases")
	}
	_, after, _ := strings.Cut("\n"+rest, "\n\n")
	want := before + versionsTable(t) + "\n" + after
	if string(text) == want {
		return
	}
	if !*update {
		t.Fatal("slurm-conf.md has another table than contrib/versions/runs.tsv; run: go test ./docs -run " +
			"TestVersionsTable -update")
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
