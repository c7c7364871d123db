// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"carma/cmd/carma-sim/internal/chart"
	"carma/cmd/carma-sim/internal/forecast"
	"carma/cmd/carma-sim/internal/replay"
	"carma/db/texttable"
)

// Print writes sentences, the table, and what is assumed and not known.
func (f *Forecast) Print(out io.Writer) error {
	_, err := io.WriteString(out, strings.Join(f.words(), "\n")+"\n\n"+f.table()+"\n"+f.notes())
	return err
}

// words are sentences that can be quoted.
func (f *Forecast) words() []string {
	before, with := &f.Rows[0], f.best()
	const day = "2006-01-02 15:04"
	got := f.Recorded
	return []string{
		fmt.Sprintf("%s ran from %s to %s on %s with %s.", number(f.Jobs, "job"), f.From.Format(day), f.To.Format(day),
			number(f.nodes, "node"), number(f.gpus, "GPU")),
		fmt.Sprintf("With sharing (policy %s), GPUs would have been held for %s GPU hours instead of %s%s.", with.Policy,
			amount(with.GPUHours.Mean), amount(before.GPUHours.Mean), percent(with.GPUHours, before.GPUHours)),
		fmt.Sprintf("All GPUs would have used %s kWh instead of %s%s.", amount(with.EnergyJ.Mean/3.6e6),
			amount(before.EnergyJ.Mean/3.6e6), percent(with.EnergyJ, before.EnergyJ)),
		fmt.Sprintf("Jobs would have waited %s min on average instead of %s, and the last would have ended after %s h "+
			"instead of %s.", amount(with.WaitS.Mean/60), amount(before.WaitS.Mean/60), amount(with.MakespanS.Mean/3600),
			amount(before.MakespanS.Mean/3600)),
		fmt.Sprintf("Half of the jobs would have run at most %s times as long as alone, 95 %% at most %s times.",
			times(with.P50Slowdown.Mean), times(with.P95Slowdown.Mean)),
		outOfMemory(with.OOM.Mean),
		fmt.Sprintf("To judge the model: without sharing it gives %s GPU hours, a makespan of %s h and a mean wait of %s "+
			"min; the records say %s, %s and %s.", amount(before.GPUHours.Mean), amount(before.MakespanS.Mean/3600),
			amount(before.WaitS.Mean/60), amount(got.GPUHours), amount(got.MakespanS/3600),
			amount(got.WaitS/60)),
	}
}

// outOfMemory tells of a mean number of jobs.
func outOfMemory(jobs float64) string {
	if jobs == 0 {
		return "No job would have run out of GPU memory."
	}
	return strings.TrimSuffix(amount(jobs), ".0") +
		" of the jobs would have run out of GPU memory beside others and run again, alone."
}

// best is the site's policy in all pools.
func (f *Forecast) best() *forecastRow { return &f.Rows[len(f.Pools)] }

func number(n int, of string) string {
	if n != 1 {
		of += "s"
	}
	return fmt.Sprintf("%d %s", n, of)
}

// decimals keep two digits of a figure, and a tenth below a thousand. Below a millionth a
// figure is rounding.
func decimals(v float64) int {
	switch {
	case v >= 1000:
		return 0
	case v >= 1 || v < 1e-6:
		return 1
	}
	return 1 - int(math.Floor(math.Log10(v)))
}

// amount writes a sum or a mean.
func amount(v float64) string { return fmt.Sprintf("%.*f", decimals(v), v) }

// times writes a slowdown.
func times(v float64) string { return fmt.Sprintf("%.2f", v) }

func percent(with, before replay.Spread) string {
	if before.Mean <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%+.1f %%)", 100*(with.Mean/before.Mean-1))
}

// around is a mean with its distance to the farthest run, where the distance shows.
func around(s replay.Spread, per float64) string {
	return distance(s, per, decimals(s.Mean/per))
}

// distance is around with so many decimals; less than half a thousandth does not show.
func distance(s replay.Spread, per float64, decimals int) string {
	text := fmt.Sprintf("%.*f", decimals, s.Mean/per)
	far := max(s.Mean-s.Min, s.Max-s.Mean) / per
	if far < max(math.Pow10(-decimals), 1e-3)/2 {
		return text
	}
	return fmt.Sprintf("%s±%.*f", text, decimals, far)
}

// name of a row is the policy's; with several pools it says how many of them share.
func (f *Forecast) name(r *forecastRow) string {
	if len(f.Pools) == 1 || r.Sharing == 0 {
		return string(r.Policy)
	}
	return fmt.Sprintf("%s, %d of %d", r.Policy, r.Sharing, len(f.Pools))
}

func (f *Forecast) table() string {
	t := texttable.Table{Columns: texttable.Columns("POLICY", ">GPU HOURS", ">MAKESPAN h", ">WAIT min", ">kWh",
		">SLOWED P50", ">P95", ">OOM JOBS")}
	r := &f.Recorded
	t.Rows = append(t.Rows, []string{"as recorded", amount(r.GPUHours), amount(r.MakespanS / 3600),
		amount(r.WaitS / 60), "", times(r.P50Slowdown), times(r.P95Slowdown), strconv.Itoa(r.OOM)})
	for i := range f.Rows {
		w := &f.Rows[i]
		t.Rows = append(t.Rows, []string{f.name(w), around(w.GPUHours, 1), around(w.MakespanS, 3600), around(w.WaitS, 60),
			around(w.EnergyJ, 3.6e6), distance(w.P50Slowdown, 1, 2), distance(w.P95Slowdown, 1, 2), around(w.OOM, 1)})
	}
	var b strings.Builder
	t.WriteTo(&b)
	return b.String()
}

