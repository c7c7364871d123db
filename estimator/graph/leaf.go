// SPDX-License-Identifier: Apache-2.0

package graph

import "carma/estimator/summary"

func (b *builder) leaf(i int32) {
	r := &b.rows[i]
	c := rowClass(r)
	if b.gate >= 0 && r.HasOut && c != clsConv && c != clsLinear && !isAct(c) {
		b.gateDue(r)
	}
	switch c {
	case clsConv, clsConvT:
		b.convs.conv(r, c == clsConvT)
	case clsLinear:
		b.linear(i)
	case clsEmbedding:
		b.embedding(r)
	case clsBatchNorm, clsLayerNorm, clsRMSNorm, clsNormAct:
		b.branchStart()
		b.norm(i)
	case clsActOut, clsActOutNew, clsActIn, clsActLeaky, clsActComposed:
		b.lastAct(i)
		b.act(r, c)
	case clsMaxPool, clsAvgPool, clsGlobalPool:
		b.pool(r, c)
	case clsIdentity, clsFlatten, clsDropPath:
		b.pass(r)
	case clsDropout:
		b.dropout(r)
	case clsSide:
		b.sideRow(r)
	case clsScale:
		b.scale(r)
	case clsPad, clsUpsample, clsUnfold:
		b.resample(r, c)
	default:
		b.unknownLeaf(r)
	}
	b.weightOp = c == clsConv || c == clsLinear || c == clsConvT
}

// gateDue applies a waiting gate when a row has the full size again.
func (b *joins) gateDue(r *summary.Row) {
	if r.Out.Elems() == b.elems(b.gate) && b.elems(b.cur) < b.elems(b.gate) {
		b.applyGate()
	}
}

// applyGate multiplies the waiting tensor by the small one: both are kept,
// and the backward makes a full-size product to sum up.
func (b *joins) applyGate() {
	big := b.gate
	b.gate = -1
	out := b.like(big)
	b.op(Op{In: in2(big, b.cur), Out: out, Keep: KeepIn0 | KeepIn1, BwdTmp: b.g.Tensors[big].Bytes})
	b.cur = out
}

func touch(f *frame) {
	if f != nil {
		f.computed, f.sinceAdd = true, true
	}
}

// act applies an activation: see the classes in kinds.go.
func (b *builder) act(r *summary.Row, c class) {
	f := b.scope()
	if f != nil && f.role&roleAttention != 0 {
		if b.attn.scoresRow(f, r) {
			return
		}
		if !f.attnRun && f.nProj > 0 && r.Out.Elems() < b.elems(b.cur) {
			switch r.Out.N {
			case 2:
				b.attn.attention(f, int64(r.Out.Last()))
			case 3:
				f.convs = true
				b.attn.attention(f, int64(r.Out.D[0]))
			}
		}
	}
	if b.half >= 0 {
		b.half = -1
	}
	mult := b.fit(r)
	half := b.half
	in := b.cur
	w := b.g.Tensors[in].Width
	s := r.Out
	if !r.HasOut {
		s = b.shape(in)
	}
	spatial := s.N >= 3
	switch c {
	case clsActOut:
		if r.Attr.Known && !r.Attr.Inplace && b.keptInput(in) || b.isSkip(in) {
			out := b.tensor(s, mult, w)
			b.op(Op{In: in1(in), Out: out, Keep: KeepOut})
			b.cur = out
			break
		}
		b.op(Op{In: in1(in), Out: in, Keep: KeepOut})
	case clsActLeaky:
		if spatial {
			b.op(Op{In: in1(in), Out: in, Keep: KeepOut})
			break
		}
		out := b.tensor(s, mult, w)
		b.op(Op{In: in1(in), Out: out, Keep: KeepIn0})
		b.cur = out
	case clsActOutNew:
		out := b.tensor(s, mult, w)
		b.op(Op{In: in1(in), Out: out, Keep: KeepOut})
		b.cur = out
	case clsActIn:
		out := b.tensor(s, mult, w)
		o := Op{In: in1(in), Out: out, Keep: KeepIn0}
		if r.Params > 0 { // PReLU: one slope a channel or one in all
			o.Params = b.params(r.Params, 0)
			o.BwdTmp = b.g.Tensors[in].Bytes
		}
		b.op(o)
		b.cur = out
	case clsActComposed:
		b.composedAct(r, in, s, mult)
	}
	if f != nil && b.isSkip(in) && has(b.rows[f.end].Kind, "NormFree") {
		// x*beta after the activation: one more tensor.
		out := b.like(b.cur)
		b.op(Op{In: in1(b.cur), Out: out})
		b.cur = out
	}
	if half >= 0 && b.elems(half) == 2*s.Elems()*int64(mult) {
		// act(x1) * x2: both are kept; x2 is a view of the undivided tensor.
		out := b.tensor(s, mult, w)
		b.op(Op{In: in2(b.cur, half), Out: out, Keep: KeepIn0 | KeepIn1})
		b.cur = out
	}
	b.half = -1
}

