// SPDX-License-Identifier: Apache-2.0

// Package summary reads the texts that people print of a model: torchsummary
// tables, torchinfo tables, Keras tables and PyTorch module representations.
// All of them become one list of rows in post-order: a module stands after the
// modules that it contains, which is the order in which forward hooks fire.
//
// The text comes from users and is parsed inside slurmctld, so the work is
// bounded by the caps below, nothing recurses over the input, and malformed
// text gives an error, never a panic.
package summary

import (
	"errors"
	"math"
	"math/bits"
)

// Caps on the input. Beyond them Parse refuses: what a row costs, times MaxRows,
// is the longest that an estimate takes inside slurmctld (estimator,
// TestHostileTime). The largest of timm's 714 models prints 114 KiB and 1,826 rows.
const (
	MaxBytes = 256 << 10
	MaxRows  = 2500
	maxLines = 4 * MaxRows // rows that a narrow terminal has wrapped, and rulers
	// MaxParams bounds one parameter count; a model has less than 2^50.
	MaxParams = 1 << 50
)

// Format is the tool that printed a summary.
type Format uint8

// The formats of Parse.
const (
	TorchSummary Format = iota + 1
	TorchInfo
	Keras
	Repr
)

// String gives the format's name.
func (f Format) String() string {
	switch f {
	case TorchSummary:
		return "torchsummary"
	case TorchInfo:
		return "torchinfo"
	case Keras:
		return "keras"
	case Repr:
		return "repr"
	}
	return "unknown"
}

// Errors for callers to tell apart.
var (
	ErrEmpty    = errors.New("summary is empty")
	ErrTooLarge = errors.New("it is too large")
	ErrNoModel  = errors.New("no model summary found in the text")
	ErrMisread  = errors.New("summary cannot be read")
)

// maxDims is the largest number of dimensions kept of a shape, batch excluded.
const maxDims = 5

// Shape is a tensor shape without its batch dimension.
type Shape struct {
	N uint8
	D [maxDims]int32
}

// Dims makes a shape.
func Dims(d ...int32) Shape {
	var s Shape
	for _, v := range d {
		if int(s.N) < maxDims {
			s.D[s.N] = v
			s.N++
		}
	}
	return s
}

// Elems is the product of the dimensions, saturating at math.MaxInt64.
func (s Shape) Elems() int64 {
	n := int64(1)
	for _, d := range s.D[:s.N] {
		n = mulSat(n, int64(d))
	}
	return n
}

// Last is the last dimension, 0 for a scalar.
func (s Shape) Last() int32 {
	if s.N == 0 {
		return 0
	}
	return s.D[s.N-1]
}

func mulSat(a, b int64) int64 {
	if a <= 0 || b <= 0 {
		return 0
	}
	over, n := bits.Mul64(uint64(a), uint64(b))
	if over != 0 || n > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(n)
}

// Row is a module.
type Row struct {
	Kind string // class name
	Name string // attribute name, where the format has it
	Out  Shape  // first output, batch excluded; N==0 with !HasOut: unknown
	In   Shape  // input, where the format has it
	// Start is the index of the first row that belongs to this module; a leaf's
	// is its own index. -1 while unknown (torchsummary has no depth).
	Start int32
	// Params are the module's own parameters, without its children's.
	Params int64
	// BatchDim is the printed first dimension (-1 or fixed).
	BatchDim int32
	HasOut   bool
	HasIn    bool
	// Multi says that the module returned more than one tensor.
	Multi bool
	Attr  Attr
	// Class and Role are package graph's notes on Kind.
	Class uint8
	Role  uint16
}

// Attr holds a module representation's arguments, beyond the class name.
type Attr struct {
	Known               bool // the row came with arguments
	In, Out             int32
	Kernel, Stride, Pad [2]int32
	Dilation            [2]int32
	Groups              int32
	Bias                bool
	Inplace             bool
	CeilMode            bool
	PadSame             bool
	DropP               float32 // -1 unknown
	Scale               float32 // Upsample
	OutSize             [2]int32
}

// Model is a parsed summary.
type Model struct {
	Format Format
	Rows   []Row
	// Batch is the batch size printed in the shapes, 0 where it is -1 or None.
	Batch int32
	// TotalParams is the printed total, -1 if absent.
	TotalParams int64
	// Unshown is how many of the printed total's parameters no row has, in tables whose rows
	// add up to the total: the parameters of layers left out of the print. Negative: rows
	// have more.
	Unshown int64
	// KeptPerSample are the bytes per sample that autograd keeps for the
	// backward pass, as contrib/summary measured them in fp32; 0: not measured.
	KeptPerSample int64
	// Recursive counts modules that the printer met a second time.
	Recursive int
	// Wrapper is DataParallel or DistributedDataParallel around the model.
	Wrapper string
	// Counted is the number of modules whose parameters were printed.
	Counted int
	// Skipped counts lines between rows that were not understood.
	Skipped int
	// More are further models of the same text, as the discriminator behind a generator.
	More []*Model
	// Again says that a model stands in the text more than once; More has it once.
	Again bool
	// Left says that models were left out, for the text has too many rows.
	Left bool
}

// params is the number of parameters of the rows.
func (m *Model) params() int64 {
	var n int64
	for i := range m.Rows {
		n = addSat(n, max(m.Rows[i].Params, 0))
	}
	return n
}

// unshown is the part of the total beyond the rows; 0 without a total.
func (m *Model) unshown(rows []Row) int64 {
	if m.TotalParams < 0 {
		return 0
	}
	left := m.TotalParams
	for i := range rows {
		left -= max(rows[i].Params, 0)
	}
	return left
}

// weights is the number of parameters of the common layers, which every tool shows: it
// tells two models apart.
func (m *Model) weights() int64 {
	var n int64
	for i := range m.Rows {
		switch r := &m.Rows[i]; r.Kind {
		case "Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "Embedding", "BatchNorm1d",
			"BatchNorm2d", "LayerNorm", "GroupNorm":
			n = addSat(n, max(r.Params, 0))
		}
	}
	return n
}
