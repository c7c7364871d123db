// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"carma/db/source"
	"carma/db/texttable"
	"carma/slurmbridge/slurmtime"
	"carma/slurmbridge/version"
)

// group holds the figures of some jobs together. Means are over jobs.
// docs/json.md describes the JSON.
type group struct {
	Name         string  `json:"name"`
	Jobs         int     `json:"jobs"`
	GPUHours     float64 `json:"gpu_hours"`
	SharedHours  float64 `json:"shared_gpu_hours"`
	SavedHours   float64 `json:"saved_gpu_hours"` // of the jobs of which it is known
	SavedOf      int     `json:"saved_jobs"`      // how many these are
	OOMs         int     `json:"ooms"`            // jobs that ran out of GPU memory
	Recovered    int     `json:"recovered"`       // of them, requeued and completed
	EnergyKWh    float64 `json:"energy_kwh"`      // of the jobs of which it is known
	EnergyOf     int     `json:"energy_jobs"`     // how many these are
	WaitS        float64 `json:"wait_s"`          // mean of submission to start (paper: waiting time)
	RunS         float64 `json:"run_s"`           // mean of the runs (execution time)
	CompletionS  float64 `json:"completion_s"`    // mean of submission to end (job completion time, JCT)
	waits, comps int
}

// accuracy is how estimates of one kind came out.
type accuracy struct {
	Name    string  `json:"method"`
	Jobs    int     `json:"jobs"`
	BiasPct float64 `json:"bias_pct"`       // mean of estimate above the peak
	ErrPct  float64 `json:"mean_error_pct"` // mean of the distance
	Under   int     `json:"under"`          // jobs whose peak was above the estimate
}

// summary is the answer to `carma-report summary`.
type summary struct {
	Schema    string              `json:"schema"`
	Version   string              `json:"version"`
	From      *time.Time          `json:"from"`
	To        *time.Time          `json:"to"`
	MakespanS float64             `json:"makespan_s"` // first submission to last end
	Total     group               `json:"total"`
	By        map[string][]*group `json:"by"`
	Methods   []*accuracy         `json:"methods"`
	order     []string
}

// dimensions are what jobs can be grouped by.
var dimensions = map[string]func(*job, *time.Location) string{
	"user":      func(j *job, _ *time.Location) string { return cmp.Or(j.User, unknownText) },
	"account":   func(j *job, _ *time.Location) string { return cmp.Or(j.Account, unknownText) },
	"partition": func(j *job, _ *time.Location) string { return cmp.Or(j.Partition, unknownText) },
	"gpu":       func(j *job, _ *time.Location) string { return cmp.Or(j.figures.Model, unknownText) },
}

// day is apart for its cost: the text is made once for a day.
const byDay = "day"

func dimensionNames() []string { return []string{"user", "account", "partition", "gpu", byDay} }

// tally is a part of a summary in the making.
type tally struct {
	by        []string
	zone      *time.Location
	total     group
	groups    []map[string]*group
	methods   map[string]*accuracy
	from, to  time.Time
	day       string
	dayBegins time.Time
	dayEnds   time.Time
}

func newTally(by []string, zone *time.Location) *tally {
	t := &tally{by: by, zone: zone, methods: map[string]*accuracy{}}
	for range by {
		t.groups = append(t.groups, map[string]*group{})
	}
	return t
}

func (t *tally) dayOf(at time.Time) string {
	if at.Before(t.dayBegins) || !at.Before(t.dayEnds) {
		at = at.In(t.zone)
		t.dayBegins = time.Date(at.Year(), at.Month(), at.Day(), 0, 0, 0, 0, t.zone)
		t.dayEnds = time.Date(at.Year(), at.Month(), at.Day()+1, 0, 0, 0, 0, t.zone)
		t.day = at.Format("2006-01-02")
	}
	return t.day
}

func (t *tally) add(j *job) {
	t.total.add(j)
	for i, by := range t.by {
		var name string
		if by == byDay {
			name = t.dayOf(j.End)
		} else {
			name = dimensions[by](j, t.zone)
		}
		g := t.groups[i][name]
		if g == nil {
			name = strings.Clone(name) // not to keep the text that it is cut from
			g = &group{Name: name}
			t.groups[i][name] = g
		}
		g.add(j)
	}
	begin := j.Submit
	if begin.IsZero() {
		begin = j.Start
	}
	if t.from.IsZero() || begin.Before(t.from) {
		t.from = begin
	}
	t.to = maxTime(t.to, j.End)
	if j.EstMiB == 0 || j.PeakMiB == 0 || j.OOM != "" {
		return
	}
	m := t.methods[j.Method]
	if m == nil {
		name := strings.Clone(j.Method)
		m = &accuracy{Name: name}
		t.methods[name] = m
	}
	e := float64(j.memErrPct())
	m.Jobs++
	m.BiasPct += e
	m.ErrPct += math.Abs(e)
	if e < 0 {
		m.Under++
	}
}