// isSkip says that t is the shortcut of an open residual block, which an
// activation must not overwrite.
func (b *nesting) isSkip(t int32) bool {
	f := b.scope()
	return f != nil && f.role&roleResidual != 0 && f.skip == t && !b.g.Tensors[t].NoGrad
}

// keptInput says that an op before holds this tensor for its backward, so
// that an in-place activation would be an error.
func (b *tape) keptInput(t int32) bool {
	if n := len(b.g.Ops); n > 0 {
		o := &b.g.Ops[n-1]
		return o.Out == t && o.Keep&KeepOut != 0
	}
	return false
}

// composedAct: activations written in Python. QuickGELU x*sigmoid(1.702x)
// keeps x, the sigmoid's output; NewGELU's tanh form keeps x, the tanh
// and both factors of the last product.
func (b *tape) composedAct(r *summary.Row, in int32, s Shape, mult int32) {
	w := b.g.Tensors[in].Width
	extra := composedExtra(r.Kind)
	out := b.tensor(s, mult, w)
	b.op(Op{In: in1(in), Out: out, Keep: KeepIn0, Aux: mul(b.g.Tensors[in].Bytes, extra), FwdTmp: b.g.Tensors[in].Bytes,
		BwdTmp: b.g.Tensors[in].Bytes})
	b.cur = out
}

// composedExtra is how many tensors such an activation keeps besides its input.
func composedExtra(kind string) int64 {
	if has(kind, "NewGELU", "FastGELU", "Accurate") {
		return 3
	}
	return 1
}

// lastAct: in a block of the ResNet kind the shortcut is added in place before
// the activation that ends it.
func (b *joins) lastAct(i int32) {
	f := b.top()
	if f == nil || f.added || f.role&(rolePostAct|roleBranches) == 0 {
		return
	}
	j := i + 1
	for j < f.end && rowClass(&b.rows[j]) == clsIdentity {
		j++
	}
	if j != f.end {
		return
	}
	if f.role&roleBranches != 0 {
		b.sumBranches(f)
		return
	}
	if f.sinceAdd && b.residual(f, true) {
		f.added = true
	}
}

func (b *builder) pool(r *summary.Row, c class) {
	if c == clsGlobalPool || r.Out.N == 3 && r.Out.D[1] == 1 && r.Out.D[2] == 1 {
		b.globalPool(r)
		return
	}
	b.poolInput(r)
	in := b.cur
	out := b.tensor(r.Out, 1, b.g.Tensors[in].Width)
	o := Op{In: in1(in), Out: out, Keep: KeepIn0}
	if c == clsMaxPool {
		o.Aux = mul(b.g.Tensors[out].Elems, 8) // int64 indices
	}
	b.op(o)
	b.cur = out
}

