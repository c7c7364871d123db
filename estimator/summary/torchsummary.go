// SPDX-License-Identifier: Apache-2.0

package summary

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// torchSummary reads the table of sksq96/pytorch-summary:
//
//	Conv2d-1          [-1, 64, 112, 112]           9,408
//
// Anything may stand before the row (a log prefix); a row may be wrapped.
//
// A header behind rows, or a number that falls, begins another model.
func torchSummary(text []byte) ([]*Model, error) {
	m := &Model{Format: TorchSummary, TotalParams: -1}
	m.Rows = make([]Row, 0, min(bytes.Count(text, []byte{'\n'})+1, MaxRows))
	found := []*Model{m}
	next := func() {
		if len(m.Rows) > 0 && len(found) < maxModels {
			m = &Model{Format: TorchSummary, TotalParams: -1}
			found = append(found, m)
		}
	}
	rows, last := 0, 0
	ls := lines{rest: text}
	var pending []byte
	waited := 0
	names := nameTable{}
	for lineNo := 1; ; lineNo++ {
		line, more := ls.next()
		if !more {
			break
		}
		if pending != nil {
			joined := make([]byte, 0, len(pending)+len(line)+1)
			joined = append(append(append(joined, pending...), ' '), line...)
			line = joined
		}
		row, number, st, err := tableRow(line, names)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %v", ErrMisread, lineNo, err)
		}
		switch {
		case st == rowWhole:
			pending, waited = nil, 0
			if rows++; rows > MaxRows {
				return nil, fmt.Errorf("%w: more than %d rows; print less of the model or give mem=", ErrTooLarge, MaxRows)
			}
			if number < last {
				next()
			}
			m.Rows, last = append(m.Rows, row), number
		case bytes.Contains(line, []byte("Layer (type)")):
			pending, waited = nil, 0
			next()
		case st == rowPart && waited < 3 && len(line) < 1024:
			pending, waited = bytes.Clone(line), waited+1
		default:
			pending, waited = nil, 0
			if !ruler(line) && !totals(m, line) && len(m.Rows) > 0 {
				m.Skipped++
			}
		}
	}
	return found, nil
}

type rowState uint8

const (
	rowNone rowState = iota
	rowPart
	rowWhole
)

// tableRow finds "Kind-N [shape] count" in a line.
func tableRow(line []byte, names nameTable) (r Row, number int, st rowState, err error) {
	for at := 0; at < len(line); {
		i := bytes.IndexByte(line[at:], '[')
		head := line[at:]
		if i >= 0 {
			head = line[at : at+i]
		}
		kind, end := kindBefore(head, names)
		if kind == "" {
			if i < 0 {
				return Row{}, 0, rowNone, nil
			}
			at += i + 1
			continue
		}
		if i < 0 {
			if len(bytes.TrimSpace(head[end:])) == 0 {
				return Row{}, 0, rowPart, nil
			}
			return Row{}, 0, rowNone, nil
		}
		shape, batch, extra, used, ok := parseShape(line[at+i:])
		if used == 0 {
			if bytes.IndexByte(line[at+i:], ']') < 0 {
				return Row{}, 0, rowPart, nil
			}
			return Row{}, 0, rowNone, fmt.Errorf("bad shape of %s", kind)
		}
		if !ok {
			return Row{}, 0, rowNone, fmt.Errorf("bad dimension in the shape of %s", kind)
		}
		rest := bytes.TrimLeft(line[at+i+used:], " \t")
		n, used, ok := parseCount(rest)
		if used == 0 {
			if len(rest) == 0 {
				return Row{}, 0, rowPart, nil
			}
			return Row{}, 0, rowNone, nil
		}
		if !ok {
			return Row{}, 0, rowNone, fmt.Errorf("bad parameter count of %s", kind)
		}
		return Row{
			Kind: kind, Out: shape, HasOut: true, BatchDim: batch, Params: n,
			Start: -1, Multi: extra > 0,
		}, tableNumber(head[:end]), rowWhole, nil
	}
	return Row{}, 0, rowNone, nil
}

// tableNumber is the N of "Kind-N" at the end of b.
func tableNumber(b []byte) int {
	n, _, _ := parseCount(b[bytes.LastIndexByte(b, '-')+1:])
	return int(n)
}

// kindBefore gives the class of a trailing "Kind-N" token and its end.
func kindBefore(b []byte, names nameTable) (string, int) {
	e := len(b)
	for e > 0 && isBlank(b[e-1]) {
		e--
	}
	d := e
	for d > 0 && isDigit(b[d-1]) {
		d--
	}
	if d == e || d == 0 || b[d-1] != '-' {
		return "", 0
	}
	k := d - 1
	for k > 0 && isIdent(b[k-1]) {
		k--
	}
	if k == d-1 || isDigit(b[k]) {
		return "", 0
	}
	return names.of(b[k : d-1]), e
}

func ruler(line []byte) bool {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return true
	}
	for _, c := range line {
		if c != '-' && c != '=' && c != '_' {
			return false
		}
	}
	return true
}

var (
	totalWords     = [][]byte{[]byte("Total params:"), []byte("Total Params:")}
	trainableWords = [][]byte{[]byte("Trainable params:"), []byte("Trainable Params:")}
	keptWord       = []byte("Kept bytes per sample:") // contrib/summary/carma_summary.py
	otherTotals    = [][]byte{
		[]byte("Non-trainable"), []byte("Input size"), []byte("Forward/backward"), []byte("Params size"),
		[]byte("Estimated Total"), []byte("Total mult-adds"), []byte("Optimizer params"),
	}
)

// totals reads the closing lines common to torchsummary, torchinfo and Keras.
func totals(m *Model, line []byte) bool {
	if t := bytes.TrimLeft(line, " "); len(t) > 0 && (t[0] == '(' || t[0] == ')' || t[0] >= utf8.RuneSelf) {
		return false // a module: the usual line of a representation or of a tree
	}
	for _, w := range otherTotals {
		if bytes.Contains(line, w) {
			return true
		}
	}
	if i := bytes.Index(line, keptWord); i >= 0 {
		if n, used, ok := parseCount(bytes.TrimLeft(line[i+len(keptWord):], " \t")); used > 0 && ok {
			m.KeptPerSample = n
		}
		return true
	}
	for _, w := range trainableWords {
		if bytes.Contains(line, w) {
			return true
		}
	}
	for _, w := range totalWords {
		if i := bytes.Index(line, w); i >= 0 {
			count := bytes.TrimLeft(line[i+len(w):], " \t")
			if n, used, ok := parseCount(count); used > 0 && ok && (used == len(count) || !rounded(count[used])) {
				m.TotalParams = n
			}
			return true
		}
	}
	return false
}

// rounded says that what stands behind a count makes it another one, as in "25.6M".
func rounded(c byte) bool { return c == '.' || isIdent(c) }
