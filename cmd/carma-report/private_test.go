// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
)

// Where records are private, a user sees the GPUs and no name, number or bar of others' jobs.
func TestPageOfPrivateRecords(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can run carma-report as two users")
	}
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} { // others reach the copies
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path, program := filepath.Join(dir, "carma.db"), filepath.Join(dir, "carma-report")
	privateRecords(t, path)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(program, text, 0o755) // the test is main where it has this name
	}
	if err != nil {
		t.Fatal(err)
	}
	ofFirst := []string{"user-1000", "4100", "job-1000", "3.1 of 8.0 GiB booked"}
	ofSecond := []string{"user-1001", "4101", "job-1001", "4.2 of 8.0 GiB booked"}
	for uid, seen := range map[uint32][]string{
		0: append(slices.Clone(ofFirst), ofSecond...), 1000: ofFirst, 1001: ofSecond, 1002: nil,
	} {
		for _, format := range []string{"--html", "--svg"} {
			c := exec.Command(program, "gpus", format, "-S", "2023-11-01", "--db", path)
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			c.Dir, c.Stderr = dir, os.Stderr
			out, err := c.Output()
			if err != nil {
				t.Fatalf("%d %s: %v", uid, format, err)
			}
			page := string(out)
			if !strings.Contains(page, "n1 GPU 0") {
				t.Errorf("%d %s: no GPU:\n%s", uid, format, page)
			}
			page = strings.Replace(page, `<path class="d-j1" d="M0 0H16V8H0Z"/>`, "", 1) // of the legend
			for _, shape := range []string{`<rect class="d-j`, `<path class="d-j`} {
				if n, want := strings.Count(page, shape), len(seen)/len(ofFirst); n != want {
					t.Errorf("%d %s: %d times %s, want %d", uid, format, n, shape, want)
				}
			}
			for _, word := range append(slices.Clone(ofFirst), ofSecond...) {
				want := strings.Contains(strings.Join(seen, " "), word)
				if got := strings.Contains(page, word); got != want {
					t.Errorf("%d %s: has %s: %v, want %v", uid, format, word, got, want)
				}
			}
		}
	}
}

// privateRecords writes a database of two users who shared a GPU, and publishes to each what
// is theirs.
func privateRecords(t *testing.T, path string) {
	t.Helper()
	d, err := db.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for i, uid := range []uint32{1000, 1001} {
		f := figure.NoFigures()
		f.LeaseS = 100
		err := d.Put(t.Context(), db.Attempt{Cluster: "c", Node: "n1", JobID: 4100 + uint32(i), UID: uid,
			User: fmt.Sprint("user-", uid), Name: fmt.Sprint("job-", uid), Start: at(0), End: at(100), ReserveMiB: 8192,
			State: "COMPLETED", Mode: "shared", Neighbours: []uint32{4101 - uint32(i)},
			GPUs: []db.AttemptGPU{{UUID: "GPU-a", Figures: f}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	var memory []db.JobSample
	for i, mib := range []int64{3174, 4301} {
		memory = append(memory, db.JobSample{UUID: "GPU-a", At: at(0), Length: 100 * time.Second, JobID: 4100 + uint32(i),
			UID: 1000 + uint32(i), UsedMiB: mib})
	}
	err = d.AddSamples(t.Context(), []db.Sample{{UUID: "GPU-a", At: at(0), Length: 100 * time.Second, Jobs: 2,
		Memory: memory}},
		[]db.Meter{{UUID: "GPU-a", TotalMiB: 40503, Node: "n1", At: at(0)}})
	if err != nil {
		t.Fatal(err)
	}
	p := &db.Publisher{Path: path}
	defer p.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if err := p.Publish(t.Context(), db.Readers{Private: true}); err != nil {
			t.Fatal(err)
		}
		_, err := os.Stat(filepath.Join(db.PublicDir(path), "gpus.db")) // the last to be made
		switch {
		case err == nil:
			return
		case time.Now().After(end):
			t.Fatal(err)
		}
	}
}
