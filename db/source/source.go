// SPDX-License-Identifier: Apache-2.0

// Package source reads the records of jobs from where they are kept: the databases of
// nodes, or slurmdbd.
package source

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"carma/db"
)

// Source hands out the records of one job after the other, in the order of their ids.
type Source interface {
	JobIDs(ctx context.Context) (low, high uint32, err error)
	Scan(ctx context.Context, f db.Filter, each func([]db.Attempt) error) error
}

// cleaned is a source whose texts can be shown: users gave some of them.
type cleaned struct{ Source }

// Scan is the source's.
func (c cleaned) Scan(ctx context.Context, f db.Filter, each func([]db.Attempt) error) error {
	return c.Source.Scan(ctx, f, func(list []db.Attempt) error {
		for i := range list {
			list[i].Clean()
		}
		return each(list)
	})
}

// Of is a database as a source.
func Of(d *db.DB) Source { return cleaned{d} }

// Open opens databases for reading. closeAll closes those that were opened, also after an
// error; notes are for the reader of the records.
func Open(paths []string, now time.Time) (bases []*db.DB, notes []string, closeAll func(), err error) {
	closeAll = func() {
		for _, d := range bases {
			d.Close()
		}
	}
	for _, path := range paths {
		d, err := db.OpenRead(path)
		if err != nil {
			return nil, nil, closeAll, err
		}
		bases = append(bases, d)
		if at := d.Outdated(now); !at.IsZero() {
			const text = "records as of %s: the agent does not run, or cannot write them"
			notes = append(notes, fmt.Sprintf(text, at.Format("2006-01-02 15:04")))
		}
	}
	return bases, notes, closeAll, nil
}

// Scan hands all attempts of one job after the other to f, whichever sources have them. f
// may keep none of the records after it returns.
func Scan(ctx context.Context, sources []Source, filter db.Filter, f func([]db.Attempt) error) error {
	if len(sources) == 1 {
		return sources[0].Scan(ctx, filter, f)
	}
	// A job of several nodes has attempts in several databases.
	var all []db.Attempt
	for _, src := range sources {
		err := src.Scan(ctx, filter, func(attempts []db.Attempt) error {
			for _, a := range attempts {
				a.Neighbours, a.GPUs = slices.Clone(a.Neighbours), nil // reports show the sums
				all = append(all, a)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return db.EachJob(InOrder(all), f)
}

// InOrder sorts attempts and drops duplicates, as when a database and its copy are read.
func InOrder(all []db.Attempt) []db.Attempt {
	order := func(a, b db.Attempt) int {
		return cmp.Or(cmp.Compare(a.JobID, b.JobID), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.UID, b.UID),
			cmp.Compare(a.Restart, b.Restart), cmp.Compare(a.Node, b.Node), a.Start.Compare(b.Start))
	}
	slices.SortStableFunc(all, order)
	return slices.CompactFunc(all, func(a, b db.Attempt) bool { return order(a, b) == 0 })
}
