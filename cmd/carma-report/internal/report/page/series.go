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

// moments are the times at which the points of any list begin or end.
func moments(lists [][]Point) (times []time.Time) {
	for _, points := range lists {
		for _, p := range points {
			times = append(times, p.From, p.To)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return slices.CompactFunc(times, time.Time.Equal)
}

// stack puts lists of points on top of each other: a band for each list, with the gaps of the list.
func stack(lists [][]Point) [][]edge {
	times, bands, next := moments(lists), make([][]edge, len(lists)), make([]int, len(lists))
	for i := 1; i < len(times); i++ {
		from, to, height := times[i-1], times[i], 0.0
		for k, points := range lists {
			for next[k] < len(points) && !points[next[k]].To.After(from) {
				next[k]++
			}
			if next[k] == len(points) || points[next[k]].From.After(from) || !(points[next[k]].Value > 0) {
				continue
			}
			low := height
			height += points[next[k]].Value
			if n := len(bands[k]); n > 0 && bands[k][n-1] == (edge{bands[k][n-1].from, from, low, height}) {
				bands[k][n-1].to = to
				continue
			}
			bands[k] = append(bands[k], edge{from, to, low, height})
		}
	}
	return bands
}

// outline draws a band.
func outline(band []edge, x func(time.Time) float64, y func(float64) float64) string {
	var path strings.Builder
	for len(band) > 0 {
		n := 1
		for n < len(band) && band[n].from.Equal(band[n-1].to) {
			n++
		}
		word := "M"
		for _, e := range band[:n] {
			fmt.Fprintf(&path, "%s%.1f %.1fH%.1f", word, x(e.from), y(e.high), x(e.to))
			word = "L"
		}
		for _, e := range slices.Backward(band[:n]) {
			fmt.Fprintf(&path, "L%.1f %.1fH%.1f", x(e.to), y(e.low), x(e.from))
		}
		path.WriteByte('Z')
		band = band[n:]
	}
	return path.String()
}

// booked is the sum of the bookings of the jobs that ran at a time.
func booked(jobs []Job) (sum []Point) {
	var lists [][]Point
	for _, j := range jobs {
		lists = append(lists, []Point{{j.From, j.To, j.Booked}})
	}
	times, next := moments(lists), 0
	var open []Job
	byStart := slices.SortedStableFunc(slices.Values(jobs), func(a, b Job) int { return a.From.Compare(b.From) })
	for i := 1; i < len(times); i++ {
		from, to, total := times[i-1], times[i], 0.0
		for next < len(byStart) && !byStart[next].From.After(from) {
			open = append(open, byStart[next])
			next++
		}
		open = slices.DeleteFunc(open, func(j Job) bool { return !j.To.After(from) })
		for _, j := range open {
			total += j.Booked
		}
		if n := len(sum); n > 0 && sum[n-1].Value == total && sum[n-1].To.Equal(from) {
			sum[n-1].To = to
		} else if total > 0 {
			sum = append(sum, Point{from, to, total})
		}
	}
	return sum
}

// Top is how high the bookings together become.
func Top(jobs []Job) (top float64) {
	for _, p := range booked(jobs) {
		top = max(top, p.Value)
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
