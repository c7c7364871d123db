// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"carma/cmd/internal/cli"
	"carma/db"
	"carma/db/figure"
)

// sacct is a program that prints jobs, or their names, with the delimiter that it is
// asked for in place of \x1f; and the carma.toml that names it.
func sacct(t *testing.T, status int, jobs, names []string) (config string) {
	t.Helper()
	dir := t.TempDir()
	script := `#!/bin/sh
for a; do case $a in --delimiter=*) sep=${a#*=};; --format=*AdminComment) file=jobs;; --format=*) file=names;; esac; done
sed "s/\x1f/$sep/g; s/\$/$sep/" '` + dir + `'/$file
[ ` + fmt.Sprint(status) + ` = 0 ] || { echo "sacct: error: slurmdbd is away" >&2; exit 1; }
`
	config = filepath.Join(dir, "carma.toml")
	for name, content := range map[string]string{"jobs": strings.Join(jobs, "\n"), "names": strings.Join(names, "\n"),
		"sacct": script, "carma.toml": "[slurm]\nbin_dir = \"" + dir + "\"\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return config
}

// carried is a comment with the record of a job, and of the job with the id of its array.
func carried(t *testing.T, before string, ids ...uint32) string {
	t.Helper()
	var list []db.Attempt
	for _, id := range ids {
		list = append(list, db.Attempt{Cluster: "x", JobID: id, Node: "n1", User: "u", UID: 1001, State: "COMPLETED",
			Mode: "shared", Method: "user", ReserveMiB: 1024, Start: at(float64(id)), End: at(float64(id) + 60),
			GPUs: []db.AttemptGPU{{UUID: "GPU-a", Figures: figure.NoFigures()}}})
	}
	comment, err := db.MergeComment(ids[len(ids)-1], db.Comment{ArrayJobID: ids[0], Text: before}, list)
	if err != nil {
		t.Fatal(err)
	}
	return comment
}

// Two clusters with the same ids, an array whose task carries another's record, a
// state and a field of a Slurm to come, steps, jobs of others' and of no record, a
// spoiled record: what can be read is shown, and what is not known is "-".
func TestFromSlurmdbd(t *testing.T) {
	line := func(cluster, raw, id, state, comment string) string {
		return strings.Join([]string{cluster, raw, id, "1001", "alice", "gpu", state, "1698800000", comment}, "\x1f")
	}
	name := func(cluster, raw string) string {
		return strings.Join([]string{cluster, raw, "ml", "train|x"}, "\x1f")
	}
	config := sacct(t, 0, []string{
		line("east", "7", "7", "COMPLETED", carried(t, "JS1:AAAA", 7)),
		line("east", "7.batch", "7.batch", "COMPLETED", ""),
		line("west", "7", "7", "TELEPORTED", carried(t, "", 7)),
		line("east", "10", "10_2", "COMPLETED", ""),
		line("east", "11", "10_1", "COMPLETED", carried(t, "", 10, 11)),
		line("east", "12", "12", "COMPLETED", "somebody's words"),
		line("east", "13", "13", "COMPLETED", "carma1:spoiled"),
		// of a job that slurmdbd has purged
		line("east", "14", "14", "COMPLETED", carried(t, "", 99)),
		// of another job, which is there
		line("east", "15", "15", "COMPLETED", carried(t, "", 16)),
		strings.ReplaceAll(line("east", "16", "16", "COMPLETED", carried(t, "", 16)), "1001", "1002"), // of another user's
	}, []string{name("east", "7"), name("west", "7"), name("east", "10"), name("east", "11"), name("east", "15"),
		name("east", "16")})
	var out bytes.Buffer
	args := []string{"--from", "slurmdbd", "--config", config, "-S", "2023-11-01", "-n", "-o",
		"Cluster,JobID,JobName,State,PeakMem,Energy"}
	if err := run(context.Background(), args, &out); err != nil {
		t.Fatal(err)
	}
	want := "east  7     train|x  COMPLETED  -  -\nwest  7     train|x  COMPLETED  -  -\neast  10_2  train|x  " +
		"COMPLETED  -  -\neast  10_1  train|x  COMPLETED  -  -\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	failing := sacct(t, 1, nil, nil)
	err := run(context.Background(), []string{"--from", "slurmdbd", "--config", failing}, io.Discard)
	if cli.Status(err) != cli.ExitUnavailable || !strings.Contains(err.Error(), "slurmdbd is away") {
		t.Errorf("status %d: %v", cli.Status(err), err)
	}
}

// The drawings are XML, and no page needs a script or anything from elsewhere.
func TestPagesAreWhole(t *testing.T) {
	files, err := filepath.Glob("testdata/*.svg")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(bytes.NewReader(text))
		for err == nil {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", f, err)
		}
	}
	files, err = filepath.Glob("testdata/*.html")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"<script", "src=", "href=", "@import", "url("} {
			if bytes.Contains(text, []byte(bad)) {
				t.Errorf("%s has %s", f, bad)
			}
		}
	}
}
