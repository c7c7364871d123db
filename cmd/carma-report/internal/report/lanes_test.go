// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"carma/cmd/carma-report/internal/report/page"
	"carma/db"
	"carma/db/figure"
	"carma/db/source"
	"carma/slurmbridge/slurmtime"
)

func TestLane(t *testing.T) {
	begin := time.Date(2026, 3, 9, 8, 0, 0, 0, time.UTC)
	s := &style{time: slurmtime.Format{Now: begin, Zone: time.UTC}}
	base := db.Attempt{User: "alice", Name: "train", Partition: "gpu", State: "COMPLETED", ReserveMiB: 8192,
		Start: begin, End: begin.Add(time.Hour), Total: db.Total{UUIDs: []string{"GPU-a"}, PeakMiB: 6144, SMActPct: 62}}
	const at = "\n2026-03-09T08:00:00 to 2026-03-09T09:00:00"
	for name, c := range map[string]struct {
		change      func(*db.Attempt)
		mark, title string
	}{
		"completed": {func(*db.Attempt) {}, "",
			"job 7, run 1: train\nuser alice, partition gpu\nbooked 8.0 GiB, peak 6.0 GiB\nSM activity 62 %\nCOMPLETED" + at},
		"requeued": {func(a *db.Attempt) { a.State, a.OOM, a.RequeuedTo = "REQUEUED", "pytorch", "recovery" }, "OOM",
			"job 7, run 1: train\nuser alice, partition gpu\nbooked 8.0 GiB, peak 6.0 GiB\nSM activity 62 %\n" +
				"REQUEUED, out of GPU memory, requeued to recovery" + at},
		"out of memory": {func(a *db.Attempt) { a.State = "OUT_OF_MEMORY" }, "OOM",
			"job 7, run 1: train\nuser alice, partition gpu\nbooked 8.0 GiB, peak 6.0 GiB\nSM activity 62 %\n" +
				"OUT_OF_MEMORY, out of GPU memory" + at},
		"without OOM": {func(a *db.Attempt) { a.State, a.Restart = "REQUEUED", 1 }, "RQ",
			"job 7, run 2: train\nuser alice, partition gpu\nbooked 8.0 GiB, peak 6.0 GiB\nSM activity 62 %\nREQUEUED" + at},
		"two GPUs": {func(a *db.Attempt) { a.Total.UUIDs = []string{"GPU-a", "GPU-b"} }, "",
			"job 7, run 1: train\nuser alice, partition gpu\nbooked 8.0 GiB, peak 6.0 GiB (highest of 2 GPUs)\n" +
				"SM activity 62 %\nCOMPLETED" + at},
		"several jobs": {func(a *db.Attempt) { a.Total.PeakHow = figure.Shared }, "",
			"job 7, run 1: train\nuser alice, partition gpu\nbooked 8.0 GiB, peak 6.0 GiB (several jobs together)\n" +
				"SM activity 62 %\nCOMPLETED" + at},
		"nothing known": {func(a *db.Attempt) {
			a.Name, a.State, a.Partition, a.Total.PeakMiB, a.Total.SMActPct = "", "", "", 0, figure.Unknown
			a.Total.PeakHow = figure.Shared
		}, "", "job 7, run 1: -\nuser alice, partition -\nbooked 8.0 GiB, peak -\nSM activity -\n-" + at},
	} {
		a := base
		c.change(&a)
		got := lane(&a, "7", s)
		if got.Mark != c.mark || got.Title != c.title || got.Label != "7 alice" || got.Booked != 8 {
			t.Errorf("%s: %s %q %v %q, want %q %q", name, got.Label, got.Mark, got.Booked, got.Title, c.mark, c.title)
		}
	}
}

type listed []db.Attempt

func (l listed) JobIDs(context.Context) (low, high uint32, err error) { return 1, uint32(len(l)), nil }

func (l listed) Scan(_ context.Context, _ db.Filter, each func([]db.Attempt) error) error {
	return db.EachJob(l, each)
}

// Of many runs the longest are drawn, in sequence; of another GPU, another time or another
// user none are.
func TestLanesOfGPU(t *testing.T) {
	begin := time.Date(2026, 3, 9, 8, 0, 0, 0, time.UTC)
	var list listed
	add := func(uuid, user string, from, to time.Duration) {
		list = append(list, db.Attempt{JobID: uint32(len(list) + 1), User: user, State: "COMPLETED", Partition: "gpu",
			Start: begin.Add(from), End: begin.Add(to), Total: db.Total{UUIDs: []string{"GPU-x", uuid}}})
	}
	for i := range mostLanes + 10 {
		from := time.Duration(i) * time.Second
		add("GPU-a", "alice", from, from+time.Duration(1+i)*time.Second)
	}
	add("GPU-b", "alice", 0, time.Hour)
	add("GPU-a", "alice", -time.Hour, 0)
	add("GPU-a", "alice", time.Hour, 2*time.Hour)
	add("GPU-a", "bob", 0, time.Hour)
	list[len(list)-1].Partition = "other"
	g := &gpuSeries{UUID: "GPU-a"}
	v := &gpuView{From: begin, To: begin.Add(time.Hour), GPUs: []*gpuSeries{g}}
	sel := &selection{partitions: []string{"gpu"}}
	if err := v.addJobs(t.Context(), []source.Source{list}, sel,
		&style{time: slurmtime.Format{Zone: time.UTC}}); err != nil {
		t.Fatal(err)
	}
	if g.runs != mostLanes+10 || len(g.jobs) != mostLanes {
		t.Fatalf("%d runs, %d drawn", g.runs, len(g.jobs))
	}
	for i, j := range g.jobs {
		if from := begin.Add(time.Duration(i+10) * time.Second); !j.From.Equal(from) {
			t.Fatalf("%d: %s from %s, want %s", i, j.Label, j.From, from)
		}
	}
}

