// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"fmt"
	"time"

	"carma/db"
)

// ErrPublic means that what users can read of the records does not have what was asked.
var ErrPublic = errors.New("history: what users can read of the records has no keys; " +
	"be root, or read slurmdbd as SlurmUser (--from slurmdbd)")

// Open reads databases. closeAll closes those that were opened, also after an error; notes
// are for the one who asked.
func (r *Report) Open(paths []string, now time.Time) (notes []string, closeAll func(), err error) {
	var bases []*db.DB
	closeAll = func() {
		for _, d := range bases {
			d.Close()
		}
	}
	for _, path := range paths {
		d, err := db.OpenRead(path)
		if err != nil {
			return nil, closeAll, err
		}
		bases = append(bases, d)
	}
	for _, d := range bases {
		if r.View == History && d.Public() {
			return notes, closeAll, ErrPublic
		}
		if at := d.Outdated(now); !at.IsZero() {
			const text = "records as of %s: the agent does not run, or cannot write them"
			notes = append(notes, fmt.Sprintf(text, at.Format("2006-01-02 15:04")))
		}
		r.Read(d)
	}
	return notes, closeAll, nil
}
