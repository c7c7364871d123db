// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"carma/gres"
)

// Usage is what one job did on one GPU in the interval before a sample.
type Usage struct {
	JobID    uint32
	UUID     string
	Present  bool          // a process of the job is on the GPU
	UsedMiB  int64         // by its processes; 0: not told by the driver
	Interval time.Duration // 0 at the first sample
	SMActPct float64       // of the GPU; NaN: not measured
	EnergyJ  float64       // the job's share; NaN: not measured
}

// Measure replaces the readings and adds usages to the leases they name. A
// usage of a job that has gone is dropped.
func (b *Book) Measure(ctx context.Context, readings []gres.Reading, usages []Usage) error {
	return b.write(ctx, func(tx *sql.Tx) error {
		if err := putReadings(tx, readings); err != nil {
			return err
		}
		for _, u := range usages {
			if err := addUsage(tx, u); err != nil {
				return fmt.Errorf("add usage of job %d on GPU %s: %w", u.JobID, u.UUID, err)
			}
		}
		return nil
	})
}

func addUsage(tx *sql.Tx, u Usage) error {
	if u.Present {
		_, err := tx.Exec("UPDATE lease SET seen_ns = ifnull(seen_ns, ?3), peak_mib = max(ifnull(peak_mib, 0), ?4) WHERE job_id=?1 AND uuid=?2",
			u.JobID, u.UUID, int64(Now()), u.UsedMiB)
		if err != nil {
			return err
		}
	}
	seconds := u.Interval.Seconds()
	if !math.IsNaN(u.SMActPct) && seconds > 0 {
		_, err := tx.Exec("UPDATE lease SET smact_sum = smact_sum + ?3, smact_s = smact_s + ?4, smact_max = max(smact_max, ?5) WHERE job_id=?1 AND uuid=?2",
			u.JobID, u.UUID, u.SMActPct*seconds, seconds, u.SMActPct)
		if err != nil {
			return err
		}
	}
	if !math.IsNaN(u.EnergyJ) && seconds > 0 {
		_, err := tx.Exec("UPDATE lease SET energy_j = energy_j + ?3, energy_s = energy_s + ?4 WHERE job_id=?1 AND uuid=?2",
			u.JobID, u.UUID, u.EnergyJ, seconds)
		return err
	}
	return nil
}

// Published returns the Gres text that slurmctld was last told and from when on
// it may be told the next, counted from now; ok is false if it was told nothing.
func (b *Book) Published(ctx context.Context) (gresText string, wait time.Duration, ok bool, err error) {
	var next int64
	err = b.db.QueryRowContext(ctx, "SELECT gres, next_ns FROM published").Scan(&gresText, &next)
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, false, nil
	} else if err != nil {
		return "", 0, false, fmt.Errorf("read published capacity: %w", err)
	}
	return gresText, time.Duration(next) - Now(), true, nil
}

// SetPublished records what slurmctld is told now. On average it may be told
// once in an interval, and once more at any time: a GPU that becomes free just
// after another change is not kept waiting.
func (b *Book) SetPublished(ctx context.Context, gresText string, interval time.Duration) error {
	now := int64(Now())
	_, err := b.db.ExecContext(ctx, "INSERT OR REPLACE INTO published VALUES (1, ?1, max(?2, ifnull((SELECT next_ns FROM published), 0) + ?3))",
		gresText, now, int64(interval))
	if err != nil {
		return fmt.Errorf("write published capacity: %w", err)
	}
	return nil
}
