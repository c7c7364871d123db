// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"carma/db"
	"carma/db/figure"
	"carma/db/source"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/usertext"
)

// jobPage is one job as a page: the job, its attempts in full, and what is known of
// its GPUs.
type jobPage struct {
	job      *job
	attempts []db.Attempt
	totalMiB int64    // of its first GPU; 0: not known
	gpus     *gpuView // of all attempts, while the job ran
	style    style
}

// newPage reads what a page shows. Databases that do not have it leave it out.
func newPage(ctx context.Context, j *job, sources []source.Source, bases []*db.DB, s style) (*jobPage, error) {
	p := &jobPage{job: j, style: s}
	err := source.Scan(ctx, sources, db.Filter{FromJob: j.JobID, BeforeJob: uint64(j.JobID) + 1},
		func(list []db.Attempt) error {
			its := func(a db.Attempt) bool {
				return a.Cluster == j.Attempt.Cluster && a.UID == j.UID && a.Start.Equal(j.Start)
			}
			if slices.ContainsFunc(list, its) { // the id may have been another job's, too
				p.attempts = append(p.attempts, list...)
			}
			return nil
		},
	)
	if err != nil {
		return nil, unavailable(err)
	}
	held := map[string][]*db.Attempt{}
	for i := range p.attempts {
		for _, uuid := range p.attempts[i].Total.UUIDs {
			held[uuid] = append(held[uuid], &p.attempts[i])
		}
	}
	if p.gpus, err = newGPUView(ctx, bases, j.Start, j.End.Add(time.Second), held); err != nil {
		return nil, err
	}
	p.gpus.To = j.End
	for _, g := range p.gpus.GPUs {
		if len(j.figures.UUIDs) > 0 && g.UUID == j.figures.UUIDs[0] {
			p.totalMiB = g.TotalMiB
		}
		for _, a := range held[g.UUID] {
			l := lane(a, j.id(), &p.style)
			l.Used = used(a, g.Memory)
			g.jobs = append(g.jobs, l)
		}
	}
	p.gpus.paint()
	if p.totalMiB == 0 && j.Mode == jobenv.ModeExclusive {
		p.totalMiB = j.ReserveMiB // all of the GPU
	}
	if p.totalMiB == 0 {
		p.totalMiB = j.FullMiB
	}
	return p, nil
}

const barWidth = 40

// bar is jobstats' look: [|||||||      35%].
func bar(part float64, label string) string {
	part = min(max(part, 0), 1)
	n := int(part*barWidth + 0.5)
	text := []byte(strings.Repeat("|", n) + strings.Repeat(" ", barWidth-n))
	label = " " + label
	copy(text[max(0, barWidth-len(label)):], label)
	return "[" + string(text) + "]"
}

func (p *jobPage) text(k kind, v value) string { return string(p.style.appendText(nil, k, v)) }

