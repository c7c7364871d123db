// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Pruned is how much was deleted.
type Pruned struct {
	Attempts, Samples int64
}

// Prune deletes records that ended before a time and samples from before
// another; a zero time deletes nothing.
func (d *DB) Prune(ctx context.Context, records, samples time.Time) (p Pruned, err error) {
	err = d.write(ctx, func(tx *sql.Tx) error {
		if !records.IsZero() {
			for _, step := range []string{
				"INSERT INTO changed SELECT DISTINCT uid, 1 FROM attempt WHERE end_ms < ? ON CONFLICT DO UPDATE SET times = " +
					"times + 1",
				"DELETE FROM attempt WHERE end_ms < ?",
			} {
				r, err := tx.Exec(step, records.UnixMilli())
				if err != nil {
					return err
				}
				p.Attempts, _ = r.RowsAffected()
			}
		}
		if !samples.IsZero() {
			r, err := tx.Exec("DELETE FROM sample WHERE at + length <= ?", samples.Unix())
			if err != nil {
				return err
			}
			p.Samples, _ = r.RowsAffected()
		}
		// A job is forgotten with its record.
		until := max(records.Unix(), samples.Unix())
		_, err := tx.Exec("DELETE FROM job_sample WHERE at + length <= ?", until)
		return err
	})
	if err != nil {
		return p, fmt.Errorf("prune: %w", explain(err))
	}
	return p, nil
}

// Check looks for damage and returns the findings, worst first; none means a sound
// database.
func (d *DB) Check(ctx context.Context) (found []string, err error) {
	rows, err := d.sql.QueryContext(ctx, "PRAGMA integrity_check")
	if err != nil {
		return nil, fmt.Errorf("check: %w", explain(err))
	}
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			rows.Close()
			return nil, fmt.Errorf("check: %w", err)
		}
		if line != "ok" {
			found = append(found, line)
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return found, fmt.Errorf("check: %w", explain(err))
	}
	for _, c := range []struct{ what, query string }{
		{"records that end before they start", "SELECT count(*) FROM attempt WHERE end_ms < start_ms"},
		{"records that are no JSON", "SELECT count(*) FROM attempt WHERE NOT json_valid(record)"},
		{"records whose energy is less than nothing", "SELECT count(*) FROM attempt WHERE CASE WHEN json_valid(record) " +
			"THEN EXISTS (SELECT 1 FROM json_each(record, '$.gpus') WHERE value ->> '$.did.j' < 0) END"},
		{"samples with more energy of nobody than in all", "SELECT count(*) FROM sample WHERE unowned_j > energy_j + 0.5"},
	} {
		var n int64
		if err := d.sql.QueryRowContext(ctx, c.query).Scan(&n); err != nil {
			return found, fmt.Errorf("check: %w", explain(err))
		}
		if n > 0 {
			found = append(found, fmt.Sprintf("%d %s", n, c.what))
		}
	}
	return found, nil
}

// Backup writes a copy to path, which must not exist, for its owner alone. The
// database may be in use meanwhile.
func (d *DB) Backup(ctx context.Context, path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("back up to %s: %w", path, fs.ErrExist)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	f.Close()
	if _, err := d.sql.ExecContext(ctx, "VACUUM INTO ?", path); err != nil {
		os.Remove(path)
		return fmt.Errorf("back up to %s: %w", path, explain(err))
	}
	return nil
}
