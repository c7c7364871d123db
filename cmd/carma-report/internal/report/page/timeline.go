// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"time"
	"unicode/utf8"
)

// Timeline is a Drawing over time, with its x in percent: as wide as there is room for on a
// page, with texts of the same size everywhere.
type Timeline struct {
	*Drawing
	from, to time.Time // in the zone of its ticks
	top      int
}

// Heights in a Timeline: of a plot, of a tall plot, and of the rows of jobs with the title.
const (
	PlotStep = titleHeight + plotHeight
	TallStep = titleHeight + tallHeight
	RowStep  = 18
)

const (
	titleHeight = 18
	plotHeight  = 60
	tallHeight  = 110
	axisHeight  = 30
)

// ofPage is the width of a Drawing as wide as the page, and Part the width of a Drawing beside others.
const (
	ofPage = 0
	Part   = -1
)

// columns is the width of a plot in its own units; no screen has many more pixels.
const columns = 1000

// NewTimeline is an empty Timeline that begins at a height; without a width the Timeline is as
// wide as the page, with Part as a column of a page.
func NewTimeline(from, to time.Time, width, height int) *Timeline {
	return &Timeline{Drawing: New(width, height), from: from, to: to}
}

// part is where in the time t is, from 0 to 1.
func (t *Timeline) part(at time.Time) float64 {
	span := max(t.to.Sub(t.from).Seconds(), 1e-3)
	return min(max(at.Sub(t.from).Seconds()/span, 0), 1)
}

// fits is the class of a text for drawings of at least so many pixels.
func (t *Timeline) fits(pixels float64) (class string, ever bool) {
	if t.width != ofPage {
		return "d-text", pixels <= float64(t.width)
	}
	// The windows of the classes, in colours, are 36 px wider: margins and a scroll bar.
	for i, width := range [...]float64{320, 664, 1064, 1214} {
		if pixels <= width {
			return fmt.Sprintf("d-text d-w%d", i), true
		}
	}
	return "", false
}

func (t *Timeline) label(class, anchor string, part float64, y int, s string) {
	const element = `<text class="%s" x="%.2f%%" y="%d" text-anchor="%s">%s</text>`
	fmt.Fprintf(t, element, class, 100*part, y, anchor, html.EscapeString(s))
}

func (t *Timeline) rule(class string, y float64) {
	fmt.Fprintf(t, `<line class="%s" x1="0" x2="100%%" y1="%.1f" y2="%.1f"/>`, class, y, y)
}

// Heading writes a line above the next part.
func (t *Timeline) Heading(s string) { t.label("d-text", "start", 0, t.height-8, s) }

// Grid begins a part of a height below all others, and draws the ticks.
func (t *Timeline) Grid(height int) {
	t.top, t.height = t.height, t.height+height+axisHeight
	draw := func(class string, most int) {
		for _, k := range ticks(t.from, t.to, most) {
			x, anchor := t.part(k.at), "middle"
			switch {
			case x < 0.07:
				anchor = "start"
			case x > 0.93:
				anchor = "end"
			}
			fmt.Fprintf(t, `<line class="d-grid %s" x1="%.2f%%" x2="%.2f%%" y1="%d" y2="%d"/>`, class, 100*x, 100*x,
				t.top+titleHeight, t.height-axisHeight+4)
			t.label("d-text "+class, anchor, x, t.height-axisHeight+18, k.text)
		}
	}
	switch t.width {
	case ofPage:
		draw("d-few", 5)
		draw("d-w1", 12)
	case Part:
		draw("", 5)
	default:
		draw("", t.width/80)
	}
}

// Plot is a figure over time.
type Plot struct {
	Title   string
	Most    float64 // of the scale
	Size    float64 // a line across; 0: none
	Figure  string  // of the line
	Points  []Point
	Highest bool // many samples in a pixel show the highest; otherwise the mean
	Tall    bool
	Jobs    []Job
}

// Plot draws a figure, and behind the figure the shares of the jobs, on top of each other, and the bookings.
func (t *Timeline) Plot(p Plot) {
	t.top += titleHeight
	height := plotHeight
	if p.Tall {
		height = tallHeight
	}
	y := func(v float64) float64 { return float64(height) * (1 - min(max(v/p.Most, 0), 1)) }
	x := func(at time.Time) float64 { return columns * t.part(at) }
	t.label("d-text", "start", 0, t.top-4, p.Title)
	const plot = `<svg y="%d" width="100%%" height="%d" viewBox="0 0 %d %d" preserveAspectRatio="none" ` +
		`overflow="visible">`
	fmt.Fprintf(t, plot, t.top, height, columns, height)
	const curve = `<path class="%s" d="%s"/>`
	step, line := t.to.Sub(t.from)/columns, "d-line"
	var sum []edge
	for _, b := range booked(p.Jobs) {
		sum = append(sum, edge{b.From, b.To, 0, b.Value})
	}
	bookings := outline(sum, x, y)
	if bookings != "" {
		fmt.Fprintf(t, curve, "d-book", bookings)
	}
	var used [][]Point
	for _, j := range p.Jobs {
		used = append(used, thin(j.Used, step, true))
	}
	for i, band := range stack(used) {
		if len(band) > 0 {
			fmt.Fprintf(t, curve, p.Jobs[i].class(), outline(band, x, y))
		}
	}
	if bookings != "" {
		fmt.Fprintf(t, curve, "d-sum", bookings)
		line = "d-all" // can be seen before any colour
	}
	if d := path(thin(p.Points, step, p.Highest), x, y); d != "" {
		fmt.Fprintf(t, curve, line, d)
	}
	t.WriteString("</svg>")
	t.rule("d-axis", float64(t.top+height))
	if p.Size > 0 {
		at := float64(t.top) + y(p.Size)
		t.rule("d-size", at)
		t.label("d-text", "end", 1, int(at)-4, p.Figure)
	}
	t.top += height
}

