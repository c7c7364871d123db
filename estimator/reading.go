// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"fmt"
	"slices"
	"strings"

	"carma/estimator/summary"
)

// oddPct is the share of all outputs that may have another first dimension than the
// batch, as tables of positions have, before it matters.
const oddPct = 3

// reading is another way to read the printed shapes, whose first dimension may not be
// the batch.
type reading struct {
	model  *summary.Model // nil: the size of a sample is not printed
	reason string
}

// otherReading says how else the shapes may have to be read; false: they are clear.
func otherReading(s Spec, m *summary.Model) (reading, bool) {
	switch {
	case m.Format == summary.Repr: // prints no shapes
		return reading{}, false
	case slices.ContainsFunc(m.Rows, unbatched):
		const reason = "layers print no batch dimension: read as the outputs of one sample"
		if slices.ContainsFunc(m.Rows, func(r summary.Row) bool { return unbatched(r) && r.BatchDim <= 0 }) {
			return reading{nil, reason}, true // the first dimension is not printed
		}
		return reading{reread(m, 1, joined), reason}, true
	case m.Format == summary.TorchSummary:
		return ofTwoSamples(s, m)
	}
	if batch := secondIsBatch(s, m); batch > 0 {
		const reason = "the first dimension of the outputs may be the sequence, not the batch"
		return reading{reread(m, batch, swapped), reason}, true
	}
	return oddLeads(s, m)
}

// larger is the larger of two estimates by two readings; it is not sure.
func larger(e, other Estimate, r reading) Estimate {
	if other.MiB > e.MiB {
		other.Confidence = max(other.Confidence, e.Confidence)
		e = other
	}
	c := Unsure
	if r.model == nil {
		c = Bound
		e.want(SaySample)
	}
	e.want(Trace)
	e.lower(c, "%s", r.reason)
	e.margin()
	return e
}

// reread is a copy of the model with shapes as change makes them of the printed first
// dimension and the batch.
func reread(m *summary.Model, batch int32,
	change func(s summary.Shape, lead, batch int32) summary.Shape,
) *summary.Model {
	c := *m
	c.Rows, c.Batch = slices.Clone(m.Rows), batch
	for i := range c.Rows {
		r := &c.Rows[i]
		if r.HasOut && r.BatchDim > 0 && r.BatchDim != batch {
			r.Out, r.BatchDim, r.HasIn = change(r.Out, r.BatchDim, batch), batch, false
		}
	}
	return &c
}

// joined makes the first dimension the sample's.
func joined(s summary.Shape, lead, _ int32) summary.Shape {
	return summary.Dims(append([]int32{lead}, s.D[:s.N]...)...)
}

// swapped makes the second dimension the batch; where it is not, as behind a flattened
// sequence, what exceeds the batch is the sequence.
func swapped(s summary.Shape, lead, batch int32) summary.Shape {
	if s.N > 0 && s.D[0] == batch {
		s.D[0] = lead
		return s
	}
	return folded(s, lead, batch)
}

// folded makes what exceeds the batch, as frames, a part of the positions.
func folded(s summary.Shape, lead, batch int32) summary.Shape {
	k := (int64(lead) + int64(batch) - 1) / int64(batch)
	switch at := 0; {
	case k <= 1:
		return s
	case s.N < 2:
		return summary.Dims(append([]int32{int32(k)}, s.D[:s.N]...)...)
	default:
		if s.N >= 3 {
			at = 1 // behind the channels
		}
		s.D[at] = int32(min(int64(s.D[at])*k, 1<<31-1))
		return s
	}
}

// unbatched says that a layer's output has a dimension less than with a batch.
func unbatched(r summary.Row) bool {
	if !r.HasOut {
		return false
	}
	for n, word := range [...]string{"Linear", "Conv1d", "Conv2d", "Conv3d"} {
		if r.Kind == word && int(r.Out.N) <= n {
			return true
		}
	}
	return false
}

