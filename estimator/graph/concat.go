// SPDX-License-Identifier: Apache-2.0

package graph

import "carma/estimator/summary"

// joins are the ways in which tensors of several branches come together: additions,
// concatenations, gates. Joins know what waits to be joined.
type joins struct {
	nesting
	gate     int32     // tensor that waits for a gate computed from its mean, -1
	half     int32     // the other half of a gated linear unit, -1
	weightOp bool      // the previous leaf had weights
	normed   int32     // the result of the last batch norm, -1
	convIn   [16]int32 // inputs of the last convolutions
	nConvIn  int
}

// joinNeeded: nothing that was computed is thrown away, so where the current
// tensor and others that nobody has read yet have together the channels that
// the convolution needs, they were concatenated.
func (b *joins) joinNeeded(r *summary.Row) (int32, bool) {
	if r.Out.N != 3 {
		return 0, false
	}
	for _, area := range [...]int64{1, 9} {
		want := denseChannels(r, area)
		s := b.shape(b.cur)
		if want <= 0 || s.N != 3 || want <= int64(s.D[0]) {
			continue
		}
		j := s
		j.D[0] = int32(min(want, 1<<30))
		if t, ok := b.concat(want, j, false); ok {
			return t, true
		}
	}
	return 0, false
}

// concat joins the current tensor with others so that the channels add up to
// want: pairs first, then everything unread since the containers opened.
// loose accepts a join with a remainder.
func (b *joins) concat(want int64, s Shape, loose bool) (int32, bool) {
	cs := b.shape(b.cur)
	if cs.N != s.N || cs.N < 2 || s.N == 3 && (cs.D[1] != s.D[1] || cs.D[2] != s.D[2]) {
		return 0, false
	}
	have := int64(cs.D[0])
	from := int32(len(b.g.More))
	same := func(t int32) bool {
		x := b.shape(t)
		return t != b.cur && x.N == s.N && x.D[1] == s.D[1] && (s.N < 3 || x.D[2] == s.D[2])
	}
	for k := 1; k <= len(b.recent) && k <= b.nRecent; k++ {
		t := b.recent[(b.nRecent-k)%len(b.recent)]
		if same(t) && int64(b.shape(t).D[0])+have == want && (loose || !b.meta[t].used || b.isEntry(t)) {
			b.g.More = append(b.g.More, t)
			return b.emitConcat(s, from), true
		}
	}
	sum := have
	for k := len(b.frames) - 1; k >= 0 && sum < want; k-- {
		f := &b.frames[k]
		for j := int(f.nBranch) - 1; j >= 0 && sum < want; j-- {
			if t := f.branches[j]; same(t) && sum+int64(b.shape(t).D[0]) <= want {
				b.g.More = append(b.g.More, t)
				sum += int64(b.shape(t).D[0])
			}
		}
	}
	for k := 1; k <= len(b.recent) && k <= b.nRecent && sum < want; k++ {
		t := b.recent[(b.nRecent-k)%len(b.recent)]
		if same(t) && !b.meta[t].used && !b.listed(from, t) && sum+int64(b.shape(t).D[0]) <= want {
			b.g.More = append(b.g.More, t)
			sum += int64(b.shape(t).D[0])
		}
	}
	if sum != want {
		b.g.More = b.g.More[:from]
		sum = have
		for k := 1; k <= len(b.convIn) && k <= b.nConvIn && sum < want; k++ {
			t := b.convIn[(b.nConvIn-k)%len(b.convIn)]
			if same(t) && !b.listed(from, t) {
				b.g.More = append(b.g.More, t)
				sum += int64(b.shape(t).D[0])
			}
		}
		if sum != want {
			b.g.More = b.g.More[:from]
		}
	}
	if len(b.g.More) > int(from) && (sum == want || loose) {
		return b.emitConcat(s, from), true
	}
	b.g.More = b.g.More[:from]
	return 0, false
}

func (b *nesting) isEntry(t int32) bool {
	for k := range b.frames {
		if b.frames[k].entry == t {
			return true
		}
	}
	return false
}

func (b *tape) listed(from int32, t int32) bool {
	for _, x := range b.g.More[from:] {
		if x == t {
			return true
		}
	}
	return false
}

func (b *tape) emitConcat(s Shape, from int32) int32 {
	out := b.tensor(s, 1, b.g.Tensors[b.cur].Width)
	for _, t := range b.g.More[from:] {
		b.meta[t].used = true
	}
	b.op(Op{In: in1(b.cur), Out: out, More: [2]int32{from, int32(len(b.g.More))}})
	return out
}

// joinedConv: no tensor fits. The input may be a chunk of the current tensor
// (a view), a concatenation of what is unread, or unknown.
func (b *joins) joinedConv(r *summary.Row) (area, groups int64) {
	cs := b.shape(b.cur)
	for _, a := range [...]int64{9, 1, 25, 49} {
		c := denseChannels(r, a)
		if c <= 0 {
			continue
		}
		if cs.N == 3 && c < int64(cs.D[0]) && (r.Out.D[0] == int32(c) || int64(cs.D[0])%c == 0) {
			if f := b.scope(); f != nil {
				f.chunk = b.cur
			}
			return a, 1 // a chunk
		}
	}
	if c := depthwiseChunk(r); c > 0 {
		return c, int64(r.Out.D[0])
	}
	if t, ok := b.joinNeeded(r); ok {
		b.cur = t
		for _, a := range [...]int64{1, 9} {
			if denseChannels(r, a) == int64(b.shape(t).D[0]) {
				return a, 1
			}
		}
	}
	for _, a := range [...]int64{1, 9} {
		if c := denseChannels(r, a); c > 0 {
			b.guessInput(r, c)
			return a, 1
		}
	}
	return 1, 1
}

// chunkJoin: pieces of a tensor were worked on in turn; a convolution that
// reads as many channels as the whole had reads their concatenation.
func (b *joins) chunkJoin(r *summary.Row) bool {
	f := b.scope()
	if f == nil || f.chunk < 0 {
		return false
	}
	s := b.shape(f.chunk)
	cs := b.shape(b.cur)
	if denseChannels(r, 1) != int64(s.D[0]) || cs.N != 3 {
		return false
	}
	s.D[1], s.D[2] = cs.D[1], cs.D[2]
	out := b.tensor(s, 1, b.g.Tensors[b.cur].Width)
	b.op(Op{In: in2(b.cur, f.chunk), Out: out})
	b.cur = out
	return true
}

// chunkAdd: in Res2Net's block each piece is added to the result of the one
// before.
func (b *joins) chunkAdd(r *summary.Row) {
	f := b.scope()
	if f == nil || f.chunk < 0 || !has(b.rows[f.end].Kind, "2neck", "Res2") || f.nBranch > 0 {
		return
	}
	if b.shape(b.cur).D[0] == r.Out.D[0] && b.shape(b.cur).D[1] == b.shape(f.chunk).D[1] &&
		r.Out.D[1] == b.shape(b.cur).D[1] && b.elems(f.entry) == b.rows[f.end].Out.Elems() {
		out := b.like(b.cur)
		b.op(Op{In: in1(b.cur), Out: out, Share: true})
		b.cur = out
	}
}

// depthwiseChunk: a depthwise convolution on some of the channels.
func depthwiseChunk(r *summary.Row) int64 {
	o := int64(r.Out.D[0])
	if o <= 0 {
		return 0
	}
	for _, w := range [2]int64{r.Params, r.Params - o} {
		if w > 0 && w%o == 0 && w/o > 1 && depthwiseArea(w/o) {
			return w / o
		}
	}
	return 0
}
