// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"time"
)

// drawing is an SVG that is being made. Its colours are classes, so that a page
// in a browser decides about light and dark; a file of its own brings them along.
type drawing struct {
	strings.Builder
	width, height int
}

// colours holds for drawings and pages alike.
const colours = `.d-text{fill:#222;font:13px sans-serif}.d-axis{stroke:#999;stroke-width:1}.d-a{fill:#3b6fb6}.d-b{fill:#c9d7ea}.d-c{fill:#d9822b}.d-line{fill:none;stroke:#3b6fb6;stroke-width:1.5}` +
	`@media(prefers-color-scheme:dark){.d-text{fill:#ddd}.d-axis{stroke:#666}.d-a{fill:#6c9fe0}.d-b{fill:#34465f}.d-c{fill:#e39a4f}.d-line{stroke:#6c9fe0}}`

func newDrawing(width, height int) *drawing { return &drawing{width: width, height: height} }

func (d *drawing) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(d, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, class, x, y, max(w, 0), h)
}

func (d *drawing) text(x, y float64, anchor, s string) {
	fmt.Fprintf(d, `<text class="d-text" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, x, y, anchor, html.EscapeString(s))
}

// inline is the drawing as a part of a page.
func (d *drawing) inline(title string) string {
	return fmt.Sprintf(`<svg viewBox="0 0 %d %d" role="img" xmlns="http://www.w3.org/2000/svg"><title>%s</title>%s</svg>`, d.width, d.height, html.EscapeString(title), d.String())
}

// file writes the drawing as a file.
func (d *drawing) file(w io.Writer, title string) error {
	_, err := fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?>`+"\n"+
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d"><title>%s</title><style>%s</style>%s</svg>`+"\n",
		d.width, d.height, d.width, d.height, html.EscapeString(title), colours, d.String())
	return err
}

// barOf is one line of a bar chart: a part of a whole, and a mark.
type barOf struct {
	label, figure string
	value, back   float64 // back: a paler bar behind, 0: none
	alarm         bool
}

const (
	barHeight  = 16
	barStep    = 24
	labelWidth = 130
	chartWidth = 480 // on a phone the texts can still be read
)

// bars draws horizontal bars on a common scale from 0.
func bars(d *drawing, top float64, list []barOf) {
	most := 1e-9
	for _, b := range list {
		most = max(most, b.value, b.back)
	}
	room := float64(chartWidth - labelWidth - 80)
	for i, b := range list {
		y := top + float64(i*barStep)
		d.text(labelWidth-8, y+12, "end", cut(strings.TrimPrefix(b.label, "NVIDIA ")))
		if b.back > 0 {
			d.rect("d-b", labelWidth, y, room*b.back/most, barHeight)
		}
		class := "d-a"
		if b.alarm {
			class = "d-c"
		}
		d.rect(class, labelWidth, y+3, room*b.value/most, barHeight-6)
		d.text(labelWidth+room*max(b.value, b.back)/most+6, y+12, "start", b.figure)
	}
}

// cut shortens a label to what there is room for.
func cut(label string) string {
	const most = 18
	if runes := []rune(label); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return label
}

// chart draws figures over time on a scale from 0 to most. A gap in the samples is
// a gap in the line.
func chart(d *drawing, top, height float64, title string, from, to time.Time, most float64, points []point) {
	span := max(to.Sub(from).Seconds(), 1)
	left, room := 44.0, float64(chartWidth-44-8)
	d.text(left, top+10, "start", title)
	top += 16
	bottom := top + height
	fmt.Fprintf(d, `<path class="d-axis" fill="none" d="M%.1f %.1fV%.1fH%.1f"/>`, left, top, bottom, left+room)
	d.text(left-6, top+8, "end", short(most))
	d.text(left-6, bottom, "end", "0")
	var path strings.Builder
	var last time.Time
	for _, p := range points {
		if math.IsNaN(p.value) {
			continue
		}
		x := func(t time.Time) float64 { return left + room*min(max(t.Sub(from).Seconds()/span, 0), 1) }
		y := bottom - height*min(max(p.value/most, 0), 1)
		command := "L"
		if !p.from.Equal(last) {
			command = "M"
		}
		fmt.Fprintf(&path, "%s%.1f %.1fH%.1f", command, x(p.from), y, x(p.to))
		last = p.to
	}
	if path.Len() > 0 {
		fmt.Fprintf(d, `<path class="d-line" d="%s"/>`, path.String())
	}
}

// span writes below a chart when it begins and ends.
func span(d *drawing, top float64, tf *timeFormat, from, to time.Time) {
	d.text(44, top+12, "start", string(tf.append(nil, from)))
	d.text(chartWidth-8, top+12, "end", string(tf.append(nil, to)))
}

// point is a figure over a while.
type point struct {
	from, to time.Time
	value    float64
}

func short(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0fk", v/1000)
	}
	return fmt.Sprintf("%.0f", v)
}

const (
	chartHeight = 60
	spanHeight  = 18
	gpuHeight   = 3*(chartHeight+30) + spanHeight // of the charts of a GPU
)

