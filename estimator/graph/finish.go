// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"sort"

	"carma/estimator/summary"
)

// input makes the tensor that the first row reads.
func (b *outline) input() int32 {
	s := b.opt.Input
	if s.N == 0 {
		s = b.inferInput()
	}
	if s.N == 0 {
		s = summary.Dims(max(b.opt.Seq, 1))
	}
	t := b.tensor(s, 1, b.fullWidth())
	b.g.Tensors[t].NoGrad = true
	b.g.Inputs = append(b.g.Inputs, t)
	return t
}

// inferInput guesses the input's shape from the first rows.
func (b *outline) inferInput() Shape {
	for i := range b.rows {
		if i > 8 {
			break
		}
		r := &b.rows[i]
		if r.HasIn && r.In.N > 0 {
			return r.In
		}
		if !r.HasOut {
			continue
		}
		switch rowClass(r) {
		case clsConv:
			if r.Out.N != 3 {
				return Shape{}
			}
			for _, c := range [...]int64{3, 1, 4, 2} {
				score, area, groups := convFit(r, c)
				if score == denseFit && groups == 1 {
					b.assume("input of the first convolution's extent")
					return summary.Dims(int32(c), stemExtent(r.Out.D[1], area), stemExtent(r.Out.D[2], area))
				}
			}
		case clsLinear:
			in, in2nd := linearIn(r)
			if in == 0 {
				in = in2nd
			}
			s := r.Out
			if s.N > 0 && in > 0 && in < 1<<30 {
				s.D[s.N-1] = int32(in)
				return s
			}
		case clsNormAct, clsBatchNorm, clsLayerNorm:
			return r.Out
		}
	}
	return Shape{}
}

// stemExtent: a large kernel is a patch embedding or a strided stem.
func stemExtent(out int32, area int64) int32 {
	switch {
	case area >= 64:
		k := int32(8)
		for int64(k)*int64(k) < area {
			k++
		}
		return clampDim(int64(out) * int64(k))
	case area > 1 && out >= 2:
		return clampDim(int64(out) * 2)
	}
	return out
}

func clampDim(n int64) int32 { return int32(min(n, 1<<31-1)) }

// finish closes the books: output, what is kept, what was guessed.
func (b *builder) finish() {
	g := b.g
	g.Output = b.cur
	if g.Tensors[b.cur].NoGrad && len(g.Ops) == 0 {
		g.Output = -1
	}
	b.hold()
	g.LacksInput = b.lacksInput
	seen := make([]bool, len(g.Tensors))
	for i := range g.Ops {
		o := &g.Ops[i]
		g.Kept = add(g.Kept, o.Aux)
		for k, t := range o.In {
			if t >= 0 && o.Keep&(1<<k) != 0 {
				b.keep(seen, t)
			}
		}
		if o.Out >= 0 && o.Keep&KeepOut != 0 {
			b.keep(seen, o.Out)
		}
	}
	for t := range g.Tensors {
		if !b.meta[t].used && int32(t) != g.Output {
			g.Guessed = add(g.Guessed, g.Tensors[t].Bytes) // read by a call that no row shows
		}
	}
	for k, n := range b.unknown {
		g.Unknown = append(g.Unknown, Unknown{Kind: k, Count: n})
	}
	sort.Slice(g.Unknown, func(i, j int) bool { return g.Unknown[i].Kind < g.Unknown[j].Kind })
}

func (b *tape) keep(seen []bool, t int32) {
	if seen[t] {
		return
	}
	seen[t] = true
	b.g.Kept = add(b.g.Kept, b.g.Tensors[t].Bytes)
	if b.meta[t].guessed {
		b.g.Guessed = add(b.g.Guessed, b.g.Tensors[t].Bytes)
	}
}

// hold lists what the script's variable for the model's outputs keeps until
// the next forward pass is done: the output, and in the causal language
// models of transformers, which return their key-value cache in training
// too, keys and values of every layer.
func (b *outline) hold() {
	if !b.fromRepr || len(b.rows) == 0 {
		return
	}
	root := b.rows[len(b.rows)-1].Kind
	if !has(root, "LMHead", "CausalLM") {
		return
	}
	for i := range b.g.Ops {
		o := &b.g.Ops[i]
		if !o.Attention {
			continue
		}
		if o.In[1] < 0 { // fused: keys and values are two thirds of one tensor
			b.g.Held = append(b.g.Held, o.In[0])
			b.g.HeldBytes = add(b.g.HeldBytes, b.g.Tensors[o.In[0]].Bytes/3*2)
			continue
		}
		for _, t := range o.In[1:] {
			if t >= 0 {
				b.g.Held = append(b.g.Held, t)
				b.g.HeldBytes = add(b.g.HeldBytes, b.g.Tensors[t].Bytes)
			}
		}
	}
}
