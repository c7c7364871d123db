// SPDX-License-Identifier: Apache-2.0

// Package report reads the records of jobs, merges the attempts of each job, adds them
// up, and shows them: as a table, as text for programs, as a page, as a drawing.
package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"carma/db"
	"carma/db/source"
	"carma/slurmbridge/slurmtime"
)

// Options say which jobs to show, and how. Lists are separated by commas.
type Options struct {
	Jobs, Users, Accounts, Partitions, Clusters, States, Names string
	Nodes                                                      string // a Slurm node list
	From, To                                                   string // as sacct takes them
	Format, DefaultFormat                                      string // columns, as sacct's -o
	TimeFormat                                                 string // as SLURM_TIME_FORMAT
	Units                                                      string // empty: G, or plain MiB for programs
	Delimiter, By                                              string
	JSON, CSV, Parsable, Parsable2, HTML, SVG, Table           bool
	NoHeader, NoConvert                                        bool
}

// plain tells whether programs read the output.
func (o *Options) plain() bool { return o.Parsable || o.Parsable2 || o.CSV }

// fit tells whether a view has the form that the options ask for: a program that asks for CSV or JSON reads no table.
func (o *Options) fit(view string) error {
	for _, form := range []struct {
		name  string
		asked bool
	}{
		{"csv", o.CSV}, {"parsable", o.Parsable}, {"parsable2", o.Parsable2}, {"json", o.JSON && view == History},
		{"html", o.HTML && view == History}, {"svg", o.SVG && view == History},
	} {
		switch {
		case !form.asked || view == "":
		case view == History:
			return fmt.Errorf("history has no --%s: it is a table for people", form.name)
		default:
			return fmt.Errorf("%s has no --%s: programs read --json", view, form.name)
		}
	}
	return nil
}

// The views; without one jobs are shown.
const (
	Summary = "summary"
	GPUs    = "gpus"
	History = "history"
)

// views are the views beside jobs.
var views = []string{Summary, GPUs, History}

// Report is a selection of jobs and how to print it.
type Report struct {
	View    string // empty: jobs
	options Options
	sources []source.Source
	bases   []*db.DB // those of the sources that have samples of GPUs
	sel     *selection
	style   style
	columns []column
	header  bool
}

// New makes a report of options and of words: a view, or jobs.
func New(o Options, words []string, now time.Time) (*Report, error) {
	r := &Report{options: o, sel: &selection{}, header: !o.NoHeader}
	if len(words) > 0 && slices.Contains(views, words[0]) {
		if r.View = words[0]; len(words) > 1 {
			return nil, fmt.Errorf("unexpected argument %q", words[1])
		}
		words = nil
	}
	if err := o.fit(r.View); err != nil {
		return nil, err
	}
	for _, list := range append([]string{o.Jobs}, words...) {
		if err := r.sel.addJobs(list); err != nil {
			return nil, err
		}
	}
	if err := r.sel.addStates(o.States); err != nil {
		return nil, fmt.Errorf("-s %s: %w", o.States, err)
	}
	if err := r.sel.setTimes(o.From, o.To, now); err != nil {
		return nil, err
	}
	r.sel.Clusters, r.sel.Users, r.sel.Accounts = list(o.Clusters), list(o.Users), list(o.Accounts)
	r.sel.partitions, r.sel.names, r.sel.nodes = list(o.Partitions), list(o.Names), o.Nodes
	r.style = style{time: slurmtime.Format{Text: o.TimeFormat, Now: now, Zone: now.Location()}}
	if !o.NoConvert {
		unit := strings.ToUpper(cmp.Or(o.Units, "G"))
		if len(unit) != 1 || !strings.Contains("KMGTP", unit) {
			return nil, fmt.Errorf("--units=%s: must be one of K, M, G, T, P", o.Units)
		}
		r.style.unit = unit[0]
	}
	if o.plain() && o.Units == "" {
		r.style.unit = 0
	}
	var err error
	r.columns, err = parseColumns(cmp.Or(o.Format, o.DefaultFormat))
	return r, err
}

func list(words string) (l []string) {
	for w := range strings.SplitSeq(words, ",") {
		if w != "" {
			l = append(l, w)
		}
	}
	return l
}

