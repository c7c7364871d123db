// SPDX-License-Identifier: Apache-2.0

package training

import "carma/estimator/graph"

// loss is a cross entropy: log-softmax keeps its output in fp32, and the
// backward makes the gradient of that and the gradient of the model's output.
func (s *sim) loss() {
	out := s.g.Output
	if out < 0 {
		return
	}
	n := s.g.Tensors[out].Elems * 4
	soft := s.alloc(n, Activations)
	last := s.held
	s.held = nil
	if s.p.Replicas > 1 {
		// DataParallel gathers the outputs of all replicas on the first GPU.
		s.held = append(s.held, s.alloc(s.g.Tensors[out].Bytes*s.p.Replicas, Activations))
		for range s.g.Held {
			s.held = append(s.held, s.alloc(s.g.HeldBytes/int64(len(s.g.Held))*s.p.Replicas, Activations))
		}
	}
	for i := range last { // the script's variable is overwritten now
		s.free(&last[i])
	}
	nll := s.alloc(n, Activations)
	s.setGrad(out, s.alloc(s.g.Tensors[out].Bytes, Activations))
	s.free(&soft)
	s.free(&nll)
}

func (s *sim) setGrad(t int32, x slot) {
	var id int32
	if k := len(s.freeG); k > 0 {
		id = s.freeG[k-1]
		s.freeG = s.freeG[:k-1]
		s.grads[id] = gradBuf{x, 1}
	} else {
		s.grads = append(s.grads, gradBuf{x, 1})
		id = int32(len(s.grads) - 1)
	}
	s.give(t, id)
}

// give adds a gradient to a tensor's: dense gradients are added into a third
// tensor (torch/csrc/autograd/input_buffer.cpp, accumulate).
func (s *sim) give(t, id int32) {
	have := s.grad[t]
	switch {
	case have < 0:
		s.grad[t] = id
	case have == id:
		s.grads[id].refs--
	default:
		sum := s.alloc(s.g.Tensors[t].Bytes, Activations)
		s.unref(have)
		s.unref(id)
		s.grad[t] = -1
		s.setGrad(t, sum)
	}
}

func (s *sim) unref(id int32) {
	b := &s.grads[id]
	b.refs--
	if b.refs <= 0 {
		s.free(&b.s)
		s.freeG = append(s.freeG, id)
	}
}

// backward has the second of cuBLAS' workspaces, from the first iteration on: PyTorch has a handle for each thread,
// a workspace for each handle (aten/src/ATen/cuda/CublasHandlePool.cpp), and a thread for the backward pass
// (torch/csrc/autograd/engine.cpp).
func (s *sim) backward() {
	if !s.handle {
		s.handle = true
		s.alloc(s.p.CuBLAS, Workspace)
	}
	seg := len(s.g.Segments) - 1
	for i := len(s.g.Ops) - 1; i >= 0; i-- {
		if s.p.Checkpoint && seg >= 0 && i == int(s.g.Segments[seg][1])-1 {
			s.recompute(s.g.Segments[seg])
			seg--
		}
		s.backwardOp(i)
	}
}

func (s *sim) backwardOp(i int) {
	g := s.g
	o := &g.Ops[i]
	id := int32(-1)
	if o.Out >= 0 {
		id = s.grad[o.Out]
		s.grad[o.Out] = -1
	}
	if id >= 0 {
		s.gradients(o, id)
	}
	s.paramGradients(o, id >= 0)
	s.free(&s.aux[i])
	for k, t := range o.In {
		if t >= 0 && o.Keep&(1<<k) != 0 {
			s.release(t)
		}
	}
	if o.Out >= 0 && o.Keep&graph.KeepOut != 0 {
		s.release(o.Out)
	}
}

// gradients hands the gradient id of o's output on to its inputs.
func (s *sim) gradients(o *graph.Op, id int32) {
	g := s.g
	if o.Share || o.More[1] > o.More[0] {
		for _, t := range o.In {
			s.share(t, id)
		}
		for _, t := range g.More[o.More[0]:o.More[1]] {
			s.share(t, id)
		}
		s.unref(id)
		return
	}
	if o.GradDrop {
		s.unref(id)
		return
	}
	s.inputGradients(o, id)
}

// inputGradients makes the gradient of each input, then the scratch memory of
// the op, while they are there; a convolution needs it once more for the
// gradient of its weight.
func (s *sim) inputGradients(o *graph.Op, id int32) {
	var made [3]slot
	for k, t := range o.In {
		if t >= 0 && !s.g.Tensors[t].NoGrad {
			made[k] = s.alloc(s.g.Tensors[t].Bytes, Activations)
		}
	}
	s.scratch(o.BwdTmp)
	s.paramGradients(o, true)
	for k, t := range o.In {
		if made[k].h == 0 {
			continue
		}
		if t == o.Out && id >= 0 { // in place: the new gradient replaces the old
			s.unref(id)
			id = -1
		}
		s.setGrad(t, made[k])
	}
	if id >= 0 {
		s.unref(id)
	}
}

func (s *sim) share(t, id int32) {
	if t < 0 || s.g.Tensors[t].NoGrad {
		return
	}
	s.grads[id].refs++
	s.give(t, id)
}

// paramGradients makes the gradients of o's parameters.
func (s *sim) paramGradients(o *graph.Op, wanted bool) {
	if !wanted && o.Out >= 0 {
		return
	}
	for k := o.Params[0]; k < o.Params[1]; k++ {
		if s.pgrad[k].h == 0 && !s.g.Params[k].Frozen {
			s.pgrad[k] = s.alloc(onEach(s.g.Params[k].Elems*s.p.GradBytes, s.p.GradShards), Gradients)
		}
	}
}

// reduce is DataParallel's: the sums of the replicas' gradients are new
// tensors (torch/nn/parallel/comm.py, reduce_add_coalesced).
func (s *sim) reduce() {
	for i := range s.pgrad {
		if s.pgrad[i].h == 0 {
			continue
		}
		n := s.g.Params[i].Elems * s.p.GradBytes
		s.sums = append(s.sums, s.alloc(n, Gradients))
	}
	k := 0
	for i := range s.pgrad {
		if s.pgrad[i].h != 0 {
			s.free(&s.pgrad[i])
			s.pgrad[i] = s.sums[k]
			k++
		}
	}
	s.sums = s.sums[:0]
}
