// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"carma/db/figure"
	"carma/db/rows"
	"carma/slurmbridge/jobenv"
)

// Usage is an attempt's use of a GPU in the interval before a sample. NaN stands
// for a figure not measured.
type Usage struct {
	Job       jobenv.JobKey
	UUID      string
	Present   bool  // a process of the job is on the GPU
	Seen      bool  // as the lease says already
	UsedMiB   int64 // 0: not known
	UsedFrom  figure.MemorySource
	Seconds   float64 // part of the interval in which the job held the GPU; 0 at the first sample
	SMActPct  float64 // its own
	SMActFrom figure.Source
	EnergyJ   float64 // its share
	IdleJ     float64 // of the share, the idle floor
	HeldS     float64 // Seconds divided by the holders at the time
	SharedS   float64 // of Seconds, with other holders
	AloneS    float64 // time that the work of the interval takes alone
	LawS      float64 // the same, by the law of interference

	AlonePct, AloneDRAMPct float64 // activity of the job when alone on the GPU; 0: as written already
	Slowed                 float64 // as gres.Lease, 0: as written; below 0: no longer

	IdleChanged bool          // the next two fields have changed since the last look
	IdleFrom    time.Duration // of Now: since when the job has not used the GPU; 0: it does use it, or that is not known
	IdleSure    time.Duration // the same, for certain
}

// addUsages adds with one prepared statement: the agent does so every second.
func addUsages(tx *sql.Tx, list []Usage) error {
	if len(list) == 0 {
		return nil
	}
	add, err := tx.Prepare(addUsageSQL)
	if err != nil {
		return fmt.Errorf("add usage: %w", err)
	}
	defer add.Close()
	for _, u := range list {
		if err := addUsage(tx, add, u); err != nil {
			return fmt.Errorf("add usage of job %s on GPU %s: %w", u.Job, u.UUID, err)
		}
	}
	return nil
}

const addUsageSQL = `INSERT INTO usage (job_id, restart, uuid, peak_mib, peak_from, mib_s, mib_for_s, smact_s, smact_for_s, smact_max, smact_from,
	energy_j, idle_j, energy_for_s, lease_s, held_s, shared_s, alone_s, alone_for_s) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET
	peak_from = iif(excluded.peak_mib > peak_mib, excluded.peak_from, peak_from), peak_mib = max(peak_mib, excluded.peak_mib),
	mib_s = mib_s + excluded.mib_s, mib_for_s = mib_for_s + excluded.mib_for_s,
	smact_s = smact_s + excluded.smact_s, smact_for_s = smact_for_s + excluded.smact_for_s, smact_max = max(smact_max, excluded.smact_max),
	smact_from = iif(excluded.smact_for_s > 0, excluded.smact_from, smact_from),
	energy_j = energy_j + excluded.energy_j, idle_j = idle_j + excluded.idle_j, energy_for_s = energy_for_s + excluded.energy_for_s,
	lease_s = lease_s + excluded.lease_s, held_s = held_s + excluded.held_s, shared_s = shared_s + excluded.shared_s,
	alone_s = alone_s + excluded.alone_s, alone_for_s = alone_for_s + excluded.alone_for_s`

