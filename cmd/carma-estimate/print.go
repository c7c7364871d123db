// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"carma/cmd/internal/cli"
	"carma/db/report/texttable"
	"carma/estimator"
	"carma/slurmbridge/script"
)

// barCells is what 80 columns leave for the longest bar.
const barCells = 40

func (p *program) print(r report, asJSON bool) error {
	if asJSON {
		return printJSON(p.out, r)
	}
	var b strings.Builder
	if r.Submission != nil {
		p.style.submission(&b, r.Submission)
	}
	if r.Estimate != nil {
		if r.Submission != nil {
			b.WriteByte('\n')
		}
		p.style.estimate(&b, r)
	}
	_, err := io.WriteString(p.out, b.String())
	return err
}

// submission prints what becomes of a script.
func (s style) submission(b *strings.Builder, v *script.Submission) {
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
		row("component", "the first of a heterogeneous job; the others get whole GPUs")
	}
	if v.GPUs == 0 {
		row("mode", "left as it is: "+v.Why)
		return
	}
	row("mode", string(v.Mode))
	if v.Why != "" {
		row("because", v.Why)
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
func (s style) estimate(b *strings.Builder, r report) {
	e := r.Estimate
	colour := map[estimator.Confidence]string{estimator.Sure: cli.Green, estimator.Unsure: cli.Yellow,
		estimator.Bound: cli.Red}[e.Confidence]
	estimate, reserve := fmt.Sprintf("estimate %d MiB,", e.MiB), fmt.Sprintf("%d MiB", e.ReserveMiB)
	if e.Confidence == estimator.Bound {
		estimate, reserve = fmt.Sprintf("estimate at least %d MiB,", e.MiB), "a whole GPU"
	}
	way := r.Method
	if e.Path != "" { // analytic, which tells which of its two ways it went
		way = e.Path
	}
	fmt.Fprintf(b, "%s floor %d MiB, reserve %s, %s (%s)\n\n",
		s.Paint(cli.Bold, estimate), e.FloorMiB, reserve, s.Paint(colour, e.Confidence.String()), way)
	s.parts(b, e)
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

// advice is the one command that tells more than a summary that was not enough.
func advice(e *estimator.Estimate) []string {
	switch e.Remedy {
	case estimator.SaySample:
		return []string{"say the size of a sample: --input 3x224x224, --input 784 or --seq 512"}
	case estimator.MoreDepth:
		return []string{"print the modules of all levels: torchinfo.summary(model, depth=99)"}
	case estimator.Trace:
		return []string{"trace the PyTorch script, which needs no GPU: carma_trace.py -o trace.txt train.py ARGS; then " +
			"--summary trace.txt"}
	case estimator.FirstRun:
		return []string{"only a run shows it: submit with #CARMA on instead of a summary, and later runs book what the " +
			"first one used"}
	}
	return nil
}

func (s style) parts(b *strings.Builder, e *estimator.Estimate) {
	var most int64
	name := 0
	for _, p := range e.Parts {
		most = max(most, p.MiB)
		name = max(name, len(p.Name))
	}
	for _, p := range e.Parts {
		colour := cli.Cyan
		if p.Name == "base" {
			colour = cli.Dim
		}
		line := fmt.Sprintf("%-*s %8d MiB %3d %%  ", name, p.Name, p.MiB, (p.MiB*100+e.MiB/2)/max(e.MiB, 1))
		b.WriteString(strings.TrimRight(line+s.Paint(colour, s.bar(p.MiB, most, barCells)), " ") + "\n")
	}
}

func (s style) list(b *strings.Builder, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	b.WriteString("\n" + s.Paint(cli.Bold, title) + "\n")
	for _, l := range lines {
		b.WriteString(wrap("  - ", l))
	}
}

// fit prints how many such jobs share a GPU.
func (s style) fit(b *strings.Builder, r report) {
	fmt.Fprintf(b, "\n%s\n", s.Paint(cli.Bold, "such jobs on one GPU, by memory"))
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
	if slices.ContainsFunc(r.Fit, func(f fit) bool { return f.Jobs > int64(r.MaxJobs) }) {
		fmt.Fprintf(b, "no more than %d share one at a time (placement.max_jobs)\n", r.MaxJobs)
	}
}
