// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"fmt"

	"carma/estimator/graph"
	"carma/estimator/summary"
	"carma/estimator/training"
)

// Shares of the kept bytes whose source was guessed, above which an estimate
// is no longer sure, and no longer an estimate.
const (
	unsurePct = 1
	boundPct  = 15
	// agreedPct is the share that may be guessed where the outputs of the rows agree.
	agreedPct = 5
	// scratchPct is the share of the estimate for scratch memory and the gaps
	// that it leaves, above which cuDNN's choice of algorithm decides.
	scratchPct = 25
	// unshownPct is the share of the parameters that the rows of a table may lack of its total.
	unshownPct = 3
)

// tooLarge is the reason where training.Budget was spent.
const tooLarge = "the model is too large to simulate: the live bytes are a lower bound"

// lower takes the lesser confidence and says why.
func (e *Estimate) lower(c Confidence, format string, args ...any) {
	if c > e.Confidence {
		e.Confidence = c
	}
	e.Reasons = append(e.Reasons, fmt.Sprintf(format, args...))
}

// want notes a remedy; the least trouble counts.
func (e *Estimate) want(r Remedy) {
	if e.Remedy == NoRemedy || r < e.Remedy {
		e.Remedy = r
	}
}

// remedy names the remedy for the obstacles.
func (e *Estimate) remedy(g *graph.Graph, hidden int) {
	switch {
	case e.Confidence == Sure:
		e.Remedy = NoRemedy
		return
	case g.LacksInput:
		e.want(SaySample)
	case hidden > 0:
		e.want(MoreDepth)
	}
	e.want(FirstRun)
}

// judge sets the confidence.
func (e *Estimate) judge(s Spec, m *summary.Model, g *graph.Graph, r training.Result) {
	switch pct := g.GuessedPct(); {
	case pct >= boundPct:
		e.want(Trace)
		e.lower(Bound, "%d %% of the activations could not be derived from the summary", min(pct, 100))
	case pct >= agreedPct || pct >= unsurePct && !e.agree(s, g):
		e.want(Trace)
		e.lower(Unsure, "%d %% of the activations were guessed", pct)
	}
	if pct := e.scratchShare(); e.CuDNN && pct > scratchPct {
		e.lower(Unsure, "%d %% is scratch memory of convolutions and the gaps that it leaves: cuDNN chooses how much "+
			"when it runs", pct)
	}
	e.unshown(m, g)
	if n := hiddenModules(m); n > 0 {
		e.lower(Bound, "%d modules with parameters show neither kind nor children: print the summary with more depth", n)
	}
	if g.LacksInput {
		e.lower(Bound, "the size of a sample is not known: say input= or seq=")
	}
	if !r.Complete {
		e.lower(Bound, tooLarge)
	}
	if m.Format == summary.Repr && !hasCounts(m) {
		e.want(Trace)
		e.lower(Unsure, "the module representation has no parameter counts")
	}
	if m.Recursive > 0 {
		e.want(Trace)
		e.lower(Unsure, "%d modules are used more than once", m.Recursive)
	}
	if m.Format != summary.Repr && m.Batch > 0 && s.Batch > 0 && int(m.Batch) != s.Batch {
		e.Assumed = append(e.Assumed, fmt.Sprintf("batch=%d overrides the summary's %d", s.Batch, m.Batch))
	}
	if m.Skipped > 0 {
		e.Assumed = append(e.Assumed, fmt.Sprintf("%d lines of the text are not rows and were ignored", m.Skipped))
	}
	e.untested(s)
}

// unshown says which layers torchinfo's table leaves out: as one row of several, or by its total.
func (e *Estimate) unshown(m *summary.Model, g *graph.Graph) {
	const more = "%d parameters are of layers that the summary leaves out: print it with more depth"
	switch {
	case g.Folded > 0:
		e.lower(Bound, more, g.Folded)
	case m.Unshown > e.Params/100*unshownPct:
		e.lower(Bound, more, m.Unshown)
	case g.Projected > 0 || m.Unshown > 0:
		e.lower(Unsure, more, g.Projected+max(m.Unshown, 0))
	case m.Unshown < 0:
		e.want(Trace)
		e.lower(Unsure, "the rows have %d parameters more than the printed total", -m.Unshown)
		return
	default:
		return
	}
	e.want(MoreDepth)
}

// scratchShare is the percentage of the estimate that no tensor takes.
func (e *Estimate) scratchShare() int64 { return 100 * e.scratchMiB() / max(e.MiB, 1) }

// scratchMiB is the part of the estimate beyond the tensors.
func (e *Estimate) scratchMiB() (n int64) {
	for _, p := range e.Parts {
		if p.Name == workspacePart || p.Name == fragmentationPart {
			n += p.MiB
		}
	}
	return n
}

// hiddenModules counts modules with parameters of which only the name is
// known: torchinfo stops at a depth.
func hiddenModules(m *summary.Model) int {
	if m.Format != summary.TorchInfo {
		return 0
	}
	n := 0
	for i := range m.Rows {
		r := &m.Rows[i]
		if r.Start == int32(i) && r.Params > 0 && !graph.KnownLeaf(r.Kind) {
			n++
		}
	}
	return n
}

func hasCounts(m *summary.Model) bool {
	return m.Counted > 0
}

// untested names what the estimator computes but has no measurements of.
func (e *Estimate) untested(s Spec) {
	if s.Precision != graph.FP32 {
		e.lower(Unsure, "precision=%s has not been measured", s.Precision)
	}
	if s.GPUs > 1 && s.Parallel != None && s.Parallel != DP {
		e.lower(Unsure, "parallel=%s has not been measured", s.Parallel)
	}
	if s.GradCheckpoint {
		e.lower(Unsure, "gradient checkpointing has not been measured")
	}
	if s.Params > 0 && 2*s.Params < e.Params {
		e.lower(Unsure, "training a part of the parameters has not been measured")
	}
	if s.DynamicShapes {
		e.lower(Unsure, "shapes that change from step to step fragment the memory")
	}
	switch s.Optimizer {
	case training.Adafactor, training.Adam8bit, training.Adagrad, training.RMSprop:
		e.lower(Unsure, "optim=%s has not been measured", s.Optimizer)
	}
}

// MarginMiB is booked on top of every estimate, beside a percentage of it by
// confidence (measured.go).
const MarginMiB = 128

// tracedMarginPct is the margin of a sure trace. Of 938 measured runs of timm models, spikes left out,
// 0.4 % need more; the runs with the most took scratch memory for their convolutions (README.md).
const tracedMarginPct = 18

// margin sets what to book. For Bound the caller books the GPU; the number is
// then only the least that the job needs.
func (e *Estimate) margin() {
	e.ReserveMiB = e.Confidence.Reserve(e.MiB)
	if e.Path == FromTrace && e.Confidence == Sure {
		e.ReserveMiB = booking(e.MiB, tracedMarginPct)
	}
}

// Reserve returns the booking for an estimate of mib; a sure trace has a margin of its own (margin).
func (c Confidence) Reserve(mib int64) int64 {
	if c == Sure {
		return booking(mib, sureMarginPct)
	}
	return booking(mib, unsureMarginPct)
}

func booking(mib, marginPct int64) int64 { return mib + mib/100*marginPct + MarginMiB }
