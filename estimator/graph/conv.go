// SPDX-License-Identifier: Apache-2.0

package graph

import "carma/estimator/summary"

// kernels are the areas that a convolution's parameters may stand for.
func plausibleArea(k int64) bool {
	switch k {
	case 1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 15, 16, 21, 25, 27, 31, 36, 49, 64, 81, 100, 121, 144, 169, 196, 225, 256, 289,
		361, 441, 484, 576, 729, 784, 961, 1024:
		return true
	}
	return false
}

func depthwiseArea(k int64) bool {
	switch k {
	case 3, 4, 5, 7, 9, 11, 13, 21, 25, 27, 31, 49, 81, 121, 169, 225, 289, 441, 961:
		return true
	}
	return false
}

// denseFit is convFit's best score.
const denseFit = 3

// convFit says how well a convolution with r's parameters and output can read
// c channels: 3 dense or depthwise, 2 depthwise with a multiplier, 1 grouped,
// 0 not. It gives the kernel's area and the groups.
func convFit(r *summary.Row, c int64) (score int, area, groups int64) {
	o := int64(r.Out.D[0])
	if o <= 0 || c <= 0 {
		return 0, 0, 0
	}
	if r.Attr.Known {
		if int64(r.Attr.In) != c {
			return 0, 0, 0
		}
		g := max(int64(r.Attr.Groups), 1)
		return denseFit, int64(r.Attr.Kernel[0]) * int64(max(r.Attr.Kernel[1], 1)), g
	}
	for _, w := range [2]int64{r.Params, r.Params - o} {
		if w <= 0 || w%o != 0 {
			continue
		}
		per := w / o // (c/groups) * area
		if per%c == 0 && plausibleArea(per/c) {
			return denseFit, per / c, 1
		}
		if depthwiseArea(per) && o%c == 0 {
			if o == c {
				return denseFit, per, c
			}
			score, area, groups = max(score, 2), per, c
		}
		if score > 0 {
			continue
		}
		for _, k := range [...]int64{9, 25, 49, 1, 4, 16} {
			if per%k == 0 && c%(per/k) == 0 && c/(per/k) > 1 && o%(c/(per/k)) == 0 {
				score, area, groups = 1, k, c/(per/k)
				break
			}
		}
	}
	return score, area, groups
}

// channels of a tensor as a convolution sees it, and whether its extent fits
// the output of r.
func (b *convolution) convChannels(t int32, r *summary.Row) int64 {
	s := b.shape(t)
	o := r.Out
	switch {
	case s.N == o.N && s.N >= 2:
		if s.N == 3 && (s.D[1] < o.D[1] && s.D[1] > 1 || s.D[2] < o.D[2] && s.D[2] > 1) {
			if channelsLast(s, o) {
				return int64(s.D[2])
			}
			return 0
		}
		if channelsLast(s, o) && s.D[2] != s.D[0] {
			if first, _, _ := convFit(r, int64(s.D[0])); first < denseFit {
				if last, _, _ := convFit(r, int64(s.D[2])); last > first {
					return int64(s.D[2])
				}
			}
		}
		return int64(s.D[0])
	case s.N == 2 && o.N == 3: // tokens
		return int64(s.D[1])
	case s.N == 1:
		return int64(s.D[0])
	case s.N == 3 && o.N == 2: // Conv1d over a squeezed map
		return int64(s.D[0])
	}
	return 0
}

// channelsLast: s can be [H, W, C] of a map that gives o.
func channelsLast(s, o Shape) bool {
	return s.N == 3 && o.N == 3 && s.D[0] >= o.D[1] && s.D[1] >= o.D[2]
}

// convolution is how a convolution finds its input among the tensors of its branches, and
// what the convolution keeps.
type convolution struct {
	*joins
	attn *attention
}

// conv finds the convolution's input and emits it.
func (b *convolution) conv(r *summary.Row, transposed bool) {
	f := b.scope()
	if f != nil && f.role&roleBranches != 0 && f.computed && !b.weightOp {
		b.branchStart()
	}
	if f != nil && f.role&roleAttention != 0 && !f.attnRun {
		b.attn.convAttention(f, r)
	}
	area, groups := b.convInput(r, transposed)
	b.emitConv(r, area, groups)
	if f != nil && f.role&roleAttention != 0 && !f.attnRun && int(f.nProj) < len(f.projs) && area == 1 {
		f.projs[f.nProj] = b.cur
		f.nProj++
	}
	touch(f)
}