// The memory of a run lies within the run, and less than two samples are no gap. Others' samples are not the run's,
// nor are samples of another job of the same number.
func TestUsed(t *testing.T) {
	begin := time.Date(2026, 3, 9, 8, 0, 0, 0, time.UTC)
	a := &db.Attempt{JobID: 7, Restart: 1, UID: 1000, Start: begin, End: begin.Add(time.Minute)}
	row := func(at, length float64, mib int64) jobMemory {
		return jobMemory{JobID: 7, Restart: 1, uid: 1000, At: begin.Add(time.Duration(at) * time.Second), LengthS: length,
			UsedMiB: 1024 * mib}
	}
	for name, c := range map[string]struct {
		rows []jobMemory
		want string
	}{
		"none":           {nil, ""},
		"whole":          {[]jobMemory{row(0, 60, 1)}, "0-60:1 "},
		"within the run": {[]jobMemory{row(-5, 70, 1)}, "0-60:1 "},
		"until the end":  {[]jobMemory{row(0, 10, 1), row(10, 35, 2)}, "0-10:1 10-60:2 "},
		"has ended":      {[]jobMemory{row(0, 30, 1)}, "0-30:1 "},
		"a restart":      {[]jobMemory{row(0, 20, 1), row(25, 35, 2)}, "0-25:1 25-60:2 "},
		"a gap":          {[]jobMemory{row(0, 10, 1), row(35, 25, 2)}, "0-10:1 35-60:2 "},
		"begun anew":     {[]jobMemory{row(0, 30, 1), row(20, 40, 2)}, "0-20:1 20-60:2 "},
		"another time":   {[]jobMemory{row(-90, 90, 1), row(60, 10, 1)}, ""},
	} {
		got := ""
		rows := append(c.rows, jobMemory{JobID: 8, Restart: 1, uid: 1000, At: begin, LengthS: 60},
			jobMemory{JobID: 7, uid: 1000, At: begin, LengthS: 60}, jobMemory{JobID: 7, Restart: 1, At: begin, LengthS: 60})
		slices.SortStableFunc(rows, func(a, b jobMemory) int { return a.At.Compare(b.At) })
		for _, p := range used(a, rows) {
			got += fmt.Sprintf("%.0f-%.0f:%.0f ", p.From.Sub(begin).Seconds(), p.To.Sub(begin).Seconds(), p.Value)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Each part of the time with samples shows figures, unknown ones as such.
func TestStrips(t *testing.T) {
	begin := time.Date(2026, 3, 9, 8, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	v := &gpuView{From: begin, To: at(stripsOf * 20)}
	sample := func(s int, smact, watts figure.Measured, mib int64) gpuSample {
		return gpuSample{At: at(s), LengthS: 10, SMActPct: smact, Watts: watts, UsedMiB: mib}
	}
	alice := []page.Point{{From: at(0), To: at(10), Value: 1}, {From: at(10), To: at(20), Value: 1.5}}
	jobs := []page.Job{{Label: "7 alice", From: at(0), To: at(20), Booked: 2, Used: alice},
		{Label: "8 bob", From: at(60), To: at(80), Booked: 3}}
	g := &gpuSeries{TotalMiB: 40960, jobs: jobs}
	g.Samples = []gpuSample{sample(0, 20, 100, 1024), sample(10, 40, figure.Unknown, 2048),
		sample(60, figure.Unknown, 300, 0)}
	want := "2026-03-09T08:00:00 to 2026-03-09T08:00:20\nSM activity 30 %\npower 100 W\nmemory 2.0 GiB of 40.0 GiB\n" +
		"job 7 alice: 1.5 of 2.0 GiB booked\n" +
		"2026-03-09T08:01:00 to 2026-03-09T08:01:10\nSM activity -\npower 300 W\nmemory 0.0 GiB of 40.0 GiB\n" +
		"job 8 bob: - of 3.0 GiB booked\n"
	got := ""
	for _, s := range v.strips(g, &style{time: slurmtime.Format{Zone: time.UTC}}) {
		got += s.Title + "\n"
	}
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