// print writes the page, at most 80 columns wide.
func (p *jobPage) print(w io.Writer) error {
	j := p.job
	var b strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s %s\n", label, strings.TrimRight(fmt.Sprintf(format, args...), " "))
	}
	or := func(s string) string { return cmp.Or(s, unknownText) }
	name := ""
	if j.Name != "" {
		name = "  " + j.Name
	}
	line("Job", "%s%s", j.id(), name)
	line("Who, where", "%s (account %s), partition %s, cluster %s", or(j.User), or(j.Account), or(j.Partition),
		or(j.Attempt.Cluster))
	line("State", "%s, exit %d:%d", j.State, j.ExitCode, j.ExitSignal)
	line("Time", "waited %s, ran %s, from %s", p.text(seconds, measured(j.WaitS)), p.text(seconds, num(j.RunS)),
		p.text(moment, when(j.Start)))
	line("GPUs", "%d of %s on %s, %s", len(j.figures.UUIDs), or(j.figures.Model), strings.Join(j.Nodes, ","),
		mode(j.Mode))
	b.WriteByte('\n')
	p.printBars(line)
	p.printAttempts(&b)
	b.WriteByte('\n')
	p.printShare(line)
	if list := notes(p); len(list) > 0 {
		b.WriteString("\nNotes\n")
		for _, n := range list {
			b.WriteString(wrap("  * ", n, 80))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func mode(m jobenv.Mode) string {
	if m == jobenv.ModeShared {
		return "may be shared"
	}
	return "exclusive"
}

func (p *jobPage) printBars(line func(label, format string, args ...any)) {
	j := p.job
	full := float64(max(p.totalMiB, j.ReserveMiB, j.PeakMiB, j.EstMiB, 1))
	memory := func(label string, v int64, how string) {
		if v == 0 {
			line(label, "%s %s", bar(0, unknownText), how)
			return
		}
		line(label, "%s %s", bar(float64(v)/full, usertext.GiB(v)), how)
	}
	memory("Estimate", j.EstMiB, j.Method)
	memory("Booked", j.ReserveMiB, "")
	memory("Peak", j.PeakMiB, string(j.figures.PeakHow))
	smact := j.figures.SMActPct
	if smact.Known() {
		line("SM activity", "%s %s, max %.0f%%", bar(float64(smact)/100, fmt.Sprintf("%.0f%%", float64(smact))),
			j.figures.SMActHow, float64(j.figures.SMActMax))
	} else {
		line("SM activity", "%s unknown", bar(0, unknownText))
	}
	if p.totalMiB > 0 {
		line("", "of a GPU with %s", usertext.GiB(p.totalMiB))
	}
}

// printAttempts draws the attempts on one line of time: dots while the job waited,
// signs while it ran.
func (p *jobPage) printAttempts(b *strings.Builder) {
	j := p.job
	begin := j.Submit
	if begin.IsZero() {
		begin = j.Start
	}
	span := j.End.Sub(begin).Seconds()
	if span <= 0 || len(p.attempts) == 0 {
		return
	}
	const width = 40
	b.WriteString("\nTimeline    " + p.text(moment, when(begin)) + " to " + p.text(moment, when(j.End)) + "\n")
	at := func(t time.Time) int { return min(max(int(t.Sub(begin).Seconds()/span*width), 0), width) }
	for _, a := range p.attempts {
		from, to := at(a.Start), at(a.End)
		if to == from {
			to = min(from+1, width)
			from = to - 1
		}
		fmt.Fprintf(b, "  %-9s [%s%s%s] %s", fmt.Sprintf("run %d", a.Restart+1), strings.Repeat(".", from),
			strings.Repeat("=", to-from), strings.Repeat(" ", width-to), a.State)
		b.WriteByte('\n')
		if len(p.attempts) > 1 {
			b.WriteString("            " + p.attempt(&a) + "\n")
		}
	}
}

// attempt says of one of several attempts where it was and what it booked and used.
func (p *jobPage) attempt(a *db.Attempt) string {
	peak := "not known"
	if a.Total.PeakMiB > 0 {
		peak = usertext.GiB(a.Total.PeakMiB)
	}
	return fmt.Sprintf("%s on %s, booked %s, peak %s", a.Partition, a.Node, usertext.GiB(a.ReserveMiB), peak)
}

func (p *jobPage) printShare(line func(label, format string, args ...any)) {
	j := p.job
	others := "nobody"
	if len(j.Neighbours) > 0 {
		others = p.text(ids, numbers(j.Neighbours))
	}
	clock := func(s float64) string { return p.text(seconds, num(s)) }
	line("Shared with", "%s, %s of %s GPU time", others, clock(j.figures.SharedS), clock(j.figures.LeaseS))
	if s := j.savedS(); s.Known() {
		line("Saved", "%s of GPU time: %s alone, less its part %s", signedClock(float64(s)),
			clock(float64(j.UsefulS)), clock(j.figures.HeldS))
	} else {
		line("Saved", "- (how long it takes alone is not known: no smact=, no history)")
	}
	if !j.figures.EnergyJ.Known() {
		line("Energy", "unknown")
		return
	}
	how := "its own"
	if j.figures.EnergyHow == figure.Shared {
		how = "its share, by SM activity"
	}
	line("Energy", "%s (%.1f Wh), including the idle floor of %s; %s", p.text(joules, measured(j.figures.EnergyJ)),
		float64(j.figures.EnergyJ)/3600,
		p.text(joules, measured(j.figures.IdleJ)),
		how,
	)
}

func signedClock(s float64) string {
	sign := ""
	if s <= -0.5 {
		sign, s = "-", -s
	}
	return sign + string(appendClock(nil, max(s, 0)))
}

// wrap breaks text into lines, the first behind a sign and the others below its
// beginning.
func wrap(sign, s string, width int) string {
	var b strings.Builder
	column, indent := 0, utf8.RuneCountInString(sign)
	for _, word := range strings.Fields(s) {
		switch {
		case column == 0:
			b.WriteString(sign)
			column = indent
		case column+1+utf8.RuneCountInString(word) > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += utf8.RuneCountInString(word)
	}
	return b.String() + "\n"
}
