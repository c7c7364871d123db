// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"carma/gres"
)

// Attempt is one run of a job on one node.
type Attempt struct {
	Cluster    string
	JobID      uint32
	Restart    uint32
	Node       string
	ArrayJobID uint32 // 0: no array, or not known
	ArrayTask  string
	Name       string // of the job; empty: not known
	Account    string
	User       string
	UID        uint32
	Partition  string
	Submit     time.Time // zero: not known
	Start, End time.Time
	State      string // COMPLETED, FAILED, OUT_OF_MEMORY, ...
	ExitCode   int
	ExitSignal int
	Mode       string // shared, exclusive, off
	Method     string
	EstMiB     int64 // per GPU; 0: none
	ReserveMiB int64 // per GPU
	GPUs       []AttemptGPU
	Neighbours []uint32
	OOM        string // signature; empty: no OOM
	OOMNote    string
	RequeuedTo string
}

// AttemptGPU is what a job did on one GPU.
type AttemptGPU struct {
	UUID     string
	PeakMiB  int64 // 0: not known
	SMActPct gres.Measured
	SMActMax gres.Measured
	EnergyJ  gres.Measured
}

// PeakMiB is the highest peak of the job's GPUs; 0: not known.
func (a Attempt) PeakMiB() (peak int64) {
	for _, g := range a.GPUs {
		peak = max(peak, g.PeakMiB)
	}
	return peak
}

// SMAct is the mean and the maximum over the job's GPUs.
func (a Attempt) SMAct() (mean, highest gres.Measured) {
	sum, n := gres.Measured(0), gres.Measured(0)
	for _, g := range a.GPUs {
		if g.SMActPct.Known() {
			sum += g.SMActPct
			highest = max(highest, g.SMActMax)
			n++
		}
	}
	if n == 0 {
		return gres.Unknown, gres.Unknown
	}
	return sum / n, highest
}

// EnergyJ is the sum over the job's GPUs; unknown if one was not measured.
func (a Attempt) EnergyJ() gres.Measured {
	if len(a.GPUs) == 0 {
		return gres.Unknown
	}
	sum := gres.Measured(0)
	for _, g := range a.GPUs {
		sum += g.EnergyJ
	}
	return sum
}

// Put writes a record; one that is there already under the same job, restart
// and node is replaced, so that an Epilog that runs twice counts once.
func (d *DB) Put(ctx context.Context, a Attempt) error {
	tx, err := d.sql.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write record of job %d: %w", a.JobID, explain(err))
	}
	defer tx.Rollback()
	if err := put(tx, a); err != nil {
		return fmt.Errorf("write record of job %d: %w", a.JobID, explain(err))
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("write record of job %d: %w", a.JobID, explain(err))
	}
	return nil
}

