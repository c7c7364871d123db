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
		b.conv(r, c == clsConvT)
	case clsLinear:
		b.linear(i)
	case clsEmbedding:
		b.embedding(r)
	case clsBatchNorm, clsLayerNorm, clsRMSNorm, clsNormAct:
		b.branchStart(i)
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
func (b *builder) gateDue(r *summary.Row) {
	if r.Out.Elems() == b.elems(b.gate) && b.elems(b.cur) < b.elems(b.gate) {
		b.applyGate()
	}
}

// applyGate multiplies the waiting tensor by the small one: both are kept,
// and the backward makes a full-size product to sum up.
func (b *builder) applyGate() {
	big := b.gate
	b.gate = -1
	out := b.like(big)
	b.op(Op{In: in2(big, b.cur), Out: out, Keep: KeepIn0 | KeepIn1, BwdTmp: b.g.Tensors[big].Bytes})
	b.cur = out
}

func (b *builder) touch(f *frame) {
	if f != nil {
		f.computed, f.sinceAdd = true, true
	}
}

// match makes b.cur the tensor that an element-wise module with output shape
// s reads, and says whether one was found.
func (b *builder) match(s Shape) bool {
	want := s.Elems()
	have := b.elems(b.cur)
	if want == have || want == 0 {
		return true
	}
	if f := b.scope(); f != nil {
		for k := len(b.frames) - 1; k >= 0; k-- {
			if e := b.frames[k].entry; b.elems(e) == want {
				b.restart(e)
				return true
			}
		}
		for k := int(f.nBranch) - 1; k >= 0; k-- {
			if b.elems(f.branches[k]) == want {
				b.restart(f.branches[k])
				return true
			}
		}
	}
	if b.windows(s) {
		return true
	}
	for k := 1; k <= len(b.recent) && k <= b.nRecent; k++ {
		t := b.recent[(b.nRecent-k)%len(b.recent)]
		if b.elems(t) == want && !b.meta[t].used && 2*want != have {
			b.restart(t)
			return true
		}
	}
	return false
}

// windows: the current tensor was cut into windows, which the printed batch
// of -1 hides: [49, 96] after [56, 56, 96] is 64 windows a sample.
func (b *builder) windows(s Shape) bool {
	want, have := s.Elems(), b.elems(b.cur)
	if want <= 0 || want >= have || s.N < 1 || have%want != 0 || have/want >= 1<<20 {
		return false
	}
	cs := b.shape(b.cur)
	if m := int64(b.meta[b.cur].mult); m > 1 && want*m == have {
		return true
	}
	if s.N == 1 || !b.windowed() && !(cs.N == 3 && s.N == 2) {
		return false
	}
	return (s.N == 2 || s.N == 3 && cs.N == 3) && (cs.Last() == s.Last() || cs.N == 3 && cs.D[0] == s.Last())
}

// windowed says that an attention module is open, or one that cuts its input.
func (b *builder) windowed() bool {
	for k := range b.frames {
		if b.frames[k].role&roleAttention != 0 || has(b.rows[b.frames[k].end].Kind, "Partition", "Window") {
			return true
		}
	}
	return false
}

// fit makes b.cur an input for an element-wise module with output s; where no
// tensor has that size a new one is made: a small growth is a class token
// joined, anything else is a guess.
func (b *builder) fit(r *summary.Row) (mult int32) {
	s := r.Out
	if !r.HasOut {
		return 1
	}
	if b.match(s) {
		want := s.Elems()
		if want > 0 {
			return int32(max(1, min(b.elems(b.cur)/want, 1<<20)))
		}
		return 1
	}
	want, have := s.Elems(), b.elems(b.cur)
	if b.gate >= 0 && want == b.elems(b.gate) {
		b.applyGate()
		return b.meta[b.cur].mult
	}
	if 2*want == have {
		// A chunk: one half goes on, the other waits to be multiplied.
		b.half = b.cur
		return 1
	}
	if s.N == 3 || s.N == 2 {
		if t, ok := b.concat(int64(s.D[0]), s, false); ok {
			b.cur = t
			return 1
		}
	}
	if cs := b.shape(b.cur); s.N == 3 && cs.N == 3 && cs.D[0] == s.D[0] && s.D[1] > 0 && cs.D[1]/s.D[1] == 2 && cs.D[2]/max(s.D[2], 1) == 2 {
		// F.max_pool2d(x, 2), which no row shows.
		out := b.tensor(s, 1, b.g.Tensors[b.cur].Width)
		b.op(Op{In: in1(b.cur), Out: out, Keep: KeepIn0, Aux: mul(b.g.Tensors[out].Elems, 8)})
		b.assume("a max-pooling call between rows")
		b.cur = out
		return 1
	}
	token := s.N == 2 && want > have && want-have <= 16*int64(s.Last())
	out := b.tensor(s, 1, b.g.Tensors[b.cur].Width)
	b.op(Op{In: in1(b.cur), Out: out})
	if !token && want > have {
		b.meta[out].guessed = true
	}
	if want < have/2 {
		// Something shrank the tensor that no row shows.
		b.g.Guessed = add(b.g.Guessed, mul(mul(have-want, 4), b.opt.Batch))
	}
	b.cur = out
	return 1
}

