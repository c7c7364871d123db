// SPDX-License-Identifier: Apache-2.0

package training

import (
	"testing"

	"carma/estimator/graph"
)

// chain is a graph of n layers that each keep their input of size bytes.
func chain(n int, bytes int64, params int64) *graph.Graph {
	g := &graph.Graph{Output: int32(n)}
	for i := 0; i <= n; i++ {
		g.Tensors = append(g.Tensors, graph.Tensor{Bytes: bytes, Elems: bytes / 4, Width: 4, NoGrad: i == 0})
	}
	g.Inputs = []int32{0}
	for i := range n {
		g.Params = append(g.Params, graph.Param{Elems: params})
		g.Ops = append(g.Ops, graph.Op{
			In: [3]int32{int32(i), -1, -1}, Out: int32(i + 1), Keep: graph.KeepIn0,
			Params: [2]int32{int32(i), int32(i + 1)},
		})
	}
	return g
}

func plan() Plan {
	return Plan{ParamBytes: 4, GradBytes: 4, StateShards: 1, GradShards: 1, ParamShards: 1, Replicas: 1, Iterations: 2,
		Moves: Budget, Foreach: true}
}

const mib = 1 << 20

// Adam holds parameter, gradient, two moments and, in the foreach form, one
// temporary of each parameter at once: five copies.
func TestOptimizers(t *testing.T) {
	const params = 16 * mib // bytes of each of 4 layers
	for _, c := range []struct {
		name   string
		opt    Optimizer
		each   bool
		copies int64 // in all
	}{
		{"adam foreach", Adam, false, 5},
		{"sgd", SGD, false, 2},
		{"momentum foreach", SGDMomentum, false, 4},
		{"rmsprop foreach", RMSprop, false, 4},
		{"adadelta foreach", Adadelta, false, 6},
	} {
		p := plan()
		p.Optimizer, p.Foreach = c.opt, !c.each
		r := Run(chain(4, 4096, params/4), p)
		if got := (r.Peak + params) / (4 * params); got != c.copies {
			t.Errorf("%s: peak of %d MiB is %d copies, want %d", c.name, r.Peak/mib, got, c.copies)
		}
	}
	// One parameter after the other: two temporaries of one.
	p := plan()
	p.Optimizer = AdamWHF
	if r := Run(chain(4, 4096, params/4), p); r.Peak/params != 4*4+2 {
		t.Errorf("adamw_hf: peak of %d MiB", r.Peak/mib)
	}
}

// The forward and the backward pass have a workspace of cuBLAS each, and keep them.
func TestCuBLASWorkspaces(t *testing.T) {
	p := plan()
	without := Run(chain(4, 4096, 4*mib), p)
	p.CuBLAS = 12 * mib
	r := Run(chain(4, 4096, 4*mib), p)
	if r.Parts[Workspace] != 2*p.CuBLAS || r.Reserved != without.Reserved+2*p.CuBLAS {
		t.Errorf("workspaces of %d MiB, %d MiB reserved, %d without any", r.Parts[Workspace]/mib, r.Reserved/mib,
			without.Reserved/mib)
	}
}

func TestCheckpoint(t *testing.T) {
	g := chain(8, 8*mib, 256)
	for i := int32(0); i < 8; i += 4 {
		g.Segments = append(g.Segments, [2]int32{i, i + 4})
	}
	p := plan()
	all := Run(g, p)
	p.Checkpoint = true
	some := Run(g, p)
	// Instead of eight inputs: two block inputs, and one block's four again.
	if some.Peak >= all.Peak-2*8*mib {
		t.Errorf("peak of %d MiB with checkpoints, %d without", some.Peak/mib, all.Peak/mib)
	}
}

func TestParallel(t *testing.T) {
	g := chain(4, 4096, 4*mib)
	one := Run(g, plan())
	p := plan()
	p.Buckets = true
	if r := Run(g, p); r.Peak < one.Peak+4*16*mib {
		t.Errorf("DDP's buckets are missing: %d MiB, %d without", r.Peak/mib, one.Peak/mib)
	}
	p = plan()
	p.StateShards, p.GradShards, p.ParamShards = 4, 4, 4
	if r := Run(g, p); r.Peak*3 > one.Peak {
		t.Errorf("sharding over 4 leaves %d of %d MiB", r.Peak/mib, one.Peak/mib)
	}
}

// The peak's parts add up to it.
func TestParts(t *testing.T) {
	r := Run(chain(6, 3*mib, 5*mib), plan())
	var sum int64
	for _, n := range r.Parts {
		sum += n
	}
	if sum != r.Peak || r.Reserved < r.Peak || !r.Complete {
		t.Errorf("parts %v sum to %d, peak %d, reserved %d", r.Parts, sum, r.Peak, r.Reserved)
	}
}

// A run ends within an operation when its work is done, and what it has seen by
// then is a lower bound.
func TestBudget(t *testing.T) {
	g := chain(30000, 4096, 256)
	for i := range g.Tensors {
		g.Tensors[i].Bytes = 512 * (1 + int64(i)*7919%40000)
	}
	r := Run(g, plan())
	if r.Complete || r.Moves < Budget || r.Moves > Budget+int64(len(g.Tensors)) {
		t.Errorf("complete: %v, %d moves", r.Complete, r.Moves)
	}
	if r.Peak <= 0 || r.Reserved != r.Peak {
		t.Errorf("reserved %d, peak %d", r.Reserved, r.Peak)
	}
	if r := Run(chain(100, 4096, 256), plan()); !r.Complete || r.Moves == 0 || r.Moves > 10000 {
		t.Errorf("a small one: complete %v, %d moves", r.Complete, r.Moves)
	}
}
