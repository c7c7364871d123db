// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

var began = time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC)

func after(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }

func points(values ...float64) (list []Point) {
	for i, v := range values {
		list = append(list, Point{after(float64(10 * i)), after(float64(10 * (i + 1))), v})
	}
	return list
}

func TestThin(t *testing.T) {
	gap := append(points(1, 3), Point{after(100), after(110), 5})
	for name, c := range map[string]struct {
		points  []Point
		step    time.Duration
		highest bool
		want    string
	}{
		"none":        {nil, time.Minute, false, ""},
		"as they are": {points(1, 3, 5), 15 * time.Second, false, "0-10:1 10-20:3 20-30:5 "},
		"means":       {points(1, 3, 5, 7, 9), 20 * time.Second, false, "0-20:2 20-40:6 40-50:9 "},
		"highest":     {points(3, 1, 5, 7, 9), 20 * time.Second, true, "0-20:3 20-40:7 40-50:9 "},
		"by time": {[]Point{{after(0), after(30), 1}, {after(30), after(40), 9}}, time.Minute, false,
			"0-40:3 "},
		"a gap":   {gap, time.Hour, false, "0-20:2 100-110:5 "},
		"unknown": {points(1, math.NaN(), 3, 5), time.Hour, false, "0-10:1 10-20:NaN 20-40:4 "},
		"first":   {points(math.NaN(), 1), time.Hour, true, "0-10:NaN 10-20:1 "},
	} {
		got := ""
		for _, p := range thin(c.points, c.step, c.highest) {
			got += fmt.Sprintf("%.0f-%.0f:%.4g ", p.From.Sub(began).Seconds(), p.To.Sub(began).Seconds(), p.Value)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestStack(t *testing.T) {
	p := func(from, to, value float64) Point { return Point{after(from), after(to), value} }
	for name, c := range map[string]struct {
		lists [][]Point
		want  string
	}{
		"none":             {nil, ""},
		"alone":            {[][]Point{{p(0, 10, 4)}}, "0-10:0-4 | "},
		"on each other":    {[][]Point{{p(0, 10, 4)}, {p(5, 15, 2)}}, "0-10:0-4 | 5-10:4-6 10-15:0-2 | "},
		"after each other": {[][]Point{{p(0, 10, 4)}, {p(10, 15, 2)}}, "0-10:0-4 | 10-15:0-2 | "},
		"nothing used":     {[][]Point{{p(0, 10, 0)}, {p(5, 15, 2)}}, " | 5-15:0-2 | "},
		"nothing known":    {[][]Point{{p(0, 10, math.NaN())}, {p(5, 15, 2)}}, " | 5-15:0-2 | "},
		"no time":          {[][]Point{{p(5, 5, 4)}, {p(0, 15, 2)}}, " | 0-15:0-2 | "},
		"changing":         {[][]Point{{p(0, 5, 1), p(5, 9, 2)}, {p(0, 9, 1)}}, "0-5:0-1 5-9:0-2 | 0-5:1-2 5-9:2-3 | "},
		"a gap": {[][]Point{{p(0, 5, 1), p(7, 9, 1)}, {p(0, 9, 1)}},
			"0-5:0-1 7-9:0-1 | 0-5:1-2 5-7:0-1 7-9:1-2 | "},
		"unchanged": {[][]Point{{p(0, 5, 1), p(5, 9, 1)}}, "0-9:0-1 | "},
	} {
		got := ""
		for _, band := range stack(c.lists) {
			for _, e := range band {
				got += fmt.Sprintf("%.0f-%.0f:%.0f-%.0f ", e.from.Sub(began).Seconds(), e.to.Sub(began).Seconds(), e.low, e.high)
			}
			if len(band) == 0 {
				got += " "
			}
			got += "| "
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A band is a shape for each time without a gap.
func TestOutline(t *testing.T) {
	x := func(at time.Time) float64 { return at.Sub(began).Seconds() }
	y := func(v float64) float64 { return 10 - v }
	band := []edge{{after(0), after(5), 0, 1}, {after(5), after(9), 1, 2}, {after(20), after(21), 0, 3}}
	const want = "M0.0 9.0H5.0L5.0 8.0H9.0L9.0 9.0H5.0L5.0 10.0H0.0ZM20.0 7.0H21.0L21.0 10.0H20.0Z"
	if got := outline(band, x, y); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestBooked(t *testing.T) {
	job := func(from, to, booked float64) Job { return Job{From: after(from), To: after(to), Booked: booked} }
	for name, c := range map[string]struct {
		jobs []Job
		want string
		top  float64
	}{
		"none":           {nil, "", 0},
		"together":       {[]Job{job(5, 15, 2), job(0, 10, 4)}, "0-5:4 5-10:6 10-15:2 ", 6},
		"the same":       {[]Job{job(0, 5, 1), job(0, 5, 1)}, "0-5:2 ", 2},
		"in turn":        {[]Job{job(0, 5, 1), job(5, 9, 1)}, "0-9:1 ", 1},
		"a gap":          {[]Job{job(0, 5, 1), job(6, 9, 1)}, "0-5:1 6-9:1 ", 1},
		"nothing booked": {[]Job{job(0, 10, 0), job(5, 15, 2)}, "5-15:2 ", 2},
		"no time":        {[]Job{job(5, 5, 4), job(0, 15, 2)}, "0-15:2 ", 2},
	} {
		got := ""
		for _, p := range booked(c.jobs) {
			got += fmt.Sprintf("%.0f-%.0f:%.0f ", p.From.Sub(began).Seconds(), p.To.Sub(began).Seconds(), p.Value)
		}
		if top := Top(c.jobs); got != c.want || top != c.top {
			t.Errorf("%s: %q up to %v, want %q up to %v", name, got, top, c.want, c.top)
		}
	}
}

func TestTicks(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip("no time zones on this machine: ", err)
	}
	for _, c := range []struct {
		from time.Time
		span time.Duration
		most int
		want string
	}{
		{after(1), 0, 5, "00:00:01"},
		{after(1.5), 0, 5, ""},
		{after(0), 0, 5, "28 Mar"},
		{after(3600), 4 * time.Second, 5, "01:00:00 01:00:01 01:00:02 01:00:03 01:00:04"},
		{after(80000), time.Hour, 5, "22:15 22:30 22:45 23:00"},
		{after(80000), time.Hour, 12, "22:20 22:30 22:40 22:50 23:00 23:10"},
		{after(7 * 3600), 17 * time.Hour, 5, "12:00 18:00 29 Mar"},
		{after(0), 24 * time.Hour, 5, "28 Mar 06:00 12:00 18:00 29 Mar"},
		{after(0), 7 * 24 * time.Hour, 5, "28 Mar 30 Mar 1 Apr 3 Apr"},
		{after(60), 365 * 24 * time.Hour, 5, "3 Aug 9 Dec"},
		// Clocks go forward at two: 29 March has 23 hours.
		{time.Date(2026, 3, 29, 0, 0, 0, 0, berlin), 6 * time.Hour, 8, "29 Mar 01:00 03:00 04:00 05:00 06:00 07:00"},
	} {
		var got []string
		last := time.Time{}
		for _, k := range ticks(c.from, c.from.Add(c.span), c.most) {
			got = append(got, k.text)
			if !k.at.After(last) {
				t.Errorf("%v + %v: %v after %v", c.from, c.span, k.at, last)
			}
			last = k.at
		}
		if text := strings.Join(got, " "); text != c.want || len(got) > c.most {
			t.Errorf("%v + %v, %d: %q, want %q", c.from, c.span, c.most, text, c.want)
		}
	}
}
