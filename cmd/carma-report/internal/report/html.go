// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"carma/cmd/carma-report/internal/report/page"
	"carma/db/texttable"
	"carma/slurmbridge/slurmtime"
)

// html writes the page of one job.
func (p *jobPage) html(w io.Writer) error {
	j := p.job
	facts := [][]string{}
	for _, f := range fields {
		if v := f.of(j); v.known {
			facts = append(facts, []string{f.name, p.text(f.kind, v), f.help})
		}
	}
	bars := page.New(page.Width, 4*page.BarStep+8)
	p.bars(bars)
	gpus := page.Section{Title: "Its GPUs over time", Keys: keys("of it by this job"),
		Text: []string{"While the job was there. SM activity, power and memory in use are of the whole GPU, with other " +
			"jobs on it."}}
	if len(p.gpus.GPUs) == 0 {
		gpus = page.Section{}
	}
	for _, g := range p.gpus.GPUs {
		name := fmt.Sprintf("%s GPU %d", g.Node, g.Index)
		t := p.timeline(page.Part, page.BarStep)
		t.Heading(name + ", " + strings.TrimPrefix(g.Model, "NVIDIA "))
		p.gpus.small(t, g, "", &p.style)
		gpus.Parts = append(gpus.Parts, template.HTML(t.Inline("SM activity, memory and power of "+name)))
	}
	return page.Document{Title: "Job " + j.id(), Sections: []page.Section{
		{Title: "Notes", Notes: page.Marked(notes(p))},
		{Title: "Memory and activity", Drawing: template.HTML(bars.Inline("memory and activity of job " + j.id()))},
		gpus,
		{Title: "All figures", Columns: texttable.Columns("figure", "", "what it is"), Rows: facts, Wrap: true},
	}}.Write(w)
}

// html writes a table of jobs.
func (r *Report) html(w io.Writer, jobs []*job, rest bool) error {
	s := page.Section{Title: "Jobs"}
	for _, c := range r.columns {
		s.Columns = append(s.Columns, texttable.Column{Title: strings.ToLower(c.title), Right: c.kind.right()})
	}
	for _, j := range jobs {
		var row []string
		for _, c := range r.columns {
			row = append(row, string(r.style.appendText(nil, c.kind, c.of(j))))
		}
		s.Rows = append(s.Rows, row)
	}
	if rest {
		const text = "The first %d jobs of the selection; choose fewer with -S and -E, or print --csv."
		s.Text = []string{fmt.Sprintf(text, len(jobs))}
	}
	return page.Document{Title: "Jobs on shared GPUs", Sections: []page.Section{
		{Title: "Memory: booked (pale) and peak", Drawing: template.HTML(drawJobs(jobs).Inline("memory of jobs"))}, s,
	}}.Write(w)
}

// html writes a summary.
func (s *summary) html(w io.Writer, tf *slurmtime.Format) error {
	d := page.Document{Title: "GPU sharing"}
	columns := slices.Clone(groupColumns)
	for i := range columns {
		columns[i].Title = strings.ToLower(columns[i].Title)
	}
	head := page.Section{Title: "All jobs", Columns: slices.Clone(columns), Rows: [][]string{s.Total.row()}}
	if s.From != nil {
		head.Text = []string{fmt.Sprintf("%s to %s, makespan %s", tf.Append(nil, *s.From), tf.Append(nil, *s.To),
			appendClock(nil, s.MakespanS))}
	}
	head.Text = append(head.Text, s.legend()...)
	d.Sections = append(d.Sections, head)
	for _, by := range s.order {
		sec := page.Section{Title: "By " + by, Columns: slices.Clone(columns),
			Drawing: template.HTML(s.draw(by).Inline("GPU hours by " + by + ": all, and shared"))}
		sec.Columns[0].Title = by
		sec.Text = []string{"GPU hours: all (pale), and of them shared."}
		for _, g := range s.By[by] {
			sec.Rows = append(sec.Rows, g.row())
		}
		d.Sections = append(d.Sections, sec)
	}
	sec := page.Section{Title: "Estimates against peaks", Text: []string{estimatesLegend},
		Columns: texttable.Columns("method", ">jobs", ">bias", ">error", ">under")}
	for _, m := range s.Methods {
		sec.Rows = append(sec.Rows, []string{m.Name, fmt.Sprint(m.Jobs), fmt.Sprintf("%+.1f%%", m.BiasPct),
			fmt.Sprintf("%.1f%%", m.ErrPct), fmt.Sprint(m.Under)})
	}
	d.Sections = append(d.Sections, sec)
	return d.Write(w)
}

// html writes the GPUs over time.
func (v *gpuView) html(w io.Writer, s *style) error {
	d := page.Document{Title: "GPUs over time", Sections: []page.Section{{
		Title: v.period(s),
		Text: []string{"Each bar is one run of a job; point at a bar or a curve to see figures. A bar with a dashed edge " +
			"went wrong on the GPU: OOM, it ran out of GPU memory; RQ, it was requeued. Jobs that still run, and jobs that " +
			"you may not see, have no bar."},
	}}}
	if len(v.GPUs) == 0 {
		d.Sections[0].Text = []string{"no GPUs"}
	}
	if len(v.users) > 0 {
		d.Sections = append(d.Sections, v.users.section())
	}
	if len(v.GPUs) > 0 {
		d.Sections[0].Keys = keys("of it by a job, in the job's colour")
	}
	for _, g := range v.GPUs {
		t := page.NewTimeline(v.From.In(s.time.Zone), v.To.In(s.time.Zone), 0, 0)
		v.draw(t, g, "", s)
		d.Sections = append(d.Sections, page.Section{
			Title: fmt.Sprintf("%s GPU %d, %s", g.Node, g.Index, g.Model), Text: []string{g.UUID},
			Drawing: template.HTML(t.Inline("SM activity, memory, power and jobs")),
		})
	}
	return d.Write(w)
}