// Strip is a part of the time, with the figures to show under the pointer.
type Strip struct {
	From, To time.Time
	Title    string
}

// Strips lays strips over the last plots, of a height with the titles.
func (t *Timeline) Strips(height int, strips []Strip) {
	height -= titleHeight
	const element = `<rect class="d-at" x="%.2f%%" y="%d" width="%.2f%%" height="%d"><title>%s</title></rect>`
	for _, s := range strips {
		from, to := t.part(s.From), t.part(s.To)
		fmt.Fprintf(t, element, 100*from, t.top-height, 100*(to-from), height, html.EscapeString(s.Title))
	}
}

// Job is a run of a job on a GPU.
type Job struct {
	From, To    time.Time
	Booked      float64
	Used        []Point // without overlaps
	Label       string
	Mark        string // beside the bar of a failed run; empty: none
	Title       string // shown where the pointer is
	low, high   float64
	begin, stop float64
	row, colour int
}

// colours of jobs are the classes d-j1 to d-j8.
const jobColours = 8

func (j *Job) class() string { return fmt.Sprintf("d-j%d", j.colour+1) }

// Paint gives each job a colour, by the label the same on all GPUs. On the GPU where a job comes first, no job beside
// the job has the same colour, as far as the colours go.
func Paint(gpus ...[]Job) {
	known, next := map[string]int{}, 0
	for _, jobs := range gpus {
		painted := make([]bool, len(jobs))
		for i := range jobs {
			jobs[i].colour, painted[i] = known[jobs[i].Label]
		}
		for i := range jobs {
			j := &jobs[i]
			if colour, ok := known[j.Label]; ok { // of another GPU, or of an earlier run
				j.colour, painted[i] = colour, true
				continue
			}
			var taken [jobColours]bool
			for k, other := range jobs {
				if painted[k] && other.From.Before(j.To) && j.From.Before(other.To) {
					taken[other.colour] = true
				}
			}
			j.colour = next % jobColours
			for k := range jobColours {
				if colour := (next + k) % jobColours; !taken[colour] {
					j.colour = colour
					break
				}
			}
			known[j.Label], painted[i], next = j.colour, true, j.colour+1
		}
	}
}

// Lanes draws the runs of jobs as bars, in the rows of Pack.
func (t *Timeline) Lanes(title string, jobs []Job) {
	t.label("d-text", "start", 0, t.top+RowStep-4, title)
	t.top += RowStep
	for _, j := range jobs {
		top, class := t.top+j.row*RowStep, j.class()
		if j.Mark != "" {
			class += " d-bad"
		}
		fmt.Fprintf(t, `<g><title>%s</title><rect class="%s" x="%.2f%%" y="%d" width="%.2f%%" height="%d"/>`,
			html.EscapeString(j.Title), class, 100*j.begin, top+1, 100*(j.stop-j.begin), RowStep-3)
		inside := j.Mark != "" && j.low == j.begin && j.high == j.stop
		need := textWidth(j.Label) + 6
		if inside {
			need += 2 * textWidth(j.Mark+" ")
		}
		if class, ever := t.fits(need / (j.stop - j.begin)); ever {
			t.label(class, "middle", (j.begin+j.stop)/2, top+13, j.Label)
		}
		switch {
		case inside:
			t.label("d-text d-mark", "end", j.stop-0.008, top+13, j.Mark)
		case j.high > j.stop:
			t.label("d-text d-mark", "start", j.stop+0.006, top+13, j.Mark)
		case j.low < j.begin:
			t.label("d-text d-mark", "end", j.begin-0.006, top+13, j.Mark)
		}
		t.WriteString("</g>")
	}
}

// textWidth is about how many pixels a text takes.
func textWidth(s string) float64 {
	const letter, wide = 7.5, 14
	n := utf8.RuneCountInString(s)
	narrow := n - (len(s)-n)/2 // in UTF-8 wide signs take three bytes
	narrow = max(narrow, 0)
	return float64(narrow)*letter + float64(n-narrow)*wide
}

// Pack puts jobs into rows in which none overlap. A bar is never too narrow to be seen,
// and has room for its mark on one side, or inside.
func (t *Timeline) Pack(jobs []Job) (rows int) {
	const least, mark, wide = 0.004, 0.11, 0.22
	for i := range jobs {
		j := &jobs[i]
		j.begin = min(t.part(j.From), 1-least)
		j.stop = max(t.part(j.To), j.begin+least)
		j.low, j.high = j.begin, j.stop
		switch {
		case j.Mark == "" || j.stop-j.begin >= wide:
		case j.stop+mark <= 1:
			j.high += mark
		default:
			j.low -= mark
		}
	}
	slices.SortStableFunc(jobs, func(a, b Job) int { return cmp.Compare(a.low, b.low) })
	var ends []float64
	for i := range jobs {
		j := &jobs[i]
		j.row = slices.IndexFunc(ends, func(end float64) bool { return end <= j.low })
		if j.row < 0 {
			j.row, ends = len(ends), append(ends, 0)
		}
		ends[j.row] = j.high
	}
	return len(ends)
}
