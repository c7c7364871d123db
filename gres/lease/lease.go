// SPDX-License-Identifier: Apache-2.0

// Package lease keeps a node's ledger: which job was promised how much memory
// of which GPU. The ledger is a SQLite file in the run directory. Prologs, Epilogs
// and the agent open the file at the same time; whoever decides something does so in
// a single immediate transaction, so that nothing is promised twice.
package lease

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver
	"golang.org/x/sys/unix"

	"carma/db/figure"
	"carma/db/file"
	"carma/gres"
	"carma/slurmbridge/jobenv"
)

// schemaFiles are the steps of the schema, counted by SQLite's user_version. A node's agent and
// hooks are not exchanged at once, and jobs run meanwhile: so a step only adds, tables or columns
// with a default, and a program works on a ledger newer than the program. A step in a release is
// not changed any more.
//
//go:embed schema
var schemaFiles embed.FS

// version is the number of the newest step.
const version = 1

// Ledger is an open ledger.
type Ledger struct {
	db    *sql.DB
	queue *file.Queue
}

// Job is a job that holds GPUs of the node.
type Job struct {
	jobenv.JobKey
	UID   uint32
	About json.RawMessage
	Late  bool // the job may be over: a later attempt is not to lose its lease
}

// Granted is a GPU of a job, with the figures measured while the job held the GPU.
type Granted struct {
	UUID       string
	Model      string // empty: the GPU is gone
	Slot       int    // position among the job's GPUs
	ReserveMiB int64
	Exclusive  bool
	Daemon     gres.Daemon
	Seen       bool
	Idle       time.Duration // longest time for which the job did not use the GPU
	Slowed     float64       // the most that the job was slowed beyond its bound for long; 0: it was not
	figure.Figures
}

// ErrNoFit means that no choice of GPUs takes the request now.
var ErrNoFit = errors.New("no GPU fits now")

// Open opens the ledger in dir, which must exist, and creates the file if need be, for root alone.
// Transactions wait up to busy for each other.
func Open(dir string, busy time.Duration) (*Ledger, error) {
	path := filepath.Join(dir, "leases.db")
	if err := file.Private(path); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	// _txlock=immediate with WAL is the only setting that let 64 of 64 concurrent
	// read-then-write transactions through (docs/adr/0004). The file ends with the
	// boot, so no sync is needed.
	dsn := url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: url.Values{
		"_journal_mode": {"WAL"}, "_txlock": {"immediate"}, "_synchronous": {"OFF"}, "_foreign_keys": {"on"},
		"_busy_timeout": {fmt.Sprint(busy.Milliseconds())},
		"_cache_size":   {"-256"}, // KiB; else the agent comes to SQLite's 2 MB in hours
		// a third of the agent's time went into preparing the same statements every second
		"_stmt_cache_size": {"32"},
	}.Encode()}
	db, err := sql.Open("sqlite3", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("open ledger in %s: %w", dir, err)
	}
	db.SetMaxOpenConns(1)
	q, err := file.OpenQueue(filepath.Join(dir, "leases.queue"))
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	b := &Ledger{db, q}
	// One at a time: SQLite lets nobody wait while another makes the new file a
	// WAL database.
	leave := q.Enter(context.Background(), queueFor)
	err = b.migrate(schemaFiles, version)
	leave()
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("open ledger in %s: %w", dir, err)
	}
	return b, nil
}

// migrate brings the schema to a version, and leaves a newer schema.
func (b *Ledger) migrate(steps fs.FS, to int) error {
	if at, err := stepOf(b.db); err != nil || at >= to {
		return err
	}
	return b.transact(context.Background(), func(tx *sql.Tx) error {
		// Another process may have been first.
		at, err := stepOf(tx)
		if err != nil || at >= to {
			return err
		}
		for ; at < to; at++ {
			text, err := fs.ReadFile(steps, fmt.Sprintf("schema/%04d.sql", at+1))
			if err != nil {
				return err
			}
			if _, err := tx.Exec(string(text)); err != nil {
				return fmt.Errorf("migrate its schema to version %d: %w", at+1, err)
			}
		}
		_, err = tx.Exec(fmt.Sprintf("PRAGMA user_version = %d", to))
		return err
	})
}

