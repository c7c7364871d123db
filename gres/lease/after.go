// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"carma/slurmbridge/jobenv"
)

// LongestDelay is what a PendingRestart waits at most for its start.
const LongestDelay = 15 * time.Minute

// Ended is an attempt that has released its GPUs and whose record does not yet
// hold slurmctld's word on how it ended.
type Ended struct {
	jobenv.JobKey
	Age time.Duration
}

// DropEnded forgets an ended attempt and what it did.
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
	rows, err := b.db.QueryContext(ctx, query, arg)
	if err != nil {
		return nil, fmt.Errorf("read ended jobs: %w", err)
	}
	defer rows.Close()
	var list []Ended
	now := Now()
	for rows.Next() {
		var e Ended
		var at int64
		if err := rows.Scan(&e.JobID, &e.Restart, &at); err != nil {
			return nil, fmt.Errorf("read ended jobs: %w", err)
		}
		e.Age = now - time.Duration(at)
		list = append(list, e)
	}
	return list, rows.Err()
}

// PendingRestart is a job that an Epilog has requeued. slurmctld lets
// it wait until the credentials of its first run have expired (120 s); the agent
// lifts that once the job is pending.
type PendingRestart struct {
	JobID uint32
	Age   time.Duration
	Delay time.Duration // that it is to wait from when it was requeued, or until it is safe
}

// AddPendingRestart notes that job was requeued now and is to wait.
func (b *Ledger) AddPendingRestart(ctx context.Context, job uint32, delay time.Duration) error {
	_, err := b.db.ExecContext(ctx, "INSERT OR REPLACE INTO comeback (job_id, at_ns, delay_ns) VALUES (?,?,?)", job,
		int64(Now()), int64(delay))
	if err != nil {
		return fmt.Errorf("record that job %d is requeued: %w", job, err)
	}
	return nil
}

// DropPendingRestart forgets the note.
func (b *Ledger) DropPendingRestart(ctx context.Context, job uint32) error {
	if _, err := b.db.ExecContext(ctx, "DELETE FROM comeback WHERE job_id=?", job); err != nil {
		return fmt.Errorf("forget that job %d is requeued: %w", job, err)
	}
	return nil
}

func pendingRestarts(q querier) ([]PendingRestart, error) {
	rows, err := q.Query("SELECT job_id, at_ns, delay_ns FROM comeback ORDER BY at_ns")
	if err != nil {
		return nil, fmt.Errorf("read requeued jobs: %w", err)
	}
	defer rows.Close()
	var list []PendingRestart
	now := Now()
	for rows.Next() {
		var c PendingRestart
		var at int64
		if err := rows.Scan(&c.JobID, &at, &c.Delay); err != nil {
			return nil, fmt.Errorf("read requeued jobs: %w", err)
		}
		c.Age = now - time.Duration(at)
		list = append(list, c)
	}
	return list, rows.Err()
}
