// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Point is a figure over a while.
type Point struct {
	From, To time.Time
	Value    float64
}

// joins tells whether b goes on from a: less than one more sample is missing. Agents lose
// a second, or a sample at a restart; neither is a gap.
func (a Point) joins(b Point) bool {
	return b.From.Sub(a.To) <= max(a.To.Sub(a.From), b.To.Sub(b.From))
}

// path draws points as steps. A gap in the samples is a gap in the line, and unknown values
// are not drawn.
func path(points []Point, x func(time.Time) float64, y func(float64) float64) string {
	var line strings.Builder
	for i, p := range points {
		if math.IsNaN(p.Value) {
			continue
		}
		command := "L"
		if i == 0 || math.IsNaN(points[i-1].Value) || !points[i-1].joins(p) {
			command = "M"
		}
		fmt.Fprintf(&line, "%s%.1f %.1fH%.1f", command, x(p.From), y(p.Value), x(p.To))
	}
	return line.String()
}

// thin puts the points within a step together: the highest, or their mean by time.
func thin(points []Point, step time.Duration, highest bool) (few []Point) {
	for _, p := range points {
		last := len(few) - 1
		if last < 0 || math.IsNaN(p.Value) || !few[last].joins(p) || p.To.Sub(few[last].From) > step {
			few = append(few, p) // an unknown value joins nothing
			continue
		}
		before, now := few[last].To.Sub(few[last].From).Seconds(), p.To.Sub(p.From).Seconds()
		switch q := &few[last]; {
		case math.IsNaN(q.Value):
			few = append(few, p)
			continue
		case highest:
			q.Value = max(q.Value, p.Value)
		case before+now > 0:
			q.Value = (q.Value*before + p.Value*now) / (before + now)
		}
		few[last].To = p.To
	}
	return few
}

// edge is where a job lies in a stack for a while.
type edge struct {
	from, to  time.Time
	low, high float64
}

// stack puts the bookings of jobs on top of each other, at each time of the jobs that ran then.
func stack(jobs []Job) [][]edge {
	var times []time.Time
	for _, j := range jobs {
		times = append(times, j.From, j.To)
	}
	slices.SortFunc(times, time.Time.Compare)
	times = slices.CompactFunc(times, time.Time.Equal)
	bands := make([][]edge, len(jobs))
	for i := 1; i < len(times); i++ {
		from, to, height := times[i-1], times[i], 0.0
		for k, j := range jobs {
			if j.Booked <= 0 || j.From.After(from) || j.To.Before(to) {
				continue
			}
			band, low := bands[k], height
			height += j.Booked
			if n := len(band); n > 0 && band[n-1].low == low {
				band[n-1].to = to
				continue
			}
			bands[k] = append(band, edge{from, to, low, height})
		}
	}
	return slices.DeleteFunc(bands, func(b []edge) bool { return len(b) == 0 })
}

// Top is how high the stack of bookings becomes.
func Top(jobs []Job) (top float64) {
	for _, band := range stack(jobs) {
		for _, e := range band {
			top = max(top, e.high)
		}
	}
	return top
}

// tick is a time with a short name.
type tick struct {
	at   time.Time
	text string
}

// steps are the seconds between ticks of less than a day.
var steps = [...]int{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200}

const day = 24 * 60 * 60

// ticks are round times of a clock or a calendar, at most so many.
func ticks(from, to time.Time, most int) (list []tick) {
	span := to.Sub(from).Seconds()
	year, month, date := from.Date()
	days, step := 1, day
	for _, s := range steps {
		if span/float64(s) <= float64(most-1) {
			step = s
			break
		}
	}
	for span/float64(days*day) > float64(most-1) {
		days *= 2
	}
	for d := 0; ; d += days {
		midnight := time.Date(year, month, date+d, 0, 0, 0, 0, from.Location())
		if midnight.After(to) {
			return list
		}
		for s := 0; s < day; s += step {
			at := time.Date(year, month, date+d, 0, 0, s, 0, from.Location()) // also where clocks change
			if at.Before(from) || at.After(to) || len(list) > 0 && !at.After(list[len(list)-1].at) {
				continue
			}
			text := at.Format("15:04")
			switch {
			case s == 0:
				text = at.Format("2 Jan")
			case step < 60:
				text = at.Format("15:04:05")
			}
			list = append(list, tick{at, text})
		}
	}
}
