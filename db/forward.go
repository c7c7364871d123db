// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"errors"
	"fmt"
	"time"

	"carma/db/rows"
)

// Comment is the AdminComment of a job.
type Comment struct {
	ArrayJobID uint32 // 0: no array
	Text       string
	Unended    bool // slurmdbd has not heard of the job's end, with which slurmctld's AdminComment comes again
}

// Slurmdbd is Slurm's accounting database.
type Slurmdbd interface {
	// Comments returns the comments of jobs of a cluster, and of the other tasks of
	// an array whose id is among them; a job unknown to slurmdbd is missing.
	Comments(ctx context.Context, cluster string, jobs []uint32) (map[uint32]Comment, error)
	// SetComment replaces a comment. ErrRefused means that it never will be
	// replaced.
	SetComment(ctx context.Context, cluster string, job uint32, comment string) error
}

// ErrRefused means that a job's comment cannot take records: they stay on the node.
var ErrRefused = errors.New("the comment cannot take records")

// sendAfter is how long a record waits before it is sent, so that what others
// write at the end of a job is there by then.
const sendAfter = 10 * time.Second

// A record not taken by slurmdbd is tried again, later every time, for about a
// week: a job purged from slurmdbd by then is not missed there.
const (
	tryFirst = 10 * time.Second
	tryMost  = time.Hour
	tries    = 180
)

// forwardAtOnce is how many jobs are asked about in one command.
const forwardAtOnce = 100

// mostFailed is how many jobs are tried at once if slurmdbd takes none.
const mostFailed = 3

type outboxRow struct {
	job     uint32
	cluster string
	tries   int
	unended bool // slurmdbd has not heard of the job's end
}

// Forward sends the due records to slurmdbd and returns how many jobs are there now. A
// job leaves the outbox when its records were read back: records overwritten meanwhile
// by another node, or lost, are sent again, and records sent twice are there once. A job
// waits until slurmdbd has heard of the job's end, however long it takes: until then
// slurmctld replaces the comment, as after a time without slurmdbd.
func (d *DB) Forward(ctx context.Context, to Slurmdbd, now time.Time) (sent int, err error) {
	rows, err := d.due(ctx, now)
	if err != nil {
		return 0, err
	}
	byCluster := map[string][]outboxRow{}
	for _, r := range rows {
		byCluster[r.cluster] = append(byCluster[r.cluster], r)
	}
	for cluster, list := range byCluster {
		n, clusterErr := d.forwardCluster(ctx, to, cluster, list, now)
		sent += n
		err = errors.Join(err, clusterErr)
	}
	return sent, err
}

func (d *DB) due(ctx context.Context, now time.Time) (list []outboxRow, err error) {
	found, err := d.sql.QueryContext(ctx, "SELECT job_id, cluster, tries FROM outbox WHERE at <= ? ORDER BY at LIMIT ?",
		now.Unix(), forwardAtOnce)
	return rows.All(found, explain(err), "read outbox",
		func(r *outboxRow, scan rows.Scan) error { return scan(&r.job, &r.cluster, &r.tries) })
}

func (d *DB) forwardCluster(ctx context.Context, to Slurmdbd, cluster string, rows []outboxRow,
	now time.Time) (sent int, err error) {
	jobs := make([]uint32, len(rows))
	for i, r := range rows {
		jobs[i] = r.job
	}
	comments, err := to.Comments(ctx, cluster, jobs)
	carriers := map[uint32]uint32{} // where each job's records were put
	failed := 0
	for i, r := range rows {
		at, known := carrier(comments, r.job)
		if known && comments[at].Unended {
			rows[i].unended = true
			continue
		}
		if !known || failed == mostFailed {
			continue
		}
		list, readErr := attempts(ctx, d.sql, "WHERE job_id=? AND cluster=?", r.job, cluster)
		if readErr != nil {
			return 0, fmt.Errorf("job %d: %w", r.job, readErr)
		}
		merged, mergeErr := MergeComment(at, comments[at], list)
		if mergeErr != nil {
			return 0, mergeErr
		}
		// Nothing is left of a pruned job.
		if len(list) > 0 && merged != comments[at].Text {
			if setErr := to.SetComment(ctx, cluster, at, merged); errors.Is(setErr, ErrRefused) {
				if rowErr := d.drop(ctx, r); rowErr != nil {
					return 0, rowErr
				}
				continue
			} else if setErr != nil {
				err = errors.Join(err, setErr)
				failed++
				continue
			}
			comments[at] = Comment{ArrayJobID: comments[at].ArrayJobID, Text: merged}
		}
		carriers[r.job] = at
	}
	after := map[uint32]Comment{}
	if len(carriers) > 0 {
		var readErr error
		after, readErr = to.Comments(ctx, cluster, jobs)
		err = errors.Join(err, readErr)
	}
	for _, r := range rows {
		at, put := carriers[r.job]
		done := put && after[at] == comments[at]
		if done {
			sent++
		}
		if rowErr := d.settle(ctx, r, done, now); rowErr != nil {
			return sent, errors.Join(err, rowErr)
		}
	}
	return sent, err
}

// carrier is the job whose comment takes the records of a job: itself. But sacctmgr
// takes the id of an array for all of its tasks (tried, 22.05.8), so the record of
// the task with the id stands in the comment of the first of the others.
func carrier(comments map[uint32]Comment, job uint32) (at uint32, ok bool) {
	own, ok := comments[job]
	if !ok || own.ArrayJobID != job {
		return job, ok
	}
	at = job
	for id, c := range comments {
		if c.ArrayJobID == job && id != job && (at == job || id < at) {
			at = id
		}
	}
	return at, true
}

// settle takes a job out of the outbox, or lets it wait.
func (d *DB) settle(ctx context.Context, r outboxRow, done bool, now time.Time) error {
	if done || r.tries >= tries && !r.unended {
		return d.drop(ctx, r)
	}
	wait := min(tryFirst<<min(r.tries, 20), tryMost)
	if _, err := d.sql.ExecContext(ctx, "UPDATE outbox SET tries = ?5, at = ?4 WHERE job_id=?1 AND cluster=?2 "+
		"AND tries=?3",
		r.job, r.cluster, r.tries, now.Add(wait).Unix(), min(r.tries+1, tries)); err != nil {
		return fmt.Errorf("write outbox: %w", explain(err))
	}
	return nil
}

// drop takes a job out of the outbox, unless it has been put there anew.
func (d *DB) drop(ctx context.Context, r outboxRow) error {
	if _, err := d.sql.ExecContext(ctx, "DELETE FROM outbox WHERE job_id=? AND cluster=? AND tries=?", r.job, r.cluster,
		r.tries); err != nil {
		return fmt.Errorf("write outbox: %w", explain(err))
	}
	return nil
}