func put(tx *sql.Tx, a Attempt) error {
	smact, smactMax := a.SMAct()
	_, err := tx.Exec(`INSERT OR REPLACE INTO attempt (cluster, job_id, restart, node, array_job_id, array_task, name, account, user, uid, partition,
		submit, start, end, state, exit_code, exit_signal, mode, method, est_mib, reserve_mib, peak_mib, smact_pct, smact_max, energy_j,
		neighbours, oom, oom_note, requeued_to) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		a.Cluster, a.JobID, a.Restart, a.Node, nullZero(int64(a.ArrayJobID)), nullEmpty(a.ArrayTask), nullEmpty(a.Name), nullEmpty(a.Account), a.User, a.UID, a.Partition,
		seconds(a.Submit), seconds(a.Start), seconds(a.End), a.State, a.ExitCode, a.ExitSignal, a.Mode, a.Method,
		nullZero(a.EstMiB), a.ReserveMiB, nullZero(a.PeakMiB()), nullUnknown(smact), nullUnknown(smactMax), nullUnknown(a.EnergyJ()),
		joinIDs(a.Neighbours), nullEmpty(a.OOM), nullEmpty(a.OOMNote), nullEmpty(a.RequeuedTo))
	if err != nil {
		return err
	}
	if _, err := tx.Exec("DELETE FROM attempt_gpu WHERE cluster=? AND job_id=? AND restart=? AND node=?", a.Cluster, a.JobID, a.Restart, a.Node); err != nil {
		return err
	}
	for slot, g := range a.GPUs {
		_, err := tx.Exec("INSERT INTO attempt_gpu VALUES (?,?,?,?,?,?,?,?,?)", a.Cluster, a.JobID, a.Restart, a.Node, slot, g.UUID,
			nullZero(g.PeakMiB), nullUnknown(g.SMActPct), nullUnknown(g.EnergyJ))
		if err != nil {
			return err
		}
	}
	return nil
}

// End is slurmctld's word on how an attempt ended.
type End struct {
	JobID      uint32
	Restart    uint32
	Node       string
	ArrayJobID uint32
	ArrayTask  string
	Name       string
	Account    string
	State      string
}

// SetEnd completes the record of an attempt, if there is one. An attempt that
// CARMA itself put back, or whose OOM it found, keeps the state that says so.
func (d *DB) SetEnd(ctx context.Context, e End) error {
	_, err := d.sql.ExecContext(ctx, `UPDATE attempt SET array_job_id=?, array_task=?, name=?, account=?,
		state = CASE WHEN state IN ('REQUEUED','OUT_OF_MEMORY') THEN state ELSE ? END
		WHERE job_id=? AND restart=? AND node=?`,
		nullZero(int64(e.ArrayJobID)), nullEmpty(e.ArrayTask), nullEmpty(e.Name), nullEmpty(e.Account), e.State, e.JobID, e.Restart, e.Node)
	if err != nil {
		return fmt.Errorf("complete record of job %d: %w", e.JobID, explain(err))
	}
	return nil
}

// Attempts returns the attempts of the given jobs, or of all jobs if none are
// given, in the order of job id, restart and node.
func (d *DB) Attempts(ctx context.Context, jobs []uint32) ([]Attempt, error) {
	where := ""
	if len(jobs) > 0 {
		where = " WHERE a.job_id IN (" + joinIDs(jobs) + ") OR a.array_job_id IN (" + joinIDs(jobs) + ")"
	}
	rows, err := d.sql.QueryContext(ctx, `SELECT a.cluster, a.job_id, a.restart, a.node, ifnull(array_job_id,0), ifnull(array_task,''), ifnull(name,''), ifnull(account,''), user, uid, partition,
		submit, start, end, state, exit_code, exit_signal, mode, method, ifnull(est_mib,0), reserve_mib, smact_max, neighbours,
		ifnull(oom,''), ifnull(oom_note,''), ifnull(requeued_to,''), ifnull(g.uuid,''), ifnull(g.peak_mib,0), g.smact_pct, g.energy_j
		FROM attempt a LEFT JOIN attempt_gpu g USING (cluster, job_id, restart, node)`+where+`
		ORDER BY a.cluster, a.job_id, a.restart, a.node, g.slot`)
	if err != nil {
		return nil, fmt.Errorf("read records: %w", explain(err))
	}
	defer rows.Close()
	var all []Attempt
	for rows.Next() {
		a, g, err := scanAttempt(rows)
		if err != nil {
			return nil, fmt.Errorf("read records: %w", err)
		}
		if n := len(all); n == 0 || all[n-1].Cluster != a.Cluster || all[n-1].JobID != a.JobID || all[n-1].Restart != a.Restart || all[n-1].Node != a.Node {
			all = append(all, a)
		}
		if g.UUID != "" {
			last := &all[len(all)-1]
			last.GPUs = append(last.GPUs, g)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read records: %w", explain(err))
	}
	return all, nil
}

func scanAttempt(rows *sql.Rows) (a Attempt, g AttemptGPU, err error) {
	var submit, start, end, smactMax, smact, energy sql.NullFloat64
	var neighbours string
	err = rows.Scan(&a.Cluster, &a.JobID, &a.Restart, &a.Node, &a.ArrayJobID, &a.ArrayTask, &a.Name, &a.Account, &a.User, &a.UID, &a.Partition,
		&submit, &start, &end, &a.State, &a.ExitCode, &a.ExitSignal, &a.Mode, &a.Method, &a.EstMiB, &a.ReserveMiB, &smactMax, &neighbours,
		&a.OOM, &a.OOMNote, &a.RequeuedTo, &g.UUID, &g.PeakMiB, &smact, &energy)
	if err != nil {
		return a, g, err
	}
	a.Submit, a.Start, a.End = fromSeconds(submit), fromSeconds(start), fromSeconds(end)
	g.SMActPct, g.SMActMax, g.EnergyJ = orUnknown(smact), orUnknown(smactMax), orUnknown(energy)
	for word := range strings.SplitSeq(neighbours, ",") {
		if id, err := strconv.ParseUint(word, 10, 32); err == nil {
			a.Neighbours = append(a.Neighbours, uint32(id))
		}
	}
	return a, g, nil
}

func nullZero(v int64) any {
	if v == 0 {
		return nil
	}
	return v
}

func nullEmpty(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func nullUnknown(m gres.Measured) any {
	if !m.Known() {
		return nil
	}
	return float64(m)
}

func orUnknown(f sql.NullFloat64) gres.Measured {
	if !f.Valid {
		return gres.Unknown
	}
	return gres.Measured(f.Float64)
}
