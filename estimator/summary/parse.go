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
	if format != Keras {
		for _, f := range [...]Format{TorchSummary, Repr} { // what torchinfo prints detect has seen
			if f != format {
				found = addOthers(found, f, text)
			}
		}
	}
	found = trained(found)
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: expected the output of torchsummary, torchinfo, Keras' model.summary() or print(model)",
			ErrNoModel)
	}
	for _, m := range found {
		m.settleBatch()
	}
	found[0].More = found[1:]
	return found[0], nil
}

// parseAs reads the models that a tool printed.
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

// addOthers adds the models that another tool printed into the same text: those that
// are not there yet, by their weights. What cannot be read is no model of it.
func addOthers(found []*Model, f Format, text []byte) []*Model {
	others, err := parseAs(f, text)
	if err != nil {
		return found
	}
	rows := 0
	for _, m := range found {
		rows += len(m.Rows)
	}
	var more []*Model
	for _, o := range others {
		o.TotalParams, o.KeptPerSample = -1, 0 // lines of the first tool's
		there := slices.ContainsFunc(found, func(m *Model) bool { return o.weights() == m.weights() })
		if rows += len(o.Rows); !there && rows <= MaxRows {
			more = append(more, o)
		}
	}
	return append(found, more...)
}

// trained leaves out what has no rows, and beside models with parameters what has
// none, as a list of transforms.
func trained(found []*Model) []*Model {
	found = slices.DeleteFunc(found, func(m *Model) bool { return len(m.Rows) == 0 })
	if slices.ContainsFunc(found, func(m *Model) bool { return m.params() > 0 }) {
		found = slices.DeleteFunc(found, func(m *Model) bool { return m.params() == 0 })
	}
	return found
}

// maxModels are told apart in a text; the rest counts as a part of the last one.
const maxModels = 8

// detect tells the formats apart by what only one of them prints.
func detect(text []byte) Format {
	has := func(s string) bool { return bytes.Contains(text, []byte(s)) }
	switch {
	case has("(None,") || has("Model: \"") || has("(InputLayer)"):
		return Keras
	case has("depth-idx") || has("├─") || has("└─"):
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
