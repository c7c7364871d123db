// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"io"
	"strings"
	"time"

	"carma/db/figure"
	"carma/db/texttable"
	"carma/slurmbridge/config"
)

// Widths of the bars: a GPU's line has at most 80 columns.
const (
	smactCells  = 8
	memoryCells = 12
)

// Print prints a line for each GPU, and below the line the GPU's jobs and why the GPU is closed. Nothing of sharing is
// said of GPUs that an agent only observes: no job waits for the rest of such a GPU.
func (n Node) Print(w io.Writer, style texttable.Style) error {
	observed := n.Mode == config.ModeObserve || n.Mode == config.ModeAdvise
	title, columns := heading(n), "USED/LEASED/ALL GiB  MPS  OPEN"
	if observed {
		title, columns = observedHeading(n), "USED/ALL GiB  JOBS"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", style.Paint(texttable.Bold, title))
	var head GPU // of the last heading
	for i, g := range n.GPUs {
		// A GPU that cannot be read has no source; the line below says so.
		if i == 0 || g.Model != head.Model || g.Source != head.Source && g.Source != figure.SourceNone {
			head = g
			fmt.Fprintf(&b, "%s, SM activity %s\n", g.Model, by(g.Source))
			fmt.Fprintf(&b, "GPU  UUID      SMACT%-*s MEMORY%-*s %s\n", smactCells, "", memoryCells-6, "", columns)
		}
		limit, closed := n.SMActMaxPct, g.Closed
		last := fmt.Sprintf("%-19s  %3s  %s", fmt.Sprintf("%s/%s/%s", gib(g.UsedMiB), gib(g.LeasedMiB), gib(g.TotalMiB)),
			mpsWord(g), openWord(g, style))
		if observed {
			g.LeasedMiB = 0 // all of the GPU, of a job that has asked for the GPU
			limit, closed = 100, g.fault
			last = fmt.Sprintf("%-12s  %4d", gib(g.UsedMiB)+"/"+gib(g.TotalMiB), len(g.Leases))
		}
		fmt.Fprintf(&b, "%3d  %-8.8s  %s %4s %s  %s\n", g.Index, shortUUID(g.UUID), smactBar(g, limit, style), percent(g),
			memoryBar(g, style), last)
		var jobs []string
		for _, l := range g.Leases {
			jobs = append(jobs, l.text(observed))
		}
		if len(jobs) > 0 {
			fill(&b, jobs)
		}
		if closed != "" {
			fmt.Fprintf(&b, "     %s\n", style.Paint(texttable.Yellow, closed))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// text is a job in a line of a GPU's jobs.
func (l Lease) text(observed bool) string {
	how := ""
	if !observed {
		how = " " + gib(l.ReserveMiB) + "G"
		if l.Exclusive {
			how += " alone"
		}
	}
	if l.Idle {
		how += " idle " + age(l.IdleS) + " of"
	}
	if l.Slowed > 0 && !observed {
		how += fmt.Sprintf(" slowed %.1fx", l.Slowed)
	}
	return fmt.Sprintf("%d %s%s %s", l.JobID, l.User, how, age(l.AgeS))
}

func observedHeading(n Node) string {
	used := 0
	for _, g := range n.GPUs {
		if len(g.Leases) > 0 {
			used++
		}
	}
	return fmt.Sprintf("%s: %d GPUs, %d with jobs; the agent %ss; SM activity: %s of %s", n.Name, len(n.GPUs), used,
		n.Mode, n.Statistic, time.Duration(n.WindowS*float64(time.Second)))
}

func by(source figure.Source) string {
	if source == figure.SourceNone {
		return "not measured"
	}
	return "by " + string(source)
}

func heading(n Node) string {
	open := 0
	for _, g := range n.GPUs {
		if g.Closed == "" {
			open++
		}
	}
	return fmt.Sprintf("%s: %d GPUs, %d open; SM activity: %s of %s, at most %.0f%%", n.Name, len(n.GPUs), open,
		n.Statistic, time.Duration(n.WindowS*float64(time.Second)), n.SMActMaxPct)
}

// fill prints jobs side by side, as many as 80 columns take.
func fill(b *strings.Builder, jobs []string) {
	const indent = "     "
	at := 0
	for i, j := range jobs {
		switch {
		case i == 0:
			b.WriteString(indent)
			at = len(indent)
		case at+3+len(j) > 80:
			b.WriteString(",\n" + indent)
			at = len(indent)
		default:
			b.WriteString(", ")
			at += 2
		}
		b.WriteString(j)
		at += len(j)
	}
	b.WriteByte('\n')
}

func shortUUID(uuid string) string {
	_, rest, _ := strings.Cut(uuid, "-") // GPU-, MIG-
	return rest
}

func gib(mib int64) string { return fmt.Sprintf("%.1f", float64(mib)/1024) }

func percent(g GPU) string {
	if !g.SMActPct.Known() {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", float64(g.SMActPct))
}

func mpsWord(g GPU) string {
	switch g.MPS {
	case MPSUp:
		return fmt.Sprint(g.MPSClients)
	case MPSFault:
		return "bad"
	case MPSDown:
		return "dn"
	}
	return "-"
}

func openWord(g GPU, style texttable.Style) string {
	if g.Closed != "" {
		return style.Paint(texttable.Yellow, "closed")
	}
	return style.Paint(texttable.Green, gib(g.OpenMiB)+"G")
}

// age is short: 3s, 12m, 5h, 2d.
func age(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// marks are the characters that bars are drawn with: full, half, empty.
func marks(style texttable.Style) (full, half, empty string) {
	if style.ASCII {
		return "#", "+", "."
	}
	return "█", "▒", "·"
}

func smactBar(g GPU, maxPct float64, style texttable.Style) string {
	full, _, empty := marks(style)
	if !g.SMActPct.Known() {
		return strings.Repeat("?", smactCells)
	}
	n := int(min(max(float64(g.SMActPct)/100*smactCells+0.5, 0), smactCells))
	colour := texttable.Green
	if float64(g.SMActPct) > maxPct {
		colour = texttable.Red
	}
	return style.Paint(colour, strings.Repeat(full, n)) + strings.Repeat(empty, smactCells-n)
}

// memoryBar shows the memory in use, then the memory that is leased beyond it.
func memoryBar(g GPU, style texttable.Style) string {
	if g.TotalMiB <= 0 {
		return strings.Repeat("?", memoryCells)
	}
	cells := func(mib int64) int {
		return int(min((mib*memoryCells+g.TotalMiB/2)/g.TotalMiB, memoryCells))
	}
	used := cells(g.UsedMiB)
	leased := max(cells(g.LeasedMiB), used)
	full, half, empty := marks(style)
	return style.Paint(texttable.Cyan, strings.Repeat(full, used)) +
		style.Paint(texttable.Dim, strings.Repeat(half, leased-used)) +
		strings.Repeat(empty, memoryCells-leased)
}
