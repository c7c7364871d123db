// SPDX-License-Identifier: Apache-2.0

package db

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// dbd is a slurmdbd of a map.
type dbd struct {
	comments map[uint32]string
	arrays   map[uint32]uint32 // of a task
	unended  map[uint32]bool
	down     bool
	sets     int
	loses    bool // takes a comment and forgets it, as another node's write would
	refuses  uint32
}

func (d *dbd) Comments(context.Context, string, []uint32) (map[uint32]Comment, error) {
	if d.down {
		return nil, errors.New("slurmdbd is down")
	}
	all := map[uint32]Comment{}
	for id, text := range d.comments {
		all[id] = Comment{d.arrays[id], text, d.unended[id]}
	}
	return all, nil
}

func (d *dbd) SetComment(_ context.Context, _ string, job uint32, comment string) error {
	if d.down {
		return errors.New("slurmdbd is down")
	}
	if job == d.refuses {
		return fmt.Errorf("quotes: %w", ErrRefused)
	}
	d.sets++
	for id := range d.comments { // the id of an array is all of it
		if !d.loses && (id == job || d.arrays[id] == job) {
			d.comments[id] = comment
		}
	}
	return nil
}

func TestForwardArray(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	to := &dbd{comments: map[uint32]string{5: "", 6: "", 7: "x", 8: ""}, arrays: map[uint32]uint32{5: 5, 6: 5, 7: 5, 8: 8}}
	for id := range to.comments {
		if err := d.Put(t.Context(), attempt(id, 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := d.SetEnd(t.Context(), End{JobID: id, UID: 1000, Node: "n1", ArrayJobID: to.arrays[id],
			State:   "COMPLETED",
			Forward: true}); err != nil {
			t.Fatal(err)
		}
	}
	if sent, err := d.Forward(t.Context(), to, time.Now().Add(time.Minute)); sent != 4 || err != nil {
		t.Fatal(sent, err)
	}
	if to.comments[5] != "" || !strings.HasPrefix(to.comments[7], "x carma1:") {
		t.Errorf("%q, %.20q", to.comments[5], to.comments[7])
	}
	for id, want := range map[uint32]string{6: "5 6", 7: "7", 8: "8"} {
		list, refused, err := ParseComment(id, Comment{ArrayJobID: to.arrays[id], Text: to.comments[id]})
		var got []string
		for _, a := range list {
			got = append(got, fmt.Sprint(a.JobID))
		}
		if err != nil || refused != 0 || strings.Join(got, " ") != want {
			t.Errorf("the comment of %d has %v, %v", id, got, err)
		}
	}
}

func TestForward(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	end := func(id uint32) {
		t.Helper()
		if err := d.Put(t.Context(), attempt(id, 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := d.SetEnd(t.Context(), End{JobID: id, UID: 1000, Node: "n1", State: "COMPLETED",
			Forward: true}); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	to := &dbd{comments: map[uint32]string{1: "JS1:abcd", 2: `carma={"v":1,"note":"a } b"}`}}
	forward := func(s, want int, fails bool) {
		t.Helper()
		if sent, err := d.Forward(t.Context(), to, at(s)); sent != want || (err != nil) != fails {
			t.Fatalf("%d sent, want %d; %v", sent, want, err)
		}
	}
	for id := range uint32(3) {
		end(id + 1)
	}
	forward(1, 0, false) // too early
	to.down = true
	forward(20, 0, true)
	forward(21, 0, false) // not due again yet
	to.down, to.loses = false, true
	forward(40, 0, false)
	to.loses = false
	forward(80, 2, false) // 3 is not known to slurmdbd yet
	forward(81, 0, false)
	if to.sets != 4 {
		t.Errorf("%d writes", to.sets)
	}
	to.comments[3] = ""
	forward(400, 1, false)
	if n, err := waiting(t.Context(), d); n != 0 || err != nil {
		t.Errorf("%d wait, %v", n, err)
	}
	for id, front := range map[uint32]string{1: "JS1:abcd !~!", 2: "carma1:", 3: "carma1:"} {
		if !strings.HasPrefix(to.comments[id], front) {
			t.Errorf("job %d: %.40s", id, to.comments[id])
		}
		list, _, err := ParseComment(id, Comment{Text: to.comments[id]})
		if err != nil || len(list) != 1 || list[0].JobID != id || list[0].State != "REQUEUED" ||
			list[0].Total.EnergyJ != 300 {
			t.Errorf("job %d: %+v, %v", id, list, err)
		}
	}
	end(3) // known anew: in the place of the old
	forward(500, 1, false)
	if list, _, _ := ParseComment(3, Comment{Text: to.comments[3]}); len(list) != 1 {
		t.Errorf("%d records of one attempt", len(list))
	}
	// What cannot get there is not tried again, and the others go on.
	for id := range uint32(5) {
		to.comments[id+10] = ""
		end(id + 10)
	}
	to.refuses = 10
	forward(590, 4, false)
	if n, err := waiting(t.Context(), d); n != 0 || err != nil {
		t.Errorf("%d wait, %v", n, err)
	}
	// What never gets there is given up in the end, and not before a week.
	end(9)
	s, n := 600, 0
	for ; n < 1000; n++ {
		forward(s, 0, false)
		if w, _ := waiting(t.Context(), d); w == 0 {
			break
		}
		s += 3601
	}
	if n < 168 || n > 400 {
		t.Errorf("given up after %d tries", n)
	}
}

// After a time without slurmdbd slurmctld sends a job's start, and then its end with
// slurmctld's own comment: what is written in between is lost.
func TestForwardWaitsForTheEnd(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	if err := d.Put(t.Context(), attempt(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.SetEnd(t.Context(), End{JobID: 1, UID: 1000, Node: "n1", State: "COMPLETED",
		Forward: true}); err != nil {
		t.Fatal(err)
	}
	to := &dbd{comments: map[uint32]string{1: "before"}, unended: map[uint32]bool{1: true}}
	now := time.Now().Add(time.Minute)
	for range 2 * tries { // a job that runs for months once requeued
		if sent, err := d.Forward(t.Context(), to, now); sent != 0 || err != nil || to.sets != 0 {
			t.Fatal(sent, to.sets, err)
		}
		now = now.Add(tryMost + time.Second)
	}
	to.unended, to.comments[1] = nil, "of the end"
	if sent, err := d.Forward(t.Context(), to, now); sent != 1 || err != nil ||
		!strings.HasPrefix(to.comments[1], "of the end carma1:") {
		t.Errorf("%d sent, %v: %.20q", sent, err, to.comments[1])
	}
}

func TestMergeComment(t *testing.T) {
	first, second := attempt(1, 0), attempt(1, 1)
	comment, err := MergeComment(1, Comment{Text: "other"}, []Attempt{second})
	if err != nil {
		t.Fatal(err)
	}
	if comment, err = MergeComment(1, Comment{Text: comment + " more"}, []Attempt{first, second}); err != nil {
		t.Fatal(err)
	}
	list, _, err := ParseComment(1, Comment{Text: comment})
	if err != nil || len(list) != 2 || list[0].Restart != 0 || list[1].Restart != 1 ||
		!strings.HasPrefix(comment, "other more carma1:") {
		t.Errorf("%.40s: %+v, %v", comment, list, err)
	}
	first.Total = TotalOf(first.GPUs)
	if got, want := fmt.Sprintf("%+v", list[0].Total), fmt.Sprintf("%+v", first.Total); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for before, want := range map[string]string{
		`carma={"v":1,"mode":"shared"}`: "carma1:",
		`carma={"v":1} carma-retry={"reason":"oom","signature":"pytorch","from":"gpu"} carma-retry={"reason":"oom"}`: "carma1:",
		`word carma-retry={"reason":"oom"} more carma={"v":1}`:                                                       "word more carma1:",
		`not-carma={"v":1} carma={ carma={"v":1}`:                                                                    `not-carma={"v":1} carma={ carma1:`,
	} {
		if comment, err := MergeComment(1, Comment{Text: before}, []Attempt{first}); err != nil ||
			!strings.HasPrefix(comment, want) {
			t.Errorf("%s: %.60s, %v", before, comment, err)
		}
	}
	for _, spoiled := range []string{"carma1:", "x carma1:###",
		"carma1:" + strings.ToLower(lettersOnly.EncodeToString([]byte("no gzip")))} {
		if _, _, err := ParseComment(1, Comment{Text: spoiled}); err == nil {
			t.Errorf("%q was read", spoiled)
		}
		if comment, err := MergeComment(1, Comment{Text: spoiled}, []Attempt{first}); err != nil ||
			strings.Count(comment, "carma1:") != 1 {
			t.Errorf("%q: %.60s, %v", spoiled, comment, err)
		}
	}
}

// What stands behind jobstats' record has no character of base64, and is read again;
// so is what an earlier release wrote there.
func TestCommentBehindJobstats(t *testing.T) {
	plain, err := MergeComment(1, Comment{}, []Attempt{attempt(1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	comment, err := MergeComment(1, Comment{Text: "JS1:abcd AA== " + plain}, []Attempt{attempt(1, 1)})
	if err != nil {
		t.Fatal(err)
	}
	tail, ours := strings.CutPrefix(comment, "JS1:abcd ")
	if !ours || regexp.MustCompile(`[A-Za-z0-9+/=|'"`+"`"+`]`).MatchString(tail) {
		t.Errorf("%.60s", comment)
	}
	for _, c := range []string{comment, comment + " and more", strings.ToLower(comment)} {
		if list, _, err := ParseComment(1, Comment{Text: c}); err != nil || len(list) != 2 || list[0].Restart != 0 ||
			list[1].Restart != 1 {
			t.Errorf("%.60s: %+v, %v", c, list, err)
		}
	}
	for _, spoiled := range []string{comment[:len(comment)-1], comment + "a", "JS1:abcd !~!"} {
		if _, _, err := ParseComment(1, Comment{Text: spoiled}); err == nil {
			t.Errorf("%q was read", spoiled)
		}
		if again, err := MergeComment(1, Comment{Text: spoiled}, []Attempt{attempt(1, 0)}); err != nil ||
			!strings.HasPrefix(again, "JS1:abcd !~!") {
			t.Errorf("%.60s, %v", again, err)
		}
	}
}

// What jobstats wrote can still be read as its readers do it, whatever the length.
func TestCommentKeepsJobstats(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 to read as jobstats' readers do; make deps-test-unit installs it")
	}
	for n := range 6 {
		make := `import base64,gzip,json;print("JS1:"+base64.b64encode(gzip.compress(json.dumps({"x":"` +
			strings.Repeat("é", n) + `q"}).encode(),mtime=0)).decode())`
		js1, err := exec.Command(python, "-c", make).Output()
		if err != nil {
			t.Fatal(err)
		}
		comment, err := MergeComment(1, Comment{Text: strings.TrimSpace(string(js1))}, []Attempt{attempt(1, 0)})
		if err != nil {
			t.Fatal(err)
		}
		read := exec.Command(python, "-c", `import sys,base64,gzip,json;print(json.loads(gzip.decompress(base64.b64decode(sys.argv[1][4:])))["x"])`, comment)
		if out, err := read.CombinedOutput(); err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "q") {
			t.Errorf("%d: %v\n%s", n, err, out)
		}
	}
}

// A record in the comment of a job that it is not of is neither read nor kept, but for that
// of the array's own id.
func TestForeignRecords(t *testing.T) {
	for _, c := range []struct {
		job, array uint32
		ids, want  string
	}{{7, 0, "7", "7"}, {7, 0, "8", ""}, {7, 0, "6 7 8", "7"}, {7, 5, "5 6 7", "5 7"}, {5, 5, "5 6", "5"},
		{7, 0, "0 7", "7"}, {0, 0, "0", "0"}} {
		var list []Attempt
		for word := range strings.FieldsSeq(c.ids) {
			var id uint32
			fmt.Sscan(word, &id)
			list = append(list, attempt(id, 0))
		}
		text := packed(t, list)
		ids := func(list []Attempt) string {
			var words []string
			for _, a := range list {
				words = append(words, fmt.Sprint(a.JobID))
			}
			return strings.Join(words, " ")
		}
		carrier := Comment{ArrayJobID: c.array, Text: text}
		got, refused, err := ParseComment(c.job, carrier)
		if err != nil || ids(got) != c.want || refused != len(list)-len(got) {
			t.Errorf("%+v: %q, %d refused, %v", c, ids(got), refused, err)
		}
		merged, err := MergeComment(c.job, carrier, []Attempt{attempt(c.job, 9)})
		if err != nil {
			t.Fatal(err)
		}
		if all, _, err := splitComment(merged); err != nil || ids(all) != strings.TrimSpace(c.want+" "+fmt.Sprint(c.job)) {
			t.Errorf("%+v: merged to %q, %v", c, ids(all), err)
		}
	}
}

// packed is a comment with any records, as CARMA never makes it.
func packed(t testing.TB, list []Attempt) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := errors.Join(json.NewEncoder(z).Encode(list), z.Close()); err != nil {
		t.Fatal(err)
	}
	return commentMark + strings.ToLower(lettersOnly.EncodeToString(b.Bytes()))
}

// Whatever stands in the comment of a job, what is read of it is of that job or of the id of
// its array.
func FuzzParseComment(f *testing.F) {
	f.Add(uint32(1), uint32(0), packed(f, []Attempt{attempt(1, 0), attempt(2, 0)}), "")
	f.Add(uint32(7), uint32(5), packed(f, []Attempt{attempt(5, 0), attempt(7, 0)}), "")
	f.Add(uint32(1), uint32(0), "carma1:H4sI", "")
	f.Add(uint32(1), uint32(0), "carma1:H4sI !~!#$ x", "")
	f.Add(uint32(1), uint32(0), "JS1:abcd", `[{"job":2},{"job":1,"name":"a\u001f\n"}]`)
	f.Add(uint32(1), uint32(0), "", `[{"job":1,"JOB":2}]`)
	f.Fuzz(func(t *testing.T, job, array uint32, before, records string) {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		z.Write([]byte(records))
		z.Close()
		for _, text := range []string{before, before + commentMark + strings.ToLower(lettersOnly.EncodeToString(b.Bytes()))} {
			c := Comment{ArrayJobID: array, Text: text}
			list, _, err := ParseComment(job, c)
			if err != nil {
				continue
			}
			merged, err := MergeComment(job, c, []Attempt{attempt(job, 0)})
			if err != nil {
				t.Fatal(err)
			}
			again, _, err := splitComment(merged)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range append(list, again...) {
				if a.JobID != job && (a.JobID != array || array == 0) {
					t.Errorf("the comment of job %d of array %d has a record of %d", job, array, a.JobID)
				}
			}
		}
	})
}

// slurmdbd is away for a day: what ended meanwhile is there within two hours, each job once.
func TestForwardAfterADay(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	to := &dbd{comments: map[uint32]string{}, down: true}
	now := time.Now()
	const jobs = 300
	sent := 0
	for minute := range 26 * 60 {
		at := now.Add(time.Duration(minute) * time.Minute)
		if id := uint32(minute/4 + 1); minute%4 == 0 && id <= jobs {
			if err := d.Put(t.Context(), attempt(id, 0)); err != nil {
				t.Fatal(err)
			}
			if _, err := d.SetEnd(t.Context(), End{JobID: id, UID: 1000, Node: "n1", State: "COMPLETED",
				Forward: true}); err != nil {
				t.Fatal(err)
			}
			to.comments[id] = ""
		}
		to.down = minute < 24*60
		n, err := d.Forward(t.Context(), to, at)
		if sent += n; err != nil && !to.down {
			t.Fatal(err)
		}
	}
	if w, err := waiting(t.Context(), d); sent != jobs || to.sets != jobs || w != 0 || err != nil {
		t.Errorf("%d of %d are there after %d writes, %d wait, %v", sent, jobs, to.sets, w, err)
	}
}

// waiting is how many jobs are in the outbox.
func waiting(ctx context.Context, d *DB) (n int, err error) {
	return n, d.sql.QueryRowContext(ctx, "SELECT count(*) FROM outbox").Scan(&n)
}
