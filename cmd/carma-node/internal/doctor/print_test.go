// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"carma/slurmbridge/version"
)

// TestPrintJSON compares the whole output; docs/json.md is compared with the same file.
func TestPrintJSON(t *testing.T) {
	const golden = "testdata/findings.json"
	var b bytes.Buffer
	if err := PrintJSON(&b, []Finding{
		{Level: Pass, Part: "plugin", What: "job_submit/carma is loaded"},
		{Level: Fail, Part: "hooks", What: "Epilog is not set", Do: "set Epilog in slurm.conf"},
	}); err != nil {
		t.Fatal(err)
	}
	got := strings.Replace(b.String(), version.String(), "VERSION", 1)
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := read(t, golden); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
