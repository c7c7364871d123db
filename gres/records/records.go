// SPDX-License-Identifier: Apache-2.0

// Package records is what a node does with the records of its jobs: it keeps them, sends
// them to slurmdbd, and publishes the parts that users may read.
package records

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"carma/db"
	"carma/gres/export"
	"carma/slurmbridge/config"
)

// Records is the accounting database of the node, opened when there is
// something to write.
type Records struct {
	Path  string
	Keep  config.Accounting
	Ended export.Ended
	Log   *slog.Logger // nil: nothing to say

	mu sync.Mutex // the agent looks and talks at the same time
	db *db.DB
}

func (r *Records) open() (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.db == nil {
		r.db, err = db.Open(r.Path)
	}
	return err
}

// Put writes a record, to the spool if the database does not take it.
func (r *Records) Put(ctx context.Context, a db.Attempt) error {
	return r.orSpool(a, db.Spool.Add, func() error { return r.db.Put(ctx, a) })
}

// orSpool spools a record that the database refuses.
func (r *Records) orSpool(a db.Attempt, spool func(db.Spool, db.Attempt) error, put func() error) error {
	err := r.open()
	if err == nil {
		err = put()
	}
	if err == nil {
		return nil
	}
	if spoolErr := spool(db.SpoolOf(r.Path), a); spoolErr != nil {
		return errors.Join(err, spoolErr)
	}
	return fmt.Errorf("%w; spooled", err)
}

// Lately tells what has happened on the node lately.
func (r *Records) Lately(ctx context.Context, q db.Lately) (db.Happened, error) {
	if err := r.open(); err != nil {
		return db.Happened{}, err
	}
	return r.db.Lately(ctx, q)
}

// PutLost writes the record of an attempt that had no Epilog, unless an Epilog came to write
// the record: to the spool if the database refuses.
func (r *Records) PutLost(ctx context.Context, a db.Attempt) error {
	return r.orSpool(a, db.Spool.AddLost, func() error { return r.db.PutIfNone(ctx, a) })
}

// SetEnd completes a record, having written the spool.
func (r *Records) SetEnd(ctx context.Context, e db.End) error {
	if err := r.open(); err != nil {
		return err
	}
	refused, err := db.SpoolOf(r.Path).Drain(ctx, r.db.Put, r.db.PutIfNone)
	if refused > 0 && r.Log != nil {
		r.Log.Warn("spool files do not match their names; renamed to .bad", "files", refused)
	}
	if err != nil {
		return err
	}
	list, err := r.db.SetEnd(ctx, e)
	if e.Again {
		return err
	}
	for _, a := range list {
		r.Ended.Add(a.OOM != "", a.RequeuedTo != "", a.Method, a.EstMiB, a.Total.PeakMiB)
	}
	return err
}

// Meters returns what is known of the GPUs' energy meters.
func (r *Records) Meters(ctx context.Context) ([]db.Meter, error) {
	if err := r.open(); err != nil {
		return nil, err
	}
	return r.db.Meters(ctx)
}

// AddSamples writes samples of the GPUs.
func (r *Records) AddSamples(ctx context.Context, samples []db.Sample, meters []db.Meter) error {
	if err := r.open(); err != nil {
		return err
	}
	return r.db.AddSamples(ctx, samples, meters)
}

// Series returns samples of the GPUs.
func (r *Records) Series(ctx context.Context, uuid string, from, to time.Time) ([]db.Sample, error) {
	if err := r.open(); err != nil {
		return nil, err
	}
	return r.db.Series(ctx, uuid, from, to)
}

// Tidy thins samples and deletes data older than carma.toml keeps.
func (r *Records) Tidy(ctx context.Context) error {
	if err := r.open(); err != nil {
		return err
	}
	// A clock far ahead, as at a boot before NTP has set the clock, costs no samples: the agent tidies at its start.
	newest, err := r.db.NewestSample(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	if most := newest.AddDate(0, 0, 1); !newest.IsZero() && most.Before(now) {
		now = most
	}
	if err := r.db.Thin(ctx, now); err != nil {
		return err
	}
	_, err = Prune(ctx, r.db, r.Keep, now)
	return err
}

// Prune deletes data older than carma.toml keeps.
func Prune(ctx context.Context, d *db.DB, keep config.Accounting, now time.Time) (db.Pruned, error) {
	return d.Prune(ctx, before(now, keep.KeepRecords), before(now, keep.KeepSamples))
}

// before is the time so long ago; zero if everything is kept.
func before(now time.Time, keep config.Duration) time.Time {
	if keep == 0 {
		return time.Time{}
	}
	return now.Add(-keep.D())
}
