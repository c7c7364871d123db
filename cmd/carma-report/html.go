// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"carma/cmd/internal/cli"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// document is a page for a browser: no script, nothing from elsewhere.
type document struct {
	Title    string
	Style    template.CSS
	Sections []section
}

type section struct {
	Title   string
	Text    []string
	Drawing template.HTML
	Columns []cli.Column
	Rows    [][]string
	Wrap    bool // texts in the table may take several lines
	Notes   []template.HTML
}

func (d document) write(w io.Writer) error {
	d.Style = template.CSS(colours)
	if err := pageTemplate.Execute(w, d); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// html writes the page of one job.
func (p *page) html(w io.Writer) error {
	j := p.job
	facts := [][]string{}
	for _, f := range fields {
		if v := f.of(j); v.known {
			facts = append(facts, []string{f.name, p.text(f.kind, v), f.help})
		}
	}
	return document{Title: "Job " + j.id(), Sections: []section{
		{Title: "Notes", Notes: marked(notes(p))},
		{Title: "Memory and activity", Drawing: template.HTML(p.draw().inline("memory and activity of job " + j.id()))},
		{Title: "All figures", Columns: []cli.Column{{Title: "figure"}, {Title: ""}, {Title: "what it is"}}, Rows: facts, Wrap: true},
	}}.write(w)
}

// marked has what stands between backticks as code.
func marked(list []string) (notes []template.HTML) {
	for _, n := range list {
		var b strings.Builder
		for i, part := range strings.Split(n, "`") {
			if part = template.HTMLEscapeString(part); i%2 == 1 {
				part = "<code>" + part + "</code>"
			}
			b.WriteString(part)
		}
		notes = append(notes, template.HTML(b.String()))
	}
	return notes
}

// html writes a table of jobs.
func (r *report) html(w io.Writer, jobs []*job, rest bool) error {
	s := section{Title: "Jobs"}
	for _, c := range r.columns {
		s.Columns = append(s.Columns, cli.Column{Title: strings.ToLower(c.title), Right: c.kind.right()})
	}
	for _, j := range jobs {
		var row []string
		for _, c := range r.columns {
			row = append(row, string(r.style.appendText(nil, c.kind, c.of(j))))
		}
		s.Rows = append(s.Rows, row)
	}
	if rest {
		s.Text = []string{fmt.Sprintf("The first %d jobs of the selection; choose fewer with -S and -E, or print --csv.", len(jobs))}
	}
	return document{Title: "Jobs on shared GPUs", Sections: []section{
		{Title: "Memory: booked (pale) and peak", Drawing: template.HTML(drawJobs(jobs).inline("memory of jobs"))}, s,
	}}.write(w)
}

// html writes a summary.
func (s *summary) html(w io.Writer, tf *timeFormat) error {
	d := document{Title: "GPU sharing"}
	columns := slices.Clone(groupColumns)
	for i := range columns {
		columns[i].Title = strings.ToLower(columns[i].Title)
	}
	head := section{Title: "All jobs", Columns: slices.Clone(columns), Rows: [][]string{s.Total.row()}}
	if s.From != nil {
		head.Text = []string{fmt.Sprintf("%s to %s, makespan %s", tf.append(nil, *s.From), tf.append(nil, *s.To), appendClock(nil, s.MakespanS))}
	}
	head.Text = append(head.Text, s.legend()...)
	d.Sections = append(d.Sections, head)
	for _, by := range s.order {
		sec := section{Title: "By " + by, Columns: slices.Clone(columns), Drawing: template.HTML(s.draw(by).inline("GPU hours by " + by + ": all, and shared"))}
		sec.Columns[0].Title = by
		sec.Text = []string{"GPU hours: all (pale), and of them shared."}
		for _, g := range s.By[by] {
			sec.Rows = append(sec.Rows, g.row())
		}
		d.Sections = append(d.Sections, sec)
	}
	sec := section{Title: "Estimates against peaks", Text: []string{estimatesLegend}, Columns: []cli.Column{{Title: "method"}, {Title: "jobs", Right: true}, {Title: "bias", Right: true}, {Title: "error", Right: true}, {Title: "under", Right: true}}}
	for _, m := range s.Methods {
		sec.Rows = append(sec.Rows, []string{m.Name, fmt.Sprint(m.Jobs), fmt.Sprintf("%+.1f%%", m.BiasPct), fmt.Sprintf("%.1f%%", m.ErrPct), fmt.Sprint(m.Under)})
	}
	d.Sections = append(d.Sections, sec)
	return d.write(w)
}

// html writes the GPUs over time.
func (v *gpuView) html(w io.Writer, s *style) error {
	d := document{Title: "GPUs over time"}
	for _, g := range v.GPUs {
		one := newDrawing(chartWidth, gpuHeight+8)
		v.draw(one, 4, g, &s.time)
		d.Sections = append(d.Sections, section{
			Title: fmt.Sprintf("%s GPU %d, %s", g.Node, g.Index, g.Model), Text: []string{g.UUID},
			Drawing: template.HTML(one.inline("SM activity, memory and power")),
		})
	}
	return d.write(w)
}
