// SPDX-License-Identifier: Apache-2.0

package graph

import "carma/estimator/summary"

// headDim is assumed where neither shapes nor names give the heads.
const headDim = 64

// attention is how a module that attends computes its result, from the projections seen so far.
type attention struct{ *outline }

// project finds the input of a Linear inside an attention module: fused qkv,
// separate q, k and v on the same input, or the projection of the result.
func (b *builder) project(f *frame, r *summary.Row) {
	in, in2nd := linearIn(r)
	ok := func(t int32) bool { return t >= 0 && (b.readable(t, in, r.Out) || b.readable(t, in2nd, r.Out)) }
	f.nLinear++
	if f.nProj == 0 {
		if b.onlyProjection(f, r) {
			if b.attn.functionalQKV(f) {
				b.attn.attention(f, int64(b.shape(f.attnIn).Last()))
			} else {
				f.attnIn = b.cur
			}
			return
		}
		b.linearInput(r)
		f.attnIn = b.cur
		return
	}
	if f.attnRun {
		b.linearInput(r)
		return
	}
	if int(f.nProj) < 3 && b.attn.separate(f) {
		if t := b.cur; t != f.projs[f.nProj-1] && ok(t) && b.attn.tokens(t) == outTokens(r) {
			return // keys and values of a reduced map
		}
		if ok(f.attnIn) {
			b.cur = f.attnIn
			return
		}
	}
	b.attn.attention(f, b.attn.resultWidth(f, in, in2nd))
	if !ok(b.cur) {
		b.linearInput(r)
	}
}

// resultWidth chooses between the two in-features that a projection of the
// result may have: a third of what was projected, or else the smaller.
func (b *attention) resultWidth(f *frame, a, c int64) int64 {
	var width int64
	for _, t := range f.projs[:f.nProj] {
		width += b.width(f, t)
	}
	switch {
	case a <= 0 || 3*c == width:
		return c
	case c <= 0 || 3*a == width:
		return a
	}
	return min(a, c)
}

// tokens of a tensor: its elements over its last dimension.
func (b *attention) tokens(t int32) int64 {
	return b.elems(t) / max(int64(b.shape(t).Last()), 1)
}

func outTokens(r *summary.Row) int64 { return r.Out.Elems() / max(int64(r.Out.Last()), 1) }

// width is the number of features of a projection.
func (b *attention) width(f *frame, t int32) int64 {
	if s := b.shape(t); f.convs && s.N == 3 {
		return int64(s.D[0])
	}
	return int64(b.shape(t).Last())
}

// separate says whether a Linear reads the attention's input rather than its
// result: q, k and v (or q and kv) have been seen less than completely.
func (b *attention) separate(f *frame) bool {
	if f.attnIn < 0 {
		return false
	}
	first := b.width(f, f.projs[0])
	x := b.width(f, f.attnIn)
	if f.nProj == 1 && x > 0 && first >= 2*x && first%x == 0 {
		return false // fused qkv
	}
	var width int64
	for _, t := range f.projs[:f.nProj] {
		width += b.width(f, t)
	}
	return width < 3*first
}

// onlyProjection: this Linear is the only one left in its attention module,
// so q, k and v were computed by a functional call that no row shows.
func (b *outline) onlyProjection(f *frame, r *summary.Row) bool {
	n := 0
	for j := max(b.rows[f.end].Start, f.end-maxChildren); j >= 0 && j < f.end; j++ {
		if o := &b.rows[j]; rowClass(o) == clsLinear && sameLead(o.Out, r.Out) {
			n++
		}
	}
	return n == 1
}

// sameLead: equal but for the last dimension.
func sameLead(a, c Shape) bool {
	if a.N != c.N || a.N < 2 {
		return false
	}
	for k := 0; k < int(a.N)-1; k++ {
		if a.D[k] != c.D[k] {
			return false
		}
	}
	return true
}

// functionalQKV makes queries, keys and values of the current tensor.
func (b *attention) functionalQKV(f *frame) bool {
	s := b.shape(b.cur)
	if s.N == 0 || s.Last() <= 0 {
		return false
	}
	in := b.cast(b.cur, b.lowWidth())
	f.attnIn = in
	x := s.D[s.N-1]
	s.D[s.N-1] = int32(min(int64(x)*3, 1<<30))
	out := b.tensor(s, b.meta[in].mult, b.lowWidth())
	w := mul(int64(x)*int64(x), 3)
	b.op(Op{In: in1(in), Out: out, Keep: KeepIn0, Params: b.params(w+3*int64(x), 3*int64(x)), Aux: b.weightCast(w)})
	b.cur = out
	f.projs[0] = out
	f.nProj = 1
	return true
}

