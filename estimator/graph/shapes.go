// SPDX-License-Identifier: Apache-2.0

package graph

import "carma/estimator/summary"

// shapes gives output shapes to rows that have none, by running the shapes
// through the modules' arguments. Rows it cannot follow keep HasOut false.
func shapes(rows []summary.Row, cur Shape) {
	type scope struct {
		end   int32
		entry Shape
	}
	var open []scope
	next, first := spansByStart(rows)
	for i := range rows {
		for c := first[i]; c >= 0; c = next[c] {
			open = append(open, scope{c, cur})
			if has(rows[c].Kind, "Pooler", "SequenceSummary", "ClassificationHead") && cur.N == 2 {
				cur = summary.Dims(cur.Last()) // one token is taken
			}
		}
		r := &rows[i]
		if r.Start < int32(i) {
			if k := len(open) - 1; k >= 0 && open[k].end == int32(i) {
				open = open[:k]
			}
			r.Out, r.HasOut = cur, cur.N > 0
			continue
		}
		in := cur
		if k := len(open) - 1; k >= 0 && !accepts(r, in) && accepts(r, open[k].entry) {
			in = open[k].entry
		} else if k > 0 && !accepts(r, in) && accepts(r, open[k-1].entry) {
			in = open[k-1].entry
		}
		if k := len(open) - 1; k >= 0 && role(rows[open[k].end].Role)&roleAttention != 0 {
			in = attended(r, in, open[k].entry)
		}
		out := through(r, in)
		r.Out, r.HasOut = out, out.N > 0
		if out.N > 0 {
			cur = out
		}
	}
}

// attended is what a projection inside an attention module reads: the input,
// or a result as wide as the input where what came before was fused.
func attended(r *summary.Row, in, entry Shape) Shape {
	if class(r.Class) != clsLinear || in.N == 0 || entry.N == 0 || in.Last() == entry.Last() {
		return in
	}
	want := r.Attr.In
	if r.Kind == "Conv1D" && want == 0 && r.Params%(int64(entry.Last())+1) == 0 {
		want = entry.Last()
	}
	if want == entry.Last() {
		return entry
	}
	return in
}

// spansByStart links the containers by their first row, outermost first.
func spansByStart(rows []summary.Row) (next, first []int32) {
	buf := make([]int32, 2*len(rows))
	next, first = buf[:len(rows)], buf[len(rows):]
	for i := range buf {
		buf[i] = -1
	}
	for i := range rows {
		if s := rows[i].Start; s >= 0 && s < int32(i) {
			next[i] = first[s]
			first[s] = int32(i)
		}
	}
	return next, first
}

// accepts says whether a module can read that shape.
func accepts(r *summary.Row, s Shape) bool {
	if !r.Attr.Known || s.N == 0 {
		return true
	}
	switch class(r.Class) {
	case clsConv, clsConvT:
		return s.N < 2 || s.D[0] == r.Attr.In
	case clsLinear:
		return r.Attr.In <= 0 || s.Last() == r.Attr.In || s.Elems() == int64(r.Attr.In) || s.N == 3 && s.D[0] == r.Attr.In
	}
	return true
}

func through(r *summary.Row, s Shape) Shape {
	a := &r.Attr
	switch class(r.Class) {
	case clsConv:
		return convShape(r, s, false)
	case clsConvT:
		return convShape(r, s, true)
	case clsLinear:
		return linearShape(r, s)
	case clsEmbedding:
		if s.N >= 1 && a.Out > 0 {
			return summary.Dims(s.D[0], a.Out)
		}
	case clsMaxPool, clsAvgPool:
		if a.OutSize[0] > 0 && s.N == 3 {
			return summary.Dims(s.D[0], a.OutSize[0], a.OutSize[1])
		}
		return poolShape(a, s)
	case clsGlobalPool:
		if s.N == 3 {
			return summary.Dims(s.D[0], max(a.OutSize[0], 1), max(a.OutSize[1], 1))
		}
	case clsFlatten:
		if r.Kind == "Flatten" && s.N > 1 {
			return summary.Dims(clampDim(s.Elems()))
		}
	case clsUpsample:
		if s.N == 3 && a.Scale > 0 && a.Scale <= 64 {
			return summary.Dims(s.D[0], clampDim(int64(float32(s.D[1])*a.Scale)), clampDim(int64(float32(s.D[2])*a.Scale)))
		}
	}
	return s
}

