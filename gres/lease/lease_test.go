// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"carma/db/figure"
	"carma/gres"
	"carma/slurmbridge/jobenv"
)

func open(t *testing.T, dir string) *Ledger {
	t.Helper()
	b, err := Open(dir, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func gpus(n int) []gres.Reading {
	var r []gres.Reading
	for i := range n {
		r = append(r, gres.Reading{GPU: gres.GPU{UUID: "GPU-" + strconv.Itoa(i), Index: i, Minor: i, Model: "A100",
			TotalMiB: 40536, NUMA: i % 2, NVLink: 1 << 63}, SMActPct: math.NaN(),
			Source: figure.SourceGPM})
	}
	return r
}

func key(id, restart uint32) jobenv.JobKey { return jobenv.JobKey{JobID: id, Restart: restart} }

// pick chooses the GPUs, to be shared through a daemon of theirs.
func pick(uuids ...string) Choose {
	return func([]gres.Reading, []gres.Lease, string) ([]string, gres.Daemon) {
		return uuids, gres.Daemon(strings.Join(uuids, ","))
	}
}

func TestReadings(t *testing.T) {
	b := open(t, t.TempDir())
	want := gpus(3)
	want[1].SMActPct, want[1].UsedMiB, want[1].Foreign, want[1].Age = 41.5, 77, 2, time.Second
	want[2].Unreadable = "GPU is lost"
	if err := b.PutReadings(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	s, err := b.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range s.Readings {
		if age := r.Age - want[i].Age; age < 0 || age > 10*time.Second {
			t.Errorf("GPU %d: age %s", i, r.Age)
		}
		r.Age = want[i].Age
		if fmt.Sprint(r) != fmt.Sprint(want[i]) {
			t.Errorf("got  %+v\nwant %+v", r, want[i])
		}
	}
}

func TestAcquireIsIdempotent(t *testing.T) {
	b := open(t, t.TempDir())
	ctx := t.Context()
	if err := b.PutReadings(ctx, gpus(2)); err != nil {
		t.Fatal(err)
	}
	job := Job{JobKey: key(7, 0), UID: 1000, About: json.RawMessage(`{"a":1}`)}
	r := gres.Request{GPUs: 1, ReserveMiB: 10240, UID: 1000}
	first, err := b.Acquire(ctx, job, r, pick("GPU-1"))
	if err != nil || len(first) != 1 || first[0].UUID != "GPU-1" || first[0].ReserveMiB != 10240 ||
		first[0].Daemon != "GPU-1" {
		t.Fatalf("got %+v, %v", first, err)
	}
	again, err := b.Acquire(ctx, job, r, pick("GPU-0"))
	if err != nil || fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", first) { // NaN is not NaN
		t.Errorf("the same attempt got %+v, %v\nbefore:          %+v", again, err, first)
	}
	job.Restart, job.Late = 1, true
	next, err := b.Acquire(ctx, job, r, pick("GPU-0"))
	if err != nil || len(next) != 1 || next[0].UUID != "GPU-0" {
		t.Errorf("the next attempt got %+v, %v", next, err)
	}
	s, err := b.Snapshot(ctx)
	if err != nil || len(s.Leases) != 1 || s.Leases[0].Job != key(7, 1) {
		t.Errorf("the earlier attempt's lease is left: %+v, %v", s.Leases, err)
	}
	job.Restart = 0
	if _, err := b.Acquire(ctx, job, r, pick("GPU-0")); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the first attempt again: %v", err)
	}
	h, ok, err := b.Find(ctx, key(7, 1))
	if err != nil || !ok || string(h.About) != `{"a":1}` || h.UID != 1000 {
		t.Errorf("got %+v, %v, %v", h, ok, err)
	}
	if _, ok, _ := b.Find(ctx, key(7, 0)); ok {
		t.Error("the earlier attempt is still found")
	}
	// A slurmctld that has lost its state gives ids again: that is another job.
	job.UID, r.UID, r.ReserveMiB = 1001, 1001, 4096
	other, err := b.Acquire(ctx, job, r, pick("GPU-1"))
	if err != nil || len(other) != 1 || other[0].UUID != "GPU-1" || other[0].ReserveMiB != 4096 {
		t.Errorf("another user's job of the same id got %+v, %v", other, err)
	}
	if s, err := b.Snapshot(ctx); err != nil || len(s.Leases) != 1 || s.Leases[0].UID != 1001 {
		t.Errorf("the lease of the job of before is left: %+v, %v", s.Leases, err)
	}
}

func TestAcquireAllOrNone(t *testing.T) {
	b := open(t, t.TempDir())
	ctx := t.Context()
	job := Job{JobKey: key(1, 0)}
	if _, err := b.Acquire(ctx, job, gres.Request{GPUs: 1}, pick()); !errors.Is(err, ErrNoFit) {
		t.Errorf("got %v", err)
	}
	// The second GPU cannot be written: the first must not stay.
	if _, err := b.Acquire(ctx, job, gres.Request{GPUs: 2}, pick("GPU-0", "GPU-0")); err == nil {
		t.Error("one GPU was granted twice to one job")
	}
	if s, err := b.Snapshot(ctx); err != nil || len(s.Leases) != 0 {
		t.Errorf("left: %+v, %v", s, err)
	}
}

func TestExclusiveBooksTheWholeGPU(t *testing.T) {
	b := open(t, t.TempDir())
	if err := b.PutReadings(t.Context(), gpus(1)); err != nil {
		t.Fatal(err)
	}
	g, err := b.Acquire(t.Context(), Job{JobKey: key(1, 0)}, gres.Request{GPUs: 1, Exclusive: true, ReserveMiB: 5},
		pick("GPU-0"))
	if err != nil || g[0].ReserveMiB != 40536 || !g[0].Exclusive {
		t.Errorf("got %+v, %v", g, err)
	}
}

func TestNeighbours(t *testing.T) {
	b := open(t, t.TempDir())
	for id := range uint32(4) {
		if _, err := b.Acquire(t.Context(), Job{JobKey: key(id+1, 0)}, gres.Request{GPUs: 1}, pick("GPU-0")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Acquire(t.Context(), Job{JobKey: key(5, 0)}, gres.Request{GPUs: 2},
		pick("GPU-1", "GPU-2")); err != nil {
		t.Fatal(err)
	}
	h, _, err := b.Find(t.Context(), key(3, 0))
	if err != nil || !slices.Equal(h.Neighbours, []uint32{1, 2, 4}) {
		t.Errorf("neighbours of 3: %v, %v", h.Neighbours, err)
	}
	if h, _, err := b.Find(t.Context(), key(5, 0)); err != nil || len(h.GPUs) != 2 || h.GPUs[1].Daemon != "GPU-1,GPU-2" {
		t.Errorf("job 5: %+v, %v", h, err)
	}
}

func TestMeasure(t *testing.T) {
	b := open(t, t.TempDir())
	ctx := t.Context()
	if _, err := b.Acquire(ctx, Job{JobKey: key(1, 0)}, gres.Request{GPUs: 1}, pick("GPU-0")); err != nil {
		t.Fatal(err)
	}
	nan := math.NaN()
	use := func(id uint32, seconds, smact, joules float64, mib int64) Usage {
		return Usage{Job: key(id, 0), UUID: "GPU-0", Seconds: seconds, SMActPct: smact, SMActFrom: figure.SourceGPM,
			EnergyJ: joules, IdleJ: joules / 2,
			Present: mib > 0, UsedMiB: mib, UsedFrom: figure.MemoryProcess, HeldS: seconds / 2, SharedS: seconds, AloneS: nan}
	}
	measure := func(us ...Usage) {
		t.Helper()
		if err := b.Measure(ctx, gpus(1), us); err != nil {
			t.Fatal(err)
		}
	}
	measure(use(1, 0, nan, nan, 0))
	measure(use(1, 10, 20, 100, 0), use(9, 1, 1, 1, 0)) // 9 holds nothing
	measure(use(1, 30, 60, 50, 900))
	measure(use(1, 1, nan, nan, 700))
	h, _, err := b.Find(ctx, key(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	g := h.GPUs[0]
	if g.PeakMiB != 900 || g.MeanMiB != 894 || g.SMActPct != 50 || g.SMActMax != 60 || g.EnergyJ != 150 || g.IdleJ != 75 ||
		g.LeaseS != 41 || g.HeldS != 20.5 || g.SharedS != 41 || g.AloneS.Known() || !g.Seen {
		t.Errorf("got %+v", g)
	}
	// What happened after the Epilog counts until the record is complete.
	if err := b.Release(ctx, key(1, 0)); err != nil {
		t.Fatal(err)
	}
	measure(use(1, 1, 50, 7, 0))
	if f, err := b.FiguresOf(ctx, key(1, 0)); err != nil || f["GPU-0"].EnergyJ != 157 {
		t.Errorf("after the release: %+v, %v", f, err)
	}
	if err := b.DropEnded(ctx, key(1, 0)); err != nil {
		t.Fatal(err)
	}
	if f, err := b.FiguresOf(ctx, key(1, 0)); err != nil || len(f) != 0 {
		t.Errorf("after the end: %+v, %v", f, err)
	}
	// A figure that covers too little of the lease is none.
	measure(use(2, 10, 50, 100, 0), use(2, 10, nan, nan, 0))
	if f, err := b.FiguresOf(ctx, key(2, 0)); err != nil || f["GPU-0"].EnergyJ.Known() || f["GPU-0"].SMActPct.Known() {
		t.Errorf("half measured: %+v, %v", f, err)
	}
}

// What a bound on slowdown needs is kept with the lease, and what came of it for the record.
func TestSlowdownOfLeases(t *testing.T) {
	b := open(t, t.TempDir())
	r := gres.Request{GPUs: 1, ReserveMiB: 10, SMActPct: 30, MaxSlowdown: 1.3}
	if _, err := b.Acquire(t.Context(), Job{JobKey: key(1, 0)}, r, pick("GPU-0")); err != nil {
		t.Fatal(err)
	}
	u := Usage{Job: key(1, 0), UUID: "GPU-0", Seconds: 10, LawS: 8, AlonePct: 42, AloneDRAMPct: 7, Slowed: 1.8}
	for _, slowed := range []float64{1.8, 2.1, -1} {
		u.Slowed = slowed
		if err := b.Measure(t.Context(), gpus(1), []Usage{u}); err != nil {
			t.Fatal(err)
		}
		u.AlonePct, u.AloneDRAMPct = 0, 0 // as it is written
	}
	s, err := b.Snapshot(t.Context())
	if err != nil || len(s.Leases) != 1 {
		t.Fatal(s.Leases, err)
	}
	if l := s.Leases[0]; l.MaxSlowdown != 1.3 || l.AlonePct != 42 || l.AloneDRAMPct != 7 || l.Slowed != 0 {
		t.Errorf("%+v", l)
	}
	held, _, err := b.Find(t.Context(), key(1, 0))
	if err != nil || held.GPUs[0].Slowed != 2.1 || held.GPUs[0].LawS != 24 {
		t.Errorf("%+v, %v", held.GPUs, err)
	}
	if err := b.Release(t.Context(), key(1, 0)); err != nil {
		t.Fatal(err)
	}
	f, err := b.FiguresOf(t.Context(), key(1, 0)) // the record is completed later
	if err != nil || f["GPU-0"].LawS != 24 {
		t.Errorf("%+v, %v", f, err)
	}
	if err := b.DropEnded(t.Context(), key(1, 0)); err != nil {
		t.Fatal(err)
	}
	var left int
	if err := b.db.QueryRow("SELECT count(*) FROM law").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d rows are left, %v", left, err)
	}
}

func TestPendingRestarts(t *testing.T) {
	b := open(t, t.TempDir())
	ctx := t.Context()
	for _, id := range []uint32{5, 6, 5} {
		if err := b.AddPendingRestart(ctx, id, time.Duration(id)*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.DropPendingRestart(ctx, 6); err != nil {
		t.Fatal(err)
	}
	s, err := b.Snapshot(ctx)
	if err != nil || len(s.PendingRestarts) != 1 || s.PendingRestarts[0].JobID != 5 ||
		s.PendingRestarts[0].Delay != 5*time.Second {
		t.Errorf("got %+v, %v", s.PendingRestarts, err)
	}
}

func TestPerhapsHeld(t *testing.T) {
	b := open(t, t.TempDir())
	if err := b.AddPerhapsHeld(t.Context(), key(7, 2), 1000); err != nil {
		t.Fatal(err)
	}
	for restart, left := range []int{1, 1, 0} { // what is done about an earlier attempt says nothing of this one
		if err := b.DropPerhapsHeld(t.Context(), key(7, uint32(restart))); err != nil {
			t.Fatal(err)
		}
		if s, err := b.Snapshot(t.Context()); err != nil || len(s.PerhapsHeld) != left {
			t.Errorf("restart %d: %+v, %v", restart, s.PerhapsHeld, err)
		}
	}
}

func TestEnded(t *testing.T) {
	b := open(t, t.TempDir())
	ctx := t.Context()
	var at []time.Duration
	for id := range uint32(5) {
		at = append(at, Now())
		if err := b.Release(ctx, key(9-id, id)); err != nil {
			t.Fatal(err)
		}
	}
	ids := func(list []Ended, err error) (ids []uint32) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			ids = append(ids, e.JobID)
		}
		return ids
	}
	if got := ids(b.Ended(ctx, 2)); !slices.Equal(got, []uint32{9, 8}) {
		t.Errorf("the two oldest: %v", got)
	}
	if got := ids(b.EndedSince(ctx, at[3])); !slices.Equal(got, []uint32{6, 5}) {
		t.Errorf("since the fourth: %v", got)
	}
	if err := b.DropEnded(ctx, key(9, 0)); err != nil {
		t.Fatal(err)
	}
	if got := ids(b.Ended(ctx, 9)); !slices.Equal(got, []uint32{8, 7, 6, 5}) {
		t.Errorf("one dropped: %v", got)
	}
}

func TestHolds(t *testing.T) {
	b := open(t, t.TempDir())
	ctx := t.Context()
	if err := b.PutReadings(ctx, gpus(3)); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	state := func() string {
		s, err := b.Snapshot(ctx)
		must(err)
		var words []string
		for _, r := range s.Readings {
			words = append(words, fmt.Sprint(r.HeldFor, r.HeldUID, r.HeldGPUs, r.HeldOpen))
		}
		for _, h := range s.Holds {
			words = append(words, fmt.Sprint(h.UID, h.GPUs, h.MiB, h.Open))
		}
		return fmt.Sprint(words)
	}
	must(b.Hold(ctx, 7, 1000, 2, 0, []string{"GPU-0", "GPU-1"}))
	must(b.Hold(ctx, 8, 2000, 2, 20480, []string{"GPU-1", "GPU-2"})) // the first hold stays
	if got := state(); got != "[7 1000 2 false 7 1000 2 false 8 2000 2 false 1000 2 0 false 1000 2 0 false 2000 2 "+
		"20480 false]" {
		t.Errorf("got %s", got)
	}
	must(b.OpenHold(ctx, 7, 0))
	must(b.OpenHold(ctx, 8, time.Hour))
	if got := state(); got != "[7 1000 2 true 7 1000 2 true 8 2000 2 false 1000 2 0 true 1000 2 0 true 2000 2 20480 "+
		"false]" {
		t.Errorf("opened: %s", got)
	}
	if s, err := b.Snapshot(ctx); err != nil || s.Holds[0].Offered <= 0 || s.Holds[2].Offered != 0 {
		t.Errorf("offered: %+v, %v", s.Holds, err)
	}
	must(b.DropHold(ctx, 8))
	if _, err := b.Acquire(ctx, Job{JobKey: key(7, 1)}, gres.Request{GPUs: 1}, pick("GPU-0")); err != nil {
		t.Fatal(err)
	}
	if got := state(); got != "[0 0 0 false 0 0 0 false 0 0 0 false]" {
		t.Errorf("after the job came: %s", got)
	}
}

func TestQuarantine(t *testing.T) {
	b := open(t, t.TempDir())
	ctx := t.Context()
	if err := b.PutReadings(ctx, gpus(2)); err != nil {
		t.Fatal(err)
	}
	for id, r := range map[uint32]gres.Request{1: {GPUs: 1, UID: 1000}, 2: {GPUs: 1, UID: 1000}, 3: {GPUs: 1, UID: 2000}} {
		if _, err := b.Acquire(ctx, Job{JobKey: key(id, 0), UID: r.UID}, r, pick("GPU-0")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Acquire(ctx, Job{JobKey: key(4, 0), UID: 1000}, gres.Request{GPUs: 1, UID: 1000},
		pick("GPU-1")); err != nil {
		t.Fatal(err)
	}
	first, err := b.Quarantine(ctx, "GPU-0", "MPS server in FAULT")
	if err != nil || len(first) == 0 {
		t.Fatalf("victims %v, %v", first, err)
	}
	again, err := b.Quarantine(ctx, "GPU-0", "again")
	if err != nil || len(again) != 0 {
		t.Errorf("victims of a second look %v, %v", again, err)
	}
	s, err := b.Snapshot(ctx)
	if err != nil || s.Readings[0].Quarantined != "MPS server in FAULT" || s.Readings[1].Quarantined != "" {
		t.Errorf("readings %+v, %v", s.Readings, err)
	}
	for id := range uint32(4) {
		h, _, err := b.Find(ctx, key(id+1, 0))
		if err != nil || (h.Fault != "") != slices.Contains(first, id+1) || id == 3 && h.Fault != "" {
			t.Errorf("job %d: fault %q, %+v, %v", id+1, h.Fault, h.GPUs, err)
		}
	}
	if err := b.Readmit(ctx, "GPU-0"); err != nil {
		t.Fatal(err)
	}
	if s, _ := b.Snapshot(ctx); s.Readings[0].Quarantined != "" {
		t.Error("still quarantined")
	}
}

// Who makes a new ledger has its turn already and waits for no other.
func TestOpenANewOneWaitsForNobody(t *testing.T) {
	fastest := time.Hour // of five: the machine may be busy
	for range 5 {
		dir := t.TempDir()
		start := time.Now()
		open(t, dir)
		fastest = min(fastest, time.Since(start))
	}
	if fastest >= queueFor {
		t.Errorf("the fastest of five took %v", fastest)
	}
}

// Many processes decide at once and some are killed in the middle: nothing is
// promised twice, and nothing is lost that a process was told it has.
func TestManyProcesses(t *testing.T) {
	if dir := os.Getenv("LEASE_TEST_DIR"); dir != "" {
		worker(dir)
		return
	}
	dir := t.TempDir()
	b := open(t, dir)
	if err := b.PutReadings(t.Context(), gpus(8)); err != nil {
		t.Fatal(err)
	}
	const processes, eachMiB = 64, 9000 // 4 fit on a GPU, 32 in all
	var wg sync.WaitGroup
	granted := make([]bool, processes)
	for i := range processes {
		wg.Add(1)
		go func() {
			defer wg.Done()
			cmd := exec.Command(os.Args[0], "-test.run=^TestManyProcesses$")
			cmd.Env = append(os.Environ(), "LEASE_TEST_DIR="+dir, fmt.Sprint("LEASE_TEST_JOB=", i+1))
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			if i%4 == 0 {
				time.AfterFunc(time.Duration(i)*2*time.Millisecond, func() { cmd.Process.Kill() })
			}
			granted[i] = cmd.Wait() == nil
		}()
	}
	wg.Wait()
	s, err := b.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	booked, has := map[string]int64{}, map[uint32]bool{}
	for _, l := range s.Leases {
		booked[l.UUID] += l.ReserveMiB
		has[l.Job.JobID] = true
	}
	for uuid, mib := range booked {
		if mib > 40536 {
			t.Errorf("%s: %d MiB promised of 40536", uuid, mib)
		}
	}
	told := 0
	for i, ok := range granted {
		if ok {
			told++
			if !has[uint32(i+1)] {
				t.Errorf("job %d was told that it has a lease and has none", i+1)
			}
		}
	}
	if told == 0 || len(s.Leases) < told {
		t.Errorf("%d processes were told, %d leases", told, len(s.Leases))
	}
	var integrity string
	if err := b.db.QueryRow("PRAGMA integrity_check").Scan(&integrity); err != nil || integrity != "ok" {
		t.Errorf("integrity: %s, %v", integrity, err)
	}
}

// worker acquires one lease and exits with 0 if it has it.
func worker(dir string) {
	b, err := Open(dir, 30*time.Second)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	id, _ := strconv.Atoi(os.Getenv("LEASE_TEST_JOB"))
	const mib = 9000
	_, err = b.Acquire(context.Background(), Job{JobKey: key(uint32(id), 0)}, gres.Request{GPUs: 1, ReserveMiB: mib},
		func(readings []gres.Reading, leases []gres.Lease, _ string) ([]string, gres.Daemon) {
			free := map[string]int64{}
			for _, r := range readings {
				free[r.UUID] = r.TotalMiB
			}
			for _, l := range leases {
				free[l.UUID] -= l.ReserveMiB
			}
			time.Sleep(time.Millisecond) // give others a chance to come in between
			for _, r := range readings {
				if free[r.UUID] >= mib {
					return []string{r.UUID}, ""
				}
			}
			return nil, ""
		})
	if err != nil {
		os.Exit(2)
	}
	os.Exit(0)
}

// What the agent says of a job that does not use its GPU stands in its lease
// until it says otherwise, and the longest such time after that.
func TestIdleLease(t *testing.T) {
	b := open(t, t.TempDir())
	if err := b.PutReadings(t.Context(), gpus(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Acquire(t.Context(), Job{JobKey: key(7, 0)}, gres.Request{JobID: 7, GPUs: 1},
		pick("GPU-0")); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		changed       bool
		ago           time.Duration // 0: in use
		idle, longest time.Duration
	}{
		{true, 0, 0, 0}, {true, time.Hour, time.Hour, time.Hour}, {false, 0, time.Hour, time.Hour},
		{true, 0, 0, time.Hour}, {true, time.Minute, time.Minute, time.Hour},
	} {
		u := Usage{Job: key(7, 0), UUID: "GPU-0", IdleChanged: c.changed}
		if c.ago > 0 {
			u.IdleFrom, u.IdleSure = Now()-c.ago, Now()-c.ago/2
		}
		if err := b.Measure(t.Context(), gpus(1), []Usage{u}); err != nil {
			t.Fatal(err)
		}
		s, err := b.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h, _, err := b.Find(t.Context(), key(7, 0))
		if err != nil {
			t.Fatal(err)
		}
		near := func(a, b time.Duration) bool { return (a - b).Abs() < time.Minute/2 }
		if l := s.Leases[0]; !near(l.Idle, c.idle) || !near(l.IdleSure, c.idle/2) || !near(h.GPUs[0].Idle, c.longest) {
			t.Errorf("%d: idle for %s (certain for %s), longest %s", i, l.Idle, l.IdleSure, h.GPUs[0].Idle)
		}
	}
	// The agent's look may be one at the attempt before.
	late := Usage{Job: key(7, 1), UUID: "GPU-0", Present: true, IdleChanged: true, IdleFrom: Now() - 2*time.Hour,
		AlonePct: 42, AloneDRAMPct: 7, Slowed: 1.8}
	before, err := b.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Measure(t.Context(), gpus(1), []Usage{late}); err != nil {
		t.Fatal(err)
	}
	after, err := b.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	was, is := before.Leases[0], after.Leases[0]
	if is.Seen != was.Seen || is.AlonePct != was.AlonePct || is.Slowed != was.Slowed || is.Idle > time.Hour {
		t.Errorf("another attempt makes the lease %+v, it was %+v", is, was)
	}
	if err := b.Cancelled(t.Context(), key(7, 0), "because"); err != nil {
		t.Fatal(err)
	}
	if h, ok, err := b.Find(t.Context(), key(7, 0)); err != nil || !ok || h.Cancelled != "because" {
		t.Errorf("%+v %v", h, err)
	}
}

// Faults of a GPU close it, beside each other and for as long as each stands.
func TestFaults(t *testing.T) {
	b := open(t, t.TempDir())
	ctx := t.Context()
	if err := b.PutReadings(ctx, gpus(2)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Acquire(ctx, Job{JobKey: key(7, 0), UID: 1000}, gres.Request{GPUs: 1, UID: 1000},
		pick("GPU-0")); err != nil {
		t.Fatal(err)
	}
	set := func(cause gres.Cause, reason string, lasts time.Duration, wantHolders int, wantFresh bool) {
		t.Helper()
		holders, fresh, err := b.SetFault(ctx, "GPU-0", cause, reason, lasts)
		if err != nil || len(holders) != wantHolders || fresh != wantFresh {
			t.Errorf("%s: holders %v, fresh %v, %v", cause, holders, fresh, err)
		}
	}
	is := func(cause gres.Cause, reason string) {
		t.Helper()
		s, err := b.Snapshot(ctx)
		if err != nil || s.Readings[0].Cause != cause || s.Readings[0].Quarantined != reason ||
			s.Readings[1].Quarantined != "" {
			t.Errorf("readings %+v, %v", s.Readings, err)
		}
	}
	set(gres.CauseJobs, "jobs", time.Nanosecond, 1, true)
	is("", "")
	set(gres.CauseJobs, "jobs again", time.Hour, 0, true)
	set(gres.CauseXid, "Xid 79", 0, 0, true)
	set(gres.CauseXid, "Xid 95", 0, 0, false)
	is(gres.CauseXid, "Xid 95")
	if _, err := b.Quarantine(ctx, "GPU-0", "MPS"); err != nil {
		t.Fatal(err)
	}
	is(gres.CauseMPS, "MPS")
	if err := b.Readmit(ctx, "GPU-0"); err != nil {
		t.Fatal(err)
	}
	if ended, err := b.EndFault(ctx, "GPU-0", gres.CauseDevice); ended || err != nil {
		t.Errorf("ended %v, %v", ended, err)
	}
	if ended, err := b.EndFault(ctx, "GPU-0", gres.CauseXid); !ended || err != nil {
		t.Errorf("ended %v, %v", ended, err)
	}
	is(gres.CauseJobs, "jobs again")
	set(gres.CauseDevice, "reset", 0, 0, true)
	if ended, err := b.EndFault(ctx, "GPU-0", ""); !ended || err != nil {
		t.Errorf("ended %v, %v", ended, err)
	}
	is(gres.CauseDevice, "reset") // NVML tells it still
	if ended, err := b.EndFault(ctx, "GPU-0", gres.CauseDevice); !ended || err != nil {
		t.Errorf("ended %v, %v", ended, err)
	}
	is("", "")
	if h, _, err := b.Find(ctx, key(7, 0)); err != nil || h.Fault != "jobs" {
		t.Errorf("the job's note %q, %v", h.Fault, err)
	}
}

// Three jobs of two users in a row close a GPU, one user's do not, nor those around one
// that went well, nor with one of two hours ago, and never more than half of the node's GPUs.
func TestJobsThatFailOnAGPU(t *testing.T) {
	type end struct {
		uid    uint32
		uuid   string
		failed bool
	}
	bad := func(uuid string, uids ...uint32) (list []end) {
		for _, uid := range uids {
			list = append(list, end{uid, uuid, true})
		}
		return list
	}
	well := func(uid uint32, uuid string) []end { return []end{{uid, uuid, false}} }
	minutes := func(n int64) []end { return []end{{uuid: fmt.Sprint(n)}} }
	hours := func(n int64) []end { return minutes(60 * n) }
	closed := func(uuids ...string) []string { return uuids }
	for name, c := range map[string]struct {
		gpus    int
		ends    [][]end
		waiting []uint32
		want    []string
		open    bool // in the end
	}{
		"one of two hours ago": {gpus: 2, ends: [][]end{bad("GPU-0", 2), hours(2), bad("GPU-0", 1, 1)}, open: true},
		"the last three": {gpus: 2, ends: [][]end{bad("GPU-0", 2), hours(2), bad("GPU-0", 1, 2, 1)},
			want: closed("GPU-0")},
		"three of two users":  {gpus: 2, ends: [][]end{bad("GPU-0", 1, 1, 2)}, want: closed("GPU-0")},
		"two of two users":    {gpus: 2, ends: [][]end{bad("GPU-0", 1, 2)}, open: true},
		"ten of one user":     {gpus: 2, ends: [][]end{bad("GPU-0", slices.Repeat([]uint32{1}, 10)...)}, open: true},
		"one that went well":  {gpus: 2, ends: [][]end{bad("GPU-0", 1, 1), well(3, "GPU-0"), bad("GPU-0", 2)}, open: true},
		"on several GPUs":     {gpus: 2, ends: [][]end{bad("GPU-0", 1), bad("GPU-1", 1), bad("GPU-0", 2)}, open: true},
		"the node's only GPU": {gpus: 1, ends: [][]end{bad("GPU-0", 1, 1, 2)}, open: true},
		"at most half": {gpus: 2, ends: [][]end{bad("GPU-0", 1, 1, 2), bad("GPU-1", 3, 3, 4)},
			want: closed("GPU-0")},
		"nine minutes":      {gpus: 2, ends: [][]end{bad("GPU-0", 1, 1, 2), minutes(9)}, want: closed("GPU-0")},
		"it ends by itself": {gpus: 2, ends: [][]end{bad("GPU-0", 1, 1, 2), minutes(10)}, want: closed("GPU-0"), open: true},
		"it ends with a job that goes well": {gpus: 2, ends: [][]end{bad("GPU-0", 1, 1, 2), well(3, "GPU-0")},
			want: closed("GPU-0"), open: true},

		// Two users who lie, while others wait.
		"the same again": {gpus: 4, ends: [][]end{bad("GPU-0", 1, 1, 2), hours(1), bad("GPU-0", 1, 2, 1, 2)},
			waiting: []uint32{3}, want: closed("GPU-0"), open: true},
		"the same on another": {gpus: 4, ends: [][]end{bad("GPU-0", 1, 1, 2), bad("GPU-1", 1, 2, 1, 2)},
			waiting: []uint32{1, 3}, want: closed("GPU-0")},
		"one of them with a third on another": {gpus: 4, ends: [][]end{bad("GPU-0", 1, 1, 2), bad("GPU-1", 1, 4, 1)},
			waiting: []uint32{3}, want: closed("GPU-0")},
		"the same after a day": {gpus: 4, ends: [][]end{bad("GPU-0", 1, 1, 2), hours(25), bad("GPU-1", 1, 2, 1)},
			waiting: []uint32{3}, want: closed("GPU-0", "GPU-1"), open: true},

		// A GPU on which the jobs of all fail.
		"a third user's job": {gpus: 4, ends: [][]end{bad("GPU-0", 1, 1, 2), bad("GPU-0", 3)}, waiting: []uint32{1, 4},
			want: closed("GPU-0", "GPU-0")},
		"all who wait have had jobs fail": {gpus: 4, ends: [][]end{bad("GPU-0", 1, 1, 2), bad("GPU-0", 3), hours(2),
			bad("GPU-0", 1, 2, 1)}, waiting: []uint32{1, 3}, want: closed("GPU-0", "GPU-0", "GPU-0")},
		"who waits is asked once a minute": {gpus: 4, ends: [][]end{bad("GPU-0", 1, 1, 2), bad("GPU-0", 1),
			bad("GPU-1", 1, 2, 1)}, want: closed("GPU-0", "GPU-0")},
		"nobody else waits": {gpus: 4, ends: [][]end{bad("GPU-0", 1, 1, 2), bad("GPU-0", 1), hours(2), bad("GPU-0", 1, 2, 1)},
			want: closed("GPU-0", "GPU-0", "GPU-0")},
	} {
		b := open(t, t.TempDir())
		if err := b.PutReadings(t.Context(), gpus(c.gpus)); err != nil {
			t.Fatal(err)
		}
		var closed []string
		job := uint32(0)
		for _, e := range slices.Concat(c.ends...) {
			if passed, err := strconv.Atoi(e.uuid); err == nil {
				for _, column := range []string{"failure SET at_ns = at_ns", "accuser SET at_ns = at_ns",
					"unsure SET at_ns = at_ns", "fault SET until_ns = until_ns"} {
					if _, err := b.db.Exec("UPDATE "+column+" - ?", int64(passed)*int64(time.Minute)); err != nil {
						t.Fatal(err)
					}
				}
				continue
			}
			job++
			now, unsure, err := b.JobEnded(t.Context(), job, e.uid, []string{e.uuid}, e.failed)
			if err != nil {
				t.Fatal(err)
			}
			more, err := b.CloseFailing(t.Context(), unsure, c.waiting)
			if err != nil {
				t.Fatal(err)
			}
			closed = append(closed, append(now, more...)...)
		}
		s, err := b.Snapshot(t.Context())
		if err != nil || !slices.Equal(closed, c.want) || (s.Readings[0].Cause == gres.CauseJobs) == c.open {
			t.Errorf("%s: closed %v, want %v; %+v, %v", name, closed, c.want, s.Readings[0], err)
		}
	}
}

// A fault in the log of a daemon's servers is noted in the jobs that have clients of it,
// once, whoever reads the log; two of them may be victims of each other, one alone is not.
func TestFollow(t *testing.T) {
	ctx := t.Context()
	for name, c := range map[string]struct {
		jobs    []uint32 // with clients
		victims string
	}{
		"two":  {[]uint32{1, 2}, "[1 2]"},
		"one":  {[]uint32{1}, "[1]"},
		"none": {nil, "[]"},
	} {
		b := open(t, t.TempDir())
		if err := b.PutReadings(ctx, gpus(2)); err != nil {
			t.Fatal(err)
		}
		on := func(uuid string) Choose {
			return func([]gres.Reading, []gres.Lease, string) ([]string, gres.Daemon) {
				return []string{uuid}, gres.Daemon(uuid)
			}
		}
		for id, uuid := range map[uint32]string{1: "GPU-0", 2: "GPU-0", 3: "GPU-0", 4: "GPU-1"} {
			if _, err := b.Acquire(ctx, Job{JobKey: key(id, 0), UID: 1000}, gres.Request{GPUs: 1, UID: 1000},
				on(uuid)); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Measure(ctx, gpus(2), []Usage{{Job: key(4, 0), UUID: "GPU-1", Present: true}}); err != nil {
			t.Fatal(err)
		}
		for _, id := range c.jobs {
			if err := b.Measure(ctx, gpus(2), []Usage{{Job: key(id, 0), UUID: "GPU-0", Present: true}}); err != nil {
				t.Fatal(err)
			}
		}
		look := func(from int64, fault bool, to int64) string {
			t.Helper()
			victims, _, err := b.Follow(ctx, "GPU-0", func(at int64) (bool, int64, error) {
				if at != from {
					t.Errorf("%s: read from %d, want %d", name, at, from)
				}
				return fault, to, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(victims)
			return fmt.Sprint(victims)
		}
		if got := look(0, true, 100); got != "[]" {
			t.Errorf("%s: a log of before has the victims %s", name, got)
		}
		if got := look(100, false, 150); got != "[]" {
			t.Errorf("%s: no fault, and the victims %s", name, got)
		}
		if got := look(150, true, 200); got != c.victims {
			t.Errorf("%s: victims %s, want %s", name, got, c.victims)
		}
		if got := look(200, true, 300); got != "[]" {
			t.Errorf("%s: noted twice: %s", name, got)
		}
		for id := range uint32(4) {
			h, _, err := b.Find(ctx, key(id+1, 0))
			noted := slices.Contains(c.jobs, id+1)
			if err != nil || (h.Fault != "") != noted || h.Victim != (noted && len(c.jobs) > 1) {
				t.Errorf("%s: job %d: %q, %v, %v", name, id+1, h.Fault, h.Victim, err)
			}
		}
	}
}
