// SPDX-License-Identifier: Apache-2.0

// Package training plays a training run of a graph on the simulated caching
// allocator: parameters, then iterations of forward, backward and optimizer
// step in the order in which PyTorch allocates and frees.
package training

import (
	"carma/estimator/allocator"
	"carma/estimator/graph"
)

// Part of the memory, by what it is for.
type Part uint8

// The parts.
const (
	Parameters Part = iota
	Gradients
	OptimizerState
	Activations
	Workspace
	nParts
)

// Plan is how a graph is trained.
type Plan struct {
	Optimizer  Optimizer
	Foreach    bool
	ParamBytes int64 // bytes per parameter element
	GradBytes  int64
	// Shards divide what ZeRO and FSDP spread over the GPUs; 1: not spread.
	StateShards, GradShards, ParamShards int64
	Gather                               int64 // bytes of parameters gathered at a time under FSDP
	Buckets                              bool  // DDP: a second copy of the gradients in buckets
	Replicas                             int64 // DataParallel: GPUs that share the batch; 1: none
	Checkpoint                           bool  // recompute blocks in the backward pass
	Iterations                           int
	CuBLAS                               int64 // bytes of a cuBLAS workspace from the caching allocator
	Moves                                int64 // that are left of Budget
}

// Result is what the run took.
type Result struct {
	Reserved int64 // segments: what nvidia-smi adds to the base
	Peak     int64 // live bytes at most
	Parts    [nParts]int64
	// Complete is false when the work budget ran out: Reserved is then the
	// live peak only, as far as the run came.
	Complete bool
	Moves    int64 // in the allocator's free lists: the work done
}

// Correct adds n bytes of activations, or takes them off, that are known to be
// live at the peak or not.
func (r *Result) Correct(n int64) {
	if n < 0 {
		n = -min(-n, r.Parts[Activations])
	}
	r.Parts[Activations] += n
	r.Peak += n
	r.Reserved += n
}

// Budget bounds the moves in the allocator's free lists: beyond it the run ends
// within an operation. Most models need a few thousand, the most that any of timm's
// needs is 1.2 million.
const Budget = 2 << 20

type sim struct {
	g     *graph.Graph
	p     Plan
	d     *allocator.Device
	live  [nParts]int64
	best  int64
	parts [nParts]int64

	tensor  []slot // storage by tensor
	readers []int32
	keeps   []int32
	grad    []int32 // grads index by tensor, -1 none
	grads   []gradBuf
	freeG   []int32
	aux     []slot // by op
	param   []slot
	pgrad   []slot
	left    []int32 // readers still to come
	held    []slot  // last iteration's outputs
	sums    []slot
	made    []int32 // by tensor: the mark of the block that made it last
	mark    int32
	handle  bool // of cuBLAS, of the backward pass
}

type slot struct {
	h    allocator.Handle
	part Part
}

type gradBuf struct {
	s    slot
	refs int32
}

// Run plays the plan.
func Run(g *graph.Graph, p Plan) Result {
	s := &sim{g: g, p: p, d: allocator.New(len(g.Tensors) + len(g.Ops) + 2*len(g.Params))}
	s.prepare()
	s.start()
	for it := 0; it < p.Iterations && !s.spent(); it++ {
		s.iterate(it)
	}
	ok := !s.spent()
	r := Result{Reserved: s.d.Reserved, Peak: s.d.PeakAllocated, Parts: s.parts, Complete: ok, Moves: s.d.Moves}
	if !ok {
		r.Reserved = r.Peak
	}
	return r
}

// onEach is the share of each of n GPUs. Most jobs have one GPU, and a division takes as long as the
// rest of a parameter's step.
func onEach(bytes, n int64) int64 {
	if n == 1 {
		return bytes
	}
	return bytes / n
}

// spent tells whether the work budget has run out.
func (s *sim) spent() bool { return s.d.Moves >= s.p.Moves }

// alloc and free do nothing any more when the budget has run out.
func (s *sim) alloc(n int64, part Part) slot {
	if n <= 0 || s.spent() {
		return slot{}
	}
	h := s.d.Alloc(n)
	s.live[part] += s.d.Size(h)
	if s.d.Allocated > s.best {
		s.best = s.d.Allocated
		s.parts = s.live
	}
	return slot{h, part}
}

// scratch takes n bytes and gives the bytes back.
func (s *sim) scratch(n int64) {
	if n <= 0 || s.spent() {
		return
	}
	size := s.d.Touch(n)
	if s.d.Allocated+size > s.best {
		s.best = s.d.Allocated + size
		s.parts = s.live
		s.parts[Workspace] += size
	}
}

func (s *sim) free(x *slot) {
	if x.h == 0 {
		return
	}
	if !s.spent() {
		s.live[x.part] -= s.d.Size(x.h)
		s.d.Free(x.h)
	}
	*x = slot{}
}

func (s *sim) prepare() {
	g := s.g
	n := len(g.Tensors)
	s.tensor = make([]slot, n)
	counts := make([]int32, 5*n)
	s.readers, s.left, s.keeps = counts[:n], counts[n:2*n], counts[2*n:3*n]
	s.grad, s.made = counts[3*n:4*n], counts[4*n:]
	s.aux = make([]slot, len(g.Ops))
	slots := make([]slot, 2*len(g.Params))
	s.param, s.pgrad = slots[:len(g.Params)], slots[len(g.Params):]
	for i := range s.grad {
		s.grad[i] = -1
	}
	for i := range g.Ops {
		o := &g.Ops[i]
		for _, t := range o.In {
			if t >= 0 {
				s.readers[t]++
			}
		}
		for _, t := range g.More[o.More[0]:o.More[1]] {
			s.readers[t]++
		}
	}
	if g.Output >= 0 {
		s.readers[g.Output]++
	}
}

