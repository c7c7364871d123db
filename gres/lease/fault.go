// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"database/sql"
	"fmt"
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
			_, err = tx.Exec("DELETE FROM failure WHERE uuid=?", uuid)
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("readmit GPU %s: %w", uuid, err)
	}
	return ended, nil
}

// Jobs that fail on a GPU close it when so many in a row have failed within failedFor, of so many users:
// a single user's broken program closes none. The programs may be to blame all the same, so the
// quarantine ends by itself, and half of the node's GPUs stay open whatever jobs do.
const (
	failedJobs  = 3
	failedUsers = 2
	failedFor   = time.Hour // the GPU is closed for as long
)

// JobEnded counts a job that has failed soon after its start with a fault of its GPU, or, if
// the job has not failed in this way, forgets earlier failures on its GPUs. JobEnded returns
// the GPUs that are quarantined for the failure.
func (b *Ledger) JobEnded(ctx context.Context, job, uid uint32, uuids []string, failed bool) (closed []string,
	err error) {
	err = b.write(ctx, func(tx *sql.Tx) error {
		for _, uuid := range uuids {
			if !failed {
				if _, err := tx.Exec("DELETE FROM failure WHERE uuid=?", uuid); err != nil {
					return err
				}
				continue
			}
			if _, err := tx.Exec("INSERT OR IGNORE INTO failure (uuid, job_id, uid, at_ns) VALUES (?,?,?,?)", uuid, job,
				uid, int64(Now())); err != nil {
				return err
			}
			yes, err := closeFailing(tx, uuid)
			if err != nil {
				return err
			}
			if yes {
				closed = append(closed, uuid)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("note how job %d ended on its GPUs: %w", job, err)
	}
	return closed, nil
}

func closeFailing(tx *sql.Tx, uuid string) (closed bool, err error) {
	now := int64(Now())
	var jobs, users, others, all int
	if _, err := tx.Exec("DELETE FROM failure WHERE at_ns < ?", now-int64(failedFor)); err != nil {
		return false, err
	}
	if err := tx.QueryRow("SELECT count(*), count(DISTINCT uid) FROM failure WHERE uuid=?", uuid).Scan(&jobs,
		&users); err != nil {
		return false, err
	}
	err = tx.QueryRow("SELECT (SELECT count(*) FROM fault WHERE cause=? AND uuid<>? AND "+standing+"), (SELECT "+
		"count(*) FROM gpu)",
		gres.CauseJobs, uuid, now).Scan(&others, &all)
	if err != nil || jobs < failedJobs || users < failedUsers || 2*(others+1) > all {
		return false, err
	}
	reason := fmt.Sprintf("%d jobs of %d users in a row failed on it within a minute, with a fault of the GPU", jobs,
		users)
	if _, err := tx.Exec(insertFault, uuid, gres.CauseJobs, reason, now, now+int64(failedFor)); err != nil {
		return false, err
	}
	_, err = tx.Exec("DELETE FROM failure WHERE uuid=?", uuid)
	return true, err
}
