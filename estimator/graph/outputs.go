// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"slices"

	"carma/estimator/summary"
)

// byOutputs counts what is kept for the backward pass from the outputs of the rows
// alone: no inputs are searched, nothing is branched, gated or windowed. What a
// module makes is kept once, by whatever reads it; an activation in place adds
// nothing, a pool adds its indices, an attention and a gate their result, a container
// that prints more than its last row made has joined several, and what the norms of
// summed branches make is not kept. all is every row's output, kept or not.
func (b *outline) byOutputs() (kept, all int64) {
	kept, all = b.elems(b.cur), b.elems(b.cur) // the sample, which the first module keeps
	var last Shape
	normed := false       // the last module with a result of its own was a batch norm
	active := false       // the last module was an activation
	attended := int32(-1) // the last attention: one that contains it adds nothing
	for i := range b.rows {
		r := &b.rows[i]
		if !r.HasOut {
			continue
		}
		out := r.Out.Elems()
		all = add(all, out)
		n := int64(0)
		c := rowClass(r)
		if c == clsBatchNorm && normed && r.Out == last {
			kept -= min(kept, out) // norms side by side are summed up, and the sum is kept
		}
		normed = c == clsBatchNorm || normed && c == clsIdentity
		switch c {
		case clsConv, clsConvT, clsLinear, clsEmbedding, clsBatchNorm, clsLayerNorm, clsNormAct,
			clsActOutNew, clsActIn, clsAvgPool, clsUpsample, clsPad, clsUnfold:
			n = 1
		case clsScale:
			n = 1
			if r.Kind == "GlobalResponseNorm" {
				n = 2
			}
		case clsRMSNorm:
			n = 2
		case clsActComposed:
			n = composedExtra(r.Kind) + 1
		case clsMaxPool:
			n = 3 // int64 indices
		case clsDropout:
			if b.drop {
				kept = add(kept, out/4) // a mask
			}
			if s := r.Out; b.drop && active || s.N == 3 && s.D[1] == s.D[2] && last.N == 2 && last.D[0] == s.D[1] {
				n = 1 // between an activation and its reader, or of the weights of an attention
			}
		case clsUnknown:
			n = b.containerKeeps(int32(i), last)
			if n < 0 {
				kept -= min(kept, b.normsInside(int32(i)))
				n = 1
			}
			if role(r.Role)&roleAttention == 0 {
				break
			}
			if r.Start <= attended {
				n = 0
				break
			}
			attended = int32(i)
			if b.fromRepr && !b.hasLinear(r.Start, int32(i)) {
				n = 4 // queries, keys and values are made of its own parameters
			}
			if b.fromRepr && !b.opt.Attention.fused() && !b.rotary && !has(r.Kind, "Sdpa", "Flash") && r.Out.N == 2 {
				// In steps: the softmax, and where weights are dropped a mask and a copy.
				scores := mul(mul(int64(r.Out.D[0]), int64(r.Out.D[0])), max(int64(r.Out.Last())/headDim, 1))
				kept = add(kept, scores)
				all = add(all, mul(scores, 2))
				if b.drop {
					kept = add(kept, scores+scores/4)
				}
			}
		}
		active = isAct(c)
		kept = add(kept, mul(n, out))
		last = r.Out
	}
	return mul(mul(kept, 4), b.opt.Batch), mul(mul(all, 4), b.opt.Batch)
}

// containerKeeps says how often a container's result is kept; -1: once, and what its
// norms made is not, for it is summed up.
func (b *outline) containerKeeps(i int32, last Shape) int64 {
	r := &b.rows[i]
	switch rl := role(r.Role); {
	case rl&roleBranches != 0:
		return -1
	case rl&(roleAttention|roleGate) != 0, last.N > 0 && r.Out.Elems() > last.Elems():
		return 1
	}
	return 0
}

// normsInside looks at a bounded number of rows, so that nesting costs no square.
func (b *outline) normsInside(i int32) (elems int64) {
	for j := max(b.rows[i].Start, i-maxChildren, 0); j < i; j++ {
		if c := rowClass(&b.rows[j]); c == clsBatchNorm || c == clsNormAct {
			elems = add(elems, b.rows[j].Out.Elems())
		}
	}
	return elems
}

// hiddenParams is how many of the parameters that the summary counts in all no row
// shows, beside what is understood: class tokens and a position table, scales of
// residual branches, the gains of scaled convolutions. Others belong to calls that no
// row shows: tables of relative positions, gates, learned mixes.
func (b *outline) hiddenParams(m *summary.Model) int64 {
	if m.Format == summary.TorchInfo {
		return b.ownParams()
	}
	if m.Format != summary.TorchSummary || m.TotalParams <= 0 || b.gamma {
		return 0
	}
	hidden := m.TotalParams
	var gains int64
	for i := range b.rows {
		r := &b.rows[i]
		hidden -= r.Params
		switch {
		case rowClass(r) == clsScale && r.Params == 0 && r.HasOut:
			if r.Out.N == 3 && r.Out.D[1] == r.Out.D[2] {
				gains += int64(r.Out.D[0])
			} else {
				gains += int64(r.Out.Last())
			}
		case has(r.Kind, "ScaledStdConv"):
			gains += int64(r.Out.D[0])
		}
	}
	if hidden <= 0 {
		return hidden
	}
	const few = 64 // scalars: temperatures, skip gains
	if d := hidden - gains; d >= 0 && d <= few {
		return 0
	}
	for _, n := range [2]int64{hidden, hidden - gains} {
		if b.positions(n) {
			return 0
		}
	}
	return hidden
}

// ownParams are the parameters of containers, which torchinfo shows. The outermost has
// the tables of positions and class tokens.
func (b *outline) ownParams() (hidden int64) {
	for i := range b.rows {
		r := &b.rows[i]
		outermost := r.Start == 0 && i == len(b.rows)-1
		if r.Start >= 0 && r.Start < int32(i) && rowClass(r) == clsUnknown && !outermost {
			hidden = add(hidden, r.Params)
		}
	}
	if b.positions(hidden) {
		return 0
	}
	return hidden
}

// positions says whether n parameters are tables of positions: of the tokens of a
// transformer with a few class tokens, or of the maps that its stages work on.
func (b *outline) positions(n int64) bool {
	if n <= 0 {
		return false
	}
	const classTokens = 8 // class, distillation, registers
	var maps [16]Shape
	nMaps, all := 0, int64(0)
	for i := range b.rows {
		r := &b.rows[i]
		if r.Start >= int32(i) || role(r.Role)&roleResidual == 0 || r.Out.N < 2 || slices.Contains(maps[:nMaps], r.Out) {
			continue
		}
		if nMaps == len(maps) {
			return false
		}
		maps[nMaps] = r.Out
		nMaps++
		all = add(all, r.Out.Elems())
		width := int64(r.Out.Last())
		if width <= 0 {
			continue
		}
		if tokens, k := r.Out.Elems()/width, n/width; n%width == 0 &&
			(r.Out.N == 2 && k <= classTokens || k >= tokens-classTokens && k <= tokens+classTokens) {
			return true
		}
	}
	return n == all
}