// convAttention: attention over maps projects with 1x1 convolutions; one that
// reads less than what was projected reads the attention's result.
func (b *attention) convAttention(f *frame, r *summary.Row) {
	if f.nProj == 0 {
		f.attnIn = b.cur
		return
	}
	c := denseChannels(r, 1)
	if c <= 0 || r.Out.N != 3 || b.shape(b.cur).N != 3 {
		return
	}
	f.convs = true
	if first := b.width(f, f.projs[0]); f.nProj == 1 && first > c || f.nProj == 3 {
		b.attention(f, c)
	}
}

func (b *convolution) convInput(r *summary.Row, transposed bool) (area, groups int64) {
	if s := b.shape(b.cur); r.Out.N == 2 && r.Out.D[0] == 1 && s.N == 3 && r.Out.D[1] == s.D[0] {
		b.squeeze(r.Out) // ECA: a Conv1d over the channels of the mean
		return max(r.Params, 1), 1
	}
	if b.spatialDrop(r) {
		score, a, g := convFit(r, b.convChannels(b.cur, r))
		if score > 0 {
			// 1x1 after a map: the mean is taken, a gate begins.
			s := b.shape(b.cur)
			c := s.D[0]
			if s.N == 2 {
				c = s.D[1]
			}
			b.squeeze(summary.Dims(c, 1, 1))
			return a, g
		}
	}
	if b.gate >= 0 && r.Out.N == 3 && (r.Out.D[1] > 1 || r.Out.D[2] > 1) && b.shape(b.gate).N == 3 &&
		b.shape(b.cur).Elems() < b.shape(b.gate).Elems() {
		b.applyGate()
	}
	if area, groups := b.mixedWeights(r); area > 0 {
		return area, groups
	}
	score, area, groups := convFit(r, b.convChannels(b.cur, r))
	if score == denseFit || transposed && score > 0 {
		b.chunkAdd(r)
		return area, groups
	}
	if b.chunkJoin(r) {
		return 1, 1
	}
	if s, a, g, t := b.searchConv(r, score); t >= 0 {
		_ = s
		b.restart(t)
		return a, g
	}
	if score > 0 {
		return area, groups
	}
	if transposed {
		return 4, 1
	}
	return b.joinedConv(r)
}

// mixedWeights: a conditional convolution has the weights of several experts, which
// it mixes for each sample.
func (b *convolution) mixedWeights(r *summary.Row) (area, groups int64) {
	if r.Kind != "CondConv2d" {
		return 0, 0
	}
	c, o := b.convChannels(b.cur, r), int64(r.Out.D[0])
	if c <= 0 || o <= 0 {
		return 0, 0
	}
	const mostExperts = 64
	for _, a := range [...]int64{9, 25, 49} {
		if n := r.Params / (o * a); o == c && r.Params%(o*a) == 0 && n > 1 && n <= mostExperts {
			return a, c
		}
	}
	return 1, 1
}

// spatialDrop: a 1x1 output of a map that is not 1x1.
func (b *convolution) spatialDrop(r *summary.Row) bool {
	s := b.shape(b.cur)
	if r.Out.N == 3 && r.Out.D[1] == 1 && r.Out.D[2] == 1 && s.N == 3 && int64(s.D[1])*int64(s.D[2]) > 64 {
		return true
	}
	if r.Out.N == 3 && r.Out.D[1] == 1 && r.Out.D[2] == 1 && s.N == 3 && int64(s.D[1])*int64(s.D[2]) > 1 {
		// A kernel as large as the map would give 1x1 too.
		_, area, _ := convFit(r, int64(s.D[0]))
		return area <= 1
	}
	return false
}

// earlyRows are those in which a second branch may still read the image.
const earlyRows = 16

// searchConv looks for a tensor that fits better than the current one does.
func (b *convolution) searchConv(r *summary.Row, have int) (score int, area, groups int64, t int32) {
	t = -1
	score = have
	try := func(c int32) bool {
		if b.g.Tensors[c].NoGrad && !b.g.Tensors[b.cur].NoGrad && b.row > earlyRows {
			return false // the image is not read again so late
		}
		s, a, g := convFit(r, b.convChannels(c, r))
		if s > score && s >= 2 {
			score, area, groups, t = s, a, g, c
		}
		return score == denseFit && t >= 0
	}
	if c, ok := b.joinNeeded(r); ok {
		s, a, g := convFit(r, b.convChannels(c, r))
		if s >= 2 {
			b.cur = c
			return s, a, g, c
		}
	}
	for k := len(b.frames) - 1; k >= 0; k-- {
		if try(b.frames[k].entry) {
			return score, area, groups, t
		}
		f := &b.frames[k]
		for j := int(f.nBranch) - 1; j >= 0; j-- {
			if try(f.branches[j]) {
				return score, area, groups, t
			}
		}
	}
	for k := 1; k <= len(b.recent) && k <= b.nRecent; k++ {
		c := b.recent[(b.nRecent-k)%len(b.recent)]
		if b.meta[c].used && !b.within(c) {
			continue
		}
		if try(c) {
			return score, area, groups, t
		}
	}
	return score, area, groups, t
}

