// SPDX-License-Identifier: Apache-2.0

package graph

import "carma/estimator/summary"

// outline is what the rows say as a whole: the model's input, whether dropout is active,
// what the total counts and no row shows.
type outline struct {
	tape
	rows            []summary.Row
	fromRepr        bool
	fromInfo        bool
	rotary          bool  // a representation whose rotary embeddings are the model's
	drop            bool  // dropout layers are active
	gamma           bool  // residual branches are scaled by a parameter that no row shows
	lacksInput      bool  // neither the user nor the summary says how large a sample is
	vocab, vocabDim int32 // of the first embedding
}

// dropoutActive: torchsummary does not print p. timm's models, which are
// recognised by their Identity in place of an unused DropPath, have p=0 by
// default; all others are taken to use the dropout that they have.
func (b *outline) dropoutActive() bool {
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

// hiddenScales says whether residual blocks scale their branches by parameters
// of their own (LayerScale written as x*self.gamma, without a module). They are
// among the parameters that the total has and no row shows: one a channel and
// block in convolutional models, two in transformers.
func (b *outline) hiddenScales(m *summary.Model) bool {
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
