// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"slices"

	"carma/estimator/summary"
)

// Shape is a tensor shape without its batch dimension.
type Shape = summary.Shape

// Precision as in the precision= key.
type Precision uint8

// The precisions: AMP is torch.autocast with fp32 weights.
const (
	FP32 Precision = iota
	AMP
	BF16 // weights and activations in two bytes, as in FP16
	FP16
)

// Precisions are their words.
var Precisions = [...]string{"fp32", "amp", "bf16", "fp16"}

func (p Precision) String() string { return Precisions[int(p)%len(Precisions)] }

// Half tells whether weights and activations take two bytes.
func (p Precision) Half() bool { return p == BF16 || p == FP16 }

// Attention as in the attn= key.
type Attention uint8

// The kernels; AttnAuto reads them from the class names and shapes.
const (
	AttnAuto Attention = iota
	Eager
	SDPA
	Flash
)

// Attentions are their words.
var Attentions = [...]string{"auto", "eager", "sdpa", "flash"}

func (a Attention) String() string { return Attentions[int(a)%len(Attentions)] }

// fused tells whether the kernel keeps no scores.
func (a Attention) fused() bool { return a == SDPA || a == Flash }

// Options say what a summary does not.
type Options struct {
	Batch     int64
	Seq       int32
	Input     Shape // of a sample, N==0 if not given
	Precision Precision
	Attention Attention
	// WorkspaceQuarters is the scratch memory of a backward convolution in
	// quarters of what it reads and writes; 0: see convWorkspace.
	WorkspaceQuarters int64
	Dropout           int8 // 1 active, -1 not, 0 infer
}

// builder walks the rows and gives each leaf to the type that knows its class.
type builder struct {
	joins
	attn      attention
	convs     convolution
	sideShape Shape // of the side computation's last row
	skipTo    int32 // rows before it belong to a side computation (a bias table)
}

// Build makes the op list of rows that have output shapes.
func Build(m *summary.Model, opt Options) *Graph {
	b := &builder{joins: joins{gate: -1, half: -1, normed: -1, nesting: nesting{outline: outline{
		tape: tape{opt: opt}, rows: m.Rows, fromRepr: m.Format == summary.Repr, fromInfo: m.Format == summary.TorchInfo}}}}
	b.attn.outline = &b.outline
	b.convs = convolution{joins: &b.joins, attn: &b.attn}
	n := len(m.Rows)
	b.g = &Graph{Output: -1, Tensors: make([]Tensor, 0, n+16), Ops: make([]Op, 0, n+16), Params: make([]Param, 0, n+16)}
	b.meta = make([]tensorMeta, 0, n+16)
	b.unknown = map[string]int{}
	kinds, nKinds := intern(m.Rows)
	switch m.Format {
	case summary.TorchSummary:
		spans(m.Rows, kinds, nKinds)
	case summary.Repr:
		b.rotary = rotaryOfModel(m.Rows)
		b.rows = reorder(m.Rows)
		if b.opt.Input.N == 0 {
			b.opt.Input = b.firstInput(b.rows)
		}
		shapes(b.rows, b.opt.Input)
	}
	b.g.CuDNN = slices.ContainsFunc(m.Rows, recurrent)
	b.gamma = b.hiddenScales(m)
	b.g.Hidden = b.hiddenParams(m)
	b.drop = b.dropoutActive()
	b.cur = b.input()
	b.g.ByOutputs, b.g.Outputs = b.byOutputs()
	b.scan()
	if m.Unshown > 0 {
		b.op(Op{In: in1(-1), Out: -1, Params: b.params(m.Unshown, 0)})
	}
	b.finish()
	return b.g
}

// recurrent says that cuDNN runs a module: a whole layer, not a cell.
func recurrent(r summary.Row) bool { return r.Kind == "RNN" || r.Kind == "LSTM" || r.Kind == "GRU" }

// maxKinds bounds the class names that are told apart; no model has as many.
const maxKinds = 512

// intern numbers the class names, gives how many numbers there are, and notes class and role in each
// row.
func intern(rows []summary.Row) ([]int32, int) {
	type note struct {
		id    int32
		class class
		role  role
	}
	notes := map[string]note{}
	kinds := make([]int32, len(rows))
	for i := range rows {
		r := &rows[i]
		n, ok := notes[r.Kind]
		if !ok && len(notes) >= maxKinds {
			n, ok = note{id: maxKinds}, true
		}
		if !ok {
			n = note{int32(len(notes)), classOf(r.Kind), roleOf(r.Kind)}
			notes[r.Kind] = n
		}
		kinds[i] = n.id
		r.Class, r.Role = uint8(n.class), uint16(n.role)
	}
	if len(notes) < maxKinds {
		return kinds, len(notes)
	}
	return kinds, maxKinds + 1
}

// rowClass is a row's class.
func rowClass(r *summary.Row) class { return class(r.Class) }

// scan walks the rows in post-order.
func (b *builder) scan() {
	n := len(b.rows)
	next, first := spansByStart(b.rows)
	for i := 0; i < n; i++ {
		b.row = int32(i)
		for c := first[i]; c >= 0; c = next[c] {
			b.open(c)
		}
		r := &b.rows[i]
		if r.Start >= 0 && r.Start < int32(i) {
			b.close(int32(i))
			continue
		}
		if int32(i) < b.skipTo || b.sideShape.N > 0 && sameLead(b.sideShape, r.Out) {
			b.sideRow(r)
			continue
		}
		b.sideShape = Shape{}
		b.leaf(int32(i))
	}
}