// stepOf is the number of the last step that a ledger has seen; 0: the ledger
// is new.
func stepOf(db interface {
	QueryRow(query string, args ...any) *sql.Row
}) (step int, err error) {
	err = db.QueryRow("PRAGMA user_version").Scan(&step)
	return step, err
}

// Close closes the ledger.
func (b *Ledger) Close() error { return errors.Join(b.db.Close(), b.queue.Close()) }

// queueFor is longer than any transaction takes.
const queueFor = time.Second

// write runs f in an immediate transaction when it is this process's turn.
func (b *Ledger) write(ctx context.Context, f func(*sql.Tx) error) error {
	defer b.queue.Enter(ctx, queueFor)()
	return b.transact(ctx, f)
}

func (b *Ledger) transact(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("lock ledger: %w", err)
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// wrap adds to an error what failed.
func wrap(err error, doing string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(doing+": %w", append(args, err)...)
}

// Now is the ledger's clock: time since boot, suspended or not.
func Now() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// PutReadings replaces the readings of all GPUs by those taken now.
func (b *Ledger) PutReadings(ctx context.Context, readings []gres.Reading) error {
	return b.write(ctx, func(tx *sql.Tx) error { return putReadings(tx, readings) })
}

const insertReading = `INSERT INTO gpu (uuid, idx, minor, model, total_mib, mig, numa, nvlink, at_ns, used_mib, smact_pct,
	source, processes, clients, unreadable, counter_j) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`

func putReadings(tx *sql.Tx, readings []gres.Reading) error {
	if _, err := tx.Exec("DELETE FROM gpu"); err != nil {
		return fmt.Errorf("write readings: %w", err)
	}
	insert, err := tx.Prepare(insertReading)
	if err != nil {
		return fmt.Errorf("write readings: %w", err)
	}
	defer insert.Close()
	now := Now()
	for _, r := range readings {
		if _, err := insert.Exec(r.UUID, r.Index, r.Minor, r.Model, r.TotalMiB, r.MIG, r.NUMA, int64(r.NVLink),
			int64(now-r.Age), r.UsedMiB, r.SMActPct, r.Source, r.Foreign,
			r.MPSClients, r.Unreadable, r.CounterJ); err != nil {
			return fmt.Errorf("write reading of GPU %s: %w", r.UUID, err)
		}
	}
	return nil
}

// Choose picks GPUs, and the MPS daemon through which the job shares them; Choose
// is called inside the transaction that grants them and must be quick and pure.
// last is the GPU given last.
type Choose func(readings []gres.Reading, leases []gres.Lease, last string) (uuids []string, daemon gres.Daemon)

// ErrSuperseded means that a later attempt of the job has a lease here.
var ErrSuperseded = errors.New("a later attempt of the job has its GPUs")

// Acquire grants the GPUs picked by choose to job, all or none, each with the
// request's reserve, or all of its memory if the request is exclusive. A job
// with GPUs under the same key already gets the same again; leftovers of an
// earlier attempt are dropped. The error is ErrNoFit if choose picks none.
func (b *Ledger) Acquire(ctx context.Context, job Job, r gres.Request, choose Choose) ([]Granted, error) {
	var granted []Granted
	err := b.write(ctx, func(tx *sql.Tx) (err error) {
		var restart, uid uint32
		err = tx.QueryRow("SELECT restart, uid FROM job WHERE job_id=?", job.JobID).Scan(&restart, &uid)
		same := err == nil && uid == job.UID // a slurmctld that has lost its state gives ids again
		if same && restart == job.Restart {
			granted, err = grantedOf(tx, job.JobID)
			return err
		} else if same && restart > job.Restart && job.Late {
			return ErrSuperseded
		} else if err == nil {
			_, err = tx.Exec("DELETE FROM job WHERE job_id=?", job.JobID)
		} else if errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("look for an earlier lease: %w", err)
		}
		FailPoint("lease.locked")
		readings, err := readingsOf(tx)
		if err != nil {
			return err
		}
		leases, err := leasesOf(tx)
		if err != nil {
			return err
		}
		var last string
		if err := tx.QueryRow("SELECT uuid FROM given").Scan(&last); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("read the last leased GPU: %w", err)
		}
		uuids, daemon := choose(readings, leases, last)
		if len(uuids) == 0 {
			return ErrNoFit
		}
		if _, err := tx.Exec("INSERT OR REPLACE INTO given (one, uuid) VALUES (1,?)", uuids[len(uuids)-1]); err != nil {
			return fmt.Errorf("write the last leased GPU: %w", err)
		}
		// The job that the GPU was kept for has come.
		if _, err := tx.Exec("DELETE FROM hold WHERE job_id=?", job.JobID); err != nil {
			return fmt.Errorf("end the hold for job %s: %w", job.JobKey, err)
		}
		if err := insertJob(tx, job); err != nil {
			return err
		}
		FailPoint("lease.job-written")
		for slot, uuid := range uuids {
			g, err := insertLease(tx, job, r, slot, uuid, daemon, readings, leases)
			if err != nil {
				return err
			}
			granted = append(granted, g)
		}
		FailPoint("lease.written")
		return nil
	})
	return granted, err
}

