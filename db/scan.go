// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"carma/db/figure"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/usertext"
)

// The driver takes about 100 ns for each column of each row, four seconds for a
// million records. So each row has its record as a line, too, and SQLite makes
// one text of thousands of lines. The separators are control characters, found in
// no value.
const (
	fieldEnd = "\x1f"
	lineEnd  = "\x1e"
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

// lineOf is the line of a record a in a file at a step of the schema, which may be a copy that older programs have
// published.
func lineOf(step int) string {
	text := "a.line"
	for _, c := range added {
		if c.step <= step {
			text += " || ifnull(a." + c.name + ",'')"
		}
		text += " || char(31)"
	}
	return text
}

// line is lineOf for this file.
func (d *DB) line() string {
	step, err := d.version(d.sql)
	if err != nil {
		step = schemaVersion
	}
	return lineOf(step)
}

// chunk is how many records are read at once: a text that stays in the cache of a core.
const chunk = 1000

// Scan hands the records of one job after the other to f, in the order of their
// ids: all attempts of a job at once, without the figures of single GPUs. f may
// keep none of the records after it returns.
func (d *DB) Scan(ctx context.Context, filter Filter, f func([]Attempt) error) error {
	where, args := filter.where()
	query := "SELECT ifnull(group_concat(line, '" + lineEnd + "'),''), count(*) FROM (" +
		"SELECT " + d.line() + " AS line FROM attempt a WHERE job_id >= ?" + where +
		" ORDER BY job_id, cluster, restart, node LIMIT ?)"
	from, limit := int64(filter.FromJob), chunk
	list := make([]Attempt, chunk)
	for {
		var text string
		var n int
		if err := d.sql.QueryRowContext(ctx, query, append(append([]any{from}, args...), limit)...).Scan(&text,
			&n); err != nil {
			return fmt.Errorf("read records: %w", explain(err))
		}
		if n > len(list) {
			list = make([]Attempt, n)
		}
		for i := range n {
			line, rest, _ := strings.Cut(text, lineEnd)
			if err := list[i].parse(line); err != nil {
				return fmt.Errorf("read records: %w", err)
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

// EachJob hands the attempts of one job after the other to f; those of a job stand together.
func EachJob(list []Attempt, f func([]Attempt) error) error {
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].JobID == list[0].JobID && list[n].Cluster == list[0].Cluster {
			n++
		}
		if err := f(list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// JobIDs returns the lowest and the highest job id; 0, 0 without any.
func (d *DB) JobIDs(ctx context.Context) (low, high uint32, err error) {
	err = d.sql.QueryRowContext(ctx, "SELECT ifnull((SELECT min(job_id) FROM attempt), 0), ifnull((SELECT max(job_id) "+
		"FROM attempt), 0)").Scan(&low, &high)
	if err != nil {
		return 0, 0, fmt.Errorf("read records: %w", explain(err))
	}
	return low, high, nil
}

// parse reads a line. Texts are parts of it.
func (a *Attempt) parse(line string) error {
	p := parser{rest: line}
	t := &a.Total
	*a = Attempt{JobID: uint32(p.number()), Cluster: p.text(), Restart: uint32(p.number()), Node: p.text(),
		ArrayJobID: uint32(p.number()), ArrayTask: p.text(),
		Name: p.text(), Account: p.text(), User: p.text(), UID: uint32(p.number()), Partition: p.text(),
		Submit: p.time(), Start: p.time(), End: p.time(), State: p.text(), ExitCode: int(p.number()),
		ExitSignal: int(p.number()),
		Mode:       jobenv.Mode(p.text()), Method: p.text(), Key: p.text(), EstMiB: p.number(),
		ReserveMiB: p.number(), FullMiB: p.number(),
		Neighbours: a.Neighbours[:0]}
	uuids := t.UUIDs[:0]
	for list := p.text(); list != ""; {
		var uuid string
		uuid, list, _ = strings.Cut(list, ",")
		uuids = append(uuids, uuid)
	}
	*t = Total{UUIDs: uuids, Model: p.text(), PeakMiB: p.number(), PeakHow: figure.Quality(p.text()), MeanMiB: p.number(),
		SMActPct: p.measured(), SMActMax: p.measured(), SMActHow: figure.Quality(p.text()),
		EnergyJ: p.measured(), IdleJ: p.measured(), EnergyHow: figure.Quality(p.text()),
		LeaseS: float64(p.number()) / 1000, HeldS: float64(p.number()) / 1000, SharedS: float64(p.number()) / 1000,
		AloneS: p.measured() / 1000}
	for list := p.text(); list != ""; {
		var word string
		word, list, _ = strings.Cut(list, ",")
		id, err := strconv.ParseUint(word, 10, 32)
		p.wrong = p.wrong || err != nil
		a.Neighbours = append(a.Neighbours, uint32(id))
	}
	if len(a.Neighbours) == 0 {
		a.Neighbours = nil
	}
	a.OOM, a.OOMNote, a.RequeuedTo = p.text(), p.text(), p.text()
	t.LawS = float64(p.number()) / 1000
	a.Unread = p.number()
	a.clean = !p.foreign
	if p.wrong || p.rest != "" {
		return fmt.Errorf("the record of job %d cannot be read; carma-node db check says more", a.JobID)
	}
	return nil
}

// parser takes the fields off a line. It reads a number digit by digit: a million
// records have 25 million of them.
type parser struct {
	rest    string
	wrong   bool
	foreign bool // usertext.Clean would change some text
}

// text also checks the characters on its way, which costs nothing for fields as short
// as these.
func (p *parser) text() string {
	for i := 0; i < len(p.rest); i++ {
		c := p.rest[i]
		if c-' ' <= '~'-' ' {
			continue
		}
		if c == fieldEnd[0] {
			field := p.rest[:i]
			p.rest = p.rest[i+1:]
			p.foreign = p.foreign || i > usertext.Most
			return field
		}
		p.foreign = true
	}
	p.wrong, p.rest = true, ""
	return ""
}

// number is 0 for NULL.
func (p *parser) number() (v int64) {
	for i := 0; i < len(p.rest) && i < 19; i++ {
		c := p.rest[i]
		if c == fieldEnd[0] {
			p.rest = p.rest[i+1:]
			return v
		}
		if c < '0' || c > '9' {
			break
		}
		v = v*10 + int64(c-'0')
	}
	word := p.text() // negative, or no number
	if word == "" {
		return 0
	}
	v, err := strconv.ParseInt(word, 10, 64)
	p.wrong = p.wrong || err != nil
	return v
}

func (p *parser) time() time.Time {
	if ms := p.number(); ms != 0 {
		return time.UnixMilli(ms)
	}
	return time.Time{}
}

// measured reads a figure of at most one decimal.
func (p *parser) measured() figure.Measured {
	v, decimals := int64(0), int64(0)
digits:
	for i := 0; i < len(p.rest) && i < 17; i++ {
		c := p.rest[i]
		switch {
		case c == fieldEnd[0] && i > 0:
			p.rest = p.rest[i+1:]
			return figure.Measured(v) / figure.Measured(max(decimals, 1))
		case c == '.' && i > 0 && decimals == 0:
			decimals = 1
			continue
		case c >= '0' && c <= '9':
			v, decimals = v*10+int64(c-'0'), decimals*10
			continue
		}
		break digits
	}
	word := p.text()
	if word == "" {
		return figure.Unknown
	}
	f, err := strconv.ParseFloat(word, 64)
	p.wrong = p.wrong || err != nil || math.IsInf(f, 0)
	return figure.Measured(f)
}

// clean keeps the separators out of a value given by others.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, s)
}
