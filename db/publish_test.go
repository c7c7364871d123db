// SPDX-License-Identifier: Apache-2.0

package db

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// published is a database with records of three users, and its publisher.
type published struct {
	*testing.T
	path string
	db   *DB
	*Publisher
}

func newPublished(t *testing.T) *published {
	t.Helper()
	path := filepath.Join(t.TempDir(), "carma.db")
	p := &published{t, path, openFor(t, path), &Publisher{Path: path}}
	t.Cleanup(func() { p.Publisher.Close() })
	for i, uid := range []uint32{1000, 1001, 1000, 0} {
		p.put(uint32(i+1), uid)
	}
	memory := []JobSample{{UUID: "GPU-0", At: at(10), Length: time.Second, JobID: 1, UID: 1000, UsedMiB: 5},
		{UUID: "GPU-0", At: at(10), Length: time.Second, JobID: 2, UID: 1001, UsedMiB: 7}}
	if err := p.db.AddSamples(t.Context(), []Sample{{UUID: "GPU-0", At: at(10), Length: time.Second, Memory: memory}},
		[]Meter{{UUID: "GPU-0", TotalMiB: 40503}}); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *published) put(id, uid uint32) {
	p.Helper()
	a := attempt(id, 0)
	a.UID, a.User, a.Key = uid, fmt.Sprint("u", uid), "0123456789abcdef"
	if err := p.db.Put(p.Context(), a); err != nil {
		p.Fatal(err)
	}
}

// publish makes all copies that are due, without a pause.
func (p *published) publish(r Readers) {
	p.Helper()
	p.gpusAt = time.Time{}
	for range 10 {
		p.next = time.Time{}
		if err := p.Publish(p.Context(), r); err != nil {
			p.Fatal(err)
		}
	}
}

// jobs are those in a copy.
func (p *published) jobs(name string) (ids []uint32) {
	p.Helper()
	d, err := open(reader, filepath.Join(p.dir(), name), immutable)
	if err != nil {
		p.Fatal(err)
	}
	defer d.Close()
	err = d.Scan(p.Context(), Filter{}, func(list []Attempt) error {
		for _, a := range list {
			if a.Key != "" {
				p.Errorf("%s has the key of job %d", name, a.JobID)
			}
			ids = append(ids, a.JobID)
		}
		return nil
	})
	if err != nil {
		p.Fatal(err)
	}
	if m, err := d.Meters(p.Context()); err != nil || len(m) != 1 || m[0].TotalMiB != 40503 {
		p.Errorf("%s: GPUs %+v, %v", name, m, err)
	}
	if s, err := d.Series(p.Context(), "", at(0), at(100)); err != nil || len(s) != 1 {
		p.Errorf("%s: samples %+v, %v", name, s, err)
	}
	return ids
}

// expectMemory requires the users whose jobs' memory a copy has.
func (p *published) expectMemory(name string, want ...uint32) {
	p.Helper()
	d, err := open(reader, filepath.Join(p.dir(), name), immutable)
	if err != nil {
		p.Fatal(err)
	}
	defer d.Close()
	list, err := d.JobSamples(p.Context(), "GPU-0", at(0), at(100))
	if err != nil {
		p.Fatal(err)
	}
	var uids []uint32
	for _, j := range list {
		uids = append(uids, j.UID)
	}
	if !slices.Equal(uids, want) {
		p.Errorf("%s has memory of jobs of users %v, want %v", name, uids, want)
	}
}

// files are the names and modes below the directory of copies; whose lists name users have
// a plus.
func (p *published) files() (list []string) {
	p.Helper()
	entries, err := os.ReadDir(p.dir())
	if err != nil {
		p.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			p.Fatal(err)
		}
		list = append(list, fmt.Sprintf("%s %o", e.Name(), info.Mode().Perm()))
	}
	return list
}

