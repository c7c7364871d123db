// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	sqlite3 "github.com/mattn/go-sqlite3"
	"golang.org/x/sys/unix"

	"carma/db/accesslist"
)

// uri names a database file to SQLite.
func uri(path string, options url.Values) string {
	u := url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: options.Encode()}
	return u.String()
}

// fill writes a copy of a database to an empty file, which is nobody else's yet, and
// returns its number of records.
func fill(ctx context.Context, path, from, name string, r Readers) (records int64, err error) {
	// The file is thrown away if this fails. No _locking_mode: it would hold for the
	// original, too.
	options := url.Values{"_journal_mode": {"OFF"}, "_synchronous": {"OFF"}, "_cache_size": {"-1024"}}
	to, err := open("sqlite3", path, options)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	c, err := to.sql.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := c.ExecContext(ctx, "ATTACH DATABASE ? AS live", uri(from, url.Values{"mode": {"ro"}})); err != nil {
		return 0, err
	}
	// Writers go on meanwhile (WAL), and the copy is of a single moment.
	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	tables := []string{"attempt", "attempt_array", "job_sample"}
	if name == gpusView {
		tables = append(tables, "sample", "gpu")
	}
	if err := makeTables(ctx, tx, tables); err != nil {
		return 0, err
	}
	switch uid := userOf(name); {
	case name == gpusView && r.NoGPUs:
	case name == gpusView:
		for _, table := range []string{"sample", "gpu"} {
			if _, err := tx.ExecContext(ctx, "INSERT INTO main."+table+" SELECT * FROM live."+table); err != nil {
				return 0, err
			}
		}
	default:
		step := "INSERT INTO main.attempt (" + searched + ", record) SELECT " + searched +
			", json_remove(record, '$.key') FROM live.attempt"
		memory := "INSERT INTO main.job_sample SELECT * FROM live.job_sample"
		if uid != 0 {
			own := fmt.Sprintf(" WHERE uid = %d", uid)
			step, memory = step+own, memory+own
		}
		if _, err := tx.ExecContext(ctx, memory); err != nil {
			return 0, err
		}
		result, err := tx.ExecContext(ctx, step)
		if err != nil {
			return 0, err
		}
		if records, err = result.RowsAffected(); err != nil {
			return 0, err
		}
	}
	return records, tx.Commit()
}

// makeTables makes tables and indexes as the original has them.
func makeTables(ctx context.Context, tx *sql.Tx, names []string) error {
	for _, name := range names {
		var text string
		if err := tx.QueryRowContext(ctx, "SELECT sql FROM live.sqlite_master WHERE name = ?", name).Scan(&text); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA main.user_version = %d", schemaVersion))
	return err
}

// reader is the driver for copies: tables of the samples are beside those of the records.
const reader = "sqlite3-published"

// immutable means that nobody writes to the file: SQLite takes no lock and makes no file.
var immutable = url.Values{"mode": {"ro"}, "immutable": {"1"}}

func init() {
	sql.Register(reader, &sqlite3.SQLiteDriver{ConnectHook: func(c *sqlite3.SQLiteConn) error {
		path := c.GetFilename("main")
		if filepath.Base(path) == gpusView {
			return nil
		}
		gpus := uri(filepath.Join(filepath.Dir(path), gpusView), immutable)
		_, err := c.Exec("ATTACH DATABASE ? AS gpus", []driver.Value{gpus})
		return err
	}})
}

// openPublished opens this user's copy of the records at path. A user without records gets
// the samples of the GPUs, and no records.
func openPublished(path string) (*DB, error) {
	dir := PublicDir(path)
	if unix.Access(filepath.Join(dir, gpusView), unix.R_OK) != nil { // the last to be made
		const why = "users read a copy that the agent makes, and there is none yet"
		return nil, fmt.Errorf("open %s: %w; %s", path, fs.ErrPermission, why)
	}
	for _, name := range []string{allView, viewOf(uint32(os.Geteuid())), gpusView} {
		err := unix.Access(filepath.Join(dir, name), unix.R_OK)
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOENT) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("open %s: %w", filepath.Join(dir, name), err)
		}
		d, err := open(reader, filepath.Join(dir, name), immutable)
		if err == nil {
			d.public = dir
		}
		return d, err
	}
	return nil, fmt.Errorf("open %s: %w", path, fs.ErrPermission)
}

// Public tells whether these are the records as users may read them: without keys.
func (d *DB) Public() bool { return d.public != "" }

// outdated is how long the copies may go without a word of the publisher.
const outdated = 2 * time.Minute

// Outdated returns since when copies are not kept up any longer; zero if they are.
func (d *DB) Outdated(now time.Time) time.Time {
	if d.public == "" {
		return time.Time{}
	}
	info, err := os.Stat(filepath.Join(d.public, aliveOf))
	if err != nil {
		// The publisher has not come so far, or has gone at once.
		if info, err = os.Stat(d.public); err != nil {
			return time.Time{}
		}
	}
	if at := info.ModTime(); now.Sub(at) > outdated {
		return at
	}
	return time.Time{}
}

// allowUser lets one user read a file beside its owner, and nobody else.
func allowUser(path string, uid uint32) error {
	if err := accesslist.Set(path, accesslist.Read|accesslist.Write, accesslist.Read, uid); err != nil {
		return fmt.Errorf("grant user %d access to %s: %w; the file system needs ACLs", uid, path, err)
	}
	return nil
}

// allowNobody takes such a list away.
func allowNobody(path string) error {
	if err := accesslist.Remove(path); err != nil {
		return fmt.Errorf("revoke users' access to %s: %w", path, err)
	}
	return nil
}
