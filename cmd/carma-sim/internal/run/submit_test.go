// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"

	"carma/cmd/carma-sim/internal/live"
	"carma/cmd/carma-sim/internal/replay"
	"carma/cmd/carma-sim/internal/workload"
)

var update = flag.Bool("update", false, "write the golden file anew")

// What --json prints of a trace on a cluster (docs/sim.md).
func TestSubmissionJSON(t *testing.T) {
	got := replay.Result{MakespanS: 100, WaitS: 10, ExecS: 20, JCTS: 30, EnergyJ: 4000, OOM: 1}
	want := replay.Figures{
		MakespanS: replay.Spread{Mean: 99}, EnergyJ: replay.Spread{Mean: 3999}, OOM: replay.Spread{Mean: 1},
	}
	latency := live.Latency{Schedule: time.Second, Launch: 50 * time.Millisecond}
	text, err := json.MarshalIndent(submitted(&workload.Workload{Name: "mixed"}, 120, latency, got, want), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	const golden = "testdata/submit.json"
	if *update {
		if err := os.WriteFile(golden, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(golden); err != nil || !bytes.Equal(have, text) {
		t.Errorf("got\n%s\nwant\n%s%v", text, have, err)
	}
}
