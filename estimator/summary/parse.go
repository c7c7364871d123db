// SPDX-License-Identifier: Apache-2.0

package summary

import (
	"bytes"
	"fmt"
	"slices"
)

// Parse reads a summary in any of the known formats. It fails with ErrEmpty,
// ErrTooLarge, ErrNoModel or ErrMisread, wrapped.
func Parse(text []byte) (*Model, error) {
	text, err := clean(text)
	if err != nil {
		return nil, err
	}
	format := detect(text)
	found, err := parseAs(format, text)
	if err != nil {
		return nil, err
	}
	left := false
	for _, f := range [...]Format{TorchSummary, Repr} { // what torchinfo prints detect has seen
		if format != Keras && f != format && shows(f, text) {
			var over bool
			found, over = addOthers(found, f, text)
			left = left || over
		}
	}
	found = trained(found)
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: expected the output of torchsummary, torchinfo, Keras' model.summary() or print(model)",
			ErrNoModel)
	}
	found, again := once(found)
	for _, m := range found {
		m.settleBatch()
	}
	found[0].More, found[0].Again, found[0].Left = found[1:], again, left
	return found[0], nil
}

// parseAs reads the models of a tool's print.
func parseAs(f Format, text []byte) ([]*Model, error) {
	switch f {
	case TorchInfo:
		return torchInfo(text)
	case Keras:
		m, err := keras(text)
		return []*Model{m}, err
	case Repr:
		return repr(text)
	}
	return torchSummary(text)
}

// shows says whether a tool's output may be in the text: a row of torchsummary, or the
// head of a representation. To look for the head costs less than to read on.
func shows(f Format, text []byte) bool {
	if f == TorchSummary {
		return bytes.Contains(text, []byte("[-1,"))
	}
	return bytes.Contains(text, []byte("(\n"))
}

// addOthers adds the models that another tool printed into the same text: those that
// are not there yet. What cannot be read is no model of it. over tells that one was left out.
func addOthers(found []*Model, f Format, text []byte) (_ []*Model, over bool) {
	others, err := parseAs(f, text)
	if err != nil {
		return found, false
	}
	rows := 0
	have := make([][3]int64, len(found))
	for i, m := range found {
		rows += len(m.Rows)
		have[i] = [...]int64{m.weights(), m.params(), m.TotalParams}
	}
	for _, o := range others {
		o.TotalParams, o.KeptPerSample = -1, 0 // lines of the first tool's
		weights, params := o.weights(), o.params()
		// By its layers, or by all parameters: a tree may be cut off above its layers.
		there := slices.ContainsFunc(have, func(h [3]int64) bool {
			return weights == h[0] || params == h[1] || params == h[2]
		})
		switch {
		case there:
		case rows+len(o.Rows) > MaxRows:
			over = true
		default:
			rows += len(o.Rows)
			found = append(found, o)
		}
	}
	return found, over
}

// trained leaves out what has no rows, and beside models with parameters what has
// none, as a list of transforms. Lines of a log may look like rows of torchsummary: what has
// no layer of a common class is none beside models of other tools.
func trained(found []*Model) []*Model {
	found = slices.DeleteFunc(found, func(m *Model) bool { return len(m.Rows) == 0 })
	if slices.ContainsFunc(found, func(m *Model) bool { return m.params() > 0 }) {
		found = slices.DeleteFunc(found, func(m *Model) bool { return m.params() == 0 })
	}
	if slices.ContainsFunc(found, func(m *Model) bool { return m.Format != TorchSummary && m.weights() > 0 }) {
		found = slices.DeleteFunc(found, func(m *Model) bool { return m.Format == TorchSummary && m.weights() == 0 })
	}
	return found
}

// once leaves out what a tool has printed before, as a script does that shows its model twice.
func once(found []*Model) (_ []*Model, again bool) {
	same := func(a, b Row) bool {
		return a.Kind == b.Kind && a.Out == b.Out && a.Params == b.Params && a.BatchDim == b.BatchDim
	}
	var first []*Model
	for _, m := range found {
		i := slices.IndexFunc(first, func(f *Model) bool {
			return f.Format == m.Format && slices.EqualFunc(f.Rows, m.Rows, same)
		})
		if i < 0 {
			first = append(first, m)
			continue
		}
		again = true
		if first[i].Wrapper == "" {
			first[i].Wrapper = m.Wrapper
		}
	}
	return first, again
}

// maxModels are told apart in a text; the rest counts as a part of the last one.
const maxModels = 8

// detect tells the formats apart by what only one of them prints.
func detect(text []byte) Format {
	has := func(s string) bool { return bytes.Contains(text, []byte(s)) }
	switch {
	case has("(None,") || has("Model: \"") || has("(InputLayer)"):
		return Keras
	case has("depth-idx") || has("├─") || has("└─"), has("Layer (type") && has("\n+ ") && !has("-1 "):
		return TorchInfo
	case has("-1 ") && has("[-1,") || has("Layer (type)"):
		return TorchSummary
	}
	ls := lines{rest: text}
	names := nameTable{}
	for n := 0; n < 400; n++ {
		line, more := ls.next()
		if !more {
			break
		}
		if _, _, st, _ := tableRow(line, names); st == rowWhole {
			return TorchSummary
		}
		if reprLine(line) {
			return Repr
		}
	}
	return TorchSummary
}

// settleBatch takes the batch that most shapes agree on; rows whose first
// dimension is a multiple of it are windows of a sample.
func (m *Model) settleBatch() {
	for i := range m.Rows {
		if b := m.Rows[i].BatchDim; b > 0 && m.Rows[i].HasOut && m.Rows[i].Out.N > 0 {
			m.Batch = b
			return
		}
	}
}
