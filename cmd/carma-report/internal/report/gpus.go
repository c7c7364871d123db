// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"carma/cmd/carma-report/internal/report/page"
	"carma/db"
	"carma/db/figure"
	"carma/slurmbridge/usertext"
	"carma/slurmbridge/version"
)

// gpuSeries is one GPU over time. docs/json.md describes the JSON.
type gpuSeries struct {
	UUID     string          `json:"uuid"`
	Node     string          `json:"node"`
	Index    int             `json:"index"`
	Model    string          `json:"model"`
	TotalMiB int64           `json:"total_mib"`
	SMActPct figure.Measured `json:"smact_pct"` // mean
	PeakMiB  int64           `json:"peak_mib"`
	Watts    figure.Measured `json:"watts"` // mean
	EnergyJ  figure.Measured `json:"energy_j"`
	UnownedJ figure.Measured `json:"unowned_j"` // of it, when no job held the GPU
	Samples  []gpuSample     `json:"samples"`
	Memory   []jobMemory     `json:"memory"`
	jobs     []page.Job
	runs     int // of jobs, with the runs left out of jobs
}

type gpuSample struct {
	At       time.Time       `json:"at"`
	LengthS  float64         `json:"length_s"`
	SMActPct figure.Measured `json:"smact_pct"`
	UsedMiB  int64           `json:"used_mib"`
	Watts    figure.Measured `json:"watts"`
	Jobs     int             `json:"jobs"`
}

// jobMemory is the memory of a job for a while.
type jobMemory struct {
	JobID   uint32    `json:"job_id"`
	Restart uint32    `json:"restart"`
	At      time.Time `json:"at"`
	LengthS float64   `json:"length_s"`
	UsedMiB int64     `json:"used_mib"`
	uid     uint32
}

func (x *gpuSample) end() time.Time { return x.At.Add(time.Duration(x.LengthS * float64(time.Second))) }

// gpuView is all GPUs in a time.
type gpuView struct {
	Schema  string       `json:"schema"`
	Version string       `json:"version"`
	From    time.Time    `json:"from"`
	To      time.Time    `json:"to"`
	GPUs    []*gpuSeries `json:"gpus"`
	users   users        // of the jobs on GPUs
}

// newGPUView reads all GPUs, or only GPUs that some attempts held, in the time of the attempts.
func newGPUView(ctx context.Context, bases []*db.DB, from, to time.Time, held map[string][]*db.Attempt) (*gpuView,
	error) {
	v := &gpuView{Schema: "carma.gpus/1", Version: version.String(), From: from, To: to, GPUs: []*gpuSeries{}}
	for _, d := range bases {
		meters, err := d.Meters(ctx)
		if err != nil {
			return nil, unavailable(err)
		}
		for _, m := range meters {
			if held != nil && held[m.UUID] == nil {
				continue
			}
			samples, err := d.Series(ctx, m.UUID, from, to)
			if err != nil {
				return nil, unavailable(err)
			}
			if held != nil {
				samples = slices.DeleteFunc(samples, func(s db.Sample) bool {
					return !slices.ContainsFunc(held[m.UUID], func(a *db.Attempt) bool {
						return s.At.Add(s.Length).After(a.Start) && s.At.Before(a.End)
					})
				})
			}
			g := &gpuSeries{UUID: usertext.Clean(m.UUID), Node: usertext.Clean(m.Node), Index: m.Index,
				Model: usertext.Clean(m.Model), TotalMiB: m.TotalMiB}
			memory, err := d.JobSamples(ctx, m.UUID, from, to)
			if err != nil {
				return nil, unavailable(err)
			}
			g.take(samples, memory)
			v.GPUs = append(v.GPUs, g)
		}
	}
	return v, nil
}

// fit moves the ends of the time to where the data begins and ends.
func (v *gpuView) fit(from, to bool) {
	var first, last time.Time
	take := func(begin, end time.Time) {
		if first.IsZero() || begin.Before(first) {
			first = begin
		}
		if end.After(last) {
			last = end
		}
	}
	for _, g := range v.GPUs {
		for _, x := range g.Samples {
			take(x.At, x.end())
		}
		for _, j := range g.jobs {
			take(j.From, j.To)
		}
	}
	if from && first.After(v.From) {
		v.From = first
	}
	if to && !last.IsZero() && last.Before(v.To) {
		v.To = last
	}
}

