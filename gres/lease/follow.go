// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"carma/gres"
)

// FaultedMPS is the note of jobs whose MPS server has faulted.
const FaultedMPS = "its MPS server has faulted"

// ReadLog reads a log from a position, which is its own to read, and tells whether there was a
// fault and where the log ends.
type ReadLog func(from int64) (fault bool, to int64, err error)

// Follow has the log of a daemon's MPS servers read on from the position up to which it was read before, by
// whichever process. read is called outside of any transaction, for the log is on a disk. The jobs that have
// clients of the daemon are then victims of a fault: those in which it was not noted before are returned. The
// text of a log that was never followed before is of earlier jobs.
func (b *Ledger) Follow(ctx context.Context, d gres.Daemon, read ReadLog) (victims []uint32, fault bool, err error) {
	from := int64(0)
	err = b.db.QueryRowContext(ctx, "SELECT at FROM followed WHERE daemon=?", d).Scan(&from)
	first := errors.Is(err, sql.ErrNoRows)
	if err != nil && !first {
		return nil, false, fmt.Errorf("read how far a log was followed: %w", err)
	}
	fault, to, err := read(from)
	if err != nil {
		return nil, false, err
	}
	fault = fault && !first
	if !first && !fault && to == from {
		return nil, false, nil
	}
	err = b.write(ctx, func(tx *sql.Tx) (err error) {
		if _, err := tx.Exec("INSERT OR REPLACE INTO followed (daemon, at) VALUES (?,?)", d, to); err != nil || !fault {
			return err
		}
		// A job that has just come has no client yet.
		const clients = "job_id IN (SELECT job_id FROM lease WHERE daemon=? AND seen_ns IS NOT NULL)"
		victims, err = noteMPSFault(tx, clients, FaultedMPS, d)
		return err
	})
	if err != nil {
		return nil, fault, fmt.Errorf("note a fault of an MPS server: %w", err)
	}
	return victims, fault, nil
}

// noteMPSFault notes a fault that several jobs had together. The fault ends the clients of
// all of them and does not tell which job is to blame: of several each may be a victim of
// another.
func noteMPSFault(tx *sql.Tx, where, reason string, args ...any) (jobs []uint32, err error) {
	if jobs, err = noteFault(tx, where, reason, args...); err != nil || len(jobs) < 2 {
		return jobs, err
	}
	for _, id := range jobs {
		if _, err := tx.Exec("UPDATE job SET victim=1 WHERE job_id=?", id); err != nil {
			return nil, err
		}
	}
	return jobs, nil
}
