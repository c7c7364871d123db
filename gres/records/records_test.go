// SPDX-License-Identifier: Apache-2.0

package records

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/gres/export"
	"carma/gres/status"
	"carma/slurmbridge/config"
)

// What ends on the node is counted, once, with what its record says.
func TestEndedIsCounted(t *testing.T) {
	r := &Records{Path: filepath.Join(t.TempDir(), "carma.db")}
	gpu := db.AttemptGPU{UUID: "GPU-a", Figures: figure.Figures{PeakMiB: 1000, PeakFrom: figure.MemoryMPS}}
	for _, a := range []db.Attempt{
		{JobID: 1, Node: "n1", Method: "user", EstMiB: 1500, GPUs: []db.AttemptGPU{gpu}},
		{JobID: 2, Node: "n1", Method: "user", EstMiB: 500, GPUs: []db.AttemptGPU{gpu}, OOM: "pytorch", RequeuedTo: "gpu-ex"},
	} {
		a.Start, a.End = time.Unix(1, 0), time.Unix(2, 0)
		if err := r.Put(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint32(4) { // two have no record
		if err := r.SetEnd(t.Context(), db.End{JobID: id, Node: "n1", State: "COMPLETED"}); err != nil {
			t.Fatal(err)
		}
	}
	// Of a job that waited for its next attempt slurmctld is asked twice.
	if err := r.SetEnd(t.Context(), db.End{JobID: 2, Node: "n1", State: "REQUEUED", Again: true}); err != nil {
		t.Fatal(err)
	}
	text := export.Text(status.Node{Name: "n1"}, &r.Ended)
	for _, want := range []string{`carma_attempts_total{node="n1"} 2`, `carma_attempts_oom_total{node="n1"} 1`,
		`carma_attempts_returned_total{node="n1"} 1`,
		`carma_estimates_total{node="n1",method="user"} 1`, `carma_estimate_over_ratio_total{node="n1",method="user"} 0.5`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// A record that the database refuses comes later from the spool: an Epilog's record, and a record without an Epilog.
func TestSpooledUntilTheDatabaseTakes(t *testing.T) {
	r := &Records{Path: filepath.Join(t.TempDir(), "carma.db")}
	if err := os.Mkdir(r.Path, 0o700); err != nil { // no database
		t.Fatal(err)
	}
	for id, put := range []func(context.Context, db.Attempt) error{r.Put, r.PutLost} {
		err := put(t.Context(), db.Attempt{JobID: uint32(id), Node: "n1", Start: time.Unix(1, 0), End: time.Unix(2, 0)})
		if err == nil || !strings.HasSuffix(err.Error(), "; spooled") {
			t.Errorf("job %d: %v", id, err)
		}
	}
	if err := os.Remove(r.Path); err != nil {
		t.Fatal(err)
	}
	if err := r.SetEnd(t.Context(), db.End{JobID: 9, Node: "n1", State: "COMPLETED"}); err != nil {
		t.Fatal(err)
	}
	if list, err := r.db.Attempts(t.Context(), nil); err != nil || len(list) != 2 {
		t.Errorf("records %+v, %v", list, err)
	}
}

// An agent that starts before the clock is right, a year ahead, keeps the samples of before.
func TestTidyWithAClockAhead(t *testing.T) {
	r := &Records{Path: filepath.Join(t.TempDir(), "carma.db"), Keep: config.Default().Accounting}
	for _, age := range []time.Duration{370 * 24 * time.Hour, time.Minute} { // of the newest sample, by the clock
		newest := time.Now().Add(-age).Truncate(time.Second)
		samples := []db.Sample{{UUID: "GPU-a", At: newest.AddDate(0, 0, -80), Length: time.Minute},
			{UUID: "GPU-a", At: newest, Length: time.Minute}}
		if err := r.AddSamples(t.Context(), samples, []db.Meter{{UUID: "GPU-a"}}); err != nil {
			t.Fatal(err)
		}
		if err := r.Tidy(t.Context()); err != nil {
			t.Fatal(err)
		}
		kept, err := r.db.Series(t.Context(), "GPU-a", newest.AddDate(0, 0, -81), newest.AddDate(0, 0, -1))
		if err != nil || len(kept) == 0 {
			t.Errorf("newest sample %s old: of 80 days before there are %v, %v", age, kept, err)
		}
	}
}
