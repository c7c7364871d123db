// SPDX-License-Identifier: Apache-2.0

package db

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"carma/db/figure"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/usertext"
	"carma/slurmbridge/version"
)

func openFor(t *testing.T, path string) *DB {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func at(s float64) time.Time { return time.Unix(0, int64(s*1e9)) }

// attempt is a record with every field set.
func attempt(id, restart uint32) Attempt {
	return Attempt{
		Cluster: "c", JobID: id, Restart: restart, Node: "n1", ArrayJobID: 5, ArrayTask: "2", Name: "train", Account: "ml",
		User: "alice", UID: 1000, Partition: "gpu",
		Submit: at(1000), Start: at(1010.5), End: at(1020.25), State: "REQUEUED", ExitCode: 1, ExitSignal: 0, Mode: "shared",
		Method: "user",
		EstMiB: 10240, ReserveMiB: 10240, Neighbours: []uint32{8, 9}, OOM: "pytorch", OOMNote: "note", RequeuedTo: "gpu-ex",
		GPUs: []AttemptGPU{figures("GPU-0", 9000, 40, 100), figures("GPU-1", 9500, 60, 200)}, Key: "0123", FullMiB: 40503,
		Unread: 12, AdvisedMiB: 9000,
	}
}

func figures(uuid string, peakMiB int64, smact, joules figure.Measured) AttemptGPU {
	return AttemptGPU{UUID: uuid, Model: "A100", Figures: figure.Figures{PeakMiB: peakMiB, PeakFrom: figure.MemoryMPS,
		MeanMiB: peakMiB - 100, SMActPct: smact, SMActMax: smact + 10,
		SMActFrom: figure.SourceGPM, EnergyJ: joules, IdleJ: joules / 2, LeaseS: 10, HeldS: 5, SharedS: 10, AloneS: 8,
		LawS: 9.5}}
}

func TestPutAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "carma.db")
	d := openFor(t, path)
	full := attempt(7, 0)
	bare := Attempt{Cluster: "c", JobID: 8, Node: "n1", User: "bob", Partition: "gpu", Start: at(1), End: at(2),
		State: "COMPLETED", Mode: "exclusive", Method: "none",
		GPUs: []AttemptGPU{{UUID: "GPU-0", Figures: figure.NoFigures()}}}
	g := &full.GPUs[0] // more than is kept
	g.LeaseS, g.HeldS, g.SharedS, g.AloneS, g.EnergyJ = g.LeaseS+.00041, g.HeldS+.00041, g.SharedS+.00041,
		g.AloneS+.00041, g.EnergyJ+.3
	for _, a := range []Attempt{full, bare, full} { // an Epilog may run twice
		if err := d.Put(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	r, err := OpenRead(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := r.Attempts(t.Context(), nil)
	if err != nil || len(got) != 2 {
		t.Fatalf("%d attempts, %v", len(got), err)
	}
	full.Total, bare.Total = TotalOf(full.GPUs), TotalOf(bare.GPUs)
	for i, want := range []Attempt{full, bare} {
		want.clean = true
		// Sprint compares NaN as equal and times by their wall clock.
		if fmt.Sprintf("%+v", got[i]) != fmt.Sprintf("%+v", want) {
			t.Errorf("got  %+v\nwant %+v", got[i], want)
		}
	}
	if total := got[0].Total; total.PeakMiB != 9500 || total.EnergyJ != 300 || total.SMActPct != 50 ||
		total.SMActMax != 70 || total.HeldS != 10 || total.AloneS != 16 ||
		total.PeakHow != figure.Exact || total.EnergyHow != figure.Shared || total.SMActHow != figure.Shared {
		t.Errorf("total %+v", total)
	}
	idle, window := AttemptGPU{UUID: "GPU-1", Figures: figure.NoFigures()}, full.GPUs[0]
	window.PeakFrom = figure.MemoryWindow // and it shared
	for _, c := range []struct {
		gpus []AttemptGPU
		how  figure.Quality
	}{{[]AttemptGPU{full.GPUs[0], idle}, figure.Exact}, {[]AttemptGPU{idle, full.GPUs[0]}, figure.Exact},
		{[]AttemptGPU{idle, idle}, figure.QualityNone},
		{[]AttemptGPU{full.GPUs[0], window}, figure.Shared}, {[]AttemptGPU{window, idle, full.GPUs[1]}, figure.Shared}} {
		if total := TotalOf(c.gpus); total.PeakHow != c.how {
			t.Errorf("peak is %s, want %s: %+v", total.PeakHow, c.how, c.gpus)
		}
	}
	if total := got[1].Total; total.SMActPct.Known() || total.EnergyJ.Known() || total.AloneS.Known() ||
		total.PeakHow != figure.QualityNone {
		t.Errorf("what was not measured is known: %+v", total)
	}
}

func TestAttemptsOfSomeJobs(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	for id := range uint32(10) {
		a := attempt(id+1, 0)
		a.ArrayJobID = 0
		if id > 7 {
			a.ArrayJobID = 9
		}
		if err := d.Put(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		ids  []uint32
		want int
	}{{nil, 10}, {[]uint32{3}, 1}, {[]uint32{3, 4, 99}, 2}, {[]uint32{9}, 2}} {
		got, err := d.Attempts(t.Context(), c.ids)
		if err != nil || len(got) != c.want {
			t.Errorf("%v: %d attempts, %v", c.ids, len(got), err)
		}
	}
}

func TestSetEnd(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	for id, state := range map[uint32]string{1: "COMPLETED", 2: "REQUEUED", 3: "OUT_OF_MEMORY"} {
		a := attempt(id, 0)
		a.State, a.Name, a.Account, a.ArrayJobID, a.ArrayTask = state, "", "", 0, ""
		if err := d.Put(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint32(5) {
		e := End{JobID: id, UID: 1000, Node: "n1", ArrayJobID: 9, ArrayTask: "3", Name: "x", Account: "ml", State: "TIMEOUT",
			Figures: map[string]figure.Figures{"GPU-1": figures("", 9999, 1, 500).Figures}}
		list, err := d.SetEnd(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		if known := id >= 1 && id <= 3; known != (len(list) == 1 && list[0].Name == "x") {
			t.Errorf("job %d: %+v", id, list)
		}
	}
	got, err := d.Attempts(t.Context(), nil)
	if err != nil || len(got) != 3 {
		t.Fatal(got, err)
	}
	for i, want := range []string{"TIMEOUT", "REQUEUED", "OUT_OF_MEMORY"} {
		if a := got[i]; a.State != want || a.Name != "x" || a.Account != "ml" || a.ArrayJobID != 9 || a.ArrayTask != "3" ||
			a.Total.EnergyJ != 600 || a.Total.PeakMiB != 9999 {
			t.Errorf("got %+v, want %s", a, want)
		}
	}
}

// A record says what CARMA would have booked for a job that went as written; another note stays.
func TestAdvised(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	for i, c := range []struct {
		advice       admincomment.Advice
		before, note string
	}{
		{admincomment.Advice{}, "", ""},
		{admincomment.Advice{Mode: "shared", Method: "user", EstMiB: 9216, ReserveMiB: 10240, Key: "00000000000000ab",
			UnreadLine: 4}, "", "with sharing it would book 10.0 GiB of each GPU"},
		{admincomment.Advice{Mode: "shared", ReserveMiB: 10240}, "not used", "not used"},
		{admincomment.Advice{Mode: "exclusive", Note: "no table"}, "",
			"with sharing it would have its GPUs to itself: no table"},
		{admincomment.Advice{Mode: "exclusive", Note: "line 2: # CARMA", UnreadLine: 2}, "",
			"with sharing it would have its GPUs to itself"}, // the report says the rest
		{admincomment.Advice{Note: "line 1: no"}, "", "with sharing it would be refused: line 1: no"},
		{admincomment.Advice{Mode: "off", Method: "none"}, "", ""},
	} {
		a := attempt(uint32(i), 0)
		a.OOMNote, a.Method, a.EstMiB, a.Key, a.ReserveMiB, a.Unread, a.AdvisedMiB = c.before, "none", 0, "", 40536,
			0, 0
		if err := d.Put(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		list, err := d.SetEnd(t.Context(), End{JobID: a.JobID, UID: 1000, Node: "n1", State: "COMPLETED", Advice: c.advice})
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		if a := list[0]; a.OOMNote != c.note || a.Method != cmp.Or(c.advice.Method, "none") || a.EstMiB != c.advice.EstMiB ||
			a.Key != c.advice.Key || a.Unread != c.advice.UnreadLine || a.ReserveMiB != 40536 ||
			a.AdvisedMiB != c.advice.ReserveMiB {
			t.Errorf("%+v: %+v", c.advice, a)
		}
	}
}

// Nobody else may open the files and lock them, whatever the umask, also not those of an
// older CARMA; their directory is open to all for what is published.
// An attempt without an Epilog keeps the state that says so while its job goes on; one
// whose Epilog had written its record keeps that.
func TestPutIfNone(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	lost, other := attempt(7, 0), attempt(8, 0)
	lost.State, other.State = NodeFail, NodeFail
	if err := d.Put(t.Context(), attempt(8, 0)); err != nil {
		t.Fatal(err)
	}
	for _, a := range []Attempt{lost, other} {
		if err := d.PutIfNone(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		job        uint32
		says, want string
	}{{7, "REQUEUED", NodeFail}, {7, "", NodeFail}, {8, "COMPLETED", "REQUEUED"}, {7, "CANCELLED", "CANCELLED"}} {
		list, err := d.SetEnd(t.Context(), End{JobID: c.job, UID: 1000, Node: "n1", State: c.says})
		if err != nil || len(list) != 1 || list[0].State != c.want {
			t.Errorf("job %d, slurmctld says %q: %+v, %v", c.job, c.says, list, err)
		}
	}
}

func TestFilesAreTheOwners(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	path := filepath.Join(t.TempDir(), "sub", "carma.db")
	for range 2 {
		d, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Put(t.Context(), attempt(1, 0)); err != nil {
			t.Fatal(err)
		}
		if err := d.Backup(t.Context(), filepath.Join(t.TempDir(), "copy.db")); err != nil {
			t.Fatal(err)
		}
		d.Close()
		for _, name := range []string{path, path + "-wal", path + "-shm", path + ".queue"} {
			st, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			if st.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v", name, st.Mode())
			}
			if err := os.Chmod(name, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(path+".queue", 0o600); err != nil { // has always been so
			t.Fatal(err)
		}
	}
	if st, err := os.Stat(filepath.Dir(path)); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("directory: %v, %v", st.Mode(), err)
	}
}

func TestManyWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	var wg sync.WaitGroup
	for i := range uint32(16) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			d, err := Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer d.Close()
			for j := range uint32(10) {
				if err := d.Put(context.Background(), attempt(i*10+j+1, 0)); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	got, err := openFor(t, path).Attempts(t.Context(), nil)
	if err != nil || len(got) != 160 {
		t.Errorf("%d attempts, %v", len(got), err)
	}
}

// A record names the CARMA that wrote the record.
func TestRecordsNameTheirVersion(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	if err := d.Put(t.Context(), attempt(8, 0)); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := d.sql.QueryRow("SELECT version FROM attempt").Scan(&got); err != nil || got != version.String() {
		t.Errorf("%q, %v", got, err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	openFor(t, path)
	s, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Exec("PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := Open(path); !errors.Is(err, ErrNewer) {
		t.Errorf("writer: %v", err)
	}
	if _, err := OpenRead(path); !errors.Is(err, ErrNewer) {
		t.Errorf("reader: %v", err)
	}
}

func TestMissingAndSpoiled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	if _, err := OpenRead(path); !errors.Is(err, ErrMissing) {
		t.Errorf("missing: %v", err)
	}
	if err := os.WriteFile(path, []byte("this is no database, whatever its name says"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenRead(path); err == nil {
		t.Error("a spoiled file was opened for reading")
	}
	if _, err := Open(path); err == nil {
		t.Error("a spoiled file was opened for writing")
	}
}

func TestBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	d := openFor(t, path)
	tx, err := d.sql.Begin() // immediate: holds the write lock
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	other, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Put(t.Context(), attempt(1, 0)); !errors.Is(err, errBusy) {
		t.Errorf("got %v", err)
	}
}

func TestRefusesNetworkFileSystems(t *testing.T) {
	networkFileSystems[tmpType(t)] = "test"
	defer delete(networkFileSystems, tmpType(t))
	if _, err := Open(filepath.Join(t.TempDir(), "carma.db")); !errors.Is(err, errNetwork) {
		t.Errorf("got %v", err)
	}
}

func tmpType(t *testing.T) int64 {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(os.TempDir(), &st); err != nil {
		t.Fatal(err)
	}
	return int64(uint32(st.Type))
}

// What Scan reads is fit to be shown after Clean, and is looked at once only.
func TestClean(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	names := []string{"train", "", "a\x1b]0;b\x07c", "größe", "\u202egnp.exe", "x\xffy", "a\tb\nc", "\x7f",
		strings.Repeat("a", usertext.Most), strings.Repeat("b", usertext.Most+1)}
	for i, name := range names {
		a := attempt(uint32(i+1), 0)
		a.Name = name
		if err := d.Put(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	err := d.Scan(t.Context(), Filter{}, func(list []Attempt) error {
		a := &list[0]
		stored := a.Name
		a.Clean()
		if want := usertext.Clean(stored); a.Name != want {
			t.Errorf("%.20q: %.20q, want %.20q", stored, a.Name, want)
		}
		if plain := usertext.Clean(stored) == stored && stored != "größe"; a.clean != plain {
			t.Errorf("%.20q: told clean: %v", stored, a.clean)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// slurmctld gives ids again: after MaxJobId, or without its state (docs/situations.md). Words of slurmctld about a
// job without an Epilog, whose id another user's job had, go into no record of the other user.
func TestAnEndGoesIntoNoEarlierRecord(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	then := time.Unix(1_700_000_000, 0)
	now := then.AddDate(1, 0, 0)
	alices := Attempt{JobID: 5, Node: "n1", User: "alice", UID: 1000, Submit: then, Start: then, End: then.Add(time.Hour),
		State: "COMPLETED", Name: "alices"}
	bobs := End{JobID: 5, UID: 1001, Node: "n1", Name: "bobs secret", Account: "b", State: "FAILED"}
	if err := d.Put(t.Context(), alices); err != nil {
		t.Fatal(err)
	}
	if list, err := d.SetEnd(t.Context(), bobs); err != nil || len(list) > 0 {
		t.Errorf("bob's end completes %+v, %v", list, err)
	}
	if list, err := d.Attempts(t.Context(), []uint32{5}); err != nil || len(list) != 1 || list[0].Name != "alices" {
		t.Errorf("%+v, %v", list, err)
	}
	for _, c := range []struct {
		uid         uint32
		start, want time.Time // of the newest record
		records     int
	}{
		{1000, then.Add(10 * time.Hour), then, 1}, // the same job, after a jump of the clock
		{1000, now, now, 2}, {1001, now.Add(time.Minute), now.Add(time.Minute), 3}, {1001, now, now.Add(time.Minute), 3},
	} {
		if err := d.PutIfNone(t.Context(), Attempt{JobID: 5, Node: "n1", UID: c.uid, Submit: c.start, Start: c.start,
			End: c.start.Add(time.Hour), State: NodeFail}); err != nil {
			t.Fatal(err)
		}
		list, err := d.Attempts(t.Context(), []uint32{5})
		if n := len(list); err != nil || n != c.records || list[n-1].UID != c.uid || !list[n-1].Start.Equal(c.want) {
			t.Errorf("user %d at %s: %+v, %v", c.uid, c.start, list, err)
		}
	}
}

// Of several databases the one that cannot be read is named; one without a table, as a full disk leaves, is none.
func TestErrorsNameTheDatabase(t *testing.T) {
	dir := t.TempDir()
	empty, damaged := filepath.Join(dir, "empty.db"), filepath.Join(dir, "damaged.db")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err := OpenRead(empty); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), empty) {
		t.Errorf("an empty file: %v, %v", d, err)
	}
	d := openFor(t, damaged)
	if err := d.Put(t.Context(), attempt(7, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.sql.Exec("UPDATE attempt SET record = 'no JSON'"); err != nil {
		t.Fatal(err)
	}
	err := d.Scan(t.Context(), Filter{}, func([]Attempt) error { return nil })
	if err == nil || !strings.Contains(err.Error(), damaged) {
		t.Errorf("a spoiled record: %v", err)
	}
}
