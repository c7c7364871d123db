// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"carma/gres"
	"carma/gres/lease"
	"carma/gres/output"
	"carma/prolog/oomscan"
	"carma/prolog/userfile"
	"carma/slurmbridge/jobenv"
)

// Of a job that nobody's hooks have seen, files are looked into only where the job failed on its own and the agent has
// seen one; slurmctld is asked nothing.
func TestRecorder(t *testing.T) {
	failed := jobenv.Exit{Code: 1}
	for _, c := range []struct {
		name   string
		exit   jobenv.Exit
		failed bool
		file   bool
		kind   oomscan.Kind
		grade  oomscan.Grade
		state  string
		oom    string
		asked  int
	}{
		{"says so", failed, true, true, oomscan.GPUMemory, oomscan.Strong, "OUT_OF_MEMORY", "pytorch", 1},
		{"a weak word alone", failed, true, true, oomscan.GPUMemory, oomscan.Weak, "FAILED", "", 1},
		{"wrote to no file", failed, true, false, "", "", "FAILED", "", 0},
		{"cancelled", failed, false, true, oomscan.GPUMemory, oomscan.Strong, "NODE_FAIL", "", 0},
		{"ended well", jobenv.Exit{}, false, true, oomscan.GPUMemory, oomscan.Strong, "NODE_FAIL", "", 0},
	} {
		w := newWorld(t)
		w.stderr.Signature, w.stderr.Kind, w.stderr.Grade = "pytorch", c.kind, c.grade
		if err := w.book.PutReadings(t.Context(), idle(2)); err != nil {
			t.Fatal(err)
		}
		key := jobenv.JobKey{JobID: 7}
		about := []byte(`{"User":"alice","Partition":"gpu"}`)
		if err := w.book.Observe(t.Context(), lease.Job{JobKey: key, UID: 1000, About: about},
			[]lease.Claim{{UUID: idle(2)[0].UUID, Whole: true}}); err != nil {
			t.Fatal(err)
		}
		held, _, err := w.book.Find(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(w.RunDir, "jobs", "7.0.stderr")
		if list, err := json.Marshal([]output.File{{Path: []byte("/home/alice/train.err")}}); err != nil || c.file &&
			os.WriteFile(path, list, 0o600) != nil {
			t.Fatal(err)
		}
		r := Recorder{w.Node, w.book, w.records, func(_ context.Context, uid uint32) (userfile.User, bool) {
			return userfile.User{UID: uid}, true
		}}
		a := r.Record(t.Context(), held, c.exit, c.failed)
		if a.State != c.state || a.OOM != c.oom || len(w.asked) != c.asked || a.User != "alice" || len(a.GPUs) != 1 {
			t.Errorf("%s: %+v, asked %+v", c.name, a, w.asked)
		}
		if len(w.slurm.calls) > 0 || len(w.records.attempts) > 0 {
			t.Errorf("%s: calls %v", c.name, w.slurm.calls)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s: the list is left", c.name)
		}
		if s, err := w.book.Snapshot(t.Context()); err != nil || len(s.Leases) != 1 || s.Leases[0].Daemon != gres.Daemon("") {
			t.Errorf("%s: leases %+v, %v", c.name, s.Leases, err)
		}
	}
}