// Kinds of errors of Show and of reading, by which a program ends with its status.
var (
	ErrUsage       = errors.New("wrong usage")
	ErrNotFound    = errors.New("nothing matches")
	ErrUnavailable = errors.New("records cannot be read")
)

// kindError is an error of a kind that its text does not name.
type kindError struct{ kind, err error }

func (e *kindError) Error() string   { return e.err.Error() }
func (e *kindError) Unwrap() []error { return []error{e.kind, e.err} }

func unavailable(err error) error {
	var known *kindError
	if errors.As(err, &known) {
		return err
	}
	return &kindError{ErrUnavailable, err}
}

// Show prints the report.
func (r *Report) Show(ctx context.Context, out io.Writer) error {
	switch r.View {
	case Summary:
		return r.summary(ctx, out)
	case GPUs:
		return r.gpus(ctx, out)
	case History:
		return r.history(ctx, out)
	}
	return r.jobs(ctx, out)
}

func (r *Report) summary(ctx context.Context, out io.Writer) error {
	by := list(r.options.By)
	for _, name := range by {
		if dimensions[name] == nil && name != byDay {
			err := fmt.Errorf(
				"--by=%s: %q is not one of %s",
				r.options.By,
				name,
				strings.Join(dimensionNames(), ", "),
			)
			return &kindError{ErrUsage, err}
		}
	}
	s, err := summarise(ctx, r.sources, r.sel, by, r.style.time.Zone)
	switch {
	case err != nil:
		return err
	case r.options.JSON:
		return writeJSON(out, s)
	case r.options.HTML:
		return s.html(out, &r.style.time)
	case r.options.SVG:
		return s.svg(out)
	}
	return s.print(out, &r.style.time)
}

func (r *Report) gpus(ctx context.Context, out io.Writer) error {
	to := r.sel.To
	if to.IsZero() {
		to = r.style.time.Now
	}
	v, err := newGPUView(ctx, r.bases, r.sel.From, to, nil)
	drawn := r.options.HTML || r.options.SVG
	if err == nil && drawn {
		err = v.addJobs(ctx, r.sources, r.sel, &r.style)
	}
	if err == nil {
		v.fit(drawn || r.options.From == "", drawn || r.options.To == "")
	}
	switch {
	case err != nil:
		return err
	case r.options.JSON:
		return writeJSON(out, v)
	case r.options.HTML:
		return v.html(out, &r.style)
	case r.options.SVG:
		return v.svg(out, &r.style)
	}
	return v.print(out, &r.style)
}

func (r *Report) jobs(ctx context.Context, out io.Writer) (err error) {
	var found bool
	switch {
	case r.options.JSON:
		found, err = r.json(ctx, out)
	case r.options.plain():
		separator := r.options.Delimiter
		if r.options.CSV {
			separator = ","
		}
		found, err = r.delimited(ctx, out, separator, r.options.CSV, r.options.Parsable)
	default:
		found, err = r.people(ctx, out)
	}
	if err == nil && !found && len(r.sel.Jobs) > 0 {
		return &kindError{ErrNotFound, fmt.Errorf("no record of job %s", strings.Join(r.sel.tasks, ","))}
	}
	return err
}

// people shows one job as a page, several as a table or a drawing.
func (r *Report) people(ctx context.Context, out io.Writer) (found bool, err error) {
	const drawn = 500 // jobs in a drawing
	o := &r.options
	if o.HTML || o.SVG || len(r.sel.tasks) == 1 && !o.Table && o.Format == "" {
		jobs, rest, err := first(ctx, r.sources, r.sel, drawn, math.MaxInt)
		switch {
		case err != nil:
			return false, err
		case len(jobs) == 1 && !rest:
			return true, r.page(ctx, jobs[0], out)
		case o.HTML:
			return len(jobs) > 0, r.html(out, jobs, rest)
		case o.SVG:
			return len(jobs) > 0, r.svg(out, jobs)
		}
	}
	return r.table(ctx, out)
}

// page shows one job.
func (r *Report) page(ctx context.Context, j *job, out io.Writer) error {
	p, err := newPage(ctx, j, r.sources, r.bases, r.style)
	switch {
	case err != nil:
		return err
	case r.options.HTML:
		return p.html(out)
	case r.options.SVG:
		return p.svg(out)
	}
	return p.print(out)
}
