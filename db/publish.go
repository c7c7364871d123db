// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/db/file"
)

// Users read copies of the records, which nobody locks (docs/adr/0011): all.db has the
// records of all users, UID.db one user's, gpus.db the samples of the GPUs. None has keys
// of the history. gpus.db is there when the others are.
const (
	allView  = "all.db"
	gpusView = "gpus.db"
	aliveOf  = "alive" // its time is when the copies were last in order
)

// PublicDir is where the copies of a database are.
func PublicDir(path string) string { return path + ".public" }

// Readers says who may read the copies.
type Readers struct {
	Private  bool   // users read their own records only
	Operator uint32 // the user who reads all even so; 0: root alone
	NoGPUs   bool   // the samples of the GPUs are not for users
}

// Publisher keeps the copies of a database. One process at a time is the publisher.
type Publisher struct {
	Path string

	db      *DB
	lock    *os.File
	readers *Readers         // whom the files are for; nil: not looked at yet
	whole   bool             // no copy is missing
	todo    []string         // copies to make
	rows    map[uint32]int64 // of changed, when todo was made
	next    time.Time        // a copy may be made
	gpusAt  time.Time        // the samples are copied again
	told    time.Time
	old     []oldCopy
}

// Copies cost at most 2 % of a core and 2 MiB/s of the disk; those of the samples, which
// always change, 64 KiB/s. A thousand records are copied each second, 10,000 every three,
// a million every five minutes.
const (
	cpuPart      = 50
	bytesPerS    = 2 << 20
	gpuBytesPerS = 64 << 10
	soon         = time.Second
	gpusSoon     = time.Minute
)

// pause is how long after a copy there is no other.
func pause(cpu time.Duration, bytes, perSecond int64, least time.Duration) time.Duration {
	return max(least, cpu*cpuPart, time.Duration(bytes)*time.Second/time.Duration(perSecond))
}

const (
	copyDeadline = 10 * time.Minute
	failPause    = 10 * time.Second
	aliveEvery   = 30 * time.Second
	// oldStays is how long a reader of a replaced copy can go on. Then its disk is free:
	// else a user could fill it by opening every copy.
	oldStays = 5 * time.Minute
)

// Publish makes the copy that is due, if one is. It is called about once a second.
func (p *Publisher) Publish(ctx context.Context, r Readers) error {
	p.empty(time.Now().Add(-oldStays))
	if ok, err := p.open(); err != nil || !ok {
		return err
	}
	var err error
	if !time.Now().Before(p.next) {
		err = p.step(ctx, r)
	}
	if err == nil {
		err = p.alive()
	}
	if err == nil {
		return nil
	}
	if again := time.Now().Add(failPause); p.next.Before(again) {
		p.next = again
	}
	if errors.Is(err, fs.ErrNotExist) { // somebody has cleared the directory away
		p.readers = nil
	}
	return fmt.Errorf("publish records for users: %w", explain(err))
}

// open returns whether this process is the publisher.
func (p *Publisher) open() (bool, error) {
	if p.db == nil {
		d, err := Open(p.Path)
		if err != nil {
			return false, err
		}
		p.db = d
	}
	if p.lock != nil {
		return true, nil
	}
	f, err := file.TryLock(p.Path + ".publish")
	if err != nil {
		return false, fmt.Errorf("publish records for users: %w", err)
	}
	p.lock = f
	return f != nil, nil // another agent has it where several share a machine
}

// Close ends the publishing. The copies stay.
func (p *Publisher) Close() error {
	var err error
	for _, c := range p.old {
		err = errors.Join(err, c.file.Close())
	}
	if p.lock != nil {
		err = errors.Join(err, p.lock.Close())
	}
	if p.db != nil {
		err = errors.Join(err, p.db.Close())
	}
	return err
}

func (p *Publisher) dir() string { return PublicDir(p.Path) }

func (p *Publisher) step(ctx context.Context, r Readers) error {
	if p.readers == nil || *p.readers != r {
		if err := p.admit(r); err != nil {
			return err
		}
		p.readers, p.whole, p.todo, p.gpusAt = &r, false, nil, time.Time{}
	}
	ctx, cancel := context.WithTimeout(ctx, copyDeadline)
	defer cancel()
	if p.whole && !time.Now().Before(p.gpusAt) {
		cpu, bytes, err := p.copy(ctx, gpusView)
		p.gpusAt = p.next.Add(pause(cpu, bytes, gpuBytesPerS, gpusSoon))
		return err
	}
	if len(p.todo) == 0 {
		if err := p.plan(ctx); err != nil {
			return err
		}
	}
	if len(p.todo) > 0 {
		if _, _, err := p.copy(ctx, p.todo[0]); err != nil {
			return err
		}
		p.todo = p.todo[1:]
	}
	if len(p.todo) > 0 {
		return nil
	}
	p.whole = true
	return p.settle(ctx)
}

