// SPDX-License-Identifier: Apache-2.0

package db

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/db/figure"
)

// What has happened lately: a user's requeues, the ends of given jobs, the last samples of given GPUs.
func TestLately(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	now := time.Unix(1_800_000_000, 0)
	put := func(id, uid uint32, ago time.Duration, to string) {
		t.Helper()
		a := Attempt{JobID: id, UID: uid, Node: "n1", RequeuedTo: to, Start: now.Add(-ago - time.Minute), End: now.Add(-ago),
			State: "FAILED", OOMNote: fmt.Sprint("note ", id)}
		if err := d.Put(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	put(1, 1000, time.Minute, "gpu")
	put(2, 1000, 50*time.Minute, "gpu")
	put(3, 1000, 2*time.Hour, "gpu")
	put(4, 1000, time.Minute, "ex")
	put(5, 1001, time.Minute, "gpu")
	put(6, 1001, 4*time.Second, "")
	put(7, 1001, 40*time.Second, "")
	var samples []Sample
	for i, mib := range []int64{50, 60, 100, 200, 4000, 9000} {
		samples = append(samples, Sample{UUID: "GPU-0", At: now.Add(time.Duration(i-6) * 10 * time.Second), UsedMiB: mib,
			Length: 10 * time.Second, SMActPct: figure.Unknown, SMActMax: figure.Unknown})
	}
	if err := d.AddSamples(t.Context(), samples, nil); err != nil {
		t.Fatal(err)
	}
	got, err := d.Lately(t.Context(), Lately{UID: 1000, Hour: now.Add(-time.Hour), Neighbours: []uint32{6, 7, 9},
		Ended: now.Add(-30 * time.Second), UUIDs: []string{"GPU-0", "GPU-1"}, Started: now.Add(-time.Hour), Now: now})
	used := []int64{9000, 4000, 200, 100, 60}
	if err != nil || !maps.Equal(got.Requeues, map[string]int{"gpu": 2, "ex": 1}) || len(got.Ended) != 1 ||
		got.Notes[6] != "note 6" ||
		!got.Ended[6].Equal(now.Add(-4*time.Second)) || !slices.Equal(got.UsedMiB["GPU-0"], used) ||
		len(got.UsedMiB["GPU-1"]) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Requeues are counted by an index alone, or the jobs of a user who has had very many would not be counted in time.
func TestRequeuesAreCountedByAnIndex(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	var id, parent, unused int
	var plan string
	err := d.sql.QueryRow("EXPLAIN QUERY PLAN "+countRequeues, 1000, 0).Scan(&id, &parent, &unused, &plan)
	if err != nil ||
		!strings.Contains(plan, "COVERING INDEX attempt_requeued (uid=? AND end_ms>?)") {
		t.Errorf("%s, %v", plan, err)
	}
}

// Samples of a GPU are evidence only of a job in whose time they lie, and only for a while: an agent that has stopped
// leaves old ones, a clock that was set back leaves ones of the future, and what the GPU held before the job's start
// is others'.
func TestLatelyBoundsSamples(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		newest, length, ran time.Duration
		want                []int64
	}{
		"as it should be":         {10 * time.Second, 10 * time.Second, time.Hour, []int64{5, 4, 3, 2, 1}},
		"longer samples":          {time.Minute, time.Minute, time.Hour, []int64{5, 4}},
		"the agent has stopped":   {time.Hour, 10 * time.Second, 2 * time.Hour, nil},
		"the agent was just away": {40 * time.Second, 10 * time.Second, time.Hour, []int64{5, 4}},
		"the job has begun":       {10 * time.Second, 10 * time.Second, 25 * time.Second, []int64{5, 4}},
		"the job has just begun":  {10 * time.Second, 10 * time.Second, 5 * time.Second, nil},
		"the clock was set back":  {-time.Hour, 10 * time.Second, 5 * time.Hour, nil},
	} {
		d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
		var samples []Sample
		for i := range 6 {
			samples = append(samples, Sample{UUID: "GPU-0", At: now.Add(-c.newest - time.Duration(5-i)*c.length),
				UsedMiB: int64(i), Length: c.length, SMActPct: figure.Unknown, SMActMax: figure.Unknown})
		}
		if err := d.AddSamples(t.Context(), samples, nil); err != nil {
			t.Fatal(err)
		}
		got, err := d.Lately(t.Context(), Lately{Now: now, Started: now.Add(-c.ran), Ended: now.Add(-30 * time.Second),
			UUIDs: []string{"GPU-0"}})
		if err != nil || !slices.Equal(got.UsedMiB["GPU-0"], c.want) {
			t.Errorf("%s: %v, want %v, %v", name, got.UsedMiB["GPU-0"], c.want, err)
		}
	}
}

// A requeued job that never starts again ends its record.
func TestRequeuedEnds(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	a := Attempt{JobID: 1, Node: "n1", RequeuedTo: "gpu-ex", OOM: "cuda", State: "REQUEUED", Start: time.Unix(1, 0),
		End: time.Unix(2, 0)}
	if err := d.Put(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		never bool
		want  string
	}{{false, "REQUEUED"}, {true, "CANCELLED"}} {
		list, err := d.SetEnd(t.Context(), End{JobID: 1, Node: "n1", State: "CANCELLED", Never: c.never})
		if err != nil || len(list) != 1 || list[0].State != c.want || list[0].OOM != "cuda" {
			t.Errorf("%v: %+v, %v", c.never, list, err)
		}
	}
}