func sizeOf(t *testing.T, f *os.File) int64 {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func (p *published) expect(name string, want ...uint32) {
	p.Helper()
	if got := p.jobs(name); !slices.Equal(got, want) {
		p.Errorf("%s has jobs %v, want %v", name, got, want)
	}
}

// Every user reads all records, without keys; where records are private, their own.
func TestPublish(t *testing.T) {
	p := newPublished(t)
	p.publish(Readers{})
	p.expect(allView, 1, 2, 3, 4)
	p.expectMemory(allView, 1000, 1001)
	p.expectMemory(gpusView)
	if got, want := p.files(), []string{"alive 644", "all.db 644", "gpus.db 644"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	p.put(5, 1001)
	p.publish(Readers{})
	p.expect(allView, 1, 2, 3, 4, 5)
	private := Readers{Private: true, Operator: 64030}
	held, err := os.Open(filepath.Join(p.dir(), allView))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	p.publish(private)
	// Nor does who has it open read on for ever.
	if p.empty(time.Now().Add(time.Second)); sizeOf(t, held) != 0 {
		t.Errorf("%d bytes of what was open to all are left", sizeOf(t, held))
	}
	for name, want := range map[string][]uint32{"all.db": {1, 2, 3, 4, 5}, "1000.db": {1, 3}, "1001.db": {2, 5}} {
		p.expect(name, want...)
	}
	p.expectMemory("1000.db", 1000)
	p.expectMemory("1001.db", 1001)
	p.expectMemory(gpusView) // all may read the GPUs' samples
	// 640: the mode of a file that has a list shows its mask.
	if got, want := p.files(), []string{"1000.db 640", "1001.db 640", "alive 644", "all.db 640",
		"gpus.db 644"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	// Of one user's records, one copy is made, and that of all.
	before, err := os.ReadFile(filepath.Join(p.dir(), "1001.db"))
	if err != nil {
		t.Fatal(err)
	}
	stat := func(name string) fs.FileInfo {
		info, err := os.Stat(filepath.Join(p.dir(), name))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	other, mine := stat("1001.db"), stat("1000.db")
	p.put(6, 1000)
	p.publish(private)
	p.expect("1000.db", 1, 3, 6)
	p.expect("all.db", 1, 2, 3, 4, 5, 6)
	if !os.SameFile(other, stat("1001.db")) || os.SameFile(mine, stat("1000.db")) {
		t.Error("the wrong copies were made")
	}
	if bytes.Contains(before, []byte("0123456789abcdef")) || bytes.Contains(before, []byte("u1000")) {
		t.Error("a key or another user's name is in a user's copy")
	}
	// What was pruned is in no copy.
	if _, err := p.db.Prune(t.Context(), time.Unix(1<<40, 0), time.Time{}); err != nil {
		t.Fatal(err)
	}
	p.publish(Readers{Private: true, NoGPUs: true})
	if got, want := p.files(), []string{"alive 644", "gpus.db 644"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	text, err := os.ReadFile(filepath.Join(p.dir(), gpusView))
	if err != nil || bytes.Contains(text, []byte("GPU-0")) {
		t.Errorf("samples are published (%v)", err)
	}
}

// A publisher that was killed leaves what is not published yet for the next one, and
// nothing else; one that runs keeps a second from it.
func TestPublisherAfterPublisher(t *testing.T) {
	p := newPublished(t)
	p.publish(Readers{})
	p.put(9, 1000)
	left := filepath.Join(p.dir(), "all.db.new")
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := &Publisher{Path: p.path}
	defer second.Close()
	if err := second.Publish(t.Context(), Readers{}); err != nil || second.lock != nil {
		t.Errorf("a second publisher: %v, %v", second.lock, err)
	}
	if err := p.Publisher.Close(); err != nil {
		t.Fatal(err)
	}
	p.Publisher = second
	p.publish(Readers{})
	p.expect(allView, 1, 2, 3, 4, 9)
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half a copy is left: %v", err)
	}
	// A copy that somebody removed is made again, by the next at the latest.
	if err := os.Remove(filepath.Join(p.dir(), allView)); err != nil {
		t.Fatal(err)
	}
	p.readers = nil
	p.publish(Readers{})
	p.expect(allView, 1, 2, 3, 4, 9)
}

// Who reads a copy reads on when it is replaced; who keeps it open for ever keeps no disk.
func TestReaderOfAnOldCopy(t *testing.T) {
	p := newPublished(t)
	p.publish(Readers{})
	path := filepath.Join(p.dir(), allView)
	d, err := open(reader, path, immutable)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	read := func() (n int, err error) {
		err = d.Scan(t.Context(), Filter{}, func([]Attempt) error { n++; return nil })
		return n, err
	}
	if n, err := read(); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	held, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	p.put(5, 1000)
	p.publish(Readers{})
	if n, err := read(); n != 4 || err != nil {
		t.Errorf("the copy that was replaced: %d jobs, %v", n, err)
	}
	p.empty(time.Now().Add(time.Second))
	if sizeOf(t, held) != 0 {
		t.Errorf("%d bytes of a copy that was replaced are left", sizeOf(t, held))
	}
	if len(p.old) != 0 {
		t.Errorf("%d copies are kept", len(p.old))
	}
}

// Copies of much are rare.
func TestPause(t *testing.T) {
	for _, c := range []struct {
		cpu   time.Duration
		bytes int64
		want  time.Duration
	}{{0, 0, time.Second}, {time.Millisecond, 4096, time.Second}, {2 * time.Second, 1 << 20, 100 * time.Second},
		{time.Second, 350 << 20, 175 * time.Second}} {
		if got := pause(c.cpu, c.bytes, bytesPerS, soon); got != c.want {
			t.Errorf("after %v and %d bytes: %v, want %v", c.cpu, c.bytes, got, c.want)
		}
	}
	p := newPublished(t)
	begin := time.Now()
	for range 3 {
		if err := p.Publish(t.Context(), Readers{}); err != nil {
			t.Fatal(err)
		}
	}
	if wait := p.next.Sub(begin); wait < soon {
		t.Errorf("the next copy after %v", wait)
	}
	if _, err := os.Stat(filepath.Join(p.dir(), gpusView)); err == nil && time.Since(begin) < soon {
		t.Error("two copies without a pause")
	}
}

// Copies that fail are told of by their age.
func TestOutdated(t *testing.T) {
	p := newPublished(t)
	p.publish(Readers{})
	d, err := openPublished(p.path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	now := time.Now()
	if at := d.Outdated(now.Add(time.Minute)); !at.IsZero() {
		t.Errorf("outdated since %v", at)
	}
	if at := d.Outdated(now.Add(3 * time.Minute)); now.Sub(at).Abs() > time.Minute {
		t.Errorf("outdated since %v, want %v", at, now)
	}
	if !d.Public() {
		t.Error("a copy is no copy")
	}
	p.told = time.Time{}
	for range 3 { // the copies cannot be written
		p.put(9, 1000)
		p.next = time.Time{}
		if err := os.RemoveAll(p.dir()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p.dir(), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := p.Publish(t.Context(), Readers{}); err == nil ||
			!strings.Contains(err.Error(), "publish records for users: ") {
			t.Errorf("got %v", err)
		}
		if wait := time.Until(p.next); wait < failPause/2 {
			t.Errorf("it is tried again after %v", wait)
		}
	}
	if err := os.Remove(p.dir()); err != nil {
		t.Fatal(err)
	}
	// An admin has cleared up: all is made anew, not before the last copy's pause is over.
	over := time.Now().Add(time.Hour)
	p.next, p.told = over, time.Time{}
	if err := p.Publish(t.Context(), Readers{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if p.next.Before(over) {
		t.Errorf("a pause became shorter by %v", over.Sub(p.next))
	}
	p.publish(Readers{})
	p.expect(allView, 1, 2, 3, 4, 9)
}

// A copy for which there is no room is not begun: whoever else writes to the file system would meet a full disk.
func TestCopyWithoutRoom(t *testing.T) {
	p := newPublished(t)
	p.publish(Readers{})
	all := filepath.Join(p.dir(), "all.db")
	before, err := os.Stat(all)
	if err != nil {
		t.Fatal(err)
	}
	const most = 15 << 40 // with holes; a file of ext4 has less than 16 TiB
	if err := os.Truncate(all, most); err != nil {
		t.Fatal(err)
	}
	p.put(9, 1000)
	_, _, err = p.copy(t.Context(), "all.db")
	if after, statErr := os.Stat(all); !errors.Is(err, unix.ENOSPC) || statErr != nil || after.Size() != most {
		t.Errorf("%v; the copy before is %v, %v", err, after, statErr)
	}
	if err := os.Truncate(all, before.Size()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.copy(t.Context(), "all.db"); err != nil {
		t.Error(err)
	}
}