// admit makes the directory, and removes copies that the readers may not see, and
// what a killed publisher has left.
func (p *Publisher) admit(r Readers) error {
	// Users open a copy by its name, and need not see whose there are.
	if err := os.Mkdir(p.dir(), 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chmod(p.dir(), 0o711); err != nil {
		return err
	}
	entries, err := os.ReadDir(p.dir())
	if err != nil {
		return err
	}
	suits := p.suits(r)
	for _, e := range entries {
		path := filepath.Join(p.dir(), e.Name())
		switch name := e.Name(); {
		case strings.HasSuffix(name, ".new"):
			err = os.Remove(path)
		case name == allView && r.Private && (r.Operator == 0 || !suits),
			name == gpusView && (r.NoGPUs || !suits),
			!r.Private && userOf(name) != 0:
			err = p.remove(path)
		case name == allView:
			err = r.allow(path, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// suits tells whether the existing copies were made for these readers.
func (p *Publisher) suits(r Readers) bool {
	info, err := os.Lstat(filepath.Join(p.dir(), allView))
	if r.Private {
		return err != nil || info.Mode().Perm()&0o004 == 0
	}
	return err == nil
}

// userOf is the user whose records a copy has; 0: not one user's.
func userOf(name string) uint32 {
	uid, err := strconv.ParseUint(strings.TrimSuffix(name, ".db"), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(uid)
}

func viewOf(uid uint32) string { return strconv.FormatUint(uint64(uid), 10) + ".db" }

// allow lets those read a copy whom it is for.
func (r Readers) allow(path, name string) error {
	switch {
	case name == gpusView || !r.Private:
		return errors.Join(allowNobody(path), os.Chmod(path, 0o644))
	case name == allView:
		return allowUser(path, r.Operator)
	}
	return allowUser(path, userOf(name))
}

// plan finds out which copies are old, users' own first.
func (p *Publisher) plan(ctx context.Context) error {
	rows, err := p.counts(ctx, "SELECT uid, times FROM changed")
	if err != nil {
		return err
	}
	users := maps.Clone(rows)
	if !p.whole && p.readers.Private {
		all, err := p.counts(ctx, "SELECT DISTINCT uid, 0 FROM attempt")
		if err != nil {
			return err
		}
		for uid := range all {
			if !p.has(viewOf(uid)) {
				users[uid] = 0
			}
		}
	}
	p.rows, p.todo = rows, nil
	if p.readers.Private {
		for _, uid := range slices.Sorted(maps.Keys(users)) {
			if uid != 0 { // root reads the records themselves
				p.todo = append(p.todo, viewOf(uid))
			}
		}
	}
	if (len(rows) > 0 || !p.whole && !p.has(allView)) && !(p.readers.Private && p.readers.Operator == 0) {
		p.todo = append(p.todo, allView)
	}
	return nil
}

func (p *Publisher) has(name string) bool {
	_, err := os.Lstat(filepath.Join(p.dir(), name))
	return err == nil
}

func (p *Publisher) counts(ctx context.Context, query string) (map[uint32]int64, error) {
	rows, err := p.db.sql.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	counts := map[uint32]int64{}
	for rows.Next() {
		var uid uint32
		var n int64
		if err := rows.Scan(&uid, &n); err != nil {
			return nil, err
		}
		counts[uid] = n
	}
	return counts, rows.Err()
}

// settle notes that the copies have the changes that the rows told of.
func (p *Publisher) settle(ctx context.Context) error {
	if len(p.rows) == 0 {
		return nil
	}
	return p.db.write(ctx, func(tx *sql.Tx) error {
		for uid, times := range p.rows {
			if _, err := tx.Exec("DELETE FROM changed WHERE uid=? AND times=?", uid, times); err != nil {
				return err
			}
		}
		return nil
	})
}

// touch notes that the records of a user have changed.
func touch(tx *sql.Tx, uid uint32) error {
	_, err := tx.Exec("INSERT INTO changed VALUES (?, 1) ON CONFLICT DO UPDATE SET times = times + 1", uid)
	return err
}

// alive tells readers that the copies are in order.
func (p *Publisher) alive() error {
	now := time.Now()
	if since := now.Sub(p.told); since >= 0 && since < aliveEvery {
		return nil
	}
	path := filepath.Join(p.dir(), aliveOf)
	err := os.Chtimes(path, now, now)
	if errors.Is(err, fs.ErrNotExist) {
		var f *os.File
		if f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			err = errors.Join(f.Chmod(0o644), f.Close())
		}
	}
	if err == nil {
		p.told = now
	}
	return err
}
