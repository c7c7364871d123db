// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"carma/cmd/carma-estimate/internal/script"
	"carma/db/texttable"
	"carma/estimator"
	"carma/slurmbridge/config"
)

// barCells is the room that 80 columns leave for the longest bar.
const barCells = 40

// Print prints the report for people.
func (r Report) Print(w io.Writer, s texttable.Style) error {
	p := printer{s}
	var b strings.Builder
	if r.Submission != nil {
		p.submission(&b, r.Submission)
	}
	if r.Estimate != nil {
		if r.Submission != nil {
			b.WriteByte('\n')
		}
		p.estimate(&b, r)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

type printer struct{ texttable.Style }

// submission prints what becomes of a script.
func (s printer) submission(b *strings.Builder, v *script.Submission) {
	row := func(label, text string) { b.WriteString(wrap(fmt.Sprintf("%-11s", label), text)) }
	row("script", v.Script)
	if len(v.Written) > 0 {
		row("written", strings.Join(v.Written, ", "))
	}
	if v.Refused != nil {
		row("refused", v.Refused.Error())
		return
	}
	if v.Part.GPUsPerNode > 0 {
		row("partition", fmt.Sprintf("%s: %d GPUs of %d MiB per node", v.Partition, v.Part.GPUsPerNode,
			v.Part.GPUMemMiB))
	}
	if v.Request.Het {
		row("component", "the first of a heterogeneous job; the others share only by --carma")
	}
	if v.GPUs == 0 {
		row("mode", "left as it is: "+v.Why)
		return
	}
	if mode := v.Site.Mode; mode == config.ModeAdvise || mode == config.ModeObserve {
		row("today", fmt.Sprintf("jobs run as written (mode = %q); with sharing:", mode))
	}
	row("mode", string(v.Mode))
	if v.Why != "" {
		row("because", v.Why)
	}
	if v.Unread != "" {
		row("not read", v.Unread)
	}
	method := string(v.Method)
	if v.EstMiB > 0 {
		method += fmt.Sprintf(", %d MiB", v.EstMiB)
	}
	row("method", method)
	if text := v.Learned(); text != "" {
		row("history", text)
	}
	if v.Policy != "" {
		row("placement", v.Policy)
	}
	row("booked", v.TRES.PerNode)
	each := "1 GPU"
	if v.GPUs > 1 {
		each = fmt.Sprintf("each of %d GPUs", v.GPUs)
	}
	row("", fmt.Sprintf("%d of %d MiB on %s of a node", v.ReserveMiB, v.FullMiB, each))
	for _, f := range v.Launches {
		row(f.Name, f.Says+" ("+f.Where+")")
	}
}

// estimate prints figures, parts, reasons and what fits.
func (s printer) estimate(b *strings.Builder, r Report) {
	e := r.Estimate
	colour := map[estimator.Confidence]string{estimator.Sure: texttable.Green, estimator.Unsure: texttable.Yellow,
		estimator.Bound: texttable.Red}[e.Confidence]
	estimate, reserve := fmt.Sprintf("estimate %d MiB,", e.MiB), fmt.Sprintf("%d MiB", e.ReserveMiB)
	if e.Confidence == estimator.Bound {
		estimate, reserve = fmt.Sprintf("estimate at least %d MiB,", e.MiB), "a whole GPU"
	}
	way := r.Method
	if e.Path != "" { // analytic, which tells which of its two ways was taken
		way = e.Path
	}
	fmt.Fprintf(b, "%s floor %d MiB, reserve %s, %s (%s)\n\n",
		s.Paint(texttable.Bold, estimate), e.FloorMiB, reserve, s.Paint(colour, e.Confidence.String()), way)
	s.parts(b, e)
	s.list(b, "not booked", wish(e))
	s.list(b, e.Confidence.String()+", because", e.Reasons)
	s.list(b, "assumed", e.Assumed)
	s.list(b, "to be sure", advice(e))
	var unknown []string
	for _, u := range e.Unknown {
		unknown = append(unknown, fmt.Sprintf("%d x %s", u.Count, u.Kind))
	}
	s.list(b, "not understood", unknown)
	s.fit(b, r)
}

// wish is the memory that cuDNN can go without.
func wish(e *estimator.Estimate) []string {
	if e.WishMiB == 0 {
		return nil
	}
	return []string{fmt.Sprintf("on an empty GPU cuDNN may take %d MiB more for a moment; under a limit PyTorch goes on "+
		"without that memory", e.WishMiB)}
}

// advice is the command that tells more than a summary that was not enough.
func advice(e *estimator.Estimate) []string {
	switch e.Remedy {
	case estimator.SaySample:
		return []string{"say the size of a sample: --input 3x224x224, --input 784 or --seq 512"}
	case estimator.MoreDepth:
		return []string{"print the modules of all levels: torchinfo.summary(model, depth=99)"}
	case estimator.Trace:
		return []string{"trace the PyTorch script, which needs no GPU: carma-estimate job.sh --trace, or carma-trace " +
			"-o trace.txt train.py ARGS and then --summary trace.txt"}
	case estimator.FirstRun:
		return []string{"only a run shows it: submit with #CARMA on instead of a summary, and later runs book what the " +
			"first one used"}
	}
	return nil
}

func (s printer) parts(b *strings.Builder, e *estimator.Estimate) {
	var most int64
	name := 0
	for _, p := range e.Parts {
		most = max(most, p.MiB)
		name = max(name, len(p.Name))
	}
	for _, p := range e.Parts {
		colour := texttable.Cyan
		if p.Name == "base" {
			colour = texttable.Dim
		}
		line := fmt.Sprintf("%-*s %8d MiB %3d %%  ", name, p.Name, p.MiB, (p.MiB*100+e.MiB/2)/max(e.MiB, 1))
		b.WriteString(strings.TrimRight(line+s.Paint(colour, bar(s.Style, p.MiB, most, barCells)), " ") + "\n")
	}
}

func (s printer) list(b *strings.Builder, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	b.WriteString("\n" + s.Paint(texttable.Bold, title) + "\n")
	for _, l := range lines {
		b.WriteString(wrap("  - ", l))
	}
}

// fit prints how many such jobs share a GPU.
func (s printer) fit(b *strings.Builder, r Report) {
	fmt.Fprintf(b, "\n%s\n", s.Paint(texttable.Bold, "such jobs on one GPU, by memory"))
	t := texttable.Table{Columns: texttable.Columns("GPU", ">MEMORY", ">JOBS", "")}
	for _, f := range r.Fit {
		note := ""
		switch {
		case f.Jobs == 0:
			note = "too small"
		case r.Estimate.Confidence == estimator.Bound:
			note = "a whole GPU"
		}
		t.Rows = append(t.Rows, []string{f.GPU, fmt.Sprintf("%d MiB", f.MemMiB), fmt.Sprint(f.Jobs), note})
	}
	_, _ = t.WriteTo(b) // a strings.Builder takes everything
	if slices.ContainsFunc(r.Fit, func(f Fit) bool { return f.Jobs > int64(r.MaxJobs) }) {
		fmt.Fprintf(b, "no more than %d share one at a time (placement.max_jobs)\n", r.MaxJobs)
	}
}