func addUsage(tx *sql.Tx, add *sql.Stmt, u Usage) error {
	// Of this attempt: the next one may hold the GPU by now.
	set := func(columns string, values ...any) error {
		_, err := tx.Exec("UPDATE lease SET "+columns+
			" WHERE job_id=?1 AND uuid=?2 AND EXISTS (SELECT 1 FROM job WHERE job_id=?1 AND restart=?3)",
			append([]any{u.Job.JobID, u.UUID, u.Job.Restart}, values...)...)
		return err
	}
	var errs [4]error
	if u.Present && !u.Seen {
		errs[0] = set("seen_ns = ifnull(seen_ns, ?4)", int64(Now()))
	}
	if u.IdleChanged {
		errs[1] = set("idle_max_ns = max(idle_max_ns, ifnull(?4-idle_ns,0)), idle_ns = nullif(?5,0), "+
			"idle_sure_ns = nullif(?6,0)", int64(Now()), int64(u.IdleFrom), int64(u.IdleSure))
	}
	if u.AlonePct > 0 {
		errs[2] = set("alone_pct = ?4, alone_dram_pct = ?5", u.AlonePct, u.AloneDRAMPct)
	}
	if u.Slowed != 0 {
		errs[3] = set("slowed = max(?4,0), slowed_max = max(slowed_max, ?4)", u.Slowed)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	// covered returns v and the seconds that it stands for.
	covered := func(v float64) (value, seconds float64) {
		if math.IsNaN(v) {
			return 0, 0
		}
		return v, u.Seconds
	}
	used, usedS := float64(u.UsedMiB)*u.Seconds, u.Seconds
	if !u.Present || u.UsedMiB == 0 {
		used, usedS = 0, 0
	}
	smact, smactS := covered(u.SMActPct)
	energy, energyS := covered(u.EnergyJ)
	idle, _ := covered(u.IdleJ)
	alone, aloneS := covered(u.AloneS)
	_, err := add.Exec(u.Job.JobID, u.Job.Restart, u.UUID, u.UsedMiB, string(u.UsedFrom), used, usedS, smact*smactS,
		smactS, smact, string(u.SMActFrom),
		energy, idle, energyS, u.Seconds, u.HeldS, u.SharedS, alone, aloneS)
	if err == nil && u.LawS > 0 {
		_, err = tx.Exec("INSERT INTO law VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET alone_s = alone_s + excluded.alone_s",
			u.Job.JobID, u.Job.Restart, u.UUID, u.LawS)
	}
	return err
}

// FiguresOf returns the figures of an attempt, by the UUID of the GPU: also of an
// ended attempt, until DropEnded.
func (b *Ledger) FiguresOf(ctx context.Context, key jobenv.JobKey) (map[string]figure.Figures, error) {
	found, err := b.db.QueryContext(ctx, "SELECT u.uuid, "+usageColumns+" FROM usage u "+
		"LEFT JOIN law w USING (job_id, restart, uuid) "+
		"WHERE job_id=? AND restart=?",
		key.JobID, key.Restart)
	all := map[string]figure.Figures{}
	_, err = rows.All(found, err, "read usage of job "+key.String(), func(uuid *string, scan rows.Scan) error {
		var u usageRow
		err := scan(append([]any{uuid}, u.fields()...)...)
		all[*uuid] = u.figures()
		return err
	})
	return all, err
}

// usageColumns are the columns of usageRow, of rows u and w (law), which may both be
// absent.
const usageColumns = `ifnull(u.peak_mib,0), ifnull(u.peak_from,''), ifnull(u.mib_s,0), ifnull(u.mib_for_s,0),
	ifnull(u.smact_s,0), ifnull(u.smact_for_s,0), ifnull(u.smact_max,0), ifnull(u.smact_from,'none'),
	ifnull(u.energy_j,0), ifnull(u.idle_j,0), ifnull(u.energy_for_s,0),
	ifnull(u.lease_s,0), ifnull(u.held_s,0), ifnull(u.shared_s,0), ifnull(u.alone_s,0), ifnull(u.alone_for_s,0), ifnull(w.alone_s,0)`

type usageRow struct {
	f                                             figure.Figures
	mibS, mibForS, smactS, smactForS, smactMax    float64
	energyJ, idleJ, energyForS, aloneS, aloneForS float64
}

func (u *usageRow) fields() []any {
	return []any{&u.f.PeakMiB, &u.f.PeakFrom, &u.mibS, &u.mibForS, &u.smactS, &u.smactForS, &u.smactMax, &u.f.SMActFrom,
		&u.energyJ, &u.idleJ, &u.energyForS, &u.f.LeaseS, &u.f.HeldS, &u.f.SharedS, &u.aloneS, &u.aloneForS, &u.f.LawS}
}

// figures turns sums into means; a mean over too little of the time is no
// figure.
func (u *usageRow) figures() figure.Figures {
	f := u.f
	known := func(v, seconds float64) figure.Measured {
		if !f.Covers(seconds) {
			return figure.Unknown
		}
		return figure.Measured(v)
	}
	if u.mibForS > 0 {
		f.MeanMiB = int64(math.Round(u.mibS / u.mibForS))
	}
	f.SMActPct, f.SMActMax = known(u.smactS/u.smactForS, u.smactForS), known(u.smactMax, u.smactForS)
	f.EnergyJ, f.IdleJ = known(u.energyJ, u.energyForS), known(u.idleJ, u.energyForS)
	f.AloneS = known(u.aloneS, u.aloneForS)
	return f
}
