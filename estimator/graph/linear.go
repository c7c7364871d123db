// SPDX-License-Identifier: Apache-2.0

package graph

import "carma/estimator/summary"

// linear handles a Linear, which may be one of an attention's projections.
func (b *builder) linear(i int32) {
	r := &b.rows[i]
	if in, in2nd := linearIn(r); (in > 0 && in <= 3 || in2nd > 0 && in2nd <= 3) && r.HasOut &&
		int64(b.shape(b.cur).Last()) > 3 && i > 0 {
		b.side(r) // reads coordinates
		return
	}
	f := b.scope()
	if f != nil && f.role&roleAttention != 0 {
		b.project(f, r)
	} else {
		b.linearInput(r)
	}
	b.joinGate(f)
	b.dense(r)
	if f != nil && f.role&roleAttention != 0 && !f.attnRun && int(f.nProj) < len(f.projs) {
		f.projs[f.nProj] = b.cur
		f.nProj++
	}
	touch(f)
}

// joinGate multiplies the two halves of a gated perceptron whose gate and value
// are layers of their own (act(gate(x)) * up(x)): both are kept.
func (b *tape) joinGate(f *frame) {
	if f == nil || f.role != roleMlp || f.nBranch == 0 {
		return
	}
	t := f.branches[f.nBranch-1]
	if b.meta[t].used || t == b.cur || b.elems(t) != b.elems(b.cur) {
		return
	}
	f.nBranch--
	out := b.like(b.cur)
	b.op(Op{In: in2(b.cur, t), Out: out, Keep: KeepIn0 | KeepIn1})
	b.cur = out
}

// linearIn gives the possible in-features of a Linear by its parameters.
func linearIn(r *summary.Row) (withBias, without int64) {
	o := int64(r.Out.Last())
	if r.Attr.Known && r.Attr.In > 0 {
		return int64(r.Attr.In), int64(r.Attr.In)
	}
	if o <= 0 {
		return 0, 0
	}
	if r.Params > o && (r.Params-o)%o == 0 {
		withBias = (r.Params - o) / o
	}
	if r.Params%o == 0 {
		without = r.Params / o
	}
	return withBias, without
}

// readable says whether a Linear with that many in-features can read t.
func (b *joins) readable(t int32, in int64, out Shape) bool {
	s := b.shape(t)
	switch {
	case in <= 0:
		return false
	case int64(s.Last()) == in:
		return true
	case s.N == 3 && int64(s.D[0]) == in:
		return true
	case s.N == 2 && out.N == 2 && int64(s.D[0]) == in && out.D[0] == s.D[1]:
		return true // mixes tokens
	case s.Elems() == in:
		return true
	}
	return false
}

// linearInput makes b.cur the tensor that a Linear outside of attention reads.
func (b *joins) linearInput(r *summary.Row) {
	in, in2nd := linearIn(r)
	ok := func(t int32) bool { return b.readable(t, in, r.Out) || b.readable(t, in2nd, r.Out) }
	if ok(b.cur) {
		return
	}
	for _, n := range [2]int64{in, in2nd} {
		if n > 0 && int64(b.shape(b.cur).Last()) == 2*n {
			b.gatedUnit(n)
			return
		}
	}
	if b.gate >= 0 && ok(b.gate) {
		b.applyGate()
		return
	}
	for k := len(b.frames) - 1; k >= 0; k-- {
		if e := b.frames[k].entry; ok(e) {
			b.restart(e)
			return
		}
	}
	for k := 1; k <= len(b.recent) && k <= b.nRecent; k++ {
		if t := b.recent[(b.nRecent-k)%len(b.recent)]; ok(t) {
			b.restart(t)
			return
		}
	}
	b.guessInput(r, max(in, in2nd))
}

// gatedUnit halves the last dimension: x1 * act(x2), everything kept.
func (b *tape) gatedUnit(n int64) {
	s := b.shape(b.cur)
	s.D[s.N-1] = int32(n)
	in := b.cur
	out := b.tensor(s, b.meta[in].mult, b.g.Tensors[in].Width)
	b.op(Op{In: in1(in), Out: out, Keep: KeepIn0})
	b.cur = out
}

// guessInput makes a tensor of the size that the op must read, because none
// was found; its bytes count as guessed.
func (b *tape) guessInput(r *summary.Row, channels int64) {
	if channels <= 0 || channels > 1<<24 {
		return
	}
	s := r.Out
	if s.N == 0 {
		return
	}
	if s.N == 3 && rowClass(r) != clsLinear {
		s.D[0] = int32(channels)
	} else {
		s.D[s.N-1] = int32(channels)
	}
	out := b.tensor(s, 1, b.g.Tensors[b.cur].Width)
	b.meta[out].guessed = true
	b.op(Op{In: in1(b.cur), Out: out})
	b.cur = out
}

// dense emits a matrix product from b.cur to r's output.
func (b *builder) dense(r *summary.Row) {
	in := b.cast(b.cur, b.lowWidth())
	o := int64(r.Out.Last())
	mult := int32(1)
	cin, cin2 := linearIn(r)
	inTokens := b.elems(in) / max(int64(b.shape(in).Last()), 1)
	if last := int64(b.shape(in).Last()); last != cin && last != cin2 {
		if n := max(cin, cin2); n > 0 {
			inTokens = b.elems(in) / n
		}
	}
	outTokens := r.Out.Elems() / max(o, 1)
	switch {
	case outTokens > 3 && inTokens > outTokens && inTokens%outTokens == 0 && r.Out.N > 1 &&
		(b.windowed() || b.meta[in].mult > 1):
		mult = int32(min(inTokens/outTokens, 1<<20)) // windows
	case outTokens == 1 && inTokens > 1:
		// One token is picked, or the mean taken.
		s := summary.Dims(b.shape(in).Last())
		t := b.tensor(s, 1, b.g.Tensors[in].Width)
		b.op(Op{In: in1(in), Out: t})
		in = t
	case outTokens > 3 && inTokens > outTokens && b.windowed():
		mult = int32(min((inTokens+outTokens-1)/outTokens, 1<<20)) // windows of a padded map
	}
	bias := int64(0)
	if cin > 0 && cin*o+o == r.Params {
		bias = o
	}
	out := b.tensor(r.Out, mult, b.lowWidth())
	o2 := Op{In: in1(in), Out: out, Keep: KeepIn0, Aux: b.weightCast(r.Params)}
	if b.tied(r) {
		// The embedding makes its own gradient and adds it to the head's.
		o2.BwdTmp = mul(r.Params, int64(b.fullWidth()))
		o2.Params = b.params(bias, 0)
	} else {
		o2.Params = b.params(r.Params, bias)
	}
	b.op(o2)
	b.cur = out
}

// tied: a Linear that undoes the first embedding shares its weight in the
// language models of transformers, and print(model) shows it twice.
func (b *outline) tied(r *summary.Row) bool {
	if !b.fromRepr || b.vocab == 0 || r.Attr.Out != b.vocab || r.Attr.In != b.vocabDim {
		return false
	}
	if root := b.rows[len(b.rows)-1].Kind; has(root, "ForCausalLM") && !has(root, "OPT", "Gemma", "Bloom") {
		b.assume("output layer not tied to the embedding (say params= if it is)")
		return false
	}
	b.assume("output layer tied to the embedding (say params= if it is not)")
	return true
}

// weightCast: autocast keeps a two-byte copy of each weight it uses.
func (b *tape) weightCast(n int64) int64 {
	if b.opt.Precision == AMP {
		return mul(n, 2)
	}
	return 0
}
