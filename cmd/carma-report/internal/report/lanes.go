// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"carma/cmd/carma-report/internal/report/page"
	"carma/db"
	"carma/db/figure"
	"carma/db/source"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/usertext"
)

// mostLanes is how many runs of jobs are drawn of a GPU.
const mostLanes = 400

// addJobs gives each GPU the selected jobs that ran on the GPU. The sources hold records that the
// reader may see, and none of others' jobs.
func (v *gpuView) addJobs(ctx context.Context, sources []source.Source, sel *selection, s *style) error {
	gpus := map[string][]*gpuSeries{}
	for _, g := range v.GPUs {
		gpus[g.UUID] = append(gpus[g.UUID], g)
	}
	filter := sel.Filter
	filter.From, filter.To = v.From, v.To
	var j job
	take := func(attempts []db.Attempt) error {
		if j.merge(attempts); !sel.has(&j) {
			return nil
		}
		here := false
		for i := range attempts {
			a := &attempts[i]
			if !a.End.After(v.From) || !a.Start.Before(v.To) {
				continue
			}
			for _, uuid := range a.Total.UUIDs {
				for _, g := range gpus[uuid] {
					here = true
					l := lane(a, j.id(), s)
					l.Used = used(a, g.Memory)
					g.jobs = append(g.jobs, l)
				}
			}
		}
		if here {
			v.users.add(&j)
		}
		return nil
	}
	err := inRanges(ctx, sources, func(r idRange) error {
		filter.FromJob, filter.BeforeJob = r.from, r.before
		return source.Scan(ctx, sources, filter, take)
	})
	if err != nil {
		return unavailable(err)
	}
	for _, g := range v.GPUs {
		slices.SortStableFunc(g.jobs, func(a, b page.Job) int { return cmp.Compare(b.To.Sub(b.From), a.To.Sub(a.From)) })
		g.runs = len(g.jobs)
		g.jobs = g.jobs[:min(g.runs, mostLanes)]
		slices.SortStableFunc(g.jobs, func(a, b page.Job) int { return a.From.Compare(b.From) })
	}
	v.paint()
	return nil
}

func (v *gpuView) paint() {
	var all [][]page.Job
	for _, g := range v.GPUs {
		all = append(all, g.jobs)
	}
	page.Paint(all...)
}

// lost is the longest time without a sample in a line without a gap: agents lose a second, or a sample at a restart,
// and the last sample of a run may come after the users' copy.
const lost = 20 * time.Second

// used is the memory of a run, in GiB, from its beginning to its end. A run's first sample begins before the run,
// by the length of a sample at most; the memory of all jobs is in order of time.
func used(a *db.Attempt, memory []jobMemory) (list []page.Point) {
	first, _ := slices.BinarySearchFunc(memory, a.Start.Add(-lost), func(m jobMemory, at time.Time) int {
		return m.At.Compare(at)
	})
	for _, m := range memory[first:] {
		p := page.Point{From: m.At, To: m.At.Add(time.Duration(m.LengthS * float64(time.Second))),
			Value: float64(m.UsedMiB) / 1024}
		if !p.From.Before(a.End) {
			break
		}
		if m.JobID != a.JobID || m.Restart != a.Restart || m.uid != a.UID || !p.To.After(a.Start) {
			continue
		}
		if n := len(list); n > 0 && p.From.Sub(list[n-1].To) <= lost { // or begun anew by another agent
			list[n-1].To = p.From
		}
		list = append(list, p)
	}
	if n := len(list); n > 0 {
		if a.End.Sub(list[n-1].To) <= lost {
			list[n-1].To = a.End
		}
		list[0].From = maxTime(list[0].From, a.Start)
	}
	return slices.DeleteFunc(list, func(p page.Point) bool { return !p.To.After(p.From) })
}

// lane is a run of a job as a bar: a mark says without colour that the run went wrong on the GPU.
func lane(a *db.Attempt, id string, s *style) page.Job {
	l := page.Job{From: a.Start, To: a.End, Booked: float64(a.ReserveMiB) / 1024, Label: id + " " + a.User}
	state := a.State
	switch {
	case a.OOM != "" || a.State == jobstate.OutOfMemory:
		l.Mark = "OOM"
		state += ", out of GPU memory"
	case a.RequeuedTo != "" || a.State == jobstate.Requeued:
		l.Mark = "RQ"
	}
	if a.RequeuedTo != "" {
		state += ", requeued to " + a.RequeuedTo
	}
	peak, smact := unknownText, unknownText
	if a.Total.PeakMiB > 0 {
		peak = usertext.GiB(a.Total.PeakMiB)
		if len(a.Total.UUIDs) > 1 {
			peak += fmt.Sprintf(" (highest of %d GPUs)", len(a.Total.UUIDs))
		}
		if a.Total.PeakHow == figure.Shared {
			peak += " (several jobs together)"
		}
	}
	if m := a.Total.SMActPct; m.Known() {
		smact = fmt.Sprintf("%.0f %%", float64(m))
	}
	or := func(text string) string { return cmp.Or(text, unknownText) }
	l.Title = strings.Join([]string{
		"job " + id + ", run " + fmt.Sprint(a.Restart+1) + ": " + or(a.Name),
		"user " + or(a.User) + ", partition " + or(a.Partition),
		"booked " + usertext.GiB(a.ReserveMiB) + ", peak " + peak,
		"SM activity " + smact,
		or(state),
		string(s.time.Append(nil, a.Start)) + " to " + string(s.time.Append(nil, a.End)),
	}, "\n")
	return l
}

