// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"slices"

	"carma/estimator/graph"
	"carma/estimator/summary"
	"carma/estimator/training"
)

// Evidence that a summary must show before its estimate is sure. Each figure was
// judged on measured runs, every family left out in turn (README.md).
const (
	// agreePct is how far apart the two counts of kept memory may be, as a part of
	// the larger count, and agreeEstimatePct the same as a part of the whole
	// estimate: a smaller difference does not matter.
	agreePct         = 18
	agreeEstimatePct = 4
	// mostOutputs is how many times the outputs of all rows can be kept at most; no
	// measured model keeps more than 1.3 times.
	mostOutputs = 2
	// mostWishMiB is more than any GPU has: a text may have filters of any number.
	mostWishMiB = 1 << 20
)

// mostClasses bounds the classes that are looked up in a summary: no model has as many,
// and the rest counts as unmeasured.
const mostClasses = 512

// wasMeasured says whether a class of modules, or its naming pattern, has enough measured runs
// behind it: see measured.go.
func wasMeasured(kind string) bool {
	_, class := slices.BinarySearch(measured[:], kind)
	if class {
		return true
	}
	_, pattern := slices.BinarySearch(measured[:], graph.Pattern(kind))
	return pattern
}

// unmeasured finds the first class of modules that has no measured runs behind it, and counts
// its modules. The outermost module is left out: its name is the model's. So is a module that
// chains a convolution, a norm and an activation, and does nothing beyond these.
func unmeasured(m *summary.Model, measured func(kind string) bool) (kind string, count int) {
	known := map[string]bool{}
	for i := range m.Rows {
		r := &m.Rows[i]
		if known[r.Kind] || i > 0 && r.Start == 0 && i == len(m.Rows)-1 || chains(m.Rows, i) {
			continue
		}
		if kind == "" {
			if known[r.Kind] = len(known) < mostClasses && measured(r.Kind); !known[r.Kind] {
				kind = r.Kind
			}
		}
		if r.Kind == kind {
			count++
		}
	}
	return kind, count
}

// chains says that a row is a container of one convolution, perhaps followed by one norm
// and one activation.
func chains(rows []summary.Row, i int) bool {
	inside := i - int(rows[i].Start)
	if rows[i].Start < 0 || inside < 1 || inside > 3 || !graph.Convolution(rows[i-inside].Kind) {
		return false
	}
	for j := i - inside; j < i; j++ {
		if int(rows[j].Start) != j || !graph.ConvNormAct(rows[j].Kind) || j > i-inside && graph.Convolution(rows[j].Kind) {
			return false
		}
	}
	return rows[i].Params <= 0
}

// earn lowers the confidence where evidence is missing: kinds of modules that were
// never measured, parameters that no row shows, two counts that disagree, a result
// that physics excludes. counted says that the bytes kept were counted by autograd
// itself (contrib/summary), so that nothing had to be inferred.
func (e *Estimate) earn(s Spec, m *summary.Model, g *graph.Graph, r training.Result,
	measured func(kind string) bool, counted bool,
) {
	if !counted {
		before := len(e.Reasons)
		if kind, n := unmeasured(m, measured); n > 0 {
			e.lower(Unsure, "%d modules are of class %s, and no model with this class has been measured", n, kind)
		}
		if g.Hidden != 0 {
			e.lower(Unsure, "%d parameters belong to calls that no row shows", max(g.Hidden, -g.Hidden))
		}
		e.twoCounts(s, g)
		if len(e.Reasons) > before {
			e.want(Trace)
		}
	}
	if least := r.Parts[training.Parameters] + r.Parts[training.OptimizerState] + g.Largest(); r.Peak < least {
		e.lower(Bound, "parameters, optimizer and the largest layer alone are %d MiB", least>>20)
	}
}

// twoCounts holds what the graph says is kept for the backward pass against what the
// outputs of the rows say, and against all that the rows make.
func (e *Estimate) twoCounts(s Spec, g *graph.Graph) {
	if s.Precision != graph.FP32 {
		return // never sure, and the second count is of four-byte numbers
	}
	switch {
	case g.Kept > mostOutputs*g.Outputs && g.Kept-g.Outputs > e.little():
		e.lower(Bound, "%d MiB kept for the backward pass are more than all modules produce", g.Kept>>20)
	case !e.agree(s, g):
		e.lower(Unsure, "%d MiB are kept for the backward pass by the calls between modules, %d MiB by their outputs",
			g.Kept>>20, g.ByOutputs>>20)
	}
}

// agree says whether the two counts of kept memory agree.
func (e *Estimate) agree(s Spec, g *graph.Graph) bool {
	most := max(g.Kept, g.ByOutputs)
	return s.Precision == graph.FP32 && most-min(g.Kept, g.ByOutputs) <= max(most/100*agreePct, e.little())
}

// little is a difference without weight for the estimate.
func (e *Estimate) little() int64 { return e.MiB * mebi / 100 * agreeEstimatePct }

// wish notes what cuDNN would take beside the estimate if it computed the largest convolution by
// FFT. It takes that on an empty GPU alone: where a workspace is refused, PyTorch takes an algorithm
// with a smaller one (README.md), so nothing is booked for it and it is no reason to be unsure.
func (e *Estimate) wish(transform int64) {
	e.WishMiB = max(min(transform>>20, mostWishMiB)-e.scratchMiB(), 0)
}