// denseChannels is the number of input channels if the convolution is dense
// with a kernel of that area, 0 if it cannot be.
func denseChannels(r *summary.Row, area int64) int64 {
	o := int64(r.Out.D[0])
	if o <= 0 {
		return 0
	}
	if r.Attr.Known {
		return int64(r.Attr.In)
	}
	for _, w := range [2]int64{r.Params, r.Params - o} {
		if w > 0 && w%(o*area) == 0 {
			return w / (o * area)
		}
	}
	return 0
}

// transformBytes is what cuDNN's FFT algorithms take for one filter: a tile of
// 32 x 32 has 32 x 17 complex frequencies of eight bytes.
const transformBytes = 32 * 17 * 8

// emitConv makes the output; the backward needs workspace in cuDNN.
func (b *convolution) emitConv(r *summary.Row, area, groups int64) {
	b.convIn[b.nConvIn%len(b.convIn)] = b.cur
	b.nConvIn++
	in := b.cast(b.cur, b.lowWidth())
	out := b.tensor(r.Out, 1, b.lowWidth())
	o := int64(r.Out.D[0])
	bias := int64(0)
	if area > 0 && groups > 0 {
		per := r.Params / max(o, 1)
		if r.Params%max(o, 1) == 0 && (per-1) > 0 && per*groups%max(area, 1) != 0 {
			bias = o
		}
		if r.Attr.Known && r.Attr.Bias {
			bias = o
		}
	}
	op := Op{In: in1(in), Out: out, Keep: KeepIn0, Params: b.params(r.Params, bias), Aux: b.weightCast(r.Params)}
	if has(r.Kind, "Same") && area > 1 && r.Out.D[1] > 0 && b.shape(in).N == 3 && b.shape(in).D[1] > r.Out.D[1] {
		// TensorFlow padding at stride 2 is uneven: a padded copy is kept.
		pad := b.like(in)
		b.op(Op{In: in1(in), Out: pad})
		op.In = in1(pad)
	}
	cin := b.convChannels(in, r)
	dense := area > 1 && groups < cin
	if dense {
		op.BwdTmp = b.convWorkspace(in, out, cin, area, groups)
	}
	if si, so := b.shape(in), b.shape(out); si.N == 3 && so.N == 3 && si.D[1] == so.D[1] && si.D[2] == so.D[2] &&
		si.D[1] > 1 {
		b.g.Transform = max(b.g.Transform, mul(r.Params/max(area, 1), transformBytes))
	}
	if r.Kind == "CondConv2d" {
		// A weight for each sample, mixed from those of several experts.
		op.Aux = add(op.Aux, mul(mul(o*cin/max(groups, 1), area), mul(b.opt.Batch, 4)))
	}
	if has(r.Kind, "StdConv") {
		op.Aux = add(op.Aux, mul(r.Params, 4)) // the standardised weight
	}
	b.g.CuDNN = true
	b.op(op)
	b.cur = out
}

// convWorkspace is the scratch memory of cuDNN's backward convolutions: the
// non-fused Winograd transform F(4x4, 3x3) stores 36/16 of what it transforms;
// an image stem and a grouped convolution are computed from plain copies, and a
// convolution whose windows
// do not overlap is a matrix product.
func (b *tape) convWorkspace(in, out int32, cin, area, groups int64) int64 {
	n := add(b.g.Tensors[in].Bytes, b.g.Tensors[out].Bytes)
	si, so := b.shape(in), b.shape(out)
	if cin <= 4 || groups > 1 {
		return n
	}
	if si.N == 3 && so.N == 3 && so.D[1] > 0 {
		if stride := int64(si.D[1] / so.D[1]); stride > 1 && stride*stride >= area {
			return 0
		}
	}
	q := b.opt.WorkspaceQuarters
	if q <= 0 {
		q = 9
	}
	return n / 4 * q
}

// within says that t was made in the innermost block, or that there is none.
func (b *nesting) within(t int32) bool {
	f := b.scope()
	return f == nil || t >= f.firstTensor
}
