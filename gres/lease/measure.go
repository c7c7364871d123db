// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"carma/gres"
)

// Measure replaces the readings, as the agent does, and adds usages to the figures of attempts.
func (b *Ledger) Measure(ctx context.Context, readings []gres.Reading, usages []Usage) error {
	return b.write(ctx, func(tx *sql.Tx) error {
		if err := putReadings(tx, readings); err != nil {
			return err
		}
		if _, err := tx.Exec("INSERT OR REPLACE INTO measured (one, at_ns) VALUES (1, ?)", int64(Now())); err != nil {
			return fmt.Errorf("write readings: %w", err)
		}
		return addUsages(tx, usages)
	})
}

// Published returns the counts that slurmctld was last told (package capacity) and
// in how long it may be told the next; ok is false if nothing was told.
func (b *Ledger) Published(ctx context.Context) (text string, wait time.Duration, ok bool, err error) {
	var next int64
	err = b.db.QueryRowContext(ctx, "SELECT gres, next_ns FROM published").Scan(&text, &next)
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, false, nil
	} else if err != nil {
		return "", 0, false, fmt.Errorf("read published capacity: %w", err)
	}
	return text, time.Duration(next) - Now(), true, nil
}

// SetPublished records the counts told to slurmctld now. On average slurmctld may
// be told once in an interval, and once more at any time: a GPU that becomes free
// just after another change is not kept waiting.
func (b *Ledger) SetPublished(ctx context.Context, text string, interval time.Duration) error {
	now := int64(Now())
	_, err := b.db.ExecContext(ctx, "INSERT OR REPLACE INTO published (one, gres, next_ns) VALUES (1, ?1, max(?2, "+
		"ifnull((SELECT next_ns FROM published), 0) + ?3))",
		text, now, int64(interval))
	return wrap(err, "write published capacity")
}

// Raised returns of how many nodes the cluster is (0: not known), and until when on the ledger's
// clock the node has used its part of the updates that raise counts.
func (b *Ledger) Raised(ctx context.Context) (nodes int, paid time.Duration, err error) {
	var ns int64
	err = b.db.QueryRowContext(ctx, "SELECT nodes, paid_ns FROM raised").Scan(&nodes, &ns)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, 0, nil
	}
	return nodes, time.Duration(ns), wrap(err, "read raised counts")
}

// SetNodes notes of how many nodes the cluster is.
func (b *Ledger) SetNodes(ctx context.Context, nodes int) error {
	_, err := b.db.ExecContext(ctx, "INSERT INTO raised (one, nodes, paid_ns) VALUES (1, ?1, 0) "+
		"ON CONFLICT DO UPDATE SET nodes = ?1", nodes)
	return wrap(err, "write the number of nodes")
}

// SetRaised notes until when the node has used its part. Without SetNodes it notes nothing.
func (b *Ledger) SetRaised(ctx context.Context, paid time.Duration) error {
	_, err := b.db.ExecContext(ctx, "UPDATE raised SET paid_ns = ?", int64(paid))
	return wrap(err, "write raised counts")
}