func (b *builder) norm(i int32) {
	r := &b.rows[i]
	f := b.scope()
	if f != nil && f.role&roleAttention != 0 && f.nProj > 0 && r.HasOut && r.Out.Elems() < b.elems(b.cur) {
		b.qkNorm(f, r)
		return
	}
	c := rowClass(r)
	b.midAdd(f, r, i)
	if cs := b.shape(b.cur); c == clsBatchNorm && r.Out.N == 1 && cs.N == 2 && cs.Last() == r.Out.Last() {
		rr := *r // BatchNorm1d over tokens flattened into the batch
		rr.Out = cs
		r = &rr
	}
	mult := b.fit(r)
	ch := b.normChannels(r)
	p := b.normParams(r, ch)
	in := b.cur
	o := Op{In: in1(in), Keep: KeepIn0, Params: p}
	switch {
	case c == clsRMSNorm:
		// x.pow(2).mean: keeps x; x*rsqrt: x again and rsqrt; weight*x: the product.
		in = b.cast(in, b.fullWidth())
		o.In = in1(in)
		o.Aux = mul(b.opt.Batch, 4*b.elems(in)/max(int64(r.Out.Last()), 1))
		mid := b.tensor(b.shape(in), mult, b.g.Tensors[in].Width)
		o.Out, o.BwdTmp = mid, b.g.Tensors[in].Bytes
		o.Params = [2]int32{}
		b.op(o)
		o = Op{In: in1(mid), Keep: KeepIn0, Params: p}
		in = mid
	case c == clsBatchNorm || c == clsNormAct && b.isBatchNorm(r.Kind):
		// The saved means and deviations are a few KiB and left out.
		b.g.CuDNN = true
	default:
		in = b.cast(in, b.fullWidth())
		o.In = in1(in)
		rows := b.elems(in) / max(int64(ch), 1)
		o.Aux = mul(b.opt.Batch, 8*rows)
		if has(r.Kind, "GroupNorm") || c == clsNormAct {
			o.Aux = mul(b.opt.Batch, 8*min(ch, 32))
		}
	}
	if has(r.Kind, "EvoNorm", "FilterResponse") {
		b.composedNorm(&o, in)
	}
	o.Out = b.tensor(r.Out, mult, b.g.Tensors[in].Width)
	if !r.HasOut {
		b.g.Tensors[o.Out].Shape = b.shape(in)
	}
	b.op(o)
	b.cur = o.Out
	b.touch(f)
	if f != nil && f.postNorm {
		f.sinceAdd = false
	}
}

// composedNorm: norms written in Python keep their intermediates.
func (b *builder) composedNorm(o *Op, in int32) {
	o.Aux = add(o.Aux, mul(b.g.Tensors[in].Bytes, 4))
}

func (b *builder) isBatchNorm(kind string) bool {
	return has(kind, "BatchNorm", "InplaceAbn")
}

// normChannels is the number of normalised channels.
func (b *builder) normChannels(r *summary.Row) int64 {
	if r.Params >= 2 && r.Params%2 == 0 {
		return r.Params / 2
	}
	if r.Attr.Out > 0 {
		return int64(r.Attr.Out)
	}
	return max(int64(r.Out.Last()), 1)
}

func (b *builder) normParams(r *summary.Row, ch int64) [2]int32 {
	if r.Params == ch*2 {
		return b.params(r.Params, ch)
	}
	return b.params(r.Params, 0)
}

// midAdd: in a transformer block the norm before the second half, and the
// norm after each half in a post-norm block, read the sum with the shortcut.
func (b *builder) midAdd(f *frame, r *summary.Row, i int32) {
	if f == nil || b.weightOp || !f.sinceAdd {
		return
	}
	if f.role&roleSelfOut != 0 {
		b.selfOut(f)
		return
	}
	if f.role&roleResidual == 0 || f.role&rolePostAct != 0 || f != b.top() && rowClass(&b.rows[b.top().end]) != clsNormAct {
		return
	}
	if r.Out.Elems() == b.elems(f.skip) && b.elems(b.cur) == b.elems(f.skip) && f.nBranch == 0 {
		b.residual(f, false)
	}
}

// selfOut is Hugging Face's LayerNorm(dense(x) + input of the layer).
func (b *builder) selfOut(f *frame) {
	for k := len(b.frames) - 1; k >= 0; k-- {
		g := &b.frames[k]
		if g.role&roleSelfOut != 0 {
			continue
		}
		if g.skip != b.cur && b.elems(g.skip) == b.elems(b.cur) {
			b.addTo(g.skip, false)
			f.added, f.postNorm = true, true
			return
		}
	}
}

