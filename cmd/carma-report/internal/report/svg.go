// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"

	"carma/cmd/carma-report/internal/report/page"
	"carma/slurmbridge/usertext"
)

// svg draws memory, SM activity and power of a job.
func (p *jobPage) svg(w io.Writer) error {
	d := p.timeline(page.Width, 4*page.BarStep+8)
	p.bars(d.Drawing)
	for _, g := range p.gpus.GPUs {
		p.gpus.small(d, g, fmt.Sprintf("%s GPU %d: ", g.Node, g.Index), &p.style)
	}
	return d.File(w, "job "+p.job.id())
}

func (p *jobPage) timeline(width, height int) *page.Timeline {
	return page.NewTimeline(p.job.Start.In(p.style.time.Zone), p.job.End.In(p.style.time.Zone), width, height)
}

// bars draws the figures of the whole run.
func (p *jobPage) bars(d *page.Drawing) {
	j := p.job
	memory := func(label string, v int64, alarm bool) page.Bar {
		b := page.Bar{Label: label, Figure: unknownText, Back: float64(p.totalMiB), Alarm: alarm}
		if v > 0 {
			b.Value, b.Figure = float64(v), usertext.GiB(v)
		}
		return b
	}
	d.Bars(4, []page.Bar{memory("estimate", j.EstMiB, false), memory("booked", j.ReserveMiB, false),
		memory("peak", j.PeakMiB, j.PeakMiB > j.ReserveMiB || j.OOM != "")})
	smact := page.Bar{Label: "SM activity", Figure: unknownText, Back: 100}
	if m := j.figures.SMActPct; m.Known() {
		smact.Value, smact.Figure = float64(m), fmt.Sprintf("%.0f %%", float64(m))
	}
	d.Bars(4+3*page.BarStep, []page.Bar{smact})
}

// svg draws the memory of some jobs: booked behind, peak before.
func (r *Report) svg(w io.Writer, jobs []*job) error {
	return drawJobs(jobs).File(w, "memory of jobs: booked and peak")
}

func drawJobs(jobs []*job) *page.Drawing {
	const most = 40
	jobs = jobs[:min(len(jobs), most)]
	d := page.New(page.Width, len(jobs)*page.BarStep+8)
	var list []page.Bar
	for _, j := range jobs {
		b := page.Bar{Label: j.id(), Figure: unknownText, Back: float64(j.ReserveMiB), Value: float64(j.PeakMiB),
			Alarm: j.OOM != ""}
		if j.PeakMiB > 0 {
			b.Figure = usertext.GiB(j.PeakMiB)
		}
		list = append(list, b)
	}
	d.Bars(4, list)
	return d
}

// svg draws the GPU time of the first of a summary's groups.
func (s *summary) svg(w io.Writer) error {
	if len(s.order) == 0 {
		return page.New(page.Width, page.BarStep).File(w, "no jobs")
	}
	return s.draw(s.order[0]).File(w, "GPU hours by "+s.order[0]+": all, and shared")
}

func (s *summary) draw(by string) *page.Drawing {
	const most = 30
	groups := s.By[by]
	groups = groups[:min(len(groups), most)]
	d := page.New(page.Width, len(groups)*page.BarStep+8)
	var list []page.Bar
	for _, g := range groups {
		list = append(list, page.Bar{Label: g.Name, Figure: fmt.Sprintf("%.1f h", g.GPUHours), Back: g.GPUHours,
			Value: g.SharedHours})
	}
	d.Bars(4, list)
	return d
}

// svg draws all GPUs below each other.
func (v *gpuView) svg(w io.Writer, s *style) error {
	const width = 960
	t := page.NewTimeline(v.From.In(s.time.Zone), v.To.In(s.time.Zone), width, page.BarStep)
	t.Heading(v.period(s))
	for _, g := range v.GPUs {
		v.draw(t, g, fmt.Sprintf("%s GPU %d: ", g.Node, g.Index), s)
	}
	return t.File(w, "GPUs over time")
}
