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
func (b *Book) Measure(ctx context.Context, readings []gres.Reading, usages []Usage) error {
	return b.write(ctx, func(tx *sql.Tx) error {
		if err := putReadings(tx, readings); err != nil {
			return err
		}
		for _, u := range usages {
			if err := addUsage(tx, u); err != nil {
				return fmt.Errorf("add usage of job %s on GPU %s: %w", u.Job, u.UUID, err)
			}
		}
		return nil
	})
}

// Published returns the Gres text that slurmctld was last told and its age; ok
// is false if it was told none since the boot.
func (b *Book) Published(ctx context.Context) (gresText string, age time.Duration, ok bool, err error) {
	var at int64
	err = b.db.QueryRowContext(ctx, "SELECT gres, at_ns FROM published").Scan(&gresText, &at)
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, false, nil
	} else if err != nil {
		return "", 0, false, fmt.Errorf("read published capacity: %w", err)
	}
	return gresText, Now() - time.Duration(at), true, nil
}

// SetPublished records what slurmctld is told now.
func (b *Book) SetPublished(ctx context.Context, gresText string) error {
	_, err := b.db.ExecContext(ctx, "INSERT OR REPLACE INTO published VALUES (1,?,?)", gresText, int64(Now()))
	if err != nil {
		return fmt.Errorf("write published capacity: %w", err)
	}
	return nil
}
