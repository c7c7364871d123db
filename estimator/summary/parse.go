// SPDX-License-Identifier: Apache-2.0

package summary

import (
	"bytes"
	"fmt"
)

// Parse reads a summary in any of the known formats. It fails with ErrEmpty,
// ErrTooLarge, ErrNoModel or ErrMisread, wrapped.
func Parse(text []byte) (*Model, error) {
	text, err := clean(text)
	if err != nil {
		return nil, err
	}
	m, err := parseAs(detect(text), text)
	if err != nil {
		return nil, err
	}
	if len(m.Rows) == 0 {
		return nil, fmt.Errorf("%w: expected the output of torchsummary, torchinfo, Keras' model.summary() or print(model)",
			ErrNoModel)
	}
	m.settleBatch()
	return m, nil
}

func parseAs(f Format, text []byte) (*Model, error) {
	switch f {
	case TorchInfo:
		return torchInfo(text)
	case Keras:
		return keras(text)
	case Repr:
		return repr(text)
	}
	return torchSummary(text)
}

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
		if _, st, _ := tableRow(line, names); st == rowWhole {
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
