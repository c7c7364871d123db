// SPDX-License-Identifier: Apache-2.0

package graph

import "carma/estimator/summary"

// maxFrames bounds how deep containers are followed; no model nests deeper.
const maxFrames = 128

// nesting is the open containers around the row that is read.
type nesting struct {
	outline
	frames []frame
	row    int32
}

// frame is an open container.
type frame struct {
	end      int32 // row at which it closes
	role     role
	entry    int32 // tensor at its start
	skip     int32 // what a residual addition adds next
	branches [8]int32
	nBranch  int8
	computed bool // an op with weights ran in it
	sinceAdd bool // ... since the last addition
	added    bool // the closing addition is done
	postNorm bool // it ended with the norm of a sum: its result is the next shortcut
	// attention
	attnIn      int32
	projs       [3]int32
	nProj       int8
	attnRun     bool
	windows     int32 // attention matrices a sample
	scores      int64 // elements of the attention matrix per sample, 0: fused
	nLinear     int8
	convs       bool  // the projections are 1x1 convolutions over maps
	firstOp     int32 // ops from here on are inside
	firstTensor int32 // tensors from here on were made inside
	chunk       int32 // a tensor whose channels are taken in pieces, -1
}

func (b *builder) open(i int32) {
	if len(b.frames) >= maxFrames {
		return
	}
	r := &b.rows[i]
	f := frame{end: i, role: role(r.Role), entry: b.cur, skip: b.cur, attnIn: -1, chunk: -1,
		firstTensor: int32(len(b.g.Tensors)), firstOp: int32(len(b.g.Ops))}
	if r.Params > 0 && rowClass(r) != clsNormAct && role(r.Role)&roleAttention == 0 {
		b.sideRow(r) // parameters of the container itself
	}
	if rowClass(r) == clsNormAct {
		f.role = 0
		b.branchStart()
		b.norm(i)
		f.entry = b.cur
	}
	if b.fromRepr && f.role&roleAttention != 0 && r.Params > 0 && !b.hasLinear(r.Start, i) {
		b.attn.bareAttention(r)
		f.role, f.attnRun, f.computed, f.sinceAdd = roleSelfOut, true, true, true
	}
	b.frames = append(b.frames, f)
}

// hasLinear says whether rows from..to hold a projection.
func (b *outline) hasLinear(from, to int32) bool {
	for j := from; j >= 0 && j < to; j++ {
		if c := class(b.rows[j].Class); c == clsLinear || c == clsConv || b.rows[j].Kind == "MultiheadAttention" {
			return true
		}
	}
	return false
}

// top is the innermost open container, nil outside of all.
func (b *nesting) top() *frame {
	if len(b.frames) == 0 {
		return nil
	}
	return &b.frames[len(b.frames)-1]
}

// scope is the innermost open container that is not a norm with activation or
// a conv-norm-act triple, which only chain.
func (b *nesting) scope() *frame {
	for i := len(b.frames) - 1; i >= 0; i-- {
		if b.frames[i].role != 0 {
			return &b.frames[i]
		}
	}
	return nil
}

func (b *builder) close(i int32) {
	k := len(b.frames) - 1
	if k < 0 || b.frames[k].end != i {
		return
	}
	r := &b.rows[i]
	if g := &b.frames[k]; g.role&roleAttention != 0 && !g.attnRun && g.nProj >= 2 {
		b.attn.attention(g, 0)
	}
	f := b.frames[k]
	if f.role&roleAttention != 0 && !f.attnRun {
		// What this attention does is not understood.
		b.g.Guessed = add(b.g.Guessed, mul(b.g.Tensors[b.cur].Bytes, 3))
		b.unknown[r.Kind]++
	}
	if r.Kind == "StarReLU" {
		// scale*relu(x)**2 + bias: the square's argument and the square are kept.
		in := b.cur
		out := b.like(in)
		b.op(Op{In: in1(in), Out: out, Keep: KeepIn0, Aux: b.g.Tensors[in].Bytes})
		b.cur = out
	}
	b.settle(&f, r)
	if f.role&(roleResidual|roleBranches) != 0 {
		b.closeResidual(&f)
	}
	b.frames = b.frames[:k]
	b.segment(&f)
	if p := b.scope(); p != nil {
		p.computed = p.computed || f.computed
		p.sinceAdd = p.sinceAdd || f.sinceAdd
		p.attnRun = p.attnRun || f.attnRun
		if f.postNorm {
			p.skip, p.sinceAdd, p.postNorm = b.cur, false, true
		}
		for _, t := range f.branches[:f.nBranch] {
			if !b.meta[t].used {
				pushBranch(p, t)
			}
		}
	}
	b.weightOp = false
}

// settle brings the current tensor to the shape that the container printed:
// a gate is applied, a smaller result joined.
func (b *joins) settle(f *frame, r *summary.Row) {
	if !r.HasOut || rowClass(r) == clsNormAct {
		return
	}
	want := r.Out.Elems()
	if b.half >= 0 && want == b.elems(b.cur) && 2*want == b.elems(b.half) {
		b.multiplyHalf()
		return
	}
	if want == b.elems(b.cur) || want == 0 {
		return
	}
	if b.gate >= 0 && b.elems(b.gate) == want {
		b.applyGate()
		return
	}
	if b.gate >= 0 && r.Out.N == 3 && b.shape(b.gate).N == 3 && b.elems(b.gate) == 2*want {
		b.applyGate() // split attention: radix 2, summed after the gate
		b.reshape(r.Out, 1)
		return
	}
	if b.elems(b.cur) < want && (f.nBranch > 0 || r.Out.N == 3 && rowClass(r) == clsUnknown) {
		if t, ok := b.concat(int64(r.Out.D[0]), r.Out, true); ok {
			b.cur = t
			return
		}
	}
	b.mismatch(r)
}

