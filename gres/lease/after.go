// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"carma/db/rows"
	"carma/slurmbridge/jobenv"
)

// LongestDelay is the longest wait of a PendingRestart for its start.
const LongestDelay = 15 * time.Minute

// Ended is an attempt that has released its GPUs and whose record does not yet
// hold slurmctld's word on its end.
type Ended struct {
	jobenv.JobKey
	Age time.Duration
}

// DropEnded forgets an ended attempt and its figures.
func (b *Ledger) DropEnded(ctx context.Context, key jobenv.JobKey) error {
	return b.write(ctx, func(tx *sql.Tx) error {
		for _, table := range []string{"ended", "usage", "law"} {
			if _, err := tx.Exec("DELETE FROM "+table+" WHERE job_id=? AND restart=?", key.JobID, key.Restart); err != nil {
				return fmt.Errorf("forget ended job %s: %w", key, err)
			}
		}
		return nil
	})
}

// Ended lists at most n ended attempts, the oldest first.
func (b *Ledger) Ended(ctx context.Context, n int) ([]Ended, error) {
	return b.ended(ctx, "SELECT job_id, restart, at_ns FROM ended ORDER BY at_ns LIMIT ?", n)
}

// EndedSince lists the attempts that have ended at a moment of the ledger's
// clock or later, the oldest first.
func (b *Ledger) EndedSince(ctx context.Context, at time.Duration) ([]Ended, error) {
	return b.ended(ctx, "SELECT job_id, restart, at_ns FROM ended WHERE at_ns >= ? ORDER BY at_ns", int64(at))
}

func (b *Ledger) ended(ctx context.Context, query string, arg any) ([]Ended, error) {
	found, err := b.db.QueryContext(ctx, query, arg)
	now := Now()
	return rows.All(found, err, "read ended jobs", func(e *Ended, scan rows.Scan) error {
		var at int64
		err := scan(&e.JobID, &e.Restart, &at)
		e.Age = now - time.Duration(at)
		return err
	})
}

// PendingRestart is a job that an Epilog has requeued. slurmctld lets the job
// wait until the credentials of its first run have expired (120 s); the agent
// lifts the wait once the job is pending.
type PendingRestart struct {
	JobID uint32
	Age   time.Duration
	Delay time.Duration // how long the job is to wait from its requeue on, or until its start is safe
}

// AddPendingRestart notes that job was requeued now and is to wait.
func (b *Ledger) AddPendingRestart(ctx context.Context, job uint32, delay time.Duration) error {
	_, err := b.db.ExecContext(ctx, "INSERT OR REPLACE INTO comeback (job_id, at_ns, delay_ns) VALUES (?,?,?)", job,
		int64(Now()), int64(delay))
	return wrap(err, "record that job %d is requeued", job)
}

// DropPendingRestart forgets the note.
func (b *Ledger) DropPendingRestart(ctx context.Context, job uint32) error {
	_, err := b.db.ExecContext(ctx, "DELETE FROM comeback WHERE job_id=?", job)
	return wrap(err, "forget that job %d is requeued", job)
}

func pendingRestarts(q querier) ([]PendingRestart, error) {
	found, err := q.Query("SELECT job_id, at_ns, delay_ns FROM comeback ORDER BY at_ns")
	now := Now()
	return rows.All(found, err, "read requeued jobs", func(c *PendingRestart, scan rows.Scan) error {
		var at int64
		err := scan(&c.JobID, &at, &c.Delay)
		c.Age = now - time.Duration(at)
		return err
	})
}

// PerhapsHeld is a job that an Epilog requeues held. The note stays where the Epilog does not
// learn whether slurmctld has released the job: the agent looks then.
type PerhapsHeld struct {
	jobenv.JobKey // the held attempt
	UID           uint32
	Age           time.Duration
}

// AddPerhapsHeld notes that a job is held from now on.
func (b *Ledger) AddPerhapsHeld(ctx context.Context, key jobenv.JobKey, uid uint32) error {
	_, err := b.db.ExecContext(ctx, "INSERT OR REPLACE INTO perhaps_held (job_id, restart, uid, at_ns) VALUES (?,?,?,?)",
		key.JobID, key.Restart, uid, int64(Now()))
	return wrap(err, "record that job %s is held", key)
}

// DropPerhapsHeld forgets the note of an attempt; the note of a later attempt, which may have come meanwhile,
// stays.
func (b *Ledger) DropPerhapsHeld(ctx context.Context, key jobenv.JobKey) error {
	_, err := b.db.ExecContext(ctx, "DELETE FROM perhaps_held WHERE job_id=? AND restart<=?", key.JobID, key.Restart)
	return wrap(err, "forget that job %s is held", key)
}

func perhapsHeld(q querier) ([]PerhapsHeld, error) {
	found, err := q.Query("SELECT job_id, restart, uid, at_ns FROM perhaps_held ORDER BY at_ns")
	now := Now()
	return rows.All(found, err, "read jobs that may be held", func(p *PerhapsHeld, scan rows.Scan) error {
		var at int64
		err := scan(&p.JobID, &p.Restart, &p.UID, &at)
		p.Age = now - time.Duration(at)
		return err
	})
}
