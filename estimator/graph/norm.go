// SPDX-License-Identifier: Apache-2.0

package graph

import "carma/estimator/summary"

func (b *builder) norm(i int32) {
	r := &b.rows[i]
	f := b.scope()
	if f != nil && f.role&roleAttention != 0 && f.nProj > 0 && r.HasOut && r.Out.Elems() < b.elems(b.cur) {
		b.attn.qkNorm(f, r)
		return
	}
	c := rowClass(r)
	beside := int32(-1)
	if c == clsBatchNorm && b.normed == b.cur {
		beside = b.besideNorm(r)
	}
	b.midAdd(f, r)
	if cs := b.shape(b.cur); c == clsBatchNorm && r.Out.N == 1 && cs.N == 2 && cs.Last() == r.Out.Last() {
		rr := *r // BatchNorm1d over tokens flattened into the batch
		rr.Out = cs
		r = &rr
	}
	mult := b.fit(r)
	ch := normChannels(r)
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
	case c == clsBatchNorm || c == clsNormAct && isBatchNorm(r.Kind):
		// The saved means and deviations are a few KiB and left out.
		// Of vectors it is computed by PyTorch itself: perceptrons with
		// BatchNorm1d were measured with the base of cuBLAS only.
		b.g.CuDNN = b.g.CuDNN || r.Out.N >= 3
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
	if beside >= 0 {
		b.addTo(beside, true)
	}
	b.normed = -1
	if c == clsBatchNorm {
		b.normed = b.cur
	}
	touch(f)
	if f != nil && f.postNorm {
		f.sinceAdd = false
	}
}

// besideNorm: nobody normalises twice, so a norm of a norm's shape reads what came
// before the convolution that the first norm follows, and the two are added. It makes
// that the current tensor, and gives the first norm's result.
func (b *tape) besideNorm(r *summary.Row) int32 {
	first := b.cur
	for k := 1; k <= len(b.recent) && k <= b.nRecent; k++ {
		t := b.recent[(b.nRecent-k)%len(b.recent)]
		if t < first-1 && b.shape(t) == r.Out {
			b.cur = t
			return first
		}
	}
	return -1
}

// composedNorm: norms written in Python keep their intermediates.
func (b *outline) composedNorm(o *Op, in int32) {
	o.Aux = add(o.Aux, mul(b.g.Tensors[in].Bytes, 4))
}

func isBatchNorm(kind string) bool {
	return has(kind, "BatchNorm", "InplaceAbn")
}

// normChannels is the number of normalised channels.
func normChannels(r *summary.Row) int64 {
	if rowClass(r) == clsRMSNorm {
		return max(r.Params, 1)
	}
	if r.Params >= 2 && r.Params%2 == 0 {
		return r.Params / 2
	}
	if r.Attr.Out > 0 {
		return int64(r.Attr.Out)
	}
	return max(int64(r.Out.Last()), 1)
}

func (b *tape) normParams(r *summary.Row, ch int64) [2]int32 {
	if r.Params == ch*2 {
		return b.params(r.Params, ch)
	}
	return b.params(r.Params, 0)
}

// midAdd: in a transformer block the norm before the second half, and the
// norm after each half in a post-norm block, read the sum with the shortcut.
func (b *joins) midAdd(f *frame, r *summary.Row) {
	if f == nil || b.weightOp || !f.sinceAdd {
		return
	}
	if f.role&roleSelfOut != 0 {
		b.selfOut(f)
		return
	}
	if f.role&roleResidual == 0 || f.role&rolePostAct != 0 || f != b.top() &&
		rowClass(&b.rows[b.top().end]) != clsNormAct {
		return
	}
	if r.Out.Elems() == b.elems(f.skip) && b.elems(b.cur) == b.elems(f.skip) && f.nBranch == 0 {
		b.residual(f, false)
	}
}

// selfOut is Hugging Face's LayerNorm(dense(x) + input of the layer).
func (b *nesting) selfOut(f *frame) {
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
