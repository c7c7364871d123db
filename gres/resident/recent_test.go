// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRecent(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, "7", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stat := func(state, start string) {
		t.Helper()
		write("stat", "7 (a) (b c) "+state+strings.Repeat(" 1", 18)+" "+start+" 5\n")
	}
	r := &Recent{Proc: Proc{Root: root}}
	if o := r.Owner(7); !o.Gone {
		t.Errorf("nobody there: %+v", o)
	}
	write("status", "Name:\ta) (b c\nState:\tS\nPPid:\t1\nUid:\t1000\t1000\t1000\t1000\n")
	stat("S", "100")
	if o := r.Owner(7); o.JobID != 0 {
		t.Errorf("of no job yet: %+v", o)
	}
	write("cgroup", "0::/system.slice/slurmstepd.scope/job_12/step_0\n")
	if o := r.Owner(7); o.JobID != 12 {
		t.Errorf("got %+v", o)
	}
	write("cgroup", "0::/system.slice/slurmstepd.scope/job_13/step_0\n")
	if o := r.Owner(7); o.JobID != 12 {
		t.Errorf("forgotten: %+v", o)
	}
	stat("S", "200") // another process of the same number
	if o := r.Owner(7); o.JobID != 13 {
		t.Errorf("taken for the old one: %+v", o)
	}
	write("status", "Name:\tx\nState:\tZ (zombie)\nPPid:\t1\nUid:\t0\t0\t0\t0\n")
	stat("Z", "200")
	if o := r.Owner(7); !o.Gone {
		t.Errorf("a zombie: %+v", o)
	}
}
