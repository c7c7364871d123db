// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
)

// SM activity is that of the last attempt of which it is known, over all its nodes.
func TestMergeSMAct(t *testing.T) {
	part := func(restart uint32, node string, smact, most figure.Measured, how figure.Quality,
		leaseS float64) db.Attempt {
		return db.Attempt{
			JobID:   1,
			Restart: restart,
			Node:    node,
			Start:   time.Unix(1, 0),
			End:     time.Unix(2, 0),
			Total:   db.Total{SMActPct: smact, SMActMax: most, SMActHow: how, LeaseS: leaseS},
		}
	}
	none := func(restart uint32, node string) db.Attempt {
		return part(restart, node, figure.Unknown, figure.Unknown, figure.QualityNone, 10)
	}
	for name, c := range map[string]struct {
		attempts   []db.Attempt
		mean, most figure.Measured
		how        figure.Quality
	}{
		"two nodes": {[]db.Attempt{part(0, "a", 20, 30, figure.Exact, 100),
			part(0, "b", 50, 90, figure.Exact, 50)}, 30, 90, figure.Exact},
		"one of them shared": {[]db.Attempt{part(0, "a", 20, 95, figure.Exact, 50),
			part(0, "b", 40, 90, figure.Shared, 50)}, 30, 95, figure.Shared},
		"one of them not known": {[]db.Attempt{none(0, "a"), part(0, "b", 40, 90, figure.Exact, 50)}, 40, 90,
			figure.Exact},
		"the other not known": {[]db.Attempt{part(0, "a", 40, 90, figure.Exact, 50), none(0, "b")}, 40, 90,
			figure.Exact},
		"the last attempt counts": {[]db.Attempt{part(0, "a", 40, 90, figure.Shared, 50),
			part(1, "a", 10, 20, figure.Exact, 5), part(1, "b", 30, 40, figure.Exact, 5)}, 20, 40, figure.Exact},
		"the last one is unknown": {[]db.Attempt{part(0, "a", 40, 90, figure.Shared, 50), none(1, "a")}, 40, 90,
			figure.Shared},
	} {
		var j job
		for range 2 { // what is used again is as new
			if j.merge(c.attempts); j.figures.SMActPct != c.mean || j.figures.SMActMax != c.most ||
				j.figures.SMActHow != c.how {
				t.Errorf("%s: %v, %v, %s", name, j.figures.SMActPct, j.figures.SMActMax, j.figures.SMActHow)
			}
		}
	}
}

// What was saved counts work that was lost by sharing once, and is known where it is known
// of all attempts.
func TestSavedOfSeveralAttempts(t *testing.T) {
	part := func(restart uint32, requeued string, leaseS, heldS float64, alone figure.Measured) db.Attempt {
		return db.Attempt{JobID: 1, Restart: restart, RequeuedTo: requeued, Start: time.Unix(1, 0), End: time.Unix(2, 0),
			Total: db.Total{LeaseS: leaseS, HeldS: heldS, AloneS: alone, LawS: 2 * leaseS / 3}}
	}
	for name, c := range map[string]struct {
		attempts        []db.Attempt
		saved, slowdown figure.Measured
	}{
		"one":                       {[]db.Attempt{part(0, "", 100, 50, 80)}, 30, 1.25},
		"returned by Slurm":         {[]db.Attempt{part(0, "", 100, 50, 80), part(1, "", 100, 50, 80)}, 60, 1.25},
		"done again":                {[]db.Attempt{part(0, "ex", 100, 50, 80), part(1, "", 100, 100, 100)}, -50, 1.11},
		"done again, the first one": {[]db.Attempt{part(0, "ex", 100, 50, 80)}, figure.Unknown, 1.25},
		"the first one not known": {[]db.Attempt{part(0, "", 100, 50, figure.Unknown),
			part(1, "", 9, 9, 9)}, figure.Unknown, figure.Unknown},
		"the last one not known": {[]db.Attempt{part(0, "", 9, 9, 9),
			part(1, "", 100, 50, figure.Unknown)}, figure.Unknown, figure.Unknown},
		"lost, how much not known": {[]db.Attempt{part(0, "ex", 100, 50, figure.Unknown),
			part(1, "", 9, 9, 9)}, -50, figure.Unknown},
		"one that never held a GPU": {[]db.Attempt{part(0, "", 0, 0, figure.Unknown), part(1, "", 100, 50, 80)}, 30, 1.25},
		"none of which had a figure": {[]db.Attempt{part(0, "", 0, 0, figure.Unknown),
			part(1, "", 0, 0, figure.Unknown)}, figure.Unknown, figure.Unknown},
	} {
		var j job
		for range 2 { // what is used again is as new
			j.merge(c.attempts)
			same := func(a, b figure.Measured) bool { return a == b || !a.Known() && !b.Known() }
			if !same(j.savedS(), c.saved) || !same(j.slowdown(), c.slowdown) {
				t.Errorf("%s: saved %v, slowdown %v, want %v, %v", name, j.savedS(), j.slowdown(), c.saved, c.slowdown)
			}
		}
	}
	var j job
	lawless := part(0, "", 100, 50, 80)
	lawless.Total.LawS = 0
	if j.merge([]db.Attempt{lawless, part(1, "", 100, 50, 80)}); j.expectedSlowdown().Known() {
		t.Errorf("expected slowdown %v of attempts of which one is not known", j.expectedSlowdown())
	}
}

