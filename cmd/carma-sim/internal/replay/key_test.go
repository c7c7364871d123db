// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"fmt"
	"testing"

	"carma/cmd/carma-sim/internal/workload"
	"carma/slurmbridge/policy"
)

// Runs of one key teach each other, jobs that are to be alone never share, and a GPU with
// two jobs is held once.
func TestKeysAndAlone(t *testing.T) {
	three := []string{"0 100 1 1000 20", "200 100 1 1000 20", "200 100 1 1000 20"}
	for _, c := range []struct {
		name  string
		key   string
		past  int
		alone bool
		want  string
		heldS float64
	}{
		{"each its own", "", 0, false, "0-100 200-300 300-400", 300},
		{"one key", "k", 0, false, "0-100 200-300 200-300", 200},
		{"one key, alone", "k", 0, true, "0-100 200-300 300-400", 300},
		{"each known from before", "", 1, false, "0-100 200-300 200-300", 200},
	} {
		s := exact(1, policy.MAGM)
		s.Estimator, s.Record = History, true
		s.Model.GPU.Law = "none"
		w := jobs(three...)
		for i := range w.Jobs {
			w.Jobs[i].Key, w.Jobs[i].Alone = c.key, c.alone
			w.Jobs[i].Past = workload.Past{Runs: c.past, PeakMiB: 1000, SMActPct: 20}
		}
		r, err := Run(s, w)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, j := range r.Jobs {
			got += fmt.Sprintf(" %.6g-%.6g", j.StartS, j.EndS)
		}
		if got != " "+c.want || r.HeldS != c.heldS {
			t.Errorf("%s: %s, %g s held; want %s, %g", c.name, got, r.HeldS, c.want, c.heldS)
		}
	}
}
