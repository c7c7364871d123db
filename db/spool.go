// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Spool keeps records that could not be written to the database, one file
// each, until it can be.
type Spool struct {
	Dir string
}

// SpoolOf is the spool beside the database at path.
func SpoolOf(path string) Spool { return Spool{path + ".spool"} }

// Add keeps a record. One of the same attempt is replaced.
func (s Spool) Add(a Attempt) error {
	text, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("spool record of job %d: %w", a.JobID, err)
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("spool record of job %d: %w", a.JobID, err)
	}
	path := filepath.Join(s.Dir, fmt.Sprintf("%d.%d.%s.json", a.JobID, a.Restart, a.Node))
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("spool record of job %d: %w", a.JobID, err)
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("spool record of job %d: %w", a.JobID, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("spool record of job %d: %w", a.JobID, err)
	}
	return nil
}

// Drain writes the kept records with put, oldest name first, and forgets each
// that was written. A file that is no record is put aside with the suffix .bad.
// It stops at the first record that cannot be written.
func (s Spool) Drain(ctx context.Context, put func(context.Context, Attempt) error) error {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("read spool: %w", err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		path := filepath.Join(s.Dir, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read spool: %w", err)
		}
		var a Attempt
		if err := json.Unmarshal(text, &a); err != nil {
			if err := os.Rename(path, path+".bad"); err != nil {
				return fmt.Errorf("put spoiled record aside: %w", err)
			}
			continue
		}
		if err := put(ctx, a); err != nil {
			return err
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("forget spooled record: %w", err)
		}
	}
	return nil
}