// start moves the model to the GPU.
func (s *sim) start() {
	for i := range s.g.Params {
		s.param[i] = s.alloc(onEach(s.g.Params[i].Elems*s.p.ParamBytes, s.p.ParamShards), Parameters)
	}
	s.alloc(s.g.Buffers, Parameters)
	if s.p.Gather > 0 {
		s.alloc(s.p.Gather, Parameters)
	}
	s.alloc(s.p.CuBLAS, Workspace)
	if s.p.Buckets {
		var n int64
		for i := range s.g.Params {
			if !s.g.Params[i].Frozen {
				n += s.g.Params[i].Elems * s.p.GradBytes
			}
		}
		// DistributedDataParallel's bucket_cap_mb; the largest models' in one.
		const bucket, most = 25 << 20, 4096
		for k := 0; k < most && n > bucket; k++ {
			s.alloc(bucket, Gradients)
			n -= bucket
		}
		s.alloc(n, Gradients)
	}
}

func (s *sim) iterate(it int) {
	g := s.g
	var old []slot
	for _, t := range g.Inputs {
		old = append(old, s.tensor[t])
		s.tensor[t] = s.alloc(g.Tensors[t].Bytes, Activations)
	}
	for k := range old {
		s.free(&old[k])
	}
	for i := range s.pgrad { // zero_grad(set_to_none=True)
		if s.d.Size(s.pgrad[i].h) > tinyGrad {
			s.free(&s.pgrad[i])
		}
	}
	s.forward()
	s.loss()
	s.backward()
	last := it+1 == s.p.Iterations
	if last && s.p.Replicas <= 1 && !s.stepMatters() {
		return
	}
	s.finishIteration()
	if !last || s.stepMatters() {
		s.step(it)
	}
}

// tinyGrad: gradients up to this size get the same small blocks in every
// iteration, so that they may as well stay.
const tinyGrad = 64 << 10

// stepMatters says whether the last step may still need new segments: where
// the activations are much larger than all that the optimizer touches, it
// finds room where the step before had it.
func (s *sim) stepMatters() bool {
	const touched = 6 // parameters, gradients, two states, two temporaries
	return touched*s.live[Parameters] > s.best
}

// forward runs all ops; what no later op reads and no backward needs goes.
func (s *sim) forward() {
	copy(s.left, s.readers)
	clear(s.keeps)
	seg := 0
	for i := 0; i < len(s.g.Ops); {
		if s.p.Checkpoint && seg < len(s.g.Segments) && i == int(s.g.Segments[seg][0]) {
			s.checkpoint(s.g.Segments[seg])
			i = int(s.g.Segments[seg][1])
			seg++
			continue
		}
		s.forwardOp(i, true)
		i++
	}
}

func (s *sim) forwardOp(i int, keep bool) {
	g := s.g
	o := &g.Ops[i]
	if o.Out >= 0 && s.tensor[o.Out].h == 0 {
		s.tensor[o.Out] = s.alloc(g.Tensors[o.Out].Bytes, Activations)
	}
	if o.Aux > 0 && keep {
		s.aux[i] = s.alloc(o.Aux, Activations)
	}
	s.scratch(o.FwdTmp)
	if keep {
		s.keep(o, 1)
	}
	for _, t := range o.In {
		if t >= 0 {
			s.left[t]--
			s.drop(t)
		}
	}
	for _, t := range g.More[o.More[0]:o.More[1]] {
		s.left[t]--
		s.drop(t)
	}
	if o.Out >= 0 {
		s.drop(o.Out)
	}
}

// keep counts (by 1) the tensors that o holds for its backward.
func (s *sim) keep(o *graph.Op, by int32) {
	for k, t := range o.In {
		if t >= 0 && o.Keep&(1<<k) != 0 {
			s.keeps[t] += by
		}
	}
	if o.Out >= 0 && o.Keep&graph.KeepOut != 0 {
		s.keeps[o.Out] += by
	}
}

// drop frees a tensor that nothing needs any more. Inputs stay with the
// script until the next batch.
func (s *sim) drop(t int32) {
	if s.left[t] > 0 || s.keeps[t] > 0 || s.g.Tensors[t].NoGrad {
		return
	}
	s.free(&s.tensor[t])
}

func (s *sim) release(t int32) {
	if s.keeps[t] > 0 {
		s.keeps[t]--
		s.drop(t)
	}
}

// finishIteration frees what is left when the script's variables go.
func (s *sim) finishIteration() {
	for t := range s.grad {
		if id := s.grad[t]; id >= 0 {
			s.grad[t] = -1
			s.unref(id)
		}
	}
	if s.p.Replicas <= 1 {
		for _, t := range s.g.Held {
			s.hold(t)
		}
		if s.g.Output >= 0 {
			s.hold(s.g.Output)
		}
	}
	for t := range s.tensor {
		if !s.g.Tensors[t].NoGrad {
			s.free(&s.tensor[t])
		}
	}
	if s.p.Replicas > 1 {
		s.reduce()
	}
	for i := range s.aux {
		s.free(&s.aux[i])
	}
}

// hold keeps a tensor for the script's variable.
func (s *sim) hold(t int32) {
	if s.tensor[t].h != 0 && !s.g.Tensors[t].NoGrad {
		s.held = append(s.held, s.tensor[t])
		s.tensor[t] = slot{}
	}
}