// functionalAttention is nn.MultiheadAttention, which calls none of its
// children as modules.
func (b *attention) functionalAttention(f *frame) {
	var tmp frame
	tmp.attnIn = -1
	if !b.functionalQKV(&tmp) {
		return
	}
	b.attention(&tmp, int64(b.shape(tmp.attnIn).Last()))
	x := int64(b.shape(b.cur).Last())
	in := b.cast(b.cur, b.lowWidth())
	out := b.like(in)
	b.op(Op{In: in1(in), Out: out, Keep: KeepIn0, Params: b.params(x*x+x, x)})
	b.cur = out
	touch(f)
}

// scoresRow: a row of shape [heads, N, M] inside an attention shows its
// matrix of weights: the attention is computed in steps.
func (b *attention) scoresRow(f *frame, r *summary.Row) bool {
	if f.attnRun || r.Out.N != 3 || r.Out.Elems() == b.elems(b.cur) ||
		b.elems(b.cur) == mul(r.Out.Elems(), int64(b.meta[b.cur].mult)) {
		return false
	}
	if s := b.shape(b.cur); s.N == 3 && s.D[1] == r.Out.D[1] && s.D[2] == r.Out.D[2] {
		return false // a map of fewer channels, not weights over tokens
	}
	square := r.Out.D[1] == r.Out.D[2]
	if f.nProj == 0 {
		if c := rowClass(r); !square || c != clsDropout && r.Kind != "Softmax" || !b.functionalBefore(f) {
			return false
		}
		if !b.functionalQKV(f) {
			return false
		}
	}
	q := f.projs[0]
	tokens := b.elems(q) / max(b.width(f, q), 1)
	n := int64(r.Out.D[1])
	if n > 1 && (square || tokens%n == 0 && rowClass(r) != clsIdentity) {
		f.scores, f.windows = r.Out.Elems(), 1
		if tokens%n == 0 {
			f.windows = int32(min(tokens/n, 1<<20))
		}
	}
	return true
}

// functionalBefore: weights of an attention, but no projection before them.
func (b *attention) functionalBefore(f *frame) bool {
	return b.shape(b.cur).N >= 2 && f.nLinear <= 1
}

// qkNorm normalises queries or keys before the product: a view of the
// projection is kept, and the result.
func (b *attention) qkNorm(f *frame, r *summary.Row) {
	q := f.projs[0]
	out := b.tensor(r.Out, b.meta[q].mult, b.g.Tensors[q].Width)
	b.op(Op{In: in1(q), Out: out, Keep: KeepIn0 | KeepOut, Params: b.normParams(r, normChannels(r)), GradDrop: true})
}

// attention computes softmax(q k^T) v from the projections seen so far; out
// is the width of the result, 0: a third of what was projected.
func (b *attention) attention(f *frame, out int64) {
	f.attnRun = true
	if f.nProj == 0 || b.shape(f.projs[0]).N == 0 {
		return
	}
	q := f.projs[0]
	in := [3]int32{-1, -1, -1}
	var width int64
	for k, t := range f.projs[:f.nProj] {
		in[k] = t
		width += b.width(f, t)
	}
	if out <= 0 || out > width {
		out = max(width/3, 1)
	}
	tokens := b.elems(q) / max(b.width(f, q), 1)
	s := b.shape(q)
	last := s.N - 1
	if f.convs && s.N == 3 {
		last = 0
	}
	s.D[last] = int32(min(out, 1<<30))
	mult := b.meta[q].mult
	w := b.lowWidth()
	if b.eager(f) {
		b.eagerAttention(f, in, s, mult, tokens, out)
		return
	}
	if b.rows[f.end].Kind == "EvaAttention" {
		// Rotary position embeddings make new queries and keys.
		b.assume("rotary position embeddings in EvaAttention")
		rotated := b.tensor(s, mult*2, w)
		b.op(Op{In: in, Out: rotated})
		in[1] = rotated
	}
	o := b.tensor(s, mult, w)
	heads := max(out/headDim, 1)
	b.op(Op{In: in, Out: o, Attention: true, Keep: KeepIn0 | KeepIn1 | KeepIn2 | KeepOut,
		Aux: mul(mul(heads, tokens), mul(b.opt.Batch, 4))})
	b.cur = o
}

func (b *attention) eager(f *frame) bool {
	switch {
	case b.opt.Attention == Eager:
		return true
	case b.opt.Attention.fused():
		return false
	case f.scores > 0:
		return true
	}
	kind := b.rows[f.end].Kind
	if has(kind, "Sdpa", "Flash") {
		return false
	}
	if b.rotary {
		b.assume("fused attention: rotary embeddings are the model's, not each attention's (else say attn=eager)")
		return false
	}
	if b.fromRepr && !has(kind, "MultiheadAttention") {
		b.assume("attention in steps, not fused (say attn=sdpa or attn=flash)")
		return true
	}
	return false
}

