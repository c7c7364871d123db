// SPDX-License-Identifier: Apache-2.0

// Package db keeps the accounting records of a node in SQLite.
package db

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	sqlite3 "github.com/mattn/go-sqlite3"
	"golang.org/x/sys/unix"

	"carma/db/file"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// schemaVersion is the newest schema known to this program: the number of files in
// schema/.
const schemaVersion = 1

// Errors that a caller may tell apart.
var (
	ErrNewer   = errors.New("the database is of a newer version than this program; upgrade the program")
	errNetwork = errors.New("SQLite needs a local disk; set paths.db to one")
	ErrMissing = errors.New("there is no database")
	errBusy    = errors.New("the database is locked")
)

// DB is an open database.
type DB struct {
	path   string
	sql    *sql.DB
	queue  *file.Queue // of writers; nil for a reader
	public string      // directory of the copies; empty: these are the records themselves
}

// networkFileSystems are where SQLite's locks and WAL cannot be trusted
// (statfs(2) magic numbers): NFS, SMB, CIFS, AFS, Lustre, GPFS, BeeGFS, Ceph, 9P.
var networkFileSystems = map[int64]string{
	0x6969: "NFS", 0x517b: "SMB", 0xff534d42: "CIFS", 0xfe534d42: "SMB2", 0x5346414f: "AFS",
	0x0bd00bd0: "Lustre", 0x47504653: "GPFS", 0x19830326: "BeeGFS", 0x00c36400: "Ceph", 0x01021997: "9P",
}

// writer is the driver for writers: the -wal and -shm files stay when the last
// writer closes, for a reader without write permission could not make them.
const writer = "sqlite3-persistent-wal"

func init() {
	sql.Register(writer, &sqlite3.SQLiteDriver{ConnectHook: func(c *sqlite3.SQLiteConn) error {
		return c.SetFileControlInt("", sqlite3.SQLITE_FCNTL_PERSIST_WAL, 1)
	}})
}

// Open opens the database at path for writing, creating it if need be. Its owner alone
// may read it: users read the published copies (Publisher).
func Open(path string) (*DB, error) {
	if err := create(path); err != nil {
		return nil, fmt.Errorf("open accounting database: %w", err)
	}
	if err := local(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("open accounting database %s: %w", path, err)
	}
	d, err := open(writer, path, url.Values{"_journal_mode": {"WAL"}, "_txlock": {"immediate"},
		"_synchronous": {"NORMAL"}, "_cache_size": {writerCacheKiB}})
	if err != nil {
		return nil, err
	}
	if d.queue, err = file.OpenQueue(path + ".queue"); err != nil {
		d.Close()
		return nil, fmt.Errorf("open accounting database: %w", err)
	}
	// Several processes that make a new database a WAL database at the same
	// time find the file locked, and SQLite does not wait for each other then.
	leave := d.queue.Enter(context.Background(), busy)
	for until := time.Now().Add(busy); ; time.Sleep(10 * time.Millisecond) {
		if err = d.migrate(schemaFiles, schemaVersion); !errors.Is(err, errBusy) || time.Now().After(until) {
			break
		}
	}
	leave()
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("open accounting database %s: %w", path, err)
	}
	return d, nil
}

// writerCacheKiB bounds the pages that a writer keeps (a negative number is KiB):
// the agent would come to SQLite's 2 MB in hours, and has no use for them.
const writerCacheKiB = "-256"

// busy is how long writers wait for each other.
const busy = 2 * time.Second

// OpenRead opens the records at path for reading: the database itself, or the copy
// published for this user, if the database is not readable.
func OpenRead(path string) (d *DB, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open %s: %w", path, ErrMissing)
	}
	if errors.Is(unix.Access(path, unix.R_OK), unix.EACCES) {
		d, err = openPublished(path)
	} else {
		d, err = open("sqlite3", path, url.Values{"mode": {"ro"}, "_query_only": {"on"}})
	}
	if err != nil {
		return nil, err
	}
	d.sql.SetMaxOpenConns(8) // carma-report reads several parts at once
	version, err := d.version(d.sql)
	switch {
	case err == nil && version > schemaVersion:
		err = ErrNewer
	case err == nil && version == 0: // an empty file, as a full disk leaves
		err = ErrMissing
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("open %s: %w", path, explain(err))
	}
	return d, nil
}

// create makes the file, for its owner alone, and its directory, through which
// users reach the published copies, whatever the umask.
func create(path string) error {
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		old := syscall.Umask(0o022)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		syscall.Umask(old)
		if err != nil {
			return err
		}
	}
	return file.Private(path)
}

func open(driver, path string, options url.Values) (*DB, error) {
	all := url.Values{"_busy_timeout": {fmt.Sprint(busy.Milliseconds())}}
	maps.Copy(all, options)
	s, err := sql.Open(driver, uri(path, all))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s.SetMaxOpenConns(1)
	return &DB{path: path, sql: s}, nil
}

// Close closes the database.
func (d *DB) Close() error {
	if d.queue == nil {
		return d.sql.Close()
	}
	return errors.Join(d.sql.Close(), d.queue.Close())
}

func local(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if name, ok := networkFileSystems[int64(uint32(st.Type))]; ok {
		return fmt.Errorf("%s is on %s: %w", dir, name, errNetwork)
	}
	return nil
}

type queryRower interface {
	QueryRow(query string, args ...any) *sql.Row
}

func (d *DB) version(q queryRower) (v int, err error) {
	err = q.QueryRow("PRAGMA user_version").Scan(&v)
	return v, err
}

// migrate brings the schema up to a version in one transaction, a file a step.
func (d *DB) migrate(files fs.FS, to int) error {
	if v, err := d.version(d.sql); err != nil || v == to {
		return explain(err)
	}
	tx, err := d.sql.Begin()
	if err != nil {
		return explain(err)
	}
	defer tx.Rollback()
	v, err := d.version(tx) // another process may have been first
	if err != nil {
		return explain(err)
	}
	if v > to {
		return ErrNewer
	}
	for ; v < to; v++ {
		text, err := fs.ReadFile(files, fmt.Sprintf("schema/%04d.sql", v+1))
		if err != nil {
			return err
		}
		if _, err := tx.Exec(string(text)); err != nil {
			return fmt.Errorf("migrate the schema to version %d: %w", v+1, err)
		}
	}
	if _, err := tx.Exec(fmt.Sprintf("PRAGMA user_version = %d", to)); err != nil {
		return err
	}
	return tx.Commit()
}

// of names the file, of several that may be read, to which an error belongs.
func (d *DB) of(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", d.path, explain(err))
}

// explain names the errors that a caller may tell apart.
func explain(err error) error {
	var se sqlite3.Error
	if errors.As(err, &se) && (se.Code == sqlite3.ErrBusy || se.Code == sqlite3.ErrLocked) {
		return fmt.Errorf("%w: %w", errBusy, err)
	}
	return err
}