// draw draws a GPU: figures, memory of jobs, bookings, and the jobs.
func (v *gpuView) draw(t *page.Timeline, g *gpuSeries, name string, s *style) {
	t.Grid(plots + (1+t.Pack(g.jobs))*page.RowStep)
	jobs, booked := fmt.Sprintf("%d runs", g.runs), ""
	switch {
	case g.runs == 1:
		jobs = "1 run"
	case g.runs > len(g.jobs):
		booked = fmt.Sprintf("; of the %d longest runs", len(g.jobs))
		jobs += fmt.Sprintf(", the %d longest are drawn", len(g.jobs))
	}
	v.curves(t, g, name, booked, s)
	t.Lanes(name+"Jobs: "+jobs, g.jobs)
}

// keys explain the curves of memory.
func keys(ofJobs string) []page.Key {
	return []page.Key{{Class: "d-all", Text: "memory in use", Line: true}, {Class: "d-j1", Text: ofJobs},
		{Class: "d-sum", Text: "booked", Line: true}, {Class: "d-size", Text: "the GPU's memory", Line: true}}
}

// plots is the height of the curves of a GPU.
const plots = 2*page.PlotStep + page.TallStep

// small draws a GPU without its jobs.
func (v *gpuView) small(t *page.Timeline, g *gpuSeries, name string, s *style) {
	t.Grid(plots)
	v.curves(t, g, name, "", s)
}

// curves draws the figures of a GPU, with memory and bookings of the jobs.
func (v *gpuView) curves(t *page.Timeline, g *gpuSeries, name, booked string, s *style) {
	var smact, memory, power []page.Point
	watts := 0.0
	for _, x := range g.Samples {
		p := page.Point{From: x.At, To: x.end(), Value: float64(x.SMActPct)}
		smact = append(smact, p)
		p.Value = float64(x.UsedMiB) / 1024
		memory = append(memory, p)
		p.Value = float64(x.Watts)
		power = append(power, p)
		if x.Watts.Known() {
			watts = max(watts, p.Value)
		}
	}
	size, peak := float64(g.TotalMiB)/1024, float64(g.PeakMiB)/1024
	t.Plot(page.Plot{Title: name + "SM activity: mean " + rounded(g.SMActPct, " %"), Most: 100, Size: 100,
		Figure: "100 %", Points: smact})
	t.Plot(page.Plot{Title: name + "Memory: peak " + usertext.GiB(g.PeakMiB) + booked,
		Most: max(size, peak, page.Top(g.jobs), 1), Size: size, Figure: usertext.GiB(g.TotalMiB), Points: memory,
		Highest: true, Tall: true, Jobs: g.jobs})
	t.Plot(page.Plot{Title: name + "Power: mean " + rounded(g.Watts, " W"), Most: max(watts, 1), Size: watts,
		Figure: "highest " + rounded(figure.Measured(watts), " W"), Points: power})
	t.Strips(plots, v.strips(g, s))
}

// stripsOf is the number of parts of a GPU's time with figures of their own.
const stripsOf = 120

// strips puts the samples of a part of the time together. A part without samples has no strip.
func (v *gpuView) strips(g *gpuSeries, s *style) (list []page.Strip) {
	span := max(v.To.Sub(v.From).Seconds(), 1e-3)
	part := func(x *gpuSample) int { return int(x.At.Sub(v.From).Seconds() / span * stripsOf) }
	for i := 0; i < len(g.Samples); {
		var smact, watts mean
		var usedMiB int64
		first, k := i, i
		for ; i < len(g.Samples) && part(&g.Samples[i]) == part(&g.Samples[first]); i++ {
			x := &g.Samples[i]
			smact.add(x.SMActPct, x.LengthS)
			watts.add(x.Watts, x.LengthS)
			usedMiB, k = max(usedMiB, x.UsedMiB), i
		}
		from, to := g.Samples[first].At, g.Samples[k].end()
		lines := append([]string{
			string(s.time.Append(nil, from)) + " to " + string(s.time.Append(nil, to)),
			"SM activity " + rounded(smact.value(), " %"),
			"power " + rounded(watts.value(), " W"),
			"memory " + usertext.GiB(usedMiB) + " of " + usertext.GiB(g.TotalMiB),
		}, shares(g.jobs, from, to)...)
		list = append(list, page.Strip{From: from, To: to, Title: strings.Join(lines, "\n")})
	}
	return list
}

// shares tell the memory that each job of a time used and booked.
func shares(jobs []page.Job, from, to time.Time) (lines []string) {
	const most = 12
	for _, j := range jobs {
		if !j.From.Before(to) || !j.To.After(from) {
			continue
		}
		if len(lines) == most {
			return append(lines, "and other jobs")
		}
		highest, share := 0.0, unknownText
		for _, p := range j.Used {
			if p.From.Before(to) && p.To.After(from) {
				highest = max(highest, p.Value)
			}
		}
		if highest > 0 {
			share = fmt.Sprintf("%.1f", highest)
		}
		lines = append(lines, fmt.Sprintf("job %s: %s of %.1f GiB booked", j.Label, share, j.Booked))
	}
	return lines
}

// mean is a mean of known values, weighted by time.
type mean struct{ sum, seconds float64 }

func (m *mean) add(v figure.Measured, seconds float64) {
	if v.Known() {
		m.sum, m.seconds = m.sum+float64(v)*seconds, m.seconds+seconds
	}
}

func (m *mean) value() figure.Measured {
	if m.seconds <= 0 {
		return figure.Unknown
	}
	return figure.Measured(m.sum / m.seconds)
}

func rounded(m figure.Measured, unit string) string {
	if !m.Known() {
		return unknownText
	}
	return fmt.Sprintf("%.0f", float64(m)) + unit
}