// poolInput finds the tensor that a pool with r's channels reads.
func (b *nesting) poolInput(r *summary.Row) {
	if b.shape(b.cur).N != r.Out.N || b.shape(b.cur).D[0] == r.Out.D[0] {
		return
	}
	for k := len(b.frames) - 1; k >= 0; k-- {
		e := b.frames[k].entry
		if s := b.shape(e); s.N == r.Out.N && s.D[0] == r.Out.D[0] {
			b.restart(e)
			return
		}
	}
}

func (b *builder) globalPool(r *summary.Row) {
	if r.HasOut && r.Out.Elems() == b.elems(b.cur) {
		// VGG's AdaptiveAvgPool2d(7) on 7x7 still copies.
		out := b.tensor(r.Out, 1, b.g.Tensors[b.cur].Width)
		b.op(Op{In: in1(b.cur), Out: out, Keep: KeepIn0})
		b.cur = out
		return
	}
	b.poolInput(r)
	b.squeeze(r.Out)
}

// squeeze makes the mean over positions; if a gate is being computed the
// large tensor waits for it.
func (b *joins) squeeze(s Shape) {
	big := b.cur
	out := b.tensor(s, 1, b.g.Tensors[big].Width)
	b.op(Op{In: in1(big), Out: out})
	b.meta[big].used = true
	b.cur = out
	b.gate = big
}

func (b *builder) pass(r *summary.Row) {
	if r.Params > 0 && b.fromInfo {
		b.folded(r)
		return
	}
	if !r.HasOut {
		return
	}
	f := b.scope()
	if f != nil && f.role&roleAttention != 0 && f.nProj > 0 && r.Out.Elems() < b.elems(b.cur) {
		b.attn.scoresRow(f, r)
		return
	}
	want, have := r.Out.Elems(), b.elems(b.cur)
	switch {
	case want == have:
	case want < have && (r.Out.N == 1 || r.Out.N == 3 && r.Out.D[1] == 1 && r.Out.D[2] == 1):
		b.squeeze(r.Out) // pooled
	default:
		if t := b.shortcut(r.Out); t >= 0 && !b.match(r.Out) {
			b.restart(t)
			return
		}
		b.fit(r)
	}
}

// folded is a container below which torchinfo printed nothing: of its layers, parameters and
// result are known, and a layer at least keeps the result. In a residual block whose beginning
// has another size it makes the shortcut, which by its parameters may be seen to be a
// pointwise convolution with its norm.
func (b *nesting) folded(r *summary.Row) {
	projection := false
	if f := b.scope(); f != nil && f.role&roleResidual != 0 && r.HasOut && b.elems(b.cur) == r.Out.Elems() &&
		b.elems(f.entry) != r.Out.Elems() {
		b.restart(f.entry)
		in, out := int64(b.shape(f.entry).D[0]), int64(r.Out.D[0])
		projection = r.Out.N == 3 && b.shape(f.entry).N == 3 && r.Params == mul(in, out)+2*out
	}
	if projection {
		b.g.Projected = add(b.g.Projected, r.Params)
	} else {
		b.g.Folded = add(b.g.Folded, r.Params)
	}
	o := Op{In: in1(-1), Out: -1, Params: b.params(r.Params, 0)}
	if r.HasOut {
		o.In, o.Out, o.Keep = in1(b.cur), b.tensor(r.Out, 1, b.g.Tensors[b.cur].Width), KeepOut
		b.cur = o.Out
	}
	b.op(o)
}

// shortcut is what a module that passes on a map of another size reads where a
// block's own beginning could not be told: the last map of that very shape, which
// another branch has read before. -1: there is none.
func (b *nesting) shortcut(s Shape) int32 {
	if f := b.scope(); f == nil || f.role&roleResidual == 0 || s.N != 3 {
		return -1
	}
	for k := 1; k <= len(b.recent) && k <= b.nRecent; k++ {
		if t := b.recent[(b.nRecent-k)%len(b.recent)]; b.shape(t) == s && b.meta[t].used {
			return t
		}
	}
	return -1
}

