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

// Measure replaces the readings and adds usages to what is known of attempts.
func (b *Ledger) Measure(ctx context.Context, readings []gres.Reading, usages []Usage) error {
	return b.write(ctx, func(tx *sql.Tx) error {
		if err := putReadings(tx, readings); err != nil {
			return err
		}
		return addUsages(tx, usages)
	})
}

// Published returns the Gres text that slurmctld was last told and from when on
// it may be told the next, counted from now; ok is false if it was told nothing.
func (b *Ledger) Published(ctx context.Context) (gresText string, wait time.Duration, ok bool, err error) {
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
func (b *Ledger) SetPublished(ctx context.Context, gresText string, interval time.Duration) error {
	now := int64(Now())
	_, err := b.db.ExecContext(ctx, "INSERT OR REPLACE INTO published (one, gres, next_ns) VALUES (1, ?1, max(?2, "+
		"ifnull((SELECT next_ns FROM published), 0) + ?3))",
		gresText, now, int64(interval))
	return wrap(err, "write published capacity")
}

// Miscounted returns how long ago it was found last that slurmctld counts something else on the node than it
// was told, and of how many nodes the cluster is (0: not known); ok is false if it was never found.
func (b *Ledger) Miscounted(ctx context.Context) (age time.Duration, nodes int, ok bool, err error) {
	var at int64
	err = b.db.QueryRowContext(ctx, "SELECT at_ns, ifnull((SELECT nodes FROM raised), 0) FROM miscounted").
		Scan(&at, &nodes)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, 0, false, nil
	}
	return Now() - time.Duration(at), nodes, err == nil, wrap(err, "read when counts were lost")
}

// SetMiscounted notes that slurmctld counts something else now than it was told.
func (b *Ledger) SetMiscounted(ctx context.Context) error {
	err := b.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT OR REPLACE INTO miscounted (one, at_ns) VALUES (1,?)", int64(Now()))
		return err
	})
	return wrap(err, "write that counts were lost")
}

// Raised returns of how many nodes the cluster is (0: not known), and until when on the ledger's
// clock this node has used its part of the updates that raise counts.
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

// SetRaised notes until when this node has used its part. Without SetNodes it notes nothing.
func (b *Ledger) SetRaised(ctx context.Context, paid time.Duration) error {
	_, err := b.db.ExecContext(ctx, "UPDATE raised SET paid_ns = ?", int64(paid))
	return wrap(err, "write raised counts")
}
