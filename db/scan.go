// SPDX-License-Identifier: Apache-2.0

package db

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Filter says which records to read. A zero field means all.
type Filter struct {
	Jobs      []uint32 // job ids, or ids of arrays
	Clusters  []string
	Users     []string
	Accounts  []string
	From, To  time.Time // that ran in this time, or a week around it
	FromJob   uint32    // job ids from here
	BeforeJob uint64    // and below; 0: no end
}

// slack is how far attempts of one job may lie apart and still be read together:
// a requeued job waits in the queue.
const slack = 7 * 24 * time.Hour

func (f Filter) where() (text string, args []any) {
	var words []string
	in := func(column string, values []string) {
		if len(values) == 0 {
			return
		}
		words = append(words, column+" IN (?"+strings.Repeat(",?", len(values)-1)+")")
		for _, v := range values {
			args = append(args, v)
		}
	}
	if len(f.Jobs) > 0 {
		words = append(words, "(job_id IN ("+JoinIDs(f.Jobs)+") OR array_job_id IN ("+JoinIDs(f.Jobs)+"))")
	}
	in("cluster", f.Clusters)
	in("user", f.Users)
	in("account", f.Accounts)
	if !f.From.IsZero() {
		words, args = append(words, "end_ms >= ?"), append(args, f.From.Add(-slack).UnixMilli())
	}
	if !f.To.IsZero() {
		words, args = append(words, "start_ms <= ?"), append(args, f.To.Add(slack).UnixMilli())
	}
	if f.BeforeJob > 0 {
		words, args = append(words, "job_id < ?"), append(args, int64(f.BeforeJob))
	}
	for _, w := range words {
		text += " AND " + w
	}
	return text, args
}

// chunk is how many records are read at once: a text that stays in the cache of a core.
const chunk = 1000

// Scan hands the records of one job after the other to f, in the order of their
// ids: all attempts of a job at once. f may keep none of the records after it returns.
func (d *DB) Scan(ctx context.Context, filter Filter, f func([]Attempt) error) error {
	where, args := filter.where()
	// The driver takes about 100 ns for each value, so SQLite makes one text of many records: a line each, for
	// a line break in JSON's texts is written in another way.
	query := "SELECT ifnull(group_concat(record, char(10)),''), count(*) FROM (" +
		"SELECT record FROM attempt WHERE job_id >= ?" + where +
		" ORDER BY job_id, cluster, restart, node, start_ms LIMIT ?)"
	from, limit := int64(filter.FromJob), chunk
	list := make([]Attempt, chunk)
	for {
		var text string
		var n int
		if err := d.sql.QueryRowContext(ctx, query, append(append([]any{from}, args...), limit)...).Scan(&text,
			&n); err != nil {
			return fmt.Errorf("read records: %w", d.of(err))
		}
		if n > len(list) {
			list = make([]Attempt, n)
		}
		for i := range n {
			record, rest, _ := strings.Cut(text, "\n")
			if err := list[i].decode(record); err != nil {
				return fmt.Errorf("read records: %w", d.of(err))
			}
			text = rest
		}
		whole := n // records of jobs that are complete in this chunk
		if n == limit {
			for whole > 0 && list[whole-1].JobID == list[n-1].JobID {
				whole--
			}
			if whole == 0 {
				limit *= 2
				continue
			}
			from = int64(list[n-1].JobID)
		}
		if err := EachJob(list[:whole], f); err != nil || n < limit {
			return err
		}
		limit = chunk
	}
}

// EachJob hands the attempts of each job to f; a job's attempts stand together. Jobs at different times, of two users
// or of one, may have the same id.
func EachJob(list []Attempt, f func([]Attempt) error) error {
	for len(list) > 0 {
		n, users := 1, false
		for n < len(list) && list[n].JobID == list[0].JobID && list[n].Cluster == list[0].Cluster {
			users = users || list[n].UID != list[0].UID
			n++
		}
		same := list[:n]
		if users {
			slices.SortStableFunc(same, func(a, b Attempt) int { return cmp.Compare(a.UID, b.UID) })
		}
		for len(same) > 0 {
			first := firstJob(same)
			if err := f(same[:first]); err != nil {
				return err
			}
			same = same[first:]
		}
		list = list[n:]
	}
	return nil
}

// firstJob is how many of the attempts with one id are of the first user's first job; they stand in front afterwards. A
// job given the id again begins a day after the end of the job before, at least, and not with a higher restart.
func firstJob(list []Attempt) int {
	if n := slices.IndexFunc(list, func(a Attempt) bool { return a.UID != list[0].UID }); n > 0 {
		list = list[:n]
	}
	last, earliest := list[0].Start, list[0].End
	for i := range list {
		if list[i].Start.After(last) {
			last = list[i].Start
		}
		if list[i].End.Before(earliest) {
			earliest = list[i].End
		}
	}
	if !last.After(earliest.AddDate(0, 0, 1)) { // of nearly all jobs: without a copy
		return len(list)
	}
	byStart := slices.SortedStableFunc(slices.Values(list), func(a, b Attempt) int { return a.Start.Compare(b.Start) })
	n, end := 1, byStart[0].End
	for ; n < len(byStart); n++ {
		a := &byStart[n]
		if a.Restart <= byStart[n-1].Restart && a.Start.After(end.AddDate(0, 0, 1)) {
			break
		}
		if a.End.After(end) {
			end = a.End
		}
	}
	if n < len(byStart) {
		slices.SortStableFunc(byStart[:n], inJob)
		slices.SortStableFunc(byStart[n:], inJob)
		copy(list, byStart)
	}
	return n
}

// inJob is the order of a job's attempts.
func inJob(a, b Attempt) int {
	return cmp.Or(cmp.Compare(a.Restart, b.Restart), cmp.Compare(a.Node, b.Node))
}

// JobIDs returns the lowest and the highest job id; 0, 0 without any.
func (d *DB) JobIDs(ctx context.Context) (low, high uint32, err error) {
	err = d.sql.QueryRowContext(ctx, "SELECT ifnull((SELECT min(job_id) FROM attempt), 0), ifnull((SELECT max(job_id) "+
		"FROM attempt), 0)").Scan(&low, &high)
	if err != nil {
		return 0, 0, fmt.Errorf("read records: %w", d.of(err))
	}
	return low, high, nil
}

// clean makes a line of a text given by others.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, s)
}
