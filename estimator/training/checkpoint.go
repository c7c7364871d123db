// SPDX-License-Identifier: Apache-2.0

package training

// checkpoint runs a block as torch.utils.checkpoint does: nothing inside is
// kept, what it reads from outside is.
func (s *sim) checkpoint(seg [2]int32) {
	s.outside(seg, 1)
	for i := seg[0]; i < seg[1]; i++ {
		s.forwardOp(int(i), false)
	}
}

// recompute runs the block's forward pass again, keeping this time.
func (s *sim) recompute(seg [2]int32) {
	for i := seg[0]; i < seg[1]; i++ {
		o := &s.g.Ops[i]
		for _, t := range o.In {
			if t >= 0 {
				s.left[t]++
			}
		}
		for _, t := range s.g.More[o.More[0]:o.More[1]] {
			s.left[t]++
		}
	}
	for i := seg[0]; i < seg[1]; i++ {
		s.forwardOp(int(i), true)
	}
	s.outside(seg, -1)
}

// outside counts the tensors that the block reads and does not make.
func (s *sim) outside(seg [2]int32, by int32) {
	s.mark++
	for i := seg[0]; i < seg[1]; i++ {
		o := &s.g.Ops[i]
		for _, t := range o.In {
			if t >= 0 && s.made[t] != s.mark {
				s.keeps[t] += by
			}
		}
		if o.Out >= 0 {
			s.made[o.Out] = s.mark
		}
	}
}
