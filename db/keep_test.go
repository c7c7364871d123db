// SPDX-License-Identifier: Apache-2.0

package db

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"carma/db/figure"
)

func TestThinKeepsEnergy(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	var samples []Sample
	joules := 0.0
	for at := now.Add(-9 * 24 * time.Hour); at.Before(now); at = at.Add(10 * time.Second) {
		s := Sample{UUID: "GPU-0", At: at, Length: 10 * time.Second, UsedMiB: int64(at.Minute()),
			SMActPct: figure.Measured(at.Second()), SMActMax: 90, SMActS: 10, EnergyJ: 600, UnownedJ: 60, EnergyS: 10,
			Jobs: at.Hour()}
		if at.Second() == 30 {
			s.SMActPct, s.SMActMax, s.SMActS = figure.Unknown, figure.Unknown, 0
		}
		samples = append(samples, s)
		joules += 600
	}
	if err := d.AddSamples(t.Context(), samples, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 { // again: nothing left to do
		if err := d.Thin(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	list, err := d.Series(t.Context(), "GPU-0", now.Add(-240*time.Hour), now)
	if err != nil {
		t.Fatal(err)
	}
	count, sum := map[time.Duration]int{}, 0.0
	for _, s := range list {
		count[s.Length]++
		sum += float64(s.EnergyJ)
		if s.Length == time.Minute && (s.SMActPct != 24 || s.SMActS != 50 || s.EnergyS != 60 || s.UnownedJ != 360) {
			t.Fatalf("a minute: %+v", s)
		}
	}
	if count[10*time.Second] != 8640 || count[time.Minute] != 6*24*60 || count[10*time.Minute] != 2*24*6 ||
		math.Abs(sum-joules) > 1e-3 {
		t.Errorf("%v samples, %v J of %v", count, sum, joules)
	}
	if p, err := d.Prune(t.Context(), time.Time{}, now.Add(-24*time.Hour)); err != nil || p.Samples != 6*24*60+2*24*6 {
		t.Errorf("pruned %+v, %v", p, err)
	}
}

// The memory of a job that goes on grows in place, and old rows of a job whose memory changes become fewer, with the
// same beginning, end and peak.
func TestSamplesOfJobs(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	begin := now.Add(-9 * 24 * time.Hour)
	add := func(j JobSample) {
		t.Helper()
		j.UUID, j.UID = "GPU-0", 1000
		if err := d.AddSamples(t.Context(), []Sample{{UUID: "GPU-0", At: j.At, Memory: []JobSample{j}}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	count := func(job uint32) (n int, from, to time.Time, most int64) {
		t.Helper()
		list, err := d.JobSamples(t.Context(), "GPU-0", begin.Add(-time.Hour), now)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range list {
			if j.JobID != job {
				continue
			}
			if n++; n == 1 {
				from = j.At
			}
			to, most = j.At.Add(j.Length), max(most, j.UsedMiB)
		}
		return n, from, to, most
	}
	for i := range 3 { // job 1 stays
		add(JobSample{At: begin, Length: time.Duration(i+1) * time.Hour, JobID: 1, UsedMiB: 7})
	}
	add(JobSample{At: begin, Length: time.Second, JobID: 1, UsedMiB: 9}) // of an agent that starts again
	for i := range 400 {                                                 // job 2 changes
		add(JobSample{At: begin.Add(time.Duration(5+10*i) * time.Second), Length: 10 * time.Second, JobID: 2,
			UsedMiB: int64(1 + i%100)})
	}
	for range 2 {
		if err := d.Thin(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	n, from, to, most := count(1)
	if n != 1 || !from.Equal(begin) || !to.Equal(begin.Add(3*time.Hour)) || most != 9 {
		t.Errorf("job 1: %d rows from %v to %v, %d MiB", n, from, to, most)
	}
	n, from, to, most = count(2)
	if n != 7 || !from.Equal(begin.Add(5*time.Second)) || to.Before(begin.Add(4005*time.Second)) || most != 100 {
		t.Errorf("job 2: %d rows from %v to %v, %d MiB", n, from, to, most)
	}
	if _, err := d.Prune(t.Context(), begin.Add(2*time.Hour), time.Time{}); err != nil { // the records
		t.Fatal(err)
	}
	if n, _, _, _ := count(2); n != 0 {
		t.Errorf("%d rows of a job without a record", n)
	}
	if n, _, _, _ := count(1); n != 1 {
		t.Error("a job that went on is forgotten")
	}
}

func TestMetersSurvive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	d := openFor(t, path)
	want := []Meter{{UUID: "a", Index: 1, Model: "A100", TotalMiB: 40536, Node: "n1", CounterJ: 5.5,
		At: time.UnixMilli(1700000000250), FloorWatts: figure.Unknown}}
	if err := d.AddSamples(t.Context(), nil, want); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Meters(t.Context()); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestPruneBackupCheck(t *testing.T) {
	dir := t.TempDir()
	d := openFor(t, filepath.Join(dir, "carma.db"))
	for id := range uint32(10) {
		a := attempt(id+1, 0)
		a.Start, a.End = at(float64(id)*100), at(float64(id)*100+50)
		if err := d.Put(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	copyPath := filepath.Join(dir, "copy.db")
	if err := d.Backup(t.Context(), copyPath); err != nil {
		t.Fatal(err)
	}
	if err := d.Backup(t.Context(), copyPath); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over an old copy: %v", err)
	}
	if p, err := d.Prune(t.Context(), at(500), time.Time{}); err != nil || p.Attempts != 5 {
		t.Errorf("pruned %+v, %v", p, err)
	}
	if found, err := d.Check(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("found %v, %v", found, err)
	}
	if got, err := openFor(t, copyPath).Attempts(t.Context(), nil); err != nil || len(got) != 10 {
		t.Errorf("the copy has %d attempts, %v", len(got), err)
	}
	if _, err := d.sql.Exec("UPDATE attempt SET end_ms = 1, record = json_set(record, '$.gpus[1].did.j', -5) " +
		"WHERE job_id = 7; UPDATE attempt SET record = '{' WHERE job_id = 8"); err != nil {
		t.Fatal(err)
	}
	found, err := d.Check(t.Context())
	if err != nil || !slices.Equal(found, []string{"1 records that end before they start", "1 records that are no JSON",
		"1 records whose energy is less than nothing"}) {
		t.Errorf("found %q, %v", found, err)
	}
}

// An older schema is brought up step by step, and keeps its rows; one that fails
// stays as it was.
func TestMigrate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	files := fstest.MapFS{}
	for name, text := range map[string]string{
		"0001.sql": "CREATE TABLE x (a INTEGER) STRICT;",
		"0002.sql": "ALTER TABLE x ADD COLUMN b TEXT NOT NULL DEFAULT 'old';",
		"0003.sql": "CREATE INDEX xb ON x (b);",
	} {
		files["schema/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	d, err := open(writer, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.migrate(files, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := d.sql.Exec("INSERT INTO x VALUES (7)"); err != nil {
		t.Fatal(err)
	}
	files["schema/0003.sql"].Data = []byte("CREATE INDEX broken ON nothing (b);")
	if err := d.migrate(files, 3); err == nil || !strings.Contains(err.Error(), "migrate the schema to version 3") {
		t.Errorf("a broken step: %v", err)
	}
	if v, err := d.version(d.sql); err != nil || v != 1 {
		t.Errorf("version %d after a broken step, %v", v, err)
	}
	files["schema/0003.sql"].Data = []byte("CREATE INDEX xb ON x (b);")
	if err := d.migrate(files, 3); err != nil {
		t.Fatal(err)
	}
	var a int
	var b string
	if err := d.sql.QueryRow("SELECT a, b FROM x INDEXED BY xb WHERE b > ''").Scan(&a, &b); err != nil || a != 7 ||
		b != "old" {
		t.Errorf("got %d %q, %v", a, b, err)
	}
	if err := d.migrate(files, 2); !errors.Is(err, ErrNewer) {
		t.Errorf("an older program: %v", err)
	}
}

func TestScan(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	n := 0
	for id := range uint32(2*chunk/3 + 10) {
		for restart := range 1 + id%3 {
			a := attempt(id+1, restart)
			a.User, a.Name = []string{"alice", "bob"}[id%2], "a\x1fb\x1ec"
			a.ArrayJobID = 0
			a.Start, a.End = at(float64(id)*1000), at(float64(id)*1000+10)
			n++
			if err := d.Put(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
	}
	scan := func(f Filter) (jobs, attempts int) {
		last := uint32(0)
		err := d.Scan(t.Context(), f, func(list []Attempt) error {
			if list[0].JobID <= last || len(list) != 1+int(list[0].JobID-1)%3 || list[0].Name != "a b c" ||
				len(list[0].Neighbours) != 2 || len(list[0].Total.UUIDs) != 2 {
				return fmt.Errorf("after %d: %+v", last, list)
			}
			last, jobs, attempts = list[0].JobID, jobs+1, attempts+len(list)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return jobs, attempts
	}
	if jobs, all := scan(Filter{}); jobs != 2*chunk/3+10 || all != n {
		t.Errorf("%d jobs, %d of %d attempts", jobs, all, n)
	}
	if jobs, _ := scan(Filter{Users: []string{"bob"}, Accounts: []string{"ml", "x"}}); jobs != chunk/3+5 {
		t.Errorf("%d jobs of bob", jobs)
	}
	if jobs, _ := scan(Filter{FromJob: 100, BeforeJob: 200}); jobs != 100 {
		t.Errorf("%d jobs of a range", jobs)
	}
	if jobs, _ := scan(Filter{Jobs: []uint32{3, 5000000}}); jobs != 1 {
		t.Errorf("%d of one job", jobs)
	}
	week := 7 * 24 * 3600.0
	if jobs, _ := scan(Filter{From: at(100000 + week), To: at(600005 - week)}); jobs != 501 {
		t.Errorf("%d jobs of a time", jobs)
	}
}

// Whatever texts a record has, it is read back as one record of its job, and its texts are
// in their fields.
func FuzzRecord(f *testing.F) {
	path := filepath.Join(f.TempDir(), "carma.db")
	d, err := Open(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { d.Close() })
	for _, s := range []string{"train", "a\x1fb", "a\x1e8\x1fc\x1f", "\n", "a,b", `{"job":8}`, "\xff", "\x00",
		"'); DROP TABLE attempt; --"} {
		f.Add(s, "x", "GPU-a")
		f.Add("x", s, s)
	}
	f.Fuzz(func(t *testing.T, name, other, uuid string) {
		for id := range uint32(3) {
			a := attempt(id+6, 0)
			if a.JobID == 7 {
				a.Name, a.Account, a.Partition, a.OOMNote, a.RequeuedTo, a.GPUs[0].UUID = name, other, name, other, name, uuid
			}
			if err := d.Put(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
		var ids []uint32
		err := d.Scan(t.Context(), Filter{}, func(list []Attempt) error {
			for _, a := range list {
				ids = append(ids, a.JobID)
				if a.JobID != 7 && (a.Name != "train" || a.Account != "ml") || a.JobID == 7 &&
					(a.Name != clean(name) || a.Account != clean(other) || a.RequeuedTo != clean(name)) {
					t.Errorf("job %d: %+v", a.JobID, a)
				}
			}
			return nil
		})
		if err != nil || !slices.Equal(ids, []uint32{6, 7, 8}) {
			t.Errorf("jobs %v, %v", ids, err)
		}
		if _, err := d.Prune(t.Context(), time.Unix(1<<40, 0), time.Time{}); err != nil {
			t.Fatal(err)
		}
	})
}