func insertJob(tx *sql.Tx, j Job) error {
	about := j.About
	if about == nil {
		about = json.RawMessage("{}")
	}
	_, err := tx.Exec("INSERT INTO job (job_id, restart, uid, at_ns, about) VALUES (?,?,?,?,?)", j.JobID, j.Restart,
		j.UID, int64(Now()), string(about))
	if err != nil {
		return fmt.Errorf("write job %s: %w", j.JobKey, err)
	}
	return nil
}

func insertLease(tx *sql.Tx, j Job, r gres.Request, slot int, uuid string, daemon gres.Daemon, readings []gres.Reading,
	leases []gres.Lease) (Granted, error) {
	g := Granted{UUID: uuid, Slot: slot, ReserveMiB: r.ReserveMiB, Exclusive: r.Exclusive, Daemon: daemon,
		Figures: figure.NoFigures()}
	for _, reading := range readings {
		if reading.UUID != uuid {
			continue
		}
		if g.Model = reading.Model; r.Exclusive {
			g.ReserveMiB = reading.TotalMiB
		}
	}
	for _, l := range leases {
		if l.UUID != uuid {
			continue
		}
		if _, err := tx.Exec("INSERT OR IGNORE INTO neighbour (job_id, other) VALUES (?1,?2),(?2,?1)", j.JobID,
			l.Job.JobID); err != nil {
			return g, fmt.Errorf("write neighbours of job %s: %w", j.JobKey, err)
		}
	}
	_, err := tx.Exec("INSERT INTO lease (job_id, uuid, slot, reserve_mib, exclusive, daemon, smact_pct, "+
		"max_slowdown) VALUES (?,?,?,?,?,?,?,?)",
		j.JobID, uuid, slot, g.ReserveMiB, g.Exclusive, daemon, r.SMActPct, r.MaxSlowdown)
	return g, wrap(err, "write lease of job %s on GPU %s", j.JobKey, uuid)
}

// Release ends the leases of key and lists the attempt as ended. It is no error
// if there are none.
func (b *Ledger) Release(ctx context.Context, key jobenv.JobKey) error {
	return b.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.Exec("DELETE FROM job WHERE job_id=? AND restart=?", key.JobID, key.Restart); err != nil {
			return fmt.Errorf("release job %s: %w", key, err)
		}
		if _, err := tx.Exec("INSERT OR REPLACE INTO ended (job_id, restart, at_ns) VALUES (?,?,?)", key.JobID, key.Restart,
			int64(Now())); err != nil {
			return fmt.Errorf("release job %s: %w", key, err)
		}
		FailPoint("lease.release-written")
		return nil
	})
}
