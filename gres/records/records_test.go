// SPDX-License-Identifier: Apache-2.0

package records

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/gres/export"
	"carma/gres/status"
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
