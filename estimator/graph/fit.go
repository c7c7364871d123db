// SPDX-License-Identifier: Apache-2.0

package graph

import "carma/estimator/summary"

// match makes b.cur the tensor that an element-wise module with output shape
// s reads, and says whether one was found.
func (b *nesting) match(s Shape) bool {
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
func (b *nesting) windows(s Shape) bool {
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
func (b *nesting) windowed() bool {
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
func (b *joins) fit(r *summary.Row) (mult int32) {
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
	if cs := b.shape(b.cur); s.N == 3 && cs.N == 3 && cs.D[0] == s.D[0] && s.D[1] > 0 && cs.D[1]/s.D[1] == 2 &&
		cs.D[2]/max(s.D[2], 1) == 2 {
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
