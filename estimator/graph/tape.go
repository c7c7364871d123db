// SPDX-License-Identifier: Apache-2.0

package graph

// tape records what runs: the graph so far, and the tensor that the next op reads. The
// tape knows no row.
type tape struct {
	opt     Options
	g       *Graph
	cur     int32
	meta    []tensorMeta
	recent  [16]int32
	nRecent int
	unknown map[string]int // kinds of modules that nobody understands
}

type tensorMeta struct {
	used    bool // an op read it
	guessed bool
	mult    int32 // windows per sample
}

// width of activations that low-precision ops make.
func (b *tape) lowWidth() int8 {
	if b.opt.Precision == FP32 {
		return 4
	}
	return 2
}

// fullWidth is the width of what autocast keeps in fp32.
func (b *tape) fullWidth() int8 {
	if b.opt.Precision.Half() {
		return 2
	}
	return 4
}

func (b *tape) tensor(s Shape, mult int32, width int8) int32 {
	if mult < 1 {
		mult = 1
	}
	e := mul(mul(s.Elems(), int64(mult)), b.opt.Batch)
	b.g.Tensors = append(b.g.Tensors, Tensor{Elems: e, Bytes: mul(e, int64(width)), Shape: s, Width: width})
	b.meta = append(b.meta, tensorMeta{mult: mult})
	id := int32(len(b.g.Tensors) - 1)
	b.recent[b.nRecent%len(b.recent)] = id
	b.nRecent++
	return id
}

func (b *tape) like(t int32) int32 {
	return b.tensor(b.g.Tensors[t].Shape, b.meta[t].mult, b.g.Tensors[t].Width)
}

func (b *tape) op(o Op) {
	for _, t := range o.In {
		if t >= 0 {
			b.meta[t].used = true
		}
	}
	b.g.Ops = append(b.g.Ops, o)
}

func in1(a int32) [3]int32 { return [3]int32{a, -1, -1} }

func in2(a, c int32) [3]int32 { return [3]int32{a, c, -1} }

// perSample elements of a tensor, windows included.
func (b *tape) elems(t int32) int64 {
	return mul(b.g.Tensors[t].Shape.Elems(), int64(b.meta[t].mult))
}

func (b *tape) shape(t int32) Shape { return b.g.Tensors[t].Shape }

// cast makes t have the given width, as autocast does before an op.
func (b *tape) cast(t int32, width int8) int32 {
	if b.opt.Precision != AMP || b.g.Tensors[t].Width == width {
		return t
	}
	out := b.tensor(b.shape(t), b.meta[t].mult, width)
	b.g.Tensors[out].NoGrad = b.g.Tensors[t].NoGrad
	b.op(Op{In: in1(t), Out: out})
	return out
}

// params adds a weight and an optional bias and gives their range.
func (b *tape) params(n, bias int64) [2]int32 {
	from := int32(len(b.g.Params))
	if n-bias > 0 {
		b.g.Params = append(b.g.Params, Param{Elems: n - bias})
	}
	if bias > 0 {
		b.g.Params = append(b.g.Params, Param{Elems: bias})
	}
	return [2]int32{from, int32(len(b.g.Params))}
}

func (b *tape) assume(s string) {
	for _, a := range b.g.Assumed {
		if a == s {
			return
		}
	}
	b.g.Assumed = append(b.g.Assumed, s)
}

// layerScale is x*gamma: x is kept, the backward needs a full-size product.
func (b *tape) layerScale() {
	in := b.cur
	out := b.like(in)
	s := b.shape(in)
	n := int64(s.Last())
	if s.N == 3 {
		n = int64(s.D[0])
	}
	b.op(Op{In: in1(in), Out: out, Keep: KeepIn0, BwdTmp: b.g.Tensors[in].Bytes, Params: b.params(n, 0)})
	b.cur = out
}