// ofTwoSamples: torchsummary runs two samples and prints the first dimension as -1. A
// second dimension of two is that of the samples, and the sequence stood first.
func ofTwoSamples(s Spec, m *summary.Model) (reading, bool) {
	twos := func(r summary.Row) bool { return tokens(&r) && r.Out.D[0] == 2 }
	if m.KeptPerSample > 0 || s.Seq == 2 || !slices.ContainsFunc(m.Rows, twos) {
		return reading{}, false
	}
	r := reading{reason: "the first dimension of the outputs, which torchsummary does not print, may be the sequence"}
	if s.Seq > 0 {
		c := *m
		c.Rows = slices.Clone(m.Rows)
		for i := range c.Rows {
			if twos(c.Rows[i]) {
				c.Rows[i].Out.D[0] = int32(s.Seq)
			}
		}
		r.model = &c
	}
	return r, true
}

// tokens says that a row's output is one of sequences: two dimensions and the batch.
func tokens(r *summary.Row) bool {
	return r.HasOut && r.Out.N == 2 &&
		(r.Kind == "Linear" || r.Kind == "LayerNorm" || r.Kind == "Embedding" || byDefault(r.Kind))
}

// secondIsBatch is the batch where the outputs may be [sequence, batch, features],
// PyTorch's default for its recurrent layers and transformers; 0: they are not.
func secondIsBatch(s Spec, m *summary.Model) int32 {
	usual, known := false, s.Batch == 0 || s.Batch == int(m.Batch) // nothing is scaled
	first := int32(0)
	for i := range m.Rows {
		r := &m.Rows[i]
		usual = usual || byDefault(r.Kind)
		if !tokens(r) {
			known = known || r.HasOut && r.Out.N != 2 && r.BatchDim == m.Batch // pooled, or a map
			continue
		}
		lead, second := r.BatchDim, r.Out.D[0]
		switch {
		case lead <= 1 || lead == second || second < 1:
		case s.Seq > 0 && int(second) == s.Seq && second != m.Batch:
			known = known || lead == m.Batch
		case second == 1, second == m.Batch, int(second) == s.Batch, int(lead) == s.Seq && s.Batch != s.Seq:
			return second
		case first == 0:
			first = second
		}
	}
	if usual && !known {
		return first
	}
	return 0
}

// byDefault says that a class reads the sequence first unless told otherwise.
func byDefault(kind string) bool {
	switch kind {
	case "RNN", "LSTM", "GRU", "MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerDecoder",
		"TransformerEncoderLayer", "TransformerDecoderLayer":
		return true
	}
	return false
}

// oddLeads: outputs whose first dimension exceeds the batch, as of frames or proposals.
func oddLeads(s Spec, m *summary.Model) (reading, bool) {
	batch := leastLead(s, m)
	inWindows := windows(m)
	var all, odd float64
	for i := range m.Rows {
		r := &m.Rows[i]
		if !r.HasOut || r.BatchDim <= 0 {
			continue
		}
		n := float64(r.Out.Elems()) * float64(r.BatchDim)
		all += n
		if r.BatchDim > batch && !(inWindows[i] > 0 && r.BatchDim%batch == 0) {
			odd += n
		}
	}
	if odd*100 <= all*oddPct {
		return reading{}, false
	}
	return reading{reread(m, batch, folded), fmt.Sprintf("the outputs differ in their first dimension: not all of it is "+
		"the batch of %d", batch)}, true
}

// leastLead is the printed batch, where the outputs differ in their first dimension: what
// the user says, if it is there, and otherwise the least one.
func leastLead(s Spec, m *summary.Model) int32 {
	if m.Batch <= 1 && s.Batch > 0 {
		return 1
	}
	least := m.Batch
	for i := range m.Rows {
		switch lead := m.Rows[i].BatchDim; {
		case !m.Rows[i].HasOut || lead <= 1:
		case int(lead) == s.Batch:
			return lead
		default:
			least = min(least, lead)
		}
	}
	return max(least, 1)
}

// windows says which rows are inside of an attention, whose outputs are cut into
// windows, or of what cuts them.
func windows(m *summary.Model) []int32 {
	in := make([]int32, len(m.Rows)+1)
	for i := range m.Rows {
		r := &m.Rows[i]
		for _, word := range [...]string{"Attn", "Attention", "Window", "Partition"} {
			if strings.Contains(r.Kind, word) && r.Start >= 0 {
				in[r.Start]++
				in[i+1]--
				break
			}
		}
	}
	for i := 1; i < len(in); i++ {
		in[i] += in[i-1]
	}
	return in
}