func (b *builder) dropout(r *summary.Row) {
	f := b.scope()
	if f != nil && f.role&roleAttention != 0 && b.attn.scoresRow(f, r) {
		return
	}
	p := r.Attr.DropP
	if f != nil && f.role&roleAttention != 0 && b.fromRepr && (f.nProj >= 2 && !f.attnRun ||
		has(r.Name, "attn_drop", "attention_drop")) {
		return // of the attention's weights: see eagerAttention
	}
	if !b.drop || r.Attr.Known && p == 0 {
		b.pass(r)
		return
	}
	mult := b.fit(r)
	in := b.cur
	out := b.tensor(b.outShape(r, in), mult, b.g.Tensors[in].Width)
	b.op(Op{In: in1(in), Out: out, Aux: b.g.Tensors[out].Elems}) // bool mask
	b.cur = out
}

func (b *tape) outShape(r *summary.Row, in int32) Shape {
	if r.HasOut {
		return r.Out
	}
	return b.shape(in)
}

func (b *builder) resample(r *summary.Row, c class) {
	in := b.cur
	if r.HasOut && r.Out.Elems() == b.elems(in) && c == clsPad {
		out := b.tensor(r.Out, 1, b.g.Tensors[in].Width)
		b.op(Op{In: in1(in), Out: out})
		b.cur = out
		return
	}
	b.poolInput(r)
	in = b.cur
	out := b.tensor(b.outShape(r, in), 1, b.g.Tensors[in].Width)
	o := Op{In: in1(in), Out: out}
	if r.Kind == "BlurPool2d" {
		// pads by reflection (the padded copy is kept), then a depthwise conv
		o.Keep, o.Aux = 0, b.g.Tensors[in].Bytes
		b.g.CuDNN = true
	}
	b.op(o)
	b.cur = out
}

func (b *builder) embedding(r *summary.Row) {
	if b.vocab == 0 && r.Attr.In > 1 {
		b.vocab, b.vocabDim = r.Attr.In, r.Attr.Out
	}
	if b.g.Tensors[b.cur].NoGrad || !b.fromRepr {
		out := b.tensor(r.Out, 1, b.fullWidth())
		b.op(Op{In: in1(b.cur), Out: out, Keep: KeepIn0, GradDrop: true, Params: b.params(r.Params, 0)})
		b.cur = out
		return
	}
	// A further embedding (positions, segments) is added to the first.
	out := b.tensor(b.shape(b.cur), 1, b.fullWidth())
	b.op(Op{In: in1(-1), Out: out, GradDrop: true, Params: b.params(r.Params, 0)})
	first := b.cur
	b.cur = out
	b.addTo(first, false)
}

// unknownLeaf is a module without a known class and without children: it is
// counted, its parameters are, and if it keeps the size it is taken to keep
// one tensor.
func (b *builder) unknownLeaf(r *summary.Row) {
	if r.Params > 0 {
		p := b.params(r.Params, 0)
		b.g.Ops = append(b.g.Ops, Op{In: in1(-1), Out: -1, Params: p})
	}
	if !r.HasOut || role(r.Role)&roleMlp != 0 {
		b.unknown[r.Kind]++
		return
	}
	switch {
	case r.Kind == "MultiheadAttention":
		b.attn.functionalAttention(b.top())
		return
	case r.Out.Elems() == b.elems(b.cur):
		b.unknown[r.Kind]++
		out := b.tensor(r.Out, b.meta[b.cur].mult, b.g.Tensors[b.cur].Width)
		b.op(Op{In: in1(b.cur), Out: out, Keep: KeepIn0})
		b.meta[b.cur].guessed = true
		b.cur = out
	default:
		// A side value (a bias table, a mask): what comes next is unaffected.
		b.unknown[r.Kind]++
		b.g.Guessed = add(b.g.Guessed, mul(r.Out.Elems(), mul(b.opt.Batch, 4)))
	}
}
