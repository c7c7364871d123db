// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"carma/db"
)

// records is the accounting database of the node, opened when there is
// something to write.
type records struct {
	path string
	db   *db.DB
}

func (r *records) open() (err error) {
	if r.db == nil {
		r.db, err = db.Open(r.path)
	}
	return err
}

// Put writes a record, to the spool if the database does not take it.
func (r *records) Put(ctx context.Context, a db.Attempt) error {
	err := r.put(ctx, a)
	if err == nil {
		return nil
	}
	if spoolErr := db.SpoolOf(r.path).Add(a); spoolErr != nil {
		return errors.Join(err, spoolErr)
	}
	return fmt.Errorf("%w; spooled", err)
}

func (r *records) put(ctx context.Context, a db.Attempt) error {
	if err := r.open(); err != nil {
		return err
	}
	return r.db.Put(ctx, a)
}

// SetEnd completes a record, having written what Epilogs spooled.
func (r *records) SetEnd(ctx context.Context, e db.End) error {
	if err := r.open(); err != nil {
		return err
	}
	if err := db.SpoolOf(r.path).Drain(ctx, r.db.Put); err != nil {
		return err
	}
	return r.db.SetEnd(ctx, e)
}
