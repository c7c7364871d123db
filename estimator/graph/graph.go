// SPDX-License-Identifier: Apache-2.0

// Package graph turns the rows of a model summary into the list of operations
// that a training step executes, with what each of them allocates, keeps for
// the backward pass, and needs for a moment.
//
// A summary names modules, not the calls between them: residual additions,
// concatenations, gates and attention are inferred from the modules' classes
// and shapes. What had to be guessed is added up in Graph.Guessed.
//
// The types stand in layers, each with its own state, and each sees those below only: tape records
// ops and tensors; outline reads the rows as a whole; nesting has the open containers; joins bring
// branches together; attention and convolution know these classes; builder walks the rows.
package graph

import (
	"math"
	"math/bits"
)

// Tensor is a storage on the device: views and in-place results share one.
type Tensor struct {
	Bytes int64
	Elems int64 // with the batch
	Shape Shape // without the batch
	Width int8  // bytes per element
	// NoGrad marks data that no gradient flows to: images, token ids, masks.
	NoGrad bool
}

// Op is one operation of the forward pass and what its backward needs.
type Op struct {
	In    [3]int32 // tensors read; -1 for none
	Out   int32    // tensor made; equal to In[0] if in place; -1 for none
	Keep  uint8    // tensors held until the backward: KeepIn0, ...
	Share bool     // backward hands on the gradient itself (addition, view)
	// Attention marks the op that reads queries, keys and values, GradDrop one whose backward makes
	// no gradient for the inputs.
	Attention, GradDrop bool

	Aux    int64    // bytes made by forward and held until backward (mask, indices, statistics)
	FwdTmp int64    // bytes needed during the forward only
	BwdTmp int64    // bytes needed during the backward only
	Params [2]int32 // range in Graph.Params whose gradients this op makes
	More   [2]int32 // range in Graph.More: further inputs of a concatenation
}

// Bits of Op.Keep.
const (
	KeepIn0 = 1 << iota
	KeepIn1
	KeepIn2
	KeepOut
)

// Param is one parameter tensor.
type Param struct {
	Elems  int64
	Frozen bool
}

// Graph is the op list of one training step on one GPU.
type Graph struct {
	Tensors []Tensor
	Ops     []Op
	More    []int32
	Params  []Param
	Buffers int64 // bytes of buffers that no gradient is made for
	Inputs  []int32
	Output  int32 // the model's output, -1 if it has none
	// Held are tensors that stay until the next forward is done, because the
	// script holds the model's outputs (logits, past keys and values).
	Held []int32
	// HeldBytes is the size of what is held of Held's tensors.
	HeldBytes int64
	// LacksInput says that nobody told how large a sample is.
	LacksInput bool

	// Segments are the ops of each outermost block, [from, to): the units that
	// gradient checkpointing recomputes.
	Segments [][2]int32

	CuDNN   bool  // some op runs in cuDNN
	Guessed int64 // bytes of kept tensors whose source was guessed
	Kept    int64 // bytes kept for the backward in all
	// ByOutputs is Kept as counted from the rows' outputs alone, in numbers of four
	// bytes; Outputs are those of every row, kept or not.
	ByOutputs, Outputs int64
	// Transform is the scratch memory that the largest convolution takes if cuDNN
	// computes it by FFT: its filters, transformed.
	Transform int64
	// Hidden counts parameters that no row shows and no known habit explains.
	Hidden int64
	// Folded counts parameters of layers that torchinfo's table shows as one row, Projected those
	// of rows whose layers are known nevertheless.
	Folded, Projected int64
	Unknown           []Unknown
	Assumed           []string
}

// GuessedPct is the percentage of what is kept whose source was guessed.
func (g *Graph) GuessedPct() int64 { return g.Guessed / max((g.Kept+g.Guessed)/100, 1) }

// Largest is the size of the largest tensor.
func (g *Graph) Largest() int64 {
	var most int64
	for i := range g.Tensors {
		most = max(most, g.Tensors[i].Bytes)
	}
	return most
}

// Unknown counts the modules of one class that were not understood.
type Unknown struct {
	Kind  string
	Count int
}

// sat is where byte counts saturate: no sum of a few of them overflows.
const sat = math.MaxInt64 / 1024

func mul(a, b int64) int64 {
	if a <= 0 || b <= 0 {
		return 0
	}
	over, n := bits.Mul64(uint64(a), uint64(b))
	if over != 0 || n > sat {
		return sat
	}
	return int64(n)
}

func add(a, b int64) int64 {
	if a > sat-b {
		return sat
	}
	return a + b
}