// act applies an activation: see the classes in kinds.go.
func (b *builder) act(r *summary.Row, c class) {
	f := b.scope()
	if f != nil && f.role&roleAttention != 0 {
		if b.scoresRow(f, r) {
			return
		}
		if !f.attnRun && f.nProj > 0 && r.Out.N == 2 && r.Out.Elems() < b.elems(b.cur) {
			b.attention(f, int64(r.Out.Last()))
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
func (b *builder) isSkip(t int32) bool {
	f := b.scope()
	return f != nil && f.role&roleResidual != 0 && f.skip == t && !b.g.Tensors[t].NoGrad
}

// keptInput says that an op before holds this tensor for its backward, so
// that an in-place activation would be an error.
func (b *builder) keptInput(t int32) bool {
	if n := len(b.g.Ops); n > 0 {
		o := &b.g.Ops[n-1]
		return o.Out == t && o.Keep&KeepOut != 0
	}
	return false
}

// composedAct: activations written in Python. QuickGELU x*sigmoid(1.702x)
// keeps x, the sigmoid's output; NewGELU's tanh form keeps x, the tanh
// and both factors of the last product.
func (b *builder) composedAct(r *summary.Row, in int32, s Shape, mult int32) {
	w := b.g.Tensors[in].Width
	extra := int64(1)
	if has(r.Kind, "NewGELU", "FastGELU", "Accurate") {
		extra = 3
	}
	out := b.tensor(s, mult, w)
	b.op(Op{In: in1(in), Out: out, Keep: KeepIn0, Aux: mul(b.g.Tensors[in].Bytes, extra), FwdTmp: b.g.Tensors[in].Bytes, BwdTmp: b.g.Tensors[in].Bytes})
	b.cur = out
}

// lastAct: in a block of the ResNet kind the shortcut is added in place before
// the activation that ends it.
func (b *builder) lastAct(i int32) {
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
func (b *builder) poolInput(r *summary.Row) {
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
func (b *builder) squeeze(s Shape) {
	big := b.cur
	out := b.tensor(s, 1, b.g.Tensors[big].Width)
	b.op(Op{In: in1(big), Out: out})
	b.meta[big].used = true
	b.cur = out
	b.gate = big
}

func (b *builder) pass(r *summary.Row) {
	if !r.HasOut {
		return
	}
	f := b.scope()
	if f != nil && f.role&roleAttention != 0 && f.nProj > 0 && r.Out.Elems() < b.elems(b.cur) {
		b.scoresRow(f, r)
		return
	}
	want, have := r.Out.Elems(), b.elems(b.cur)
	switch {
	case want == have:
	case want < have && (r.Out.N == 1 || r.Out.N == 3 && r.Out.D[1] == 1 && r.Out.D[2] == 1):
		b.squeeze(r.Out) // pooled
	default:
		b.fit(r)
	}
}

func (b *builder) dropout(r *summary.Row) {
	f := b.scope()
	if f != nil && f.role&roleAttention != 0 && b.scoresRow(f, r) {
		return
	}
	p := r.Attr.DropP
	if f != nil && f.role&roleAttention != 0 && b.fromRepr && (f.nProj >= 2 && !f.attnRun || has(r.Name, "attn_drop", "attention_drop")) {
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

func (b *builder) outShape(r *summary.Row, in int32) Shape {
	if r.HasOut {
		return r.Out
	}
	return b.shape(in)
}

// scale is x*gamma: x is kept, and the backward makes a full-size product
// before it sums the gradient of gamma.
func (b *builder) scale(r *summary.Row) {
	mult := b.fit(r)
	in := b.cur
	out := b.tensor(b.outShape(r, in), mult, b.g.Tensors[in].Width)
	n := r.Params
	if n == 0 { // torchsummary counts only .weight and .bias, not .gamma
		n = int64(b.outShape(r, in).Last())
		if s := b.outShape(r, in); s.N == 3 && has(r.Kind, "2d") {
			n = int64(s.D[0])
		}
		if r.Kind == "Scale" || n > 1<<16 {
			n = 1
		}
	}
	o := Op{In: in1(in), Out: out, Keep: KeepIn0, BwdTmp: b.g.Tensors[in].Bytes, Params: b.params(n, 0)}
	if r.Kind == "GlobalResponseNorm" {
		// x + addcmul(bias, weight, x*norm): the product is kept too.
		o.Aux, o.FwdTmp = b.g.Tensors[in].Bytes, b.g.Tensors[in].Bytes
	}
	b.op(o)
	b.cur = out
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
		b.functionalAttention(b.top(), r)
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