// add counts a job; means are sums until finish.
func (g *group) add(j *job) {
	g.Jobs++
	g.GPUHours += j.figures.LeaseS / 3600
	g.SharedHours += j.figures.SharedS / 3600
	if s := j.savedS(); s.Known() {
		g.SavedHours += float64(s) / 3600
		g.SavedOf++
	}
	if e := j.figures.EnergyJ; e.Known() {
		g.EnergyKWh += float64(e) / 3.6e6
		g.EnergyOf++
	}
	if j.OOM != "" {
		g.OOMs++
	}
	if j.OOM != "" && j.Recovered {
		g.Recovered++
	}
	g.RunS += j.RunS
	if j.WaitS.Known() {
		g.WaitS += float64(j.WaitS)
		g.waits++
	}
	if !j.Submit.IsZero() {
		g.CompletionS += max(j.End.Sub(j.Submit).Seconds(), 0)
		g.comps++
	}
}

func (g *group) plus(o *group) {
	g.Jobs, g.OOMs, g.Recovered = g.Jobs+o.Jobs, g.OOMs+o.OOMs, g.Recovered+o.Recovered
	g.GPUHours, g.SharedHours = g.GPUHours+o.GPUHours, g.SharedHours+o.SharedHours
	g.SavedHours, g.SavedOf = g.SavedHours+o.SavedHours, g.SavedOf+o.SavedOf
	g.EnergyKWh, g.EnergyOf = g.EnergyKWh+o.EnergyKWh, g.EnergyOf+o.EnergyOf
	g.WaitS, g.RunS, g.CompletionS = g.WaitS+o.WaitS, g.RunS+o.RunS, g.CompletionS+o.CompletionS
	g.waits, g.comps = g.waits+o.waits, g.comps+o.comps
}

func (g *group) finish() {
	g.RunS /= max(float64(g.Jobs), 1)
	g.WaitS /= max(float64(g.waits), 1)
	g.CompletionS /= max(float64(g.comps), 1)
}

// plus adds a part that was made at the same time.
func (t *tally) plus(o *tally) {
	t.total.plus(&o.total)
	for i := range t.groups {
		for name, g := range o.groups[i] {
			if have := t.groups[i][name]; have != nil {
				have.plus(g)
			} else {
				t.groups[i][name] = g
			}
		}
	}
	for name, m := range o.methods {
		have := t.methods[name]
		if have == nil {
			t.methods[name] = m
			continue
		}
		have.Jobs, have.Under = have.Jobs+m.Jobs, have.Under+m.Under
		have.BiasPct, have.ErrPct = have.BiasPct+m.BiasPct, have.ErrPct+m.ErrPct
	}
	if t.from.IsZero() || !o.from.IsZero() && o.from.Before(t.from) {
		t.from = o.from
	}
	t.to = maxTime(t.to, o.to)
}