// svg draws memory and SM activity of a job.
func (p *page) svg(w io.Writer) error { return p.draw().file(w, "job "+p.job.id()) }

func (p *page) draw() *drawing {
	j := p.job
	height := 4*barStep + 8
	if len(p.series) > 0 {
		height += 2*(chartHeight+30) + spanHeight
	}
	d := newDrawing(chartWidth, height)
	memory := func(label string, v int64, alarm bool) barOf {
		b := barOf{label: label, figure: unknownText, back: float64(p.totalMiB), alarm: alarm}
		if v > 0 {
			b.value, b.figure = float64(v), gib(v)
		}
		return b
	}
	bars(d, 4, []barOf{memory("estimate", j.EstMiB, false), memory("booked", j.ReserveMiB, false), memory("peak", j.PeakMiB, j.PeakMiB > j.ReserveMiB || j.OOM != "")})
	smact := barOf{label: "SM activity", figure: unknownText, back: 100}
	if m := j.figures.SMActPct; m.Known() {
		smact.value, smact.figure = float64(m), fmt.Sprintf("%.0f %%", float64(m))
	}
	bars(d, 4+3*barStep, []barOf{smact})
	if len(p.series) == 0 {
		return d
	}
	var use, memoryUse []point
	for _, s := range p.series {
		use = append(use, point{s.At, s.At.Add(s.Length), float64(s.SMActPct)})
		memoryUse = append(memoryUse, point{s.At, s.At.Add(s.Length), float64(s.UsedMiB) / 1024})
	}
	top := float64(4*barStep + 14)
	chart(d, top, chartHeight, "SM activity of the GPU, %", j.Start, j.End, 100, use)
	chart(d, top+chartHeight+30, chartHeight, "memory of the GPU, GiB", j.Start, j.End, max(float64(p.totalMiB)/1024, 1), memoryUse)
	span(d, top+2*(chartHeight+30)-10, &p.style.time, j.Start, j.End)
	return d
}

// svg draws the memory of some jobs: booked behind, peak before.
func (r *report) svg(w io.Writer, jobs []*job) error {
	return drawJobs(jobs).file(w, "memory of jobs: booked and peak")
}

func drawJobs(jobs []*job) *drawing {
	const most = 40
	jobs = jobs[:min(len(jobs), most)]
	d := newDrawing(chartWidth, len(jobs)*barStep+8)
	var list []barOf
	for _, j := range jobs {
		b := barOf{label: j.id(), figure: unknownText, back: float64(j.ReserveMiB), value: float64(j.PeakMiB), alarm: j.OOM != ""}
		if j.PeakMiB > 0 {
			b.figure = gib(j.PeakMiB)
		}
		list = append(list, b)
	}
	bars(d, 4, list)
	return d
}

// svg draws the GPU time of the first of a summary's groups.
func (s *summary) svg(w io.Writer) error {
	if len(s.order) == 0 {
		return newDrawing(chartWidth, barStep).file(w, "no jobs")
	}
	return s.draw(s.order[0]).file(w, "GPU hours by "+s.order[0]+": all, and shared")
}

func (s *summary) draw(by string) *drawing {
	const most = 30
	groups := s.By[by]
	groups = groups[:min(len(groups), most)]
	d := newDrawing(chartWidth, len(groups)*barStep+8)
	var list []barOf
	for _, g := range groups {
		list = append(list, barOf{label: g.Name, figure: fmt.Sprintf("%.1f h", g.GPUHours), back: g.GPUHours, value: g.SharedHours})
	}
	bars(d, 4, list)
	return d
}

// svg draws all GPUs below each other.
func (v *gpuView) svg(w io.Writer, s *style) error {
	d := newDrawing(chartWidth, max(len(v.GPUs), 1)*gpuHeight+8)
	for i, g := range v.GPUs {
		v.draw(d, float64(4+i*gpuHeight), g, &s.time)
	}
	return d.file(w, "GPUs over time")
}

func (v *gpuView) draw(d *drawing, top float64, g *gpuSeries, tf *timeFormat) {
	var smact, memory, power []point
	watts := 1.0
	for _, s := range g.Samples {
		to := s.At.Add(time.Duration(s.LengthS * float64(time.Second)))
		smact = append(smact, point{s.At, to, float64(s.SMActPct)})
		memory = append(memory, point{s.At, to, float64(s.UsedMiB) / 1024})
		power = append(power, point{s.At, to, float64(s.Watts)})
		if s.Watts.Known() {
			watts = max(watts, float64(s.Watts))
		}
	}
	name := fmt.Sprintf("%s GPU %d: ", g.Node, g.Index)
	chart(d, top, chartHeight, name+"SM activity, %", v.From, v.To, 100, smact)
	chart(d, top+chartHeight+30, chartHeight, name+"memory, GiB", v.From, v.To, max(float64(g.TotalMiB)/1024, 1), memory)
	chart(d, top+2*(chartHeight+30), chartHeight, name+"power, W", v.From, v.To, watts, power)
	span(d, top+3*(chartHeight+30)-10, tf, v.From, v.To)
}