// Parsable writes the table in plain figures (seconds, joules) between |.
func (f *Forecast) Parsable(out io.Writer) error {
	titles := []string{"Policy", "Sharing"}
	of := func(w *forecastRow) []replay.Spread {
		return []replay.Spread{w.GPUHours, w.MakespanS, w.WaitS, w.P95WaitS, w.EnergyJ, w.P50Slowdown, w.P95Slowdown, w.OOM}
	}
	for _, name := range []string{"GPUHours", "Makespan", "Wait", "P95Wait", "Energy", "P50Slowdown", "P95Slowdown",
		"OOM"} {
		titles = append(titles, name, name+"Min", name+"Max")
	}
	lines := []string{strings.Join(titles, "|")}
	for i := range f.Rows {
		w := &f.Rows[i]
		cells := []string{string(w.Policy), strconv.Itoa(w.Sharing)}
		for _, s := range of(w) {
			for _, v := range []float64{s.Mean, s.Min, s.Max} {
				cells = append(cells, strconv.FormatFloat(v, 'f', 3, 64))
			}
		}
		lines = append(lines, strings.Join(cells, "|"))
	}
	_, err := io.WriteString(out, strings.Join(lines, "\n")+"\n")
	return err
}

// notes say what the table is of, what is assumed, and what is not known.
func (f *Forecast) notes() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	for i, p := range f.Pools {
		if len(f.Pools) == 1 {
			break
		}
		line("%d: partition %s, %s, %s", i+1, strings.Join(p.Partitions, " and "), number(p.Nodes, "node"),
			number(p.GPUs, "GPU"))
	}
	line("Means of %s, ± the farthest of them: run times differ from run to run. The model's own error is",
		number(f.Repeats, "run"))
	scripts := number(f.Scripts, "new script")
	switch b := f.Booked; {
	case b.Estimates == 0:
		line("not in that. Energy is of all GPUs, over the same time in each row. Assumed: what a job books is")
		line("known from earlier runs in the records; the first run of each of %s has whole GPUs.", scripts)
	case b.History == 0:
		line("not in that. Energy is of all GPUs, over the same time in each row. %s the estimate in the", books(b.Estimates))
		line("record, with its reserve.")
	default:
		line("not in that. Energy is of all GPUs, over the same time in each row. %s the estimate in the", books(b.Estimates))
		line("record, with its reserve. Assumed: what %s is known from earlier runs in the records; the", books(b.History))
		line("first run of each of %s has whole GPUs.", scripts)
	}
	line("%s", f.power())
	if left := unknown(&f.Unknown); len(left) > 0 {
		line("\nNot known:")
		for _, text := range left {
			line("  %s", text)
		}
	}
	return b.String()
}

// books is a number of jobs with the verb.
func books(jobs int) string {
	if jobs == 1 {
		return "1 job books"
	}
	return number(jobs, "job") + " book"
}

func (f *Forecast) power() string {
	if f.PowerFactor == nil {
		return "No energy was measured: power is that of an A100-SXM4-40GB."
	}
	return fmt.Sprintf("Power is that of an A100-SXM4-40GB times %.2f, as measured here.", *f.PowerFactor)
}

// unknown says in words how many jobs are not as the records should have them.
func unknown(u *forecast.Unknown) (list []string) {
	jobs := func(c forecast.Count, is string) {
		if c.Jobs > 0 {
			list = append(list, fmt.Sprintf("%s (%s GPU hours) %s", number(c.Jobs, "job"), amount(c.GPUHours), is))
		}
	}
	some := func(n int, of, is string) {
		if n > 0 {
			list = append(list, number(n, of)+" "+is)
		}
	}
	jobs(u.NoSamples, "without samples of memory or SM activity: replayed alone on their GPUs")
	jobs(u.SeveralNodes, "on several nodes: each node's part is replayed by itself, alone on its GPUs")
	jobs(u.NoSubmit, "without a time of submission: submitted at their start")
	jobs(u.TooLarge, "with more GPUs or memory than the nodes have: left out")
	some(u.NoTimes, "job", "without a usable start and end: left out")
	some(u.NoGPUs, "job", "without a GPU in the record: left out")
	some(u.Earlier, "requeued job", "of which only the last attempt is replayed")
	some(u.IdleNodes, "node", "without a job: left out")
	return list
}

// WriteHTML writes sentences, charts and the table as a page.
func (f *Forecast) WriteHTML(w io.Writer) error {
	bars := func(title, unit string, per float64, of func(*forecastRow) replay.Spread) string {
		var list []chart.Bar
		for i := range f.Rows {
			r := &f.Rows[i]
			s := of(r)
			list = append(list, chart.Bar{Name: f.name(r), Mean: s.Mean / per, Min: s.Min / per, Max: s.Max / per})
		}
		return chart.Bars(title, unit, list)
	}
	_, err := io.WriteString(w, chart.Page("carma-sim: what sharing would have brought", strings.Join(f.words(), " "),
		f.table()+"\n"+f.notes(),
		bars("GPUs held", "GPU hours", 1, func(r *forecastRow) replay.Spread { return r.GPUHours }),
		bars("Mean wait", "minutes", 60, func(r *forecastRow) replay.Spread { return r.WaitS }),
		bars("Energy of the GPUs", "kWh", 3.6e6, func(r *forecastRow) replay.Spread { return r.EnergyJ }),
		bars("Makespan", "hours", 3600, func(r *forecastRow) replay.Spread { return r.MakespanS }),
		bars("Slowdown of the 95th percentile", "times", 1,
			func(r *forecastRow) replay.Spread { return r.P95Slowdown }),
		bars("Out of memory", "jobs", 1, func(r *forecastRow) replay.Spread { return r.OOM })))
	return err
}