// summarise adds up the selected jobs.
func summarise(ctx context.Context, sources []source.Source, sel *selection, by []string, zone *time.Location) (
	*summary, error) {
	all := newTally(by, zone)
	err := each(ctx, sources, sel, func() *tally { return newTally(by, zone) }, (*tally).add,
		func(t *tally) error { all.plus(t); return nil })
	if err != nil {
		return nil, err
	}
	s := &summary{Schema: "carma.summary/1", Version: version.String(), Total: all.total, By: map[string][]*group{},
		Methods: []*accuracy{}, order: by}
	s.Total.Name = "all"
	s.Total.finish()
	if !all.from.IsZero() {
		s.From, s.To, s.MakespanS = &all.from, &all.to, max(all.to.Sub(all.from).Seconds(), 0)
	}
	for i, name := range by {
		list := []*group{}
		for _, g := range all.groups[i] {
			g.finish()
			list = append(list, g)
		}
		slices.SortFunc(list, func(a, b *group) int {
			if name == byDay {
				return cmp.Compare(a.Name, b.Name)
			}
			return cmp.Or(cmp.Compare(b.GPUHours, a.GPUHours), cmp.Compare(a.Name, b.Name))
		})
		s.By[name] = list
	}
	for _, m := range all.methods {
		m.BiasPct /= float64(m.Jobs)
		m.ErrPct /= float64(m.Jobs)
		s.Methods = append(s.Methods, m)
	}
	slices.SortFunc(s.Methods, func(a, b *accuracy) int { return cmp.Compare(a.Name, b.Name) })
	return s, nil
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// groupColumns are the columns of a table of groups.
var groupColumns = texttable.Columns("", ">JOBS", ">GPU-H", ">SHARED", ">SAVED", ">OOM", ">BACK", ">KWH", ">WAIT",
	">RUN", ">JCT")

// row is a group as text. What is known of no job is "-".
func (g *group) row() []string {
	clock := func(s float64) string { return string(appendClock(nil, s)) }
	saved, energy, wait, completion := unknownText, unknownText, unknownText, unknownText
	if g.SavedOf > 0 {
		saved = fmt.Sprintf("%.2f", math.Round(g.SavedHours*100)/100+0) // no minus before a zero
	}
	if g.EnergyOf > 0 {
		energy = fmt.Sprintf("%.3f", g.EnergyKWh)
	}
	if g.waits > 0 {
		wait = clock(g.WaitS)
	}
	if g.comps > 0 {
		completion = clock(g.CompletionS)
	}
	return []string{g.Name, fmt.Sprint(g.Jobs), fmt.Sprintf("%.2f", g.GPUHours), fmt.Sprintf("%.2f", g.SharedHours),
		saved,
		fmt.Sprint(g.OOMs),
		fmt.Sprint(g.Recovered),
		energy,
		wait,
		clock(g.RunS),
		completion,
	}
}

// legend explains the columns and of how many jobs their figures are known.
func (s *summary) legend() []string {
	t := &s.Total
	of := func(n int) string {
		if n == t.Jobs {
			return "all jobs"
		}
		return fmt.Sprintf("%d of %d jobs", n, t.Jobs)
	}
	return []string{fmt.Sprintf("GPU-H: GPU hours held. SHARED: of them, with other jobs. "+
		"SAVED: GPU hours against exclusive, known of %s (smact= or earlier runs say how long the work takes alone). "+
		"OOM: ran out of GPU memory. BACK: of them, requeued and completed. KWH: energy, known of %s. "+
		"WAIT, RUN, JCT: means of the time in the queue, of execution, and of both (job completion time).",
		of(t.SavedOf),
		of(t.EnergyOf),
	),
	}
}

const estimatesLegend = "BIAS: mean of estimate above peak. ERROR: mean distance. " +
	"UNDER: jobs whose peak was above the estimate. Jobs that ran out of memory are not among them."

func (s *summary) print(w io.Writer, tf *slurmtime.Format) error {
	if s.From == nil {
		_, err := io.WriteString(w, "no jobs\n")
		return err
	}
	fmt.Fprintf(w, "%s to %s, makespan %s\n\n", tf.Append(nil, *s.From), tf.Append(nil, *s.To),
		appendClock(nil, s.MakespanS))
	for i, by := range s.order {
		t := texttable.Table{Columns: slices.Clone(groupColumns)}
		t.Columns[0].Title = strings.ToUpper(by)
		for _, g := range s.By[by] {
			t.Rows = append(t.Rows, g.row())
		}
		if i == 0 {
			t.Rows = append(t.Rows, s.Total.row())
		}
		if _, err := t.WriteTo(w); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	notes := s.legend()
	if len(s.Methods) > 0 {
		if err := s.printMethods(w); err != nil {
			return err
		}
		notes = append(notes, estimatesLegend)
	}
	for _, n := range notes {
		if _, err := io.WriteString(w, wrap("", n, 80)); err != nil {
			return err
		}
	}
	return nil
}

func (s *summary) printMethods(w io.Writer) error {
	t := texttable.Table{Columns: texttable.Columns("ESTIMATES", ">JOBS", ">BIAS", ">ERROR", ">UNDER")}
	for _, m := range s.Methods {
		t.Rows = append(t.Rows, []string{m.Name, fmt.Sprint(m.Jobs), fmt.Sprintf("%+.1f%%", m.BiasPct),
			fmt.Sprintf("%.1f%%", m.ErrPct), fmt.Sprint(m.Under)})
	}
	if _, err := t.WriteTo(w); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}