func (g *gpuSeries) take(samples []db.Sample, memory []db.JobSample) {
	g.Samples, g.Memory = []gpuSample{}, []jobMemory{}
	for _, m := range memory {
		g.Memory = append(g.Memory, jobMemory{JobID: m.JobID, Restart: m.Restart, At: m.At, LengthS: m.Length.Seconds(),
			UsedMiB: m.UsedMiB, uid: m.UID})
	}
	var smact mean
	var energy, unowned, energyS float64
	for _, s := range samples {
		out := gpuSample{At: s.At, LengthS: s.Length.Seconds(), SMActPct: s.SMActPct, UsedMiB: s.UsedMiB,
			Watts: figure.Unknown, Jobs: s.Jobs}
		if s.EnergyS > 0 {
			out.Watts = s.EnergyJ / figure.Measured(s.EnergyS)
			energy, unowned, energyS = energy+float64(s.EnergyJ), unowned+float64(s.UnownedJ), energyS+s.EnergyS
		}
		smact.add(s.SMActPct, s.SMActS)
		g.PeakMiB = max(g.PeakMiB, s.UsedMiB)
		g.Samples = append(g.Samples, out)
	}
	g.SMActPct, g.Watts, g.EnergyJ, g.UnownedJ = smact.value(), figure.Unknown, figure.Unknown, figure.Unknown
	if energyS > 0 {
		g.Watts, g.EnergyJ, g.UnownedJ = figure.Measured(energy/energyS), figure.Measured(energy),
			figure.Measured(unowned)
	}
}

func (v *gpuView) period(s *style) string {
	return fmt.Sprintf("%s to %s", s.time.Append(nil, v.From), s.time.Append(nil, v.To))
}

// levels draw a figure from nothing to all in one sign; ASCII, for any terminal.
const levels = " .:-=+*#%@"

const sparkWidth = 60

// print draws two lines of time for each GPU.
func (v *gpuView) print(out io.Writer, s *style) error {
	w := bufio.NewWriter(out) // keeps the first error
	fmt.Fprintln(w, v.period(s))
	fmt.Fprintf(w, "Each character shows the highest value in %s; @ is all SMs, all memory, the highest power.\n",
		appendClock(nil, v.To.Sub(v.From).Seconds()/sparkWidth))
	if len(v.GPUs) == 0 {
		fmt.Fprintln(w, "no GPUs")
	}
	for _, g := range v.GPUs {
		fmt.Fprintf(w, "\n%s GPU %d  %s  %s\n", g.Node, g.Index, g.Model, g.UUID)
		figure := func(k kind, m figure.Measured) string { return string(s.appendText(nil, k, measured(m))) }
		line := func(name, mean string, part func(gpuSample) float64) {
			fmt.Fprintf(w, "%-7s |%s| %s\n", name, v.spark(g, sparkWidth, part), mean)
		}
		line("SMACT", "mean "+figure(percent, g.SMActPct),
			func(x gpuSample) float64 { return float64(x.SMActPct) / 100 })
		line("memory", "peak "+usertext.GiB(g.PeakMiB),
			func(x gpuSample) float64 { return float64(x.UsedMiB) / float64(max(g.TotalMiB, 1)) })
		top := 1.0
		for _, x := range g.Samples {
			if x.Watts.Known() {
				top = max(top, float64(x.Watts))
			}
		}
		watts := unknownText
		if g.Watts.Known() {
			watts = fmt.Sprintf("mean %.0fW, %s", float64(g.Watts), figure(joules, g.EnergyJ))
		}
		line("power", watts, func(x gpuSample) float64 { return float64(x.Watts) / top })
	}
	return w.Flush()
}

// spark draws the highest of each slice of time; where there is no sample, nothing.
func (v *gpuView) spark(g *gpuSeries, width int, part func(gpuSample) float64) string {
	line := make([]byte, width)
	for i := range line {
		line[i] = ' '
	}
	span := v.To.Sub(v.From).Seconds()
	high := make([]float64, width)
	for _, x := range g.Samples {
		p := part(x)
		from := max(int(x.At.Sub(v.From).Seconds()/span*float64(width)), 0)
		to := int((x.At.Sub(v.From).Seconds()+x.LengthS)/span*float64(width) - 1e-9)
		for i := from; i <= to && i < width && p == p; i++ {
			high[i] = max(high[i], p)
			level := int(high[i]*float64(len(levels)-1) + 0.999)
			line[i] = levels[min(max(level, 1), len(levels)-1)]
		}
	}
	return string(line)
}
