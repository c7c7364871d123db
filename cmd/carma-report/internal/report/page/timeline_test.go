// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"math"
	"math/rand"
	"strings"
	"testing"
	"time"
)

// Rows are as few as there are jobs at once, and bars and their marks never overlap.
func TestPack(t *testing.T) {
	timeline := NewTimeline(after(0), after(1000), 0, 0)
	job := func(from, to float64, mark string) Job { return Job{From: after(from), To: after(to), Mark: mark} }
	for name, c := range map[string]struct {
		jobs []Job
		want string // row: begin to end, of 1000
		rows int
	}{
		"none":          {nil, "", 0},
		"in sequence":   {[]Job{job(0, 100, ""), job(100, 200, "")}, "0:0-100 0:100-200 ", 1},
		"together":      {[]Job{job(0, 100, ""), job(50, 150, ""), job(100, 200, "")}, "0:0-100 1:50-150 0:100-200 ", 2},
		"out of order":  {[]Job{job(100, 200, ""), job(0, 100, "")}, "0:0-100 0:100-200 ", 1},
		"very short":    {[]Job{job(0, 0, ""), job(2, 3, "")}, "0:0-4 1:2-6 ", 2},
		"at the end":    {[]Job{job(1000, 1000, "")}, "0:996-1000 ", 1},
		"from before":   {[]Job{job(-50, 10, ""), job(900, 2000, "")}, "0:0-10 0:900-1000 ", 1},
		"a mark":        {[]Job{job(0, 100, "OOM"), job(100, 200, "")}, "0:0-210 1:100-200 ", 2},
		"a mark inside": {[]Job{job(-10, 2000, "OOM"), job(0, 300, "RQ")}, "0:0-1000 1:0-300 ", 2},
		"a mark before": {[]Job{job(800, 900, ""), job(950, 1000, "OOM")}, "0:800-900 1:840-1000 ", 2},
	} {
		got := ""
		rows := timeline.Pack(c.jobs)
		for _, j := range c.jobs {
			got += fmt.Sprintf("%d:%.0f-%.0f ", j.row, 1000*j.low, 1000*j.high)
		}
		if got != c.want || rows != c.rows {
			t.Errorf("%s: %d rows, %q, want %d, %q", name, rows, got, c.rows, c.want)
		}
	}
	random := rand.New(rand.NewSource(1))
	for range 100 {
		var jobs []Job
		for range 50 {
			from := 1000 * random.Float64()
			jobs = append(jobs, job(from, from+200*random.ExpFloat64(), []string{"", "OOM"}[random.Intn(2)]))
		}
		timeline.Pack(jobs)
		for i, a := range jobs {
			for _, b := range jobs[:i] {
				if a.row == b.row && a.low < b.high && b.low < a.high {
					t.Fatalf("%+v and %+v overlap", a, b)
				}
			}
		}
	}
}

// A job has the same colour on all GPUs, and no colour of a job beside the job.
func TestPaint(t *testing.T) {
	job := func(label string, from, to float64) Job { return Job{Label: label, From: after(from), To: after(to)} }
	many := func(n int) (jobs []Job) {
		for i := range n {
			jobs = append(jobs, job(fmt.Sprint(i), 0, 10))
		}
		return jobs
	}
	for name, c := range map[string]struct {
		gpus [][]Job
		want string
	}{
		"in turn":      {[][]Job{{job("a", 0, 1), job("b", 1, 2), job("c", 2, 3)}}, "0 1 2 | "},
		"runs":         {[][]Job{{job("a", 0, 1), job("b", 0, 9), job("a", 2, 3)}}, "0 1 0 | "},
		"two GPUs":     {[][]Job{{job("a", 0, 1), job("b", 1, 2)}, {job("c", 0, 1), job("b", 1, 2)}}, "0 1 | 2 1 | "},
		"a long job":   {[][]Job{append([]Job{job("long", 0, 99)}, many(9)[:8]...)}, "0 1 2 3 4 5 6 7 0 | "},
		"beside":       {[][]Job{many(7), {job("7", 0, 9)}, {job("x", 0, 9), job("1", 0, 9)}}, "0 1 2 3 4 5 6 | 7 | 0 1 | "},
		"beside known": {[][]Job{many(8), {job("x", 0, 9), job("0", 0, 9)}}, "0 1 2 3 4 5 6 7 | 1 0 | "},
	} {
		Paint(c.gpus...)
		got := ""
		for _, jobs := range c.gpus {
			for _, j := range jobs {
				got += fmt.Sprint(j.colour, " ")
			}
			got += "| "
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A label is shown from the width on at which its bar has room, or never.
func TestLabelsFit(t *testing.T) {
	for _, c := range []struct {
		width int
		bar   float64 // seconds of 1000
		label string
		mark  string
		want  string
	}{
		{0, 1000, "101 alice", "", "d-text d-w0"},
		{0, 120, "101 alice", "", "d-text d-w1"},
		{0, 70, "101 alice", "", "d-text d-w2"},
		{0, 61, "101 alice", "", "d-text d-w3"},
		{0, 50, "101 alice", "", ""},
		{0, 61, "101 東京東京", "", ""},                 // wide
		{0, 300, "101 alice", "OOM", "d-text d-w1"}, // with room for the mark inside
		{0, 120, "101 alice", "OOM", "d-text d-w1"}, // beside
		{960, 80, "101 alice", "", "d-text"},
		{960, 70, "101 alice", "", ""},
	} {
		timeline := NewTimeline(after(0), after(1000), c.width, 0)
		jobs := []Job{{From: after(0), To: after(c.bar), Label: c.label, Mark: c.mark}}
		timeline.Pack(jobs)
		timeline.Lanes("", jobs)
		_, text, _ := strings.Cut(timeline.String(), "<rect")
		got := ""
		if _, label, ok := strings.Cut(text, `<text class="`); ok {
			got, _, _ = strings.Cut(label, `"`)
		}
		if got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// A gap in the figures is a gap in the line, and what is not known is not drawn.
func TestPlotHasGaps(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	for name, c := range map[string]struct {
		points []Point
		moves  int
	}{
		"none":    {nil, 0},
		"joined":  {[]Point{{at(0), at(10), 1}, {at(10), at(20), 2}}, 1},
		"late":    {[]Point{{at(0), at(10), 1}, {at(11), at(20), 2}}, 1},
		"one out": {[]Point{{at(0), at(5), 1}, {at(10), at(15), 2}}, 1},
		"a gap":   {[]Point{{at(0), at(5), 1}, {at(11), at(16), 2}}, 2},
		"thinned": {[]Point{{at(0), at(20), 1}, {at(30), at(35), 2}}, 1},
		"unknown": {[]Point{{at(0), at(10), 1}, {at(10), at(20), math.NaN()}, {at(20), at(30), 1}}, 2},
	} {
		d := NewTimeline(at(0), at(40), Width, 0)
		d.Plot(Plot{Title: name, Most: 2, Points: c.points})
		_, line, _ := strings.Cut(d.String(), `class="d-line"`)
		if got := strings.Count(line, "M"); got != c.moves {
			t.Errorf("%s: %d lines, want %d: %s", name, got, c.moves, line)
		}
	}
}
