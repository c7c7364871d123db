// SPDX-License-Identifier: Apache-2.0

package db

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"carma/db/figure"
	"carma/db/rows"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/usertext"
	"carma/slurmbridge/version"
)

// Attempt is one run of a job on one node.
type Attempt struct {
	Cluster    string       `json:"cl"`
	JobID      uint32       `json:"job"`
	Restart    uint32       `json:"re,omitempty"`
	Node       string       `json:"node"`
	ArrayJobID uint32       `json:"arr,omitempty"` // 0: no array, or not known
	ArrayTask  string       `json:"task,omitempty"`
	Name       string       `json:"name,omitempty"` // of the job; empty: not known
	Account    string       `json:"acct,omitempty"`
	User       string       `json:"user"`
	UID        uint32       `json:"uid"`
	Partition  string       `json:"part"`
	Submit     time.Time    `json:"sub,omitzero"` // zero: not known
	Start      time.Time    `json:"start"`
	End        time.Time    `json:"end"`
	State      string       `json:"state"` // COMPLETED, FAILED, OUT_OF_MEMORY, ...
	ExitCode   int          `json:"exit,omitempty"`
	ExitSignal int          `json:"sig,omitempty"`
	Mode       jobenv.Mode  `json:"mode"`
	Method     string       `json:"how"`
	Key        string       `json:"key,omitempty"`  // of the history; empty: none
	EstMiB     int64        `json:"est,omitempty"`  // per GPU; 0: none
	ReserveMiB int64        `json:"res"`            // per GPU
	FullMiB    int64        `json:"full,omitempty"` // a whole GPU as carma.toml has it; 0: not known
	GPUs       []AttemptGPU `json:"gpus,omitempty"`
	Total      Total        `json:"-"` // of the GPUs
	Neighbours []uint32     `json:"with,omitempty"`
	OOM        string       `json:"oom,omitempty"` // signature; empty: no OOM
	OOMNote    string       `json:"note,omitempty"`
	RequeuedTo string       `json:"to,omitempty"`
	Unread     int64        `json:"line,omitempty"` // line of the script, meant for CARMA and not read; 0: none
	AdvisedMiB int64        `json:"adv,omitempty"`  // per GPU, what sharing would book (mode = "advise"); 0: no advice
	clean      bool         // see Clean
}

func (a *Attempt) times() [3]*time.Time { return [...]*time.Time{&a.Submit, &a.Start, &a.End} }

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
	UUID           string `json:"id"`
	Model          string `json:"model,omitempty"`
	figure.Figures `json:"did"`
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
// replaced, so that an Epilog that runs twice counts once. A record of an earlier job that had the id stays.
func (d *DB) Put(ctx context.Context, a Attempt) error {
	if err := d.PutAll(ctx, []Attempt{a}); err != nil {
		return fmt.Errorf("record of job %d: %w", a.JobID, err)
	}
	return nil
}

// PutIfNone writes a record unless the same job, restart and node have a record. An earlier job may have had the id:
// of another user, or ended a day before the attempt began; by less, the machine's clock may have jumped. A
// later job may have the id, too.
func (d *DB) PutIfNone(ctx context.Context, a Attempt) error {
	err := d.write(ctx, func(tx *sql.Tx) error {
		list, err := attempts(ctx, tx, "WHERE job_id=? AND restart=? AND node=?", a.JobID, a.Restart, a.Node)
		if err != nil {
			return err
		}
		for _, there := range list {
			if there.UID == a.UID && !there.End.Before(a.Start.AddDate(0, 0, -1)) &&
				!there.Start.After(a.End.AddDate(0, 0, 1)) {
				return nil
			}
		}
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

// searched are the columns by which records are found: all of the table but the record and the writer's version.
const searched = "job_id, cluster, restart, node, array_job_id, account, user, uid, start_ms, end_ms, requeued_to"

func put(tx *sql.Tx, a *Attempt) error {
	for _, s := range a.texts() {
		*s = clean(*s)
	}
	a.GPUs = slices.Clone(a.GPUs)
	for i := range a.GPUs {
		a.GPUs[i].UUID, a.GPUs[i].Model = clean(a.GPUs[i].UUID), clean(a.GPUs[i].Model)
	}
	record, err := a.encode()
	if err != nil {
		return err
	}
	if _, err := tx.Exec("DELETE FROM attempt WHERE job_id=? AND cluster=? AND restart=? AND node=? AND uid=? AND "+
		"end_ms>=? AND start_ms<=?", a.JobID, a.Cluster, a.Restart, a.Node, a.UID, a.Start.AddDate(0, 0, -1).UnixMilli(),
		a.End.AddDate(0, 0, 1).UnixMilli()); err != nil { // whose job a record is of: as in PutIfNone
		return err
	}
	if _, err := tx.Exec("INSERT OR REPLACE INTO attempt ("+searched+", record, version) "+
		"VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", a.JobID, a.Cluster, a.Restart, a.Node, null(a.ArrayJobID), a.Account, a.User,
		a.UID, millis(a.Start), millis(a.End), null(a.RequeuedTo), record, version.String()); err != nil {
		return err
	}
	return touch(tx, a.UID)
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
	UID        uint32                    // of the job, where State is known: slurmctld gives ids again
	Never      bool                      // the job was requeued, and ended so without another attempt
	Again      bool                      // SetEnd was told of this end before, when the job waited for its next attempt
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
	list, err := attempts(ctx, tx, "WHERE job_id=? AND restart=? AND node=?", e.JobID, e.Restart, e.Node)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(a Attempt) bool { return e.State != "" && a.UID != e.UID }) // of an earlier job
	// A user's own earlier job may have had the id, too: the newest record counts.
	for i := 1; i < len(list); {
		if list[i-1].Cluster == list[i].Cluster {
			list = slices.Delete(list, i-1, i)
			continue
		}
		i++
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
	a.AdvisedMiB = v.ReserveMiB
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
		where = "WHERE job_id IN (" + JoinIDs(jobs) + ") OR array_job_id IN (" + JoinIDs(jobs) + ")"
	}
	return attempts(ctx, d.sql, where)
}

type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func attempts(ctx context.Context, q queryer, where string, args ...any) ([]Attempt, error) {
	found, err := q.QueryContext(ctx, "SELECT record FROM attempt "+where+" ORDER BY job_id, cluster, restart, "+
		"node, start_ms", args...)
	return rows.All(found, explain(err), "read records", func(a *Attempt, scan rows.Scan) error {
		var record string
		if err := scan(&record); err != nil {
			return err
		}
		return a.decode(record)
	})
}

// null is NULL for a value not known or not there.
func null[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
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
