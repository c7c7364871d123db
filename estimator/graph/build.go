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

type builder struct {
	opt             Options
	rows            []summary.Row
	g               *Graph
	cur             int32
	frames          []frame
	meta            []tensorMeta
	gate            int32 // tensor that waits for a gate computed from its mean, -1
	drop            bool  // dropout layers are active
	sideShape       Shape // of the side computation's last row
	skipTo          int32 // rows before it belong to a side computation (a bias table)
	half            int32 // the other half of a gated linear unit, -1
	weightOp        bool  // the previous leaf had weights
	row             int32
	normed          int32     // the result of the last batch norm, -1
	gamma           bool      // residual branches are scaled by a parameter that no row shows
	convIn          [16]int32 // inputs of the last convolutions
	nConvIn         int
	recent          [16]int32
	nRecent         int
	unknown         map[string]int
	fromRepr        bool
	fromInfo        bool
	rotary          bool  // a representation whose rotary embeddings are the model's
	vocab, vocabDim int32 // of the first embedding
	lacksInput      bool  // neither the user nor the summary says how large a sample is
}

type tensorMeta struct {
	used    bool // an op read it
	guessed bool
	mult    int32 // windows per sample
}

// width of activations that low-precision ops make.
func (b *builder) lowWidth() int8 {
	if b.opt.Precision == FP32 {
		return 4
	}
	return 2
}

// fullWidth is the width of what autocast keeps in fp32.
func (b *builder) fullWidth() int8 {
	if b.opt.Precision.Half() {
		return 2
	}
	return 4
}

func (b *builder) tensor(s Shape, mult int32, width int8) int32 {
	if mult < 1 {
		mult = 1
	}
	e := mul(mul(s.Elems(), int64(mult)), b.opt.Batch)
	b.g.Tensors = append(b.g.Tensors, Tensor{Elems: e, Bytes: mul(e, int64(width)), Shape: s, Width: width})
	b.meta = append(b.meta, tensorMeta{mult: mult})
	id := int32(len(b.g.Tensors) - 1)
	b.recent[b.nRecent%len(b.recent)] = id
	b.nRecent++
	return id
}

func (b *builder) like(t int32) int32 {
	return b.tensor(b.g.Tensors[t].Shape, b.meta[t].mult, b.g.Tensors[t].Width)
}

func (b *builder) op(o Op) {
	for _, t := range o.In {
		if t >= 0 {
			b.meta[t].used = true
		}
	}
	b.g.Ops = append(b.g.Ops, o)
}

func in1(a int32) [3]int32 { return [3]int32{a, -1, -1} }

func in2(a, c int32) [3]int32 { return [3]int32{a, c, -1} }

// perSample elements of a tensor, windows included.
func (b *builder) elems(t int32) int64 {
	return mul(b.g.Tensors[t].Shape.Elems(), int64(b.meta[t].mult))
}

func (b *builder) shape(t int32) Shape { return b.g.Tensors[t].Shape }

// cast makes t have the given width, as autocast does before an op.
func (b *builder) cast(t int32, width int8) int32 {
	if b.opt.Precision != AMP || b.g.Tensors[t].Width == width {
		return t
	}
	out := b.tensor(b.shape(t), b.meta[t].mult, width)
	b.g.Tensors[out].NoGrad = b.g.Tensors[t].NoGrad
	b.op(Op{In: in1(t), Out: out})
	return out
}

// params adds a weight and an optional bias and gives their range.
func (b *builder) params(n, bias int64) [2]int32 {
	from := int32(len(b.g.Params))
	if n-bias > 0 {
		b.g.Params = append(b.g.Params, Param{Elems: n - bias})
	}
	if bias > 0 {
		b.g.Params = append(b.g.Params, Param{Elems: bias})
	}
	return [2]int32{from, int32(len(b.g.Params))}
}

// Build makes the op list of rows that have output shapes.
func Build(m *summary.Model, opt Options) *Graph {
	b := &builder{opt: opt, rows: m.Rows, gate: -1, half: -1, normed: -1, fromRepr: m.Format == summary.Repr,
		fromInfo: m.Format == summary.TorchInfo}
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

// intern numbers the class names and notes class and role in each row.
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
	return kinds, maxKinds + 1
}

