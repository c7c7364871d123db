// SPDX-License-Identifier: Apache-2.0

package db

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"carma/db/figure"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/usertext"
	"carma/slurmbridge/version"
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
	Mode       jobenv.Mode
	Method     string
	Key        string // of the history; empty: none
	EstMiB     int64  // per GPU; 0: none
	ReserveMiB int64  // per GPU
	FullMiB    int64  // a whole GPU as carma.toml has it; 0: not known
	GPUs       []AttemptGPU
	Total      Total `json:"-"` // of the GPUs
	Neighbours []uint32
	OOM        string // signature; empty: no OOM
	OOMNote    string
	RequeuedTo string
	Unread     int64 // line of the script that was meant for CARMA and is not read; 0: none
	clean      bool  // see Clean
}

func (a *Attempt) texts() [15]*string {
	return [...]*string{&a.Cluster, &a.Node, &a.ArrayTask, &a.Name, &a.Account, &a.User, &a.Partition, &a.State,
		(*string)(&a.Mode), &a.Method, &a.Key, &a.Total.Model, &a.OOM, &a.OOMNote, &a.RequeuedTo}
}

// Clean makes the texts of a record fit to be shown (usertext): users gave some of them.
func (a *Attempt) Clean() {
	if a.clean { // as nearly all that Scan reads are
		return
	}
	for _, s := range a.texts() {
		*s = usertext.Clean(*s)
	}
	for k, uuid := range a.Total.UUIDs {
		a.Total.UUIDs[k] = usertext.Clean(uuid)
	}
}

// NodeFail is the state of an attempt without an Epilog, in sacct's word.
const NodeFail = jobstate.NodeFail

// AttemptGPU is what a job did on one GPU.
type AttemptGPU struct {
	UUID  string
	Model string
	figure.Figures
}

// Total is what a job did on all its GPUs of a node.
type Total struct {
	UUIDs     []string
	Model     string // of the first GPU
	PeakMiB   int64  // highest; 0: not known
	PeakHow   figure.Quality
	MeanMiB   int64
	SMActPct  figure.Measured // mean over the GPUs
	SMActMax  figure.Measured
	SMActHow  figure.Quality
	EnergyJ   figure.Measured // sums from here on; unknown if a GPU's is
	IdleJ     figure.Measured
	EnergyHow figure.Quality
	LeaseS    float64 // GPU seconds
	HeldS     float64
	SharedS   float64
	AloneS    figure.Measured
	LawS      float64 // AloneS as the law of interference expects; 0: not known
}

// TotalOf puts the figures of a job's GPUs together.
func TotalOf(gpus []AttemptGPU) Total {
	t := Total{SMActPct: figure.Unknown, SMActMax: figure.Unknown, EnergyJ: figure.Unknown, IdleJ: figure.Unknown,
		AloneS:  figure.Unknown,
		PeakHow: figure.QualityNone, SMActHow: figure.QualityNone, EnergyHow: figure.QualityNone}
	if len(gpus) == 0 {
		return t
	}
	t.Model, t.EnergyJ, t.IdleJ, t.AloneS = gpus[0].Model, 0, 0, 0
	t.EnergyHow = gpus[0].EnergyQuality()
	smact, n := figure.Measured(0), 0
	for _, g := range gpus {
		t.UUIDs = append(t.UUIDs, g.UUID)
		t.PeakMiB, t.MeanMiB = max(t.PeakMiB, g.PeakMiB), max(t.MeanMiB, g.MeanMiB)
		t.EnergyHow = t.EnergyHow.And(g.EnergyQuality())
		switch how := g.PeakQuality(); { // a GPU left alone by the job has no peak
		case t.PeakHow == figure.QualityNone:
			t.PeakHow = how
		case how != figure.QualityNone:
			t.PeakHow = t.PeakHow.And(how)
		}
		t.EnergyJ, t.IdleJ, t.AloneS = t.EnergyJ+g.EnergyJ, t.IdleJ+g.IdleJ, t.AloneS+g.AloneS
		t.LeaseS, t.HeldS, t.SharedS = t.LeaseS+g.LeaseS, t.HeldS+g.HeldS, t.SharedS+g.SharedS
		t.LawS += g.LawS
		if !g.SMActPct.Known() {
			continue
		}
		if n++; n == 1 {
			t.SMActMax, t.SMActHow = g.SMActMax, g.SMActQuality()
		}
		smact += g.SMActPct
		t.SMActMax, t.SMActHow = max(t.SMActMax, g.SMActMax), t.SMActHow.And(g.SMActQuality())
	}
	if n > 0 {
		t.SMActPct = round(smact/figure.Measured(n), 10)
	}
	// As they are kept, so that a record is the same wherever it is read.
	t.SMActMax, t.EnergyJ, t.IdleJ, t.AloneS = round(t.SMActMax, 10), round(t.EnergyJ, 1), round(t.IdleJ, 1),
		round(t.AloneS, 1000)
	for _, s := range []*float64{&t.LeaseS, &t.HeldS, &t.SharedS, &t.LawS} {
		*s = float64(toMillis(*s)) / 1000
	}
	return t
}

