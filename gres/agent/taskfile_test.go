// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"testing"

	"carma/slurmbridge/jobenv"
)

// A lease that has lost its job takes the job's task file with it, unless a later attempt has
// written its own.
func TestDropTaskFile(t *testing.T) {
	a := &Agent{RunDir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(a.RunDir, "jobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(a.RunDir, "jobs", "7.json")
	for text, kept := range map[string]bool{`{"restart":1}`: false, `{"restart":2}`: true, `{`: false} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		a.dropTaskFile(jobenv.JobKey{JobID: 7, Restart: 1})
		if _, err := os.Stat(path); (err == nil) != kept {
			t.Errorf("%s: kept %t, want %t", text, err == nil, kept)
		}
	}
}