func linearShape(r *summary.Row, s Shape) Shape {
	a := &r.Attr
	out := a.Out
	if r.Kind == "Conv1D" && out == 0 {
		// transformers' Conv1D prints no sizes: weight (in, out) and bias.
		if in := int64(s.Last()); in > 0 {
			out = clampDim(r.Params / (in + 1))
		}
		a.In, a.Out = s.Last(), out
	}
	switch {
	case s.N == 0 || out <= 0:
		return Shape{}
	case s.Last() == a.In:
		s.D[s.N-1] = out
		return s
	case s.Elems() == int64(a.In):
		return summary.Dims(out)
	case s.N == 3 && s.D[0] == a.In:
		return summary.Dims(out)
	}
	s.D[s.N-1] = out
	return s
}

func convShape(r *summary.Row, s Shape, transposed bool) Shape {
	a := &r.Attr
	if s.N == 2 { // Conv1d over [C, L]
		return summary.Dims(a.Out, extent(s.D[1], a.Kernel[0], a.Stride[0], a.Pad[0], a.Dilation[0], a.PadSame, transposed))
	}
	if s.N != 3 {
		return Shape{}
	}
	return summary.Dims(a.Out,
		extent(s.D[1], a.Kernel[0], a.Stride[0], a.Pad[0], a.Dilation[0], a.PadSame, transposed),
		extent(s.D[2], a.Kernel[1], a.Stride[1], a.Pad[1], a.Dilation[1], a.PadSame, transposed))
}

func poolShape(a *summary.Attr, s Shape) Shape {
	if s.N != 3 || a.Kernel[0] <= 0 {
		return s
	}
	p := *a
	if p.CeilMode {
		p.Pad[0] += p.Stride[0] / 2
		p.Pad[1] += p.Stride[1] / 2
	}
	return summary.Dims(s.D[0],
		extent(s.D[1], p.Kernel[0], p.Stride[0], p.Pad[0], p.Dilation[0], false, false),
		extent(s.D[2], p.Kernel[1], p.Stride[1], p.Pad[1], p.Dilation[1], false, false))
}

// extent is the output size of a window along one dimension.
func extent(in, kernel, stride, pad, dilation int32, same, transposed bool) int32 {
	k, s, p, d := int64(max(kernel, 1)), int64(max(stride, 1)), int64(pad), int64(max(dilation, 1))
	n := int64(in)
	switch {
	case transposed:
		n = (n-1)*s - 2*p + d*(k-1) + 1
	case same:
		n = (n + s - 1) / s
	default:
		n = (n+2*p-d*(k-1)-1)/s + 1
	}
	return clampDim(max(n, 1))
}

// firstInput is the input of a model given by its representation: token ids
// before an embedding, an image before a convolution.
func (b *outline) firstInput(rows []summary.Row) Shape {
	for i := range rows {
		r := &rows[i]
		switch class(r.Class) {
		case clsEmbedding:
			return summary.Dims(b.sequence(rows))
		case clsConvT: // as a generator begins
			b.assume("input of one position a channel (say input=)")
			b.lacksInput = true
			return summary.Dims(max(r.Attr.In, 1), 1, 1)
		case clsConv:
			c := max(r.Attr.In, 1)
			if r.Kind == "Conv1d" {
				return summary.Dims(c, max(b.opt.Seq, 1))
			}
			b.assume("input of 3x224x224 (say input=)")
			b.lacksInput = true
			return summary.Dims(c, 224, 224)
		case clsLinear:
			if b.opt.Seq > 0 {
				return summary.Dims(b.opt.Seq, max(r.Attr.In, 1))
			}
			return summary.Dims(max(r.Attr.In, 1))
		}
	}
	return summary.Dims(max(b.opt.Seq, 1))
}

// sequence is the number of tokens: as given, or the length of the position
// table, which is the longest that the model takes.
func (b *outline) sequence(rows []summary.Row) int32 {
	if b.opt.Seq > 0 {
		return b.opt.Seq
	}
	for i := range rows {
		r := &rows[i]
		if class(r.Class) == clsEmbedding && has(r.Name, "position", "wpe", "pos_emb") && r.Attr.In > 1 {
			b.assume("sequences as long as the position table (say seq=)")
			return r.Attr.In
		}
	}
	b.assume("sequences of 512 tokens (say seq=)")
	b.lacksInput = true
	return 512
}