// attentionDrops says whether the attention's weights go through an active
// dropout: in a representation, one of its own with p above 0.
func (b *attention) attentionDrops(f *frame) bool {
	if !b.drop || !b.fromRepr {
		return b.drop
	}
	for j := max(b.rows[f.end].Start, f.end-maxChildren); j >= 0 && j < f.end; j++ {
		if r := &b.rows[j]; rowClass(r) == clsDropout && r.Attr.DropP != 0 {
			return true
		}
	}
	return false
}

// eagerAttention: matmul copies q, k and v into batched form and keeps them,
// softmax keeps its output, an active dropout keeps its mask and its output.
func (b *attention) eagerAttention(f *frame, in [3]int32, s Shape, mult int32, tokens, out int64) {
	w := b.lowWidth()
	n, windows := f.scores, f.windows
	if n == 0 {
		windows = mult
		perWindow := tokens / max(int64(mult), 1)
		n = mul(max(out/headDim, 1), mul(perWindow, perWindow))
		b.assume("attention heads of 64")
	}
	copies := b.tensor(s, mult*3, w)
	b.op(Op{In: in, Out: copies, Attention: true})
	sc := summary.Dims(int32(min(n, 1<<31-1)))
	scores := b.tensor(sc, windows, w)
	b.op(Op{In: in1(copies), Out: scores, Keep: KeepIn0})
	soft := b.cast(scores, b.fullWidth())
	prob := b.tensor(sc, windows, b.g.Tensors[soft].Width)
	b.op(Op{In: in1(soft), Out: prob, Keep: KeepOut})
	p := prob
	if b.attentionDrops(f) {
		p = b.tensor(sc, windows, b.g.Tensors[prob].Width)
		b.op(Op{In: in1(prob), Out: p, Aux: b.g.Tensors[p].Elems})
	}
	p = b.cast(p, w)
	o := b.tensor(s, mult, w)
	b.op(Op{In: in2(p, copies), Out: o, Keep: KeepIn0 | KeepIn1})
	// transpose(1, 2).reshape copies before the projection
	b.cur = o
}

// bareAttention is a module that does attention with its own parameters, such
// as XLNet's: queries, keys, values, positions and output are products with
// square matrices. It keeps both biased queries, keys, values, the keys of
// the positions (twice as many) and the result, and the matrix of weights
// with the mask of its dropout.
func (b *attention) bareAttention(r *summary.Row) {
	s := b.shape(b.cur)
	x := int64(s.Last())
	if x <= 0 {
		return
	}
	in := b.cast(b.cur, b.lowWidth())
	from := int32(len(b.g.Params))
	left := r.Params
	for n := 0; left > 0 && n < 8; n++ {
		k := min(left, mul(x, x))
		b.g.Params = append(b.g.Params, Param{Elems: k})
		left -= k
	}
	tokens := b.tokens(in)
	scores := mul(mul(max(x/headDim, 1), mul(tokens, tokens)), b.opt.Batch)
	w := int64(b.lowWidth())
	kept := mul(mul(b.g.Tensors[in].Elems, 7), w)
	if !b.opt.Attention.fused() {
		kept = add(kept, mul(scores, 2*int64(b.fullWidth())+1))
	}
	b.assume("attention heads of 64")
	// scores by content, by position (twice as wide) and shifted, and their sum
	tmp := mul(scores, 5*w)
	out := b.like(in)
	b.op(Op{
		In: in1(in), Out: out, Keep: KeepIn0, Aux: kept, FwdTmp: tmp, BwdTmp: tmp,
		Params: [2]int32{from, int32(len(b.g.Params))},
	})
	b.cur = out
}

// rotaryOfModel says whether all rotary embeddings of a representation stand outside of the
// attentions. From release 4.48 on transformers hands them down from the model, and what its
// attention classes call then is F.scaled_dot_product_attention unless the user says otherwise.
func rotaryOfModel(rows []summary.Row) bool {
	inside := int32(-1) // the last row that belongs to an attention
	found := false
	for i := len(rows) - 1; i >= 0; i-- { // a module stands behind what it contains
		r := &rows[i]
		if role(r.Role)&roleAttention != 0 && (inside < 0 || int32(i) < inside) {
			inside = r.Start
		}
		if !has(r.Kind, "RotaryEmbedding") {
			continue
		}
		if inside >= 0 && int32(i) >= inside {
			return false
		}
		found = true
	}
	return found
}
