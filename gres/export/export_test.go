// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"carma/db/figure"
	"carma/gres"
	"carma/gres/status"
	"carma/slurmbridge/jobenv"
)

func TestText(t *testing.T) {
	n := status.Node{Name: "n1", GPUs: []status.GPU{
		{GPU: gres.GPU{UUID: "GPU-a", TotalMiB: 40536}, SMActPct: 41.5, UsedMiB: 1024, LeasedMiB: 2048, OpenMiB: 36000,
			AgeS: 0.5, Leases: []status.Lease{{JobID: 7, User: "alice"}}},
		{GPU: gres.GPU{UUID: "GPU-b", Index: 1, TotalMiB: 40536}, SMActPct: figure.Unknown, Closed: "lost",
			Quarantine: gres.CauseXid},
	}}
	var ended Ended
	ended.Add(false, false, "user", 15, 10)
	ended.Add(false, false, "user", 12, 10)
	ended.Add(false, false, "history", 9, 10)
	ended.Add(false, false, "history", 10, 10)
	ended.Add(false, false, "none", 0, 10) // no estimate
	ended.Add(true, true, "user", 4, 4)    // its peak is where it was stopped
	ended.Add(true, false, "user", 4, 0)
	ended.Add(false, true, "user", 15, 1) // with its MPS server
	want, err := os.ReadFile("testdata/node.prom")
	if err != nil {
		t.Fatal(err)
	}
	if got := Text(n, &ended); got != string(want) {
		t.Errorf("got\n%s", got)
	}
	path := filepath.Join(t.TempDir(), "carma.prom")
	for range 2 { // the second in place of the first
		if err := writeText(path, n, &ended); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := os.ReadFile(path); string(got) != string(want) {
		t.Error("the file holds something else")
	}
	if i, err := os.Stat(path); err != nil || i.Mode() != 0o644 {
		t.Errorf("%v, %v", i.Mode(), err)
	}
	if err := writeText("/nonexistent/carma.prom", n, &ended); err == nil {
		t.Error("no directory: no error")
	}
}

// Whatever stands in records as a method: a label is one line of printable text, and there
// are few of them.
func TestLabelsOfForeignText(t *testing.T) {
	var ended Ended
	for i := range 1000 {
		ended.Add(false, false, fmt.Sprintf("\x1b]0;x\u202e\"\\\n%d", i), 15, 10)
	}
	text := ended.text("n1")
	if n := strings.Count(text, "carma_estimates_total{"); n != mostMethods {
		t.Errorf("%d series", n)
	}
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Fatalf("%q in\n%s", r, text)
		}
	}
	if want := `carma_estimates_total{node="n1",method="?]0;x?\"\\?0"} 1` + "\n"; !strings.Contains(text, want) {
		t.Errorf("no %s in\n%s", want, text)
	}
}

func TestWriteJobs(t *testing.T) {
	dir := t.TempDir()
	readings := []gres.Reading{{GPU: gres.GPU{UUID: "a"}}, {GPU: gres.GPU{UUID: "b", Index: 1}},
		{GPU: gres.GPU{UUID: "c", Index: 2}}, {GPU: gres.GPU{UUID: "m", Index: 3, MIG: true}}}
	held := func(uuid string, id uint32) gres.Lease { return gres.Lease{UUID: uuid, Job: jobenv.JobKey{JobID: id}} }
	check := func(want map[string]string) {
		t.Helper()
		files, err := os.ReadDir(dir)
		if err != nil || len(files) != len(want) {
			t.Errorf("%d files, want %d, %v", len(files), len(want), err)
		}
		for name, text := range want {
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != text {
				t.Errorf("%s: %q, %v, want %q", name, got, err, text)
			}
		}
	}
	for _, c := range []struct {
		leases []gres.Lease
		want   map[string]string
	}{
		{nil, nil},
		{[]gres.Lease{held("a", 12), held("a", 7), held("b", 7), held("m", 9)},
			map[string]string{"0": "7\n12\n", "1": "7\n"}},
		{[]gres.Lease{held("a", 12)}, map[string]string{"0": "12\n", "1": ""}},
	} {
		if err := writeJobs(dir, readings, c.leases); err != nil {
			t.Fatal(err)
		}
		check(c.want)
	}
	// What stands there already is not written again.
	before, _ := os.Stat(filepath.Join(dir, "0"))
	if err := writeJobs(dir, readings, []gres.Lease{held("a", 12)}); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(filepath.Join(dir, "0")); !os.SameFile(before, after) {
		t.Error("written again")
	}
	if err := writeJobs("/nonexistent", readings, []gres.Lease{held("a", 12)}); err == nil {
		t.Error("no directory: no error")
	}
}
