// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"time"

	"carma/db"
	"carma/db/source"
)

// ErrPublic means that what users can read of the records does not have what was asked.
var ErrPublic = errors.New("history: what users can read of the records has no keys; " +
	"be root, or read slurmdbd as SlurmUser (--from slurmdbd)")

// Databases reads databases.
func (r *Report) Databases(bases []*db.DB) error {
	for _, d := range bases {
		if r.View == History && d.Public() {
			return ErrPublic
		}
		r.sources = append(r.sources, source.Of(d))
	}
	r.bases = bases
	return nil
}

// Read reads a source without samples of GPUs in place of databases.
func (r *Report) Read(src source.Source) { r.sources = []source.Source{src} }

// learnFor is how far back slurmdbd is asked for jobs to learn from. Every ten minutes (carma-history.timer) slurmdbd
// lists all jobs of the cluster in this time, CARMA's or not, and carma-report keeps the list in memory, twice.
const learnFor = 90 * 24 * time.Hour

// Filter says which records the report is of.
func (r *Report) Filter() db.Filter {
	f := r.sel.Filter
	if r.View == History {
		f.From, f.To = r.style.time.Now.Add(-learnFor), time.Time{}
	}
	return f
}
