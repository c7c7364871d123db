// SPDX-License-Identifier: Apache-2.0

package source

import (
	"path/filepath"
	"testing"
	"time"

	"carma/db"
)

// slurmctld gives ids again: after MaxJobId, or without its state (docs/situations.md). Two users' jobs are two jobs.
func TestAJobIDGivenAgainIsAnotherJob(t *testing.T) {
	var sources []Source
	for node, uid := range map[string]uint32{"n1": 1000, "n2": 1001} {
		d, err := db.Open(filepath.Join(t.TempDir(), "carma.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		at := time.Unix(1_700_000_000+int64(uid-1000)*365*86400, 0)
		if err := d.Put(t.Context(), db.Attempt{JobID: 5, Node: node, UID: uid, Submit: at, Start: at,
			End: at.Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		sources = append(sources, Of(d))
	}
	jobs := 0
	err := Scan(t.Context(), sources, db.Filter{}, func(list []db.Attempt) error {
		jobs++
		for _, a := range list {
			if a.UID != list[0].UID {
				t.Errorf("one job of the users %d and %d", list[0].UID, a.UID)
			}
		}
		return nil
	})
	if err != nil || jobs != 2 {
		t.Errorf("%d jobs, want 2, %v", jobs, err)
	}
}
