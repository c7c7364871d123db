// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"carma/db/rows"
	"carma/slurmbridge/jobenv"
)

// Hold is a GPU kept for a job.
type Hold struct {
	UUID    string
	JobID   uint32
	UID     uint32
	GPUs    int   // that the job wants on a node
	MiB     int64 // that the job needs of each; 0: all memory
	Age     time.Duration
	Open    bool          // the GPU is offered: the job can start now
	Offered time.Duration // for how long it is offered
}

// errEnoughHeld means: GPUs are kept for other jobs of the user, so many that the other
// users of the node would have to wait for GPUs.
var errEnoughHeld = errors.New("enough GPUs of this node are held for other jobs of its user")

// Hold keeps GPUs for a user's job, which wants so many GPUs of a node and needs so
// many MiB of each, 0 for all, and for nobody else, until the job starts here or the
// hold is dropped. GPUs kept for another job stay so. The error is errEnoughHeld if
// the user has other holds, and with them more than half of the GPUs would be held.
func (b *Ledger) Hold(ctx context.Context, job, uid uint32, gpus int, mib int64, uuids []string) error {
	return b.write(ctx, func(tx *sql.Tx) error {
		var others, all int
		if err := tx.QueryRow("SELECT count(*), (SELECT count(*) FROM gpu) FROM hold WHERE uid=? AND job_id<>?", uid,
			job).Scan(&others, &all); err != nil {
			return fmt.Errorf("read holds: %w", err)
		}
		if others > 0 && 2*(others+len(uuids)) > all {
			return errEnoughHeld
		}
		for _, uuid := range uuids {
			if _, err := tx.Exec("INSERT OR IGNORE INTO hold (uuid, job_id, uid, gpus, mib, at_ns) VALUES (?,?,?,?,?,?)", uuid,
				job, uid, gpus, mib, int64(Now())); err != nil {
				return fmt.Errorf("hold GPU %s for job %d: %w", uuid, job, err)
			}
		}
		return nil
	})
}

// OpenHold says in how long the job that GPUs are kept for can start: from then on
// the GPUs are offered to slurmctld again.
func (b *Ledger) OpenHold(ctx context.Context, job uint32, in time.Duration) error {
	_, err := b.db.ExecContext(ctx, "UPDATE hold SET open_ns=? WHERE job_id=?", int64(Now()+in), job)
	return wrap(err, "offer the GPUs held for job %d", job)
}

// DropHold keeps nothing for the job any more.
func (b *Ledger) DropHold(ctx context.Context, job uint32) error {
	_, err := b.db.ExecContext(ctx, "DELETE FROM hold WHERE job_id=?", job)
	return wrap(err, "end the hold for job %d", job)
}

func holdsOf(q querier) ([]Hold, error) {
	now := Now()
	found, err := q.Query("SELECT uuid, job_id, uid, gpus, mib, at_ns, ifnull(open_ns <= ?1,0), "+
		"max(ifnull(?1-open_ns,0),0) FROM hold ORDER BY at_ns, uuid", int64(now))
	return rows.All(found, err, "read holds", func(h *Hold, scan rows.Scan) error {
		var at int64
		err := scan(&h.UUID, &h.JobID, &h.UID, &h.GPUs, &h.MiB, &at, &h.Open, &h.Offered)
		h.Age = now - time.Duration(at)
		return err
	})
}

// Quarantine closes a GPU to all jobs and notes the fault in the jobs that hold
// it through MPS: they are its victims.
func (b *Ledger) Quarantine(ctx context.Context, uuid, reason string) (victims []uint32, err error) {
	err = b.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.Exec("INSERT OR IGNORE INTO quarantine (uuid, reason, at_ns) VALUES (?,?,?)", uuid, reason,
			int64(Now())); err != nil {
			return err
		}
		victims, err = noteMPSFault(tx, "job_id IN (SELECT job_id FROM lease WHERE uuid=? AND daemon<>'')", reason, uuid)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("quarantine GPU %s: %w", uuid, err)
	}
	return victims, nil
}

// Readmit ends the quarantine of a GPU.
func (b *Ledger) Readmit(ctx context.Context, uuid string) error {
	_, err := b.db.ExecContext(ctx, "DELETE FROM quarantine WHERE uuid=?", uuid)
	return wrap(err, "readmit GPU %s", uuid)
}

// Cancelled notes why the agent cancels a job, for its record.
func (b *Ledger) Cancelled(ctx context.Context, key jobenv.JobKey, why string) error {
	_, err := b.db.ExecContext(ctx, "UPDATE job SET cancelled=? WHERE job_id=? AND restart=?", why, key.JobID,
		key.Restart)
	return wrap(err, "note why job %s is cancelled", key)
}
