// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"carma/db/rows"
	"carma/gres"
)

// SetFault closes a GPU to all jobs for a cause other than its MPS server, for a while, or
// until the fault is ended if lasts is 0, and notes the reason in the jobs that hold the GPU.
// holders are the jobs without a reason before; fresh tells whether the fault is new.
func (b *Ledger) SetFault(ctx context.Context, uuid string, cause gres.Cause, reason string, lasts time.Duration,
) (holders []uint32, fresh bool, err error) {
	err = b.write(ctx, func(tx *sql.Tx) error {
		now := int64(Now())
		var n int
		known := tx.QueryRow("SELECT count(*) FROM fault WHERE uuid=? AND cause=? AND "+standing, uuid, cause, now)
		if err := known.Scan(&n); err != nil {
			return err
		}
		fresh = n == 0
		var until any
		if lasts > 0 {
			until = now + int64(lasts)
		}
		if _, err := tx.Exec(insertFault, uuid, cause, reason, now, until); err != nil {
			return err
		}
		holders, err = noteFault(tx, "job_id IN (SELECT job_id FROM lease WHERE uuid=?)", reason, uuid)
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("quarantine GPU %s: %w", uuid, err)
	}
	return holders, fresh, nil
}

const insertFault = "INSERT OR REPLACE INTO fault (uuid, cause, reason, at_ns, until_ns) VALUES (?,?,?,?,?)"

// standing is the condition of a fault that has not ended by itself.
const standing = "(until_ns IS NULL OR until_ns > ?)"

// noteFault notes the reason in the jobs that where selects, and returns the jobs that had
// none.
func noteFault(tx *sql.Tx, where, reason string, args ...any) (jobs []uint32, err error) {
	found, err := tx.Query("UPDATE job SET fault=? WHERE fault='' AND "+where+" RETURNING job_id",
		append([]any{reason}, args...)...)
	return rows.All(found, err, "note a fault in jobs", func(id *uint32, scan rows.Scan) error { return scan(id) })
}

// EndFault ends a fault of a GPU; ended is false if there was none. An empty cause means
// all faults but the one that NVML reports, which stands for as long as NVML reports it,
// and the jobs that have failed on the GPU are forgotten.
func (b *Ledger) EndFault(ctx context.Context, uuid string, cause gres.Cause) (ended bool, err error) {
	err = b.write(ctx, func(tx *sql.Tx) error {
		result, err := tx.Exec("DELETE FROM fault WHERE uuid=?1 AND (cause=?2 OR ?2='' AND cause<>?3)", uuid, cause,
			gres.CauseDevice)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if ended = n > 0; err == nil && cause == "" {
			err = forgetFailures(tx, uuid)
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("readmit GPU %s: %w", uuid, err)
	}
	return ended, nil
}

// Jobs that fail on a GPU close it when so many in a row have failed within failedFor, of so many users:
// a single user's broken program closes none. The programs may be to blame all the same, or lie: so
// a GPU is closed for a short time, half of the node's GPUs stay open whatever jobs do, and within a day
// a user's failures count for one such quarantine on the node while users wait whose jobs have not
// failed on the GPU. Where nobody else waits the GPU is closed again and again: else a broken GPU would
// have the jobs of all who have counted.
const (
	failedJobs  = 3
	failedUsers = 2
	failedFor   = time.Hour
	countsFor   = 24 * time.Hour

	// slurmctld is asked so often for the users who wait: the answer is the whole queue.
	unsureEvery = time.Minute

	// FailingFor is how long jobs' failures close a GPU.
	FailingFor = 10 * time.Minute
)

// JobEnded counts a job that has failed soon after its start with a fault of its GPU, or, if
// the job has not failed in this way, forgets earlier failures on the GPUs, and quarantines for such failures.
// JobEnded returns the GPUs that are quarantined for the failure, and once in a while those to be quarantined if
// nobody else waits (CloseFailing).
func (b *Ledger) JobEnded(ctx context.Context, job, uid uint32, uuids []string, failed bool) (closed, unsure []string,
	err error) {
	err = b.write(ctx, func(tx *sql.Tx) error {
		for _, uuid := range uuids {
			if !failed {
				if err := forgetFailures(tx, uuid); err != nil {
					return err
				}
				continue
			}
			if _, err := tx.Exec("INSERT OR IGNORE INTO failure (uuid, job_id, uid, at_ns) VALUES (?,?,?,?)", uuid, job,
				uid, int64(Now())); err != nil {
				return err
			}
			f, err := failuresOn(tx, uuid)
			switch {
			case err != nil:
				return err
			case !f.enough:
			case !f.news:
				unsure = append(unsure, uuid)
			default:
				if err := f.close(tx); err != nil {
					return err
				}
				closed = append(closed, uuid)
			}
		}
		if unsure == nil {
			return nil
		}
		now := int64(Now())
		asks, err := tx.Exec("INSERT INTO unsure (one, at_ns) VALUES (1,?) ON CONFLICT (one) DO UPDATE SET "+
			"at_ns=excluded.at_ns WHERE at_ns <= ?", now, now-int64(unsureEvery))
		if err != nil {
			return err
		}
		if n, err := asks.RowsAffected(); err != nil || n == 0 {
			unsure = nil
			return err
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("note how job %d ended on its GPUs: %w", job, err)
	}
	return closed, unsure, nil
}

// CloseFailing quarantines GPUs on which jobs fail whose users have counted before, unless one of the users
// who wait has had no job fail there.
func (b *Ledger) CloseFailing(ctx context.Context, uuids []string, waiting []uint32) (closed []string, err error) {
	err = b.write(ctx, func(tx *sql.Tx) error {
		for _, uuid := range uuids {
			f, err := failuresOn(tx, uuid)
			if err != nil {
				return err
			}
			other := func(uid uint32) bool { return !slices.Contains(f.users, uid) && !slices.Contains(f.before, uid) }
			if !f.enough || slices.ContainsFunc(waiting, other) {
				continue
			}
			if err := f.close(tx); err != nil {
				return err
			}
			closed = append(closed, uuid)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("quarantine GPUs on which jobs fail: %w", err)
	}
	return closed, nil
}

func forgetFailures(tx *sql.Tx, uuid string) error {
	_, err := tx.Exec("DELETE FROM failure WHERE uuid=?", uuid)
	if err == nil {
		_, err = tx.Exec("DELETE FROM fault WHERE uuid=? AND cause=?", uuid, gres.CauseJobs)
	}
	return err
}

// failures are the jobs in a row that have failed on a GPU.
type failures struct {
	uuid   string
	jobs   int
	users  []uint32
	before []uint32 // users who have counted against the GPU within a day
	enough bool     // to close the GPU, if the users count
	news   bool     // a user has counted against no GPU within a day, and another user against no other GPU
}

func failuresOn(tx *sql.Tx, uuid string) (f failures, err error) {
	now := int64(Now())
	if _, err := tx.Exec("DELETE FROM failure WHERE at_ns < ?", now-int64(failedFor)); err != nil {
		return f, err
	}
	if _, err := tx.Exec("DELETE FROM accuser WHERE at_ns < ?", now-int64(countsFor)); err != nil {
		return f, err
	}
	f.uuid = uuid
	uid := func(uid *uint32, scan rows.Scan) error { return scan(uid) }
	found, err := tx.Query("SELECT uid FROM accuser WHERE uuid=?", uuid)
	if f.before, err = rows.All(found, err, "read whose jobs have closed a GPU", uid); err != nil {
		return f, err
	}
	found, err = tx.Query("SELECT DISTINCT uid FROM failure WHERE uuid=?", uuid)
	if f.users, err = rows.All(found, err, "read whose jobs have failed on a GPU", uid); err != nil {
		return f, err
	}
	var unheard, others, all int
	err = tx.QueryRow("SELECT (SELECT count(*) FROM failure WHERE uuid=?1), (SELECT count(DISTINCT uid) FROM failure "+
		"WHERE uuid=?1 AND uid NOT IN (SELECT uid FROM accuser)), (SELECT count(*) FROM fault WHERE cause=?2 AND "+
		"uuid<>?1 AND (until_ns IS NULL OR until_ns > ?3)), (SELECT count(*) FROM gpu)",
		uuid, gres.CauseJobs, now).Scan(&f.jobs, &unheard, &others, &all)
	heard := 0
	for _, uid := range f.users {
		if slices.Contains(f.before, uid) {
			heard++
		}
	}
	f.enough = f.jobs >= failedJobs && len(f.users) >= failedUsers && 2*(others+1) <= all
	f.news = unheard > 0 && unheard+heard >= failedUsers
	return f, err
}

func (f failures) close(tx *sql.Tx) error {
	now := int64(Now())
	reason := fmt.Sprintf("%d jobs of %d users in a row failed on it within a minute, with a fault of the GPU: "+
		"closed for %.0f minutes", f.jobs, len(f.users), FailingFor.Minutes())
	if _, err := tx.Exec(insertFault, f.uuid, gres.CauseJobs, reason, now, now+int64(FailingFor)); err != nil {
		return err
	}
	_, err := tx.Exec("INSERT OR REPLACE INTO accuser (uuid, uid, at_ns) SELECT DISTINCT uuid, uid, ? FROM failure "+
		"WHERE uuid=?", now, f.uuid)
	return err
}