func round(m figure.Measured, parts float64) figure.Measured {
	return figure.Measured(math.Round(float64(m)*parts) / parts)
}

// Put writes a record; an earlier record of the same job, restart and node is
// replaced, so that an Epilog that runs twice counts once.
func (d *DB) Put(ctx context.Context, a Attempt) error {
	if err := d.PutAll(ctx, []Attempt{a}); err != nil {
		return fmt.Errorf("record of job %d: %w", a.JobID, err)
	}
	return nil
}

// PutIfNone writes a record unless the same job, restart and node have a record.
func (d *DB) PutIfNone(ctx context.Context, a Attempt) error {
	err := d.write(ctx, func(tx *sql.Tx) error {
		list, err := attempts(ctx, tx, "WHERE a.job_id=? AND a.restart=? AND a.node=?", a.JobID, a.Restart, a.Node)
		if err != nil || len(list) > 0 {
			return err
		}
		a.Total = TotalOf(a.GPUs)
		return put(tx, &a)
	})
	if err != nil {
		return fmt.Errorf("record of job %d: %w", a.JobID, explain(err))
	}
	return nil
}

// PutAll writes all of the records or none.
func (d *DB) PutAll(ctx context.Context, list []Attempt) error {
	err := d.write(ctx, func(tx *sql.Tx) error {
		for i := range list {
			a := list[i]
			a.Total = TotalOf(a.GPUs)
			if err := put(tx, &a); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write records: %w", explain(err))
	}
	return nil
}

func (d *DB) write(ctx context.Context, f func(*sql.Tx) error) error {
	defer d.queue.Enter(ctx, busy)()
	tx, err := d.sql.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// firstColumns are the columns of a record that its generated column line is made of.
const firstColumns = `job_id, cluster, restart, node, array_job_id, array_task, name, account, user, uid, partition,
	submit_ms, start_ms, end_ms, state, exit_code, exit_signal, mode, method, key, est_mib, reserve_mib, full_mib, gpus,
	model, peak_mib, peak_how, mean_mib, smact_pct, smact_max, smact_how, energy_j, idle_j, energy_how,
	lease_ms, held_ms, shared_ms, alone_ms, neighbours, oom, oom_note, requeued_to, law_ms, unread`

// added are the columns of later steps of the schema, in their order: none yet.
var added = []column{}

// column is a column and the step of the schema that adds the column.
type column struct {
	step int
	name string
}

// attemptColumns are all of a record but the line, in the order in which put gives their values.
var attemptColumns = func() string {
	names := firstColumns
	for _, c := range added {
		names += ", " + c.name
	}
	return names
}()

var putAttempt = "INSERT OR REPLACE INTO attempt (" + attemptColumns + ", version) VALUES (?,?" +
	strings.Repeat(",?", strings.Count(attemptColumns, ",")) + ")"

func put(tx *sql.Tx, a *Attempt) error {
	for _, s := range a.texts() {
		*s = clean(*s)
	}
	t := a.Total
	_, err := tx.Exec(putAttempt, a.JobID, a.Cluster, a.Restart, a.Node, null(a.ArrayJobID),
		null(a.ArrayTask), null(a.Name), null(a.Account),
		a.User, a.UID, a.Partition, millis(a.Submit), millis(a.Start), millis(a.End), a.State, a.ExitCode, a.ExitSignal,
		a.Mode, a.Method, null(a.Key),
		null(a.EstMiB), a.ReserveMiB, null(a.FullMiB), clean(strings.Join(t.UUIDs, ",")), null(t.Model),
		null(t.PeakMiB), t.PeakHow, null(t.MeanMiB), t.SMActPct, t.SMActMax, t.SMActHow,
		whole(t.EnergyJ), whole(t.IdleJ), t.EnergyHow,
		toMillis(t.LeaseS), toMillis(t.HeldS), toMillis(t.SharedS), whole(t.AloneS*1000),
		JoinIDs(a.Neighbours), null(a.OOM), null(a.OOMNote), null(a.RequeuedTo),
		null(toMillis(t.LawS)), null(a.Unread),
		version.String())
	if err != nil {
		return err
	}
	if err := touch(tx, a.UID); err != nil {
		return err
	}
	if _, err := tx.Exec("DELETE FROM attempt_gpu WHERE job_id=? AND cluster=? AND restart=? AND node=?", a.JobID,
		a.Cluster, a.Restart, a.Node); err != nil {
		return err
	}
	for slot, g := range a.GPUs {
		figures, err := json.Marshal(g.Figures)
		if err != nil {
			return err
		}
		if _, err := tx.Exec("INSERT INTO attempt_gpu VALUES (?,?,?,?,?,?,?,?)", a.JobID, a.Cluster, a.Restart, a.Node, slot,
			g.UUID, g.Model, string(figures)); err != nil {
			return err
		}
	}
	return nil
}

// End is what is known of an attempt only after its Epilog: slurmctld's word on
// the end, and the figures of its last moments.
type End struct {
	JobID      uint32
	Restart    uint32
	Node       string
	ArrayJobID uint32
	ArrayTask  string
	Name       string
	Account    string
	State      string                    // empty: slurmctld does not know
	Never      bool                      // the job was requeued, and ended so without another attempt
	Figures    map[string]figure.Figures // by UUID; nil: none
	Forward    bool                      // slurmdbd is to get the record
	Advice     admincomment.Advice       // of a job that went as written; void: none
}

// SetEnd completes the record of an attempt, if any. An attempt requeued by CARMA itself,
// or with an OOM found by CARMA, keeps the state that says so, and so does an attempt that
// ended with its node and whose job was requeued. SetEnd returns the record's content then.
func (d *DB) SetEnd(ctx context.Context, e End) (list []Attempt, err error) {
	err = d.write(ctx, func(tx *sql.Tx) error {
		list, err = setEnd(ctx, tx, e)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("complete record of job %d: %w", e.JobID, explain(err))
	}
	return list, nil
}

func setEnd(ctx context.Context, tx *sql.Tx, e End) ([]Attempt, error) {
	list, err := attempts(ctx, tx, "WHERE a.job_id=? AND a.restart=? AND a.node=?", e.JobID, e.Restart, e.Node)
	if err != nil {
		return nil, err
	}
	for i := range list {
		a := &list[i]
		if e.State != "" {
			a.ArrayJobID, a.ArrayTask, a.Name, a.Account = e.ArrayJobID, e.ArrayTask, e.Name, e.Account
			if e.Never || a.State != jobstate.Requeued && a.State != jobstate.OutOfMemory &&
				(a.State != NodeFail || e.State != jobstate.Requeued) {
				a.State = e.State
			}
		}
		if e.Advice != (admincomment.Advice{}) {
			a.advised(e.Advice)
		}
		for g := range a.GPUs {
			if f, ok := e.Figures[a.GPUs[g].UUID]; ok {
				a.GPUs[g].Figures = f
			}
		}
		a.Total = TotalOf(a.GPUs)
		if err := put(tx, a); err != nil {
			return nil, err
		}
		if !e.Forward {
			continue
		}
		if _, err := tx.Exec("INSERT OR REPLACE INTO outbox (job_id, cluster, at) VALUES (?,?,?)", a.JobID, a.Cluster,
			time.Now().Add(sendAfter).Unix()); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// advised takes note of what CARMA would have booked for a job.
func (a *Attempt) advised(v admincomment.Advice) {
	a.Method, a.EstMiB, a.Key, a.Unread = cmp.Or(v.Method, a.Method), v.EstMiB, v.Key, v.UnreadLine
	if a.OOMNote != "" {
		return
	}
	why := ""
	if v.Note != "" && v.UnreadLine == 0 {
		why = ": " + v.Note
	}
	switch v.Mode {
	case jobenv.ModeShared:
		a.OOMNote = fmt.Sprintf("with sharing it would book %s of each GPU", usertext.GiB(v.ReserveMiB)) + why
	case jobenv.ModeExclusive:
		a.OOMNote = "with sharing it would have its GPUs to itself" + why
	case "":
		a.OOMNote = "with sharing it would be refused" + why
	}
}

// Attempts returns the attempts of the given jobs, or of all jobs if none are
// given, with the figures of each GPU, in the order of job id, cluster, restart and
// node. Scan is the quick way to many.
func (d *DB) Attempts(ctx context.Context, jobs []uint32) ([]Attempt, error) {
	where := ""
	if len(jobs) > 0 {
		where = "WHERE a.job_id IN (" + JoinIDs(jobs) + ") OR a.array_job_id IN (" + JoinIDs(jobs) + ")"
	}
	list, err := attempts(ctx, d.sql, where)
	if err != nil {
		return nil, fmt.Errorf("read records: %w", explain(err))
	}
	return list, nil
}

type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func attempts(ctx context.Context, q queryer, where string, args ...any) (all []Attempt, err error) {
	rows, err := q.QueryContext(ctx, "SELECT "+lineOf(schemaVersion)+
		", ifnull(g.uuid,''), ifnull(g.model,''), ifnull(g.figures,'') FROM "+
		"attempt a LEFT JOIN attempt_gpu g USING (job_id, cluster, restart, node) "+
		where+" ORDER BY a.job_id, a.cluster, a.restart, a.node, g.slot", args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var line, figures string
		var g AttemptGPU
		if err := rows.Scan(&line, &g.UUID, &g.Model, &figures); err != nil {
			return nil, err
		}
		var a Attempt
		if err := a.parse(line); err != nil {
			return nil, err
		}
		if n := len(all); n == 0 || all[n-1].JobID != a.JobID || all[n-1].Cluster != a.Cluster ||
			all[n-1].Restart != a.Restart || all[n-1].Node != a.Node {
			all = append(all, a)
		}
		if g.UUID == "" {
			continue
		}
		g.Figures = figure.NoFigures()
		if err := json.Unmarshal([]byte(figures), &g.Figures); err != nil {
			return nil, fmt.Errorf("job %d: read figures of GPU %s: %w", a.JobID, g.UUID, err)
		}
		last := &all[len(all)-1]
		last.GPUs = append(last.GPUs, g)
	}
	return all, errors.Join(rows.Err())
}

// null is NULL for a value not known or not there.
func null[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

func whole(m figure.Measured) any {
	if !m.Known() {
		return nil
	}
	return int64(math.Round(float64(m)))
}

func toMillis(s float64) int64 { return int64(math.Round(s * 1000)) }

func millis(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// JoinIDs writes job ids with commas between, as the database keeps them.
func JoinIDs(ids []uint32) string {
	var b []byte
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return string(b)
}
