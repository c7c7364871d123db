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

	"carma/db/file"
)

// Spool keeps records while the database cannot be written, one file each.
type Spool struct {
	Dir string
}

// SpoolOf is the spool beside the database at path.
func SpoolOf(path string) Spool { return Spool{path + ".spool"} }

// Add keeps a record. An older record of the same attempt is replaced.
func (s Spool) Add(a Attempt) error { return s.add(a, spoolName(a)) }

// AddLost keeps the record of an attempt without an Epilog, beside the record of an Epilog that came after all.
func (s Spool) AddLost(a Attempt) error { return s.add(a, lostName(a)) }

func (s Spool) add(a Attempt, name string) error {
	text, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("spool record of job %d: %w", a.JobID, err)
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("spool record of job %d: %w", a.JobID, err)
	}
	if err := file.ReplaceDurably(filepath.Join(s.Dir, name), text, 0o600); err != nil {
		return fmt.Errorf("spool record of job %d: %w", a.JobID, err)
	}
	return nil
}

// spoolName is the file of a record.
func spoolName(a Attempt) string { return fmt.Sprintf("%d.%d.%s.json", a.JobID, a.Restart, a.Node) }

// lostName is the file of a record without an Epilog, read behind the Epilog's.
func lostName(a Attempt) string { return strings.TrimSuffix(spoolName(a), "json") + "lost.json" }

// Drain writes the kept records in the order of the files' names, records without an Epilog with putLost, the rest with
// put, and forgets each written record. A file that is no record, or the record of another attempt than its name
// says, is refused: the file is put aside with the suffix .bad. Drain stops at the
// first record that cannot be written.
func (s Spool) Drain(ctx context.Context, put, putLost func(context.Context, Attempt) error) (refused int, err error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("read spool: %w", err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		path := filepath.Join(s.Dir, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return refused, fmt.Errorf("read spool: %w", err)
		}
		a, ok := spooled(e.Name(), text)
		if !ok {
			if err := os.Rename(path, path+".bad"); err != nil {
				return refused, fmt.Errorf("rename corrupt record: %w", err)
			}
			refused++
			continue
		}
		write := put
		if e.Name() != spoolName(a) {
			write = putLost
		}
		if err := write(ctx, a); err != nil {
			return refused, err
		}
		if err := os.Remove(path); err != nil {
			return refused, fmt.Errorf("forget spooled record: %w", err)
		}
	}
	return refused, nil
}

// spooled reads the record in a file of that name.
func spooled(name string, text []byte) (a Attempt, ok bool) {
	err := json.Unmarshal(text, &a)
	return a, err == nil && (name == spoolName(a) || name == lostName(a))
}
