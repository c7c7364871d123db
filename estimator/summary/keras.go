// SPDX-License-Identifier: Apache-2.0

package summary

import (
	"bytes"
	"fmt"
)

// keras reads the table of tf.keras' and Keras 3's model.summary():
//
//	conv2d (Conv2D)              (None, 26, 26, 32)        320
//	│ conv2d (Conv2D)  │ (None, 26, 26, 32) │   320 │
func keras(text []byte) (*Model, error) {
	m := &Model{Format: Keras, TotalParams: -1}
	ls := lines{rest: text}
	bar := []byte("│")
	for lineNo := 1; ; lineNo++ {
		line, more := ls.next()
		if !more {
			break
		}
		if totals(m, line) || ruler(line) {
			continue
		}
		if bytes.Contains(line, bar) {
			line = bytes.ReplaceAll(line, bar, []byte(" "))
		}
		r, ok, err := kerasRow(line)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %v", ErrMisread, lineNo, err)
		}
		if !ok {
			continue
		}
		if len(m.Rows) >= MaxRows {
			return nil, fmt.Errorf("%w: more than %d rows", ErrTooLarge, MaxRows)
		}
		r.Start = int32(len(m.Rows))
		m.Rows = append(m.Rows, r)
	}
	return m, nil
}

// kerasRow finds "name (Kind) (None, ...) count".
func kerasRow(line []byte) (Row, bool, error) {
	open := bytes.IndexByte(line, '(')
	if open <= 0 {
		return Row{}, false, nil
	}
	end := bytes.IndexByte(line[open:], ')')
	if end < 0 {
		return Row{}, false, nil
	}
	kind := bytes.TrimSpace(line[open+1 : open+end])
	for _, c := range kind {
		if !isIdent(c) {
			return Row{}, false, nil
		}
	}
	if len(kind) == 0 || isDigit(kind[0]) {
		return Row{}, false, nil
	}
	rest := bytes.TrimLeft(line[open+end+1:], " \t")
	r := Row{Kind: string(kind), Name: string(bytes.TrimSpace(line[:open]))}
	if len(rest) == 0 || rest[0] != '(' && rest[0] != '[' {
		return Row{}, false, nil
	}
	s, batch, extra, used, ok := parseShape(rest)
	if used == 0 {
		return Row{}, false, nil
	}
	if !ok {
		return Row{}, false, fmt.Errorf("bad shape of %s", kind)
	}
	r.Out, r.BatchDim, r.HasOut, r.Multi = s, batch, true, extra > 0
	n, used2, ok := parseCount(bytes.TrimLeft(rest[used:], " \t"))
	if used2 == 0 {
		return r, true, nil // wrapped in a narrow terminal: the count is lost
	}
	if !ok {
		return Row{}, false, fmt.Errorf("bad parameter count of %s", kind)
	}
	r.Params = n
	return r, true, nil
}