// mismatch: the container's result has another size than what its modules
// made. Windows are put together again, a token is picked or joined; anything
// else happened in calls that no row shows.
func (b *joins) mismatch(r *summary.Row) {
	want, have := r.Out.Elems(), b.elems(b.cur)
	if b.fromRepr || r.Multi || !r.HasOut {
		return
	}
	if m := int64(b.meta[b.cur].mult); m > 1 && want*m == have {
		return
	}
	if d := want - have; d < 0 && r.Out.N == 1 || d > 0 && d <= 16*int64(r.Out.Last()) || -d > 0 &&
		-d <= 16*int64(r.Out.Last()) {
		b.reshape(r.Out, 1)
		return
	}
	if role(r.Role) == 0 && want*2 <= have {
		// Most likely no container but a side value, such as a table of biases.
		b.unknown[r.Kind]++
		b.g.Guessed = add(b.g.Guessed, mul(want, mul(b.opt.Batch, 4)))
		return
	}
	b.reshape(r.Out, 1)
	b.g.Guessed = add(b.g.Guessed, b.g.Tensors[b.cur].Bytes)
}

// reshape makes a new tensor of another size from the current one.
func (b *tape) reshape(s Shape, mult int32) {
	out := b.tensor(s, mult, b.g.Tensors[b.cur].Width)
	b.op(Op{In: in1(b.cur), Out: out})
	b.cur = out
}

func (b *joins) closeResidual(f *frame) {
	if f.added {
		return
	}
	if f.role&roleBranches != 0 {
		b.sumBranches(f)
		return
	}
	if !f.computed || !f.sinceAdd {
		return
	}
	b.residual(f, f.role&rolePostAct != 0)
}

// residual adds the shortcut to the current tensor if the sizes agree.
func (b *joins) residual(f *frame, inPlace bool) bool {
	other := int32(-1)
	for k := int(f.nBranch) - 1; k >= 0; k-- {
		if t := f.branches[k]; t != b.cur && b.elems(t) == b.elems(b.cur) && !b.meta[t].used {
			other = t
			break
		}
	}
	if other < 0 && f.skip != b.cur && b.elems(f.skip) == b.elems(b.cur) {
		other = f.skip
	}
	if other < 0 || b.g.Tensors[other].NoGrad {
		return false
	}
	if b.gamma {
		b.layerScale()
	}
	b.addTo(other, inPlace)
	f.skip = b.cur
	f.sinceAdd = false
	return true
}

func (b *tape) addTo(other int32, inPlace bool) {
	out := b.cur
	if !inPlace || b.g.Tensors[other].Width > b.g.Tensors[b.cur].Width {
		out = b.tensor(b.shape(b.cur), b.meta[b.cur].mult, max(b.g.Tensors[b.cur].Width, b.g.Tensors[other].Width))
	}
	b.op(Op{In: in2(b.cur, other), Out: out, Share: true})
	b.cur = out
}

func (b *tape) sumBranches(f *frame) {
	for k := 0; k < int(f.nBranch); k++ {
		if t := f.branches[k]; t != b.cur && b.elems(t) == b.elems(b.cur) {
			b.addTo(t, k > 0)
		}
	}
	f.added = true
	f.nBranch = 0
}

func pushBranch(f *frame, t int32) {
	if int(f.nBranch) < len(f.branches) {
		f.branches[f.nBranch] = t
		f.nBranch++
	}
}

// restart makes t the current tensor and remembers the one left behind, which
// some later op must join.
func (b *nesting) restart(t int32) {
	if t == b.cur {
		return
	}
	if f := b.scope(); f != nil && !b.meta[b.cur].used {
		pushBranch(f, b.cur)
	}
	b.cur = t
}

// branchStart sends the current tensor back to the container's entry where
// the container's children run side by side.
func (b *joins) branchStart() {
	f := b.scope()
	if f == nil || f.role&roleBranches == 0 || !f.computed || b.weightOp {
		return
	}
	if b.elems(f.entry) > 0 {
		b.restart(f.entry)
	}
}

// multiplyHalf multiplies by the half that a chunk set aside.
func (b *joins) multiplyHalf() {
	out := b.like(b.cur)
	b.op(Op{In: in2(b.cur, b.half), Out: out, Keep: KeepIn0 | KeepIn1})
	b.half = -1
	b.cur = out
}

// sideRow counts the parameters of a module that is not on the main path.
func (b *tape) sideRow(r *summary.Row) {
	if r.Params > 0 {
		b.op(Op{In: in1(-1), Out: -1, Params: b.params(r.Params, 0)})
	}
}

// side skips what computes a bias from coordinates, up to the end of the
// perceptron that holds it; what it keeps is small.
func (b *builder) side(r *summary.Row) {
	b.skipTo, b.sideShape = b.row+1, r.Out
	for k := len(b.frames) - 1; k >= 0; k-- {
		if b.frames[k].role&roleMlp != 0 {
			b.skipTo = b.frames[k].end
			break
		}
	}
	b.sideRow(r)
}

// segment notes the ops of a block that stands in no other block.
func (b *nesting) segment(f *frame) {
	if f.role&roleResidual == 0 || !f.computed {
		return
	}
	for k := range b.frames {
		if b.frames[k].role&roleResidual != 0 {
			return
		}
	}
	if to := int32(len(b.g.Ops)); to > f.firstOp {
		b.g.Segments = append(b.g.Segments, [2]int32{f.firstOp, to})
	}
}