// rowClass is a row's class.
func rowClass(r *summary.Row) class { return class(r.Class) }

// dropoutActive: torchsummary does not print p. timm's models, which are
// recognised by their Identity in place of an unused DropPath, have p=0 by
// default; all others are taken to use the dropout that they have.
func (b *builder) dropoutActive() bool {
	if b.opt.Dropout != 0 {
		return b.opt.Dropout > 0
	}
	identities, containers, dropouts := 0, 0, 0
	for i := range b.rows {
		switch r := &b.rows[i]; {
		case r.Kind == "Identity" || r.Kind == "DropPath":
			identities++
		case class(r.Class) == clsDropout:
			dropouts++
		case r.Start < int32(i):
			containers++
		}
	}
	if b.fromRepr || identities == 0 || containers == 0 {
		return true
	}
	if dropouts > 0 {
		b.assume("dropout p=0, timm's default (say dropout= to change it)")
	}
	return false
}

func (b *builder) assume(s string) {
	for _, a := range b.g.Assumed {
		if a == s {
			return
		}
	}
	b.g.Assumed = append(b.g.Assumed, s)
}

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

// hiddenScales says whether residual blocks scale their branches by parameters
// of their own (LayerScale written as x*self.gamma, without a module). They are
// among the parameters that the total has and no row shows: one a channel and
// block in convolutional models, two in transformers.
func (b *builder) hiddenScales(m *summary.Model) bool {
	if m.Format != summary.TorchSummary || m.TotalParams <= 0 {
		return false
	}
	hidden := m.TotalParams
	var channels, blocks int64
	var block Shape
	scaled := false // by modules, whose gamma torchsummary does not count
	for i := range b.rows {
		r := &b.rows[i]
		hidden -= r.Params
		scaled = scaled || rowClass(r) == clsScale
		if r.Start < int32(i) && role(r.Role)&roleResidual != 0 && r.Out.N > 0 {
			c := int64(r.Out.Last())
			if r.Out.N == 3 {
				c = int64(r.Out.D[0])
			}
			channels += c
			blocks++
			block = r.Out
		}
	}
	if channels > 0 && hidden == channels {
		return true
	}
	return !scaled && block.N == 2 && channels == blocks*int64(block.Last()) && scaledTokens(hidden, blocks, block)
}

// scaledTokens says whether the hidden parameters of a transformer's equal
// blocks are two scales a block, beside what else is hidden: class tokens and a
// position table; in Eva and BEiT, which call their projections as functions,
// q, k and v with two biases; in BEiT, tables of relative positions.
func scaledTokens(hidden, blocks int64, block Shape) bool {
	tokens, width := int64(block.D[0]), int64(block.D[1])
	if width == 0 {
		return false
	}
	usual := func(n int64) bool {
		const classTokens = 8 // class, distillation, registers
		if n < 0 {
			return false
		}
		n /= width
		return n <= classTokens || n >= tokens-classTokens && n <= tokens+classTokens
	}
	if qkv := 3 * mul(width, width); hidden >= mul(blocks, qkv) {
		hidden -= blocks * (qkv + 2*width)
	}
	side := int64(1)
	for side*side < tokens-1 {
		side++
	}
	tables := mul(blocks*(width/headDim), (2*side-1)*(2*side-1)+3)
	scales := 2 * blocks * width
	return !usual(hidden) && (usual(hidden-scales) || hidden-scales-tables == width)
}

// layerScale is x*gamma: x is kept, the backward needs a full-size product.
func (b *builder) layerScale() {
	in := b.cur
	out := b.like(in)
	s := b.shape(in)
	n := int64(s.Last())
	if s.N == 3 {
		n = int64(s.D[0])
	}
	b.op(Op{In: in1(in), Out: out, Keep: KeepIn0, BwdTmp: b.g.Tensors[in].Bytes, Params: b.params(n, 0)})
	b.cur = out
}
