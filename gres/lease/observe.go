// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"carma/gres"
)

// Claim is a GPU that a job has without having asked the ledger.
type Claim struct {
	UUID  string
	Whole bool // the job has all of the GPU by Slurm's word; else a process of the job was seen there
}

// Observe notes GPUs that slurmctld has given a job, or on which a process of the job was seen. Nothing is chosen and
// nothing is refused. The error is ErrSuperseded where the ledger has another attempt of the job.
func (b *Ledger) Observe(ctx context.Context, job Job, claims []Claim) error {
	return b.write(ctx, func(tx *sql.Tx) error {
		var restart, uid uint32
		err := tx.QueryRow("SELECT restart, uid FROM job WHERE job_id=?", job.JobID).Scan(&restart, &uid)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			err = insertJob(tx, job)
		case err == nil && (restart != job.Restart || uid != job.UID):
			err = ErrSuperseded
		}
		if err != nil {
			return fmt.Errorf("note the GPUs of job %s: %w", job.JobKey, err)
		}
		readings, err := readingsOf(tx)
		if err != nil {
			return err
		}
		leases, err := leasesOf(tx)
		if err != nil {
			return err
		}
		slot, has := 0, map[string]bool{}
		for _, l := range leases {
			if l.Job.JobID == job.JobID {
				slot++
				has[l.UUID] = true
			}
		}
		for _, c := range claims {
			if has[c.UUID] {
				continue
			}
			if _, err := insertLease(tx, job, gres.Request{Exclusive: c.Whole}, slot, c.UUID, "", readings,
				leases); err != nil {
				return err
			}
			slot++
			has[c.UUID] = true
		}
		return nil
	})
}