// A job that its MPS server's fault ended has not run out of memory.
func TestNotesOfAFault(t *testing.T) {
	var j job
	j.merge([]db.Attempt{
		{JobID: 1, RequeuedTo: "ex", OOMNote: "its MPS server has faulted", State: "REQUEUED", Total: db.TotalOf(nil)},
		{JobID: 1, Restart: 1, State: "COMPLETED", Total: db.TotalOf(nil)},
	})
	got := strings.Join(notes(&jobPage{job: &j}), "\n")
	if want := "it was requeued to run alone on ex: its MPS server has faulted"; !strings.Contains(got, want) ||
		strings.Contains(got, "memory") {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// A line that was not read is said first, of one attempt or several: it may be why the job booked what it did.
func TestNotesOfAnUnreadLine(t *testing.T) {
	first := db.Attempt{JobID: 1, RequeuedTo: "ex", OOM: "cuda", State: "REQUEUED", Unread: 12, Total: db.TotalOf(nil)}
	second := first
	second.Restart, second.RequeuedTo, second.OOM, second.State = 1, "", "", "COMPLETED"
	for _, attempts := range [][]db.Attempt{{second}, {first, second}} {
		var j job
		j.merge(attempts)
		list := notes(&jobPage{job: &j})
		if !strings.HasPrefix(list[0], "line 12 of its script was meant for CARMA and was not read") {
			t.Errorf("%d attempts: %q", len(attempts), list)
		}
	}
}

// Lines are as wide as they look, and not as many bytes.
func TestWrap(t *testing.T) {
	for sign, want := range map[string]string{"* ": "* äöü äöü\n  äöü\n", "→ ": "→ äöü äöü\n  äöü\n"} {
		if got := wrap(sign, "äöü äöü äöü", 9); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What a report advises is above what failed, and comes of a figure of the job's own.
func TestAdviceAfterAnOOM(t *testing.T) {
	attempt := func(restart uint32, state, oom, to string, booked, peak int64, from figure.MemorySource) db.Attempt {
		g := db.AttemptGPU{UUID: "GPU", Figures: figure.NoFigures()}
		g.PeakMiB, g.PeakFrom, g.SharedS = peak, from, 10
		return db.Attempt{JobID: 1, Restart: restart, State: state, OOM: oom, RequeuedTo: to, ReserveMiB: booked,
			Mode: "shared", Start: time.Unix(1, 0), End: time.Unix(2, 0), GPUs: []db.AttemptGPU{g},
			Total: db.TotalOf([]db.AttemptGPU{g})}
	}
	long := func(a db.Attempt) db.Attempt {
		a.Total.LeaseS, a.Total.SMActPct = 100, figure.Unknown
		return a
	}
	for name, c := range map[string]struct {
		attempts  []db.Attempt
		want, not string
	}{
		"waits still": {[]db.Attempt{attempt(0, "REQUEUED", "cuda", "ex", 4096, 3500, figure.MemoryMPS)},
			"with 4.0 GiB booked and was requeued to run alone on ex\nno later attempt is recorded", "mem="},
		"came back and used less": {[]db.Attempt{attempt(0, "REQUEUED", "cuda", "ex", 4096, 3500, figure.MemoryMPS),
			attempt(1, "COMPLETED", "", "", 40536, 3600, figure.MemoryMPS)}, "with 4.0 GiB booked", "mem="},
		"came back": {[]db.Attempt{attempt(0, "REQUEUED", "cuda", "ex", 4096, 3500, figure.MemoryMPS),
			attempt(1, "COMPLETED", "", "", 40536, 7000, figure.MemoryMPS)}, "with `#CARMA mem=8G`", "no later"},
		"came back and failed": {[]db.Attempt{attempt(0, "REQUEUED", "cuda", "ex", 4096, 3500, figure.MemoryMPS),
			attempt(1, "FAILED", "", "", 40536, 7000, figure.MemoryMPS)}, "with 4.0 GiB booked", "mem="},
		"of several jobs": {[]db.Attempt{attempt(0, "COMPLETED", "", "", 2048, 6144, figure.MemoryWindow)},
			"its peak is that of the GPU", "`#CARMA mem="},
		"of several jobs, for long": {[]db.Attempt{long(attempt(0, "COMPLETED", "", "", 2048, 6144, figure.MemoryWindow))},
			"its peak is that of the GPU", "none of its processes"},
		"never seen": {[]db.Attempt{long(attempt(0, "COMPLETED", "", "", 2048, 0, figure.MemoryMPS))},
			"none of its processes was seen on the GPU", "its peak"},
	} {
		var j job
		j.merge(c.attempts)
		got := strings.Join(notes(&jobPage{job: &j, totalMiB: 40536}), "\n")
		if !strings.Contains(got, c.want) || strings.Contains(got, c.not) {
			t.Errorf("%s:\n%s\nwant %q, not %q", name, got, c.want, c.not)
		}
	}
}

// A node's clock may be set back while a job runs: its run takes no time, rather than less than none.
func TestClockSetBack(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	back := db.Attempt{JobID: 1, Submit: at, Start: at, End: at.Add(-65 * time.Second), Total: db.TotalOf(nil)}
	again := back
	again.Restart = 1
	for _, attempts := range [][]db.Attempt{{back}, {back, again}} {
		var j job
		j.merge(attempts)
		all := newTally(nil, time.UTC)
		all.add(&j)
		if all.total.finish(); j.RunS != 0 || all.total.RunS != 0 || all.total.CompletionS != 0 {
			t.Errorf("%d attempts: ran %g s; mean %g s, completion %g s", len(attempts), j.RunS, all.total.RunS,
				all.total.CompletionS)
		}
	}
	if got := string(appendClock(nil, -65)); got != "00:00:00" {
		t.Errorf("a time before now: %s", got)
	}
}

// A job's name makes no columns of its own.
func TestNameWithSeparators(t *testing.T) {
	for separator, want := range map[string]string{"|": "a?b;c?:|COMPLETED\n", ";": "a|b?c?:;COMPLETED\n",
		"": "a|b;c?:COMPLETED\n", "::": "a|b;c??::COMPLETED\n", "?": "a|b;c_:?COMPLETED\n"} {
		r, err := New(Options{From: "2020-01-01", Parsable2: true, NoHeader: true, Delimiter: separator,
			Format: "JobName,State"}, nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		r.Read(&manyJobs{last: 1, name: "a|b;c?:"})
		var out strings.Builder
		if err := r.Show(t.Context(), &out); err != nil || out.String() != want {
			t.Errorf("%q: %q, want %q, %v", separator, out.String(), want, err)
		}
	}
}

// Where the energy of a node is unknown, so is the energy of the job.
func TestEnergyOfSeveralNodes(t *testing.T) {
	part := func(node string, joules, leaseS float64) db.Attempt {
		f := figure.NoFigures()
		f.EnergyJ, f.IdleJ, f.LeaseS = figure.Measured(joules), figure.Measured(joules), leaseS
		return db.Attempt{JobID: 1, Node: node, Total: db.TotalOf([]db.AttemptGPU{{UUID: node, Figures: f}})}
	}
	unknown := float64(figure.Unknown)
	for name, c := range map[string]struct {
		attempts []db.Attempt
		want     figure.Measured
		how      figure.Quality
	}{
		"both":               {[]db.Attempt{part("a", 10, 5), part("b", 20, 5)}, 30, figure.Exact},
		"the first":          {[]db.Attempt{part("a", 10, 5), part("b", unknown, 5)}, figure.Unknown, figure.QualityNone},
		"the second":         {[]db.Attempt{part("a", unknown, 5), part("b", 20, 5)}, figure.Unknown, figure.QualityNone},
		"one never held any": {[]db.Attempt{part("a", unknown, 0), part("b", 20, 5)}, 20, figure.Exact},
	} {
		var j job
		for range 2 { // what is used again is as new
			j.merge(c.attempts)
			f := j.figures
			if f.EnergyJ != c.want && (f.EnergyJ.Known() || c.want.Known()) || f.EnergyHow != c.how {
				t.Errorf("%s: %v, %s, want %v, %s", name, f.EnergyJ, f.EnergyHow, c.want, c.how)
			}
		}
	}
}
