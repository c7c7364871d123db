// SPDX-License-Identifier: Apache-2.0

package summary

import (
	"bytes"
	"fmt"
)

// torchInfo reads the table of TylerYep/torchinfo:
//
//	├─Conv2d: 1-1      [1, 3, 224, 224]   [1, 64, 112, 112]   9,408   [7, 7]
//	│    └─Conv2d (conv1): 3-1 ...
//
// The columns are named by the header; depth comes from the indentation of
// the tree or, where that is lost, from the depth-index.
//
// A header or an outermost module behind rows begins another model.
func torchInfo(text []byte) ([]*Model, error) {
	t := infoTable{names: nameTable{}, rows: make([]infoRow, 0, min(bytes.Count(text, []byte{'\n'})+1, MaxRows))}
	t.begin()
	ls := lines{rest: text}
	for lineNo := 1; ; lineNo++ {
		line, more := ls.next()
		if !more {
			break
		}
		if bytes.Contains(line, []byte("Layer (type")) {
			t.next()
			t.header(line)
			t.indexed = bytes.Contains(line, []byte("depth-idx"))
			continue
		}
		if totals(t.m, line) || ruler(line) {
			continue
		}
		if err := t.row(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", lineNo, err)
		}
	}
	t.finish()
	return t.found, nil
}

// begin begins a model.
func (t *infoTable) begin() {
	t.m = &Model{Format: TorchInfo, TotalParams: -1}
	t.found = append(t.found, t.m)
	t.rows, t.withParams = t.rows[:0], map[string]bool{}
}

// next ends a model with rows and begins another.
func (t *infoTable) next() {
	if len(t.rows) > 0 && len(t.found) < maxModels {
		t.finish()
		t.begin()
	}
}

type infoTable struct {
	found      []*Model
	m          *Model // the last of them
	all        int    // rows of all
	names      nameTable
	columns    [8]infoColumn // in printed order
	n          int
	indexed    bool // rows of modules have an index of depth
	rows       []infoRow
	withParams map[string]bool // classes that had parameters
}

type infoColumn uint8

const (
	colOther infoColumn = iota
	colInput
	colOutput
	colParams
	colKernel
)

type infoRow struct {
	Row
	depth int
}

// header learns the order of the columns.
func (t *infoTable) header(line []byte) {
	t.n = 0
	type mark struct {
		at int
		c  infoColumn
	}
	var marks [8]mark
	n := 0
	for _, h := range [...]struct {
		word string
		c    infoColumn
	}{
		{"Input Shape", colInput}, {"Output Shape", colOutput}, {"Param #", colParams}, {"Param %", colOther},
		{"Kernel Shape", colKernel}, {"Groups", colOther}, {"Mult-Adds", colOther}, {"Trainable", colOther},
	} {
		if i := bytes.Index(line, []byte(h.word)); i >= 0 && n < len(marks) {
			marks[n] = mark{i, h.c}
			n++
		}
	}
	for i := 1; i < n; i++ { // by position
		for j := i; j > 0 && marks[j].at < marks[j-1].at; j-- {
			marks[j], marks[j-1] = marks[j-1], marks[j]
		}
	}
	for _, k := range marks[:n] {
		t.columns[t.n] = k.c
		t.n++
	}
}

// row reads one line; lines that are no row are counted as skipped.
func (t *infoTable) row(line []byte) error {
	depth, name, ascii := treePrefix(line)
	if name == nil {
		if len(t.rows) > 0 {
			t.m.Skipped++
		}
		return nil
	}
	kind, attr, idxDepth, rest := infoName(name, t.names)
	if kind == "" || (depth < 0 || ascii) && !t.cellsFollow(rest) {
		if len(t.rows) > 0 {
			t.m.Skipped++
		}
		return nil
	}
	if depth > 0 && (t.indexed && idxDepth == 0 || tensorRow(rest)) {
		return nil // a tensor of the module above, which verbose=2 prints
	}
	if depth < 0 {
		depth = idxDepth
	}
	r := infoRow{depth: max(depth, 0)}
	r.Kind, r.Name = kind, attr
	if err := t.cells(&r.Row, rest); err != nil {
		return fmt.Errorf("%w: %s: %v", ErrMisread, kind, err)
	}
	if r.depth == 0 && (r.HasOut || r.HasIn || bytes.Contains(rest, []byte("--"))) && t.nested() {
		t.next()
	}
	if t.all++; t.all > MaxRows {
		return fmt.Errorf("%w: more than %d rows; print less of the model or give mem=", ErrTooLarge, MaxRows)
	}
	t.rows = append(t.rows, r)
	return nil
}

// cellsFollow says that what stands behind a name without a tree are cells, and not more
// words of a log. The outermost module may have none.
func (t *infoTable) cellsFollow(b []byte) bool {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return len(t.rows) == 0
	}
	_, used, _ := parseCount(b)
	return len(b) == used || b[0] == '[' || b[0] == '(' || bytes.HasPrefix(b, []byte("--"))
}

// tensorRow says that the cells are those of a module's tensor: its count is drawn as a branch.
func tensorRow(cells []byte) bool {
	return bytes.Contains(cells, []byte("├─")) || bytes.Contains(cells, []byte("└─"))
}

// nested says whether the model has rows below its outermost module.
func (t *infoTable) nested() bool { n := len(t.rows); return n > 0 && t.rows[n-1].depth > 0 }

// treePrefix strips the tree drawing and gives the depth it shows, -1 for a line without
// one. ascii says that it is drawn as with ascii_only, which may be something else.
func treePrefix(line []byte) (depth int, name []byte, ascii bool) {
	rest, columns := line, 0
	for len(rest) > 0 {
		switch {
		case rest[0] == ' ', rest[0] == '|':
			ascii = ascii || rest[0] == '|'
			rest = rest[1:]
		case bytes.HasPrefix(rest, []byte("│")):
			rest = rest[len("│"):]
		case bytes.HasPrefix(rest, []byte("├─")), bytes.HasPrefix(rest, []byte("└─")):
			return columns/5 + 1, rest[len("├─"):], false // each level takes five columns
		case bytes.HasPrefix(rest, []byte("+ ")):
			return columns/5 + 1, rest[len("+ "):], true
		case columns == 0 && isIdent(rest[0]) && !isDigit(rest[0]):
			return -1, rest, false
		default:
			return 0, nil, false
		}
		columns++
	}
	return 0, nil, false
}

// infoName reads "Kind: 2-1" or "Kind (name): 2-1" or "Kind (name)"; depth is
// that of the index, 0 without one.
func infoName(b []byte, names nameTable) (kind, name string, depth int, rest []byte) {
	i := 0
	for i < len(b) && isIdent(b[i]) {
		i++
	}
	if i == 0 {
		return "", "", 0, nil
	}
	kind = names.of(b[:i])
	b = b[i:]
	if len(b) > 1 && b[0] == ' ' && b[1] == '(' {
		j := bytes.IndexByte(b, ')')
		if j < 0 {
			return "", "", 0, nil
		}
		name = names.of(b[2:j])
		b = b[j+1:]
	}
	if len(b) > 0 && b[0] == ':' {
		b = bytes.TrimLeft(b[1:], " ")
		for len(b) > 0 && isDigit(b[0]) {
			if depth < 1000 {
				depth = depth*10 + int(b[0]-'0')
			}
			b = b[1:]
		}
		for len(b) > 0 && (b[0] == '-' || isDigit(b[0])) {
			if b[0] == '-' && (len(b) < 2 || !isDigit(b[1])) {
				break
			}
			b = b[1:]
		}
	}
	if len(b) > 0 && !isBlank(b[0]) {
		return "", "", 0, nil
	}
	return kind, name, depth, b
}

var errShape = fmt.Errorf("bad shape")

// cells reads the columns. A shape is taken for the next shape column, a
// number for the parameters.
func (t *infoTable) cells(r *Row, b []byte) error {
	col := 0
	if t.n == 0 {
		t.columns = [8]infoColumn{colOutput, colParams}
		t.n = 2
	}
	for col < t.n {
		b = bytes.TrimLeft(b, " \t")
		if len(b) == 0 {
			return nil
		}
		c := t.columns[col]
		col++
		switch {
		case c != colParams && (b[0] == '[' || b[0] == '('):
			s, batch, extra, used, ok := parseShape(b)
			if used == 0 {
				return errShape
			}
			b = b[used:]
			if !ok {
				return errShape
			}
			switch c {
			case colInput:
				r.In, r.HasIn = s, true
			case colOutput:
				r.Out, r.HasOut, r.BatchDim = s, true, batch
				r.Multi = extra > 0
			case colKernel:
				r.Attr.Kernel = [2]int32{batch, s.D[0]}
			}
		default:
			end := bytes.IndexByte(b, ' ')
			if end < 0 {
				end = len(b)
			}
			if c == colParams {
				if err := t.params(r, b[:end]); err != nil {
					return err
				}
			}
			b = b[end:]
		}
	}
	return nil
}

func (t *infoTable) params(r *Row, cell []byte) error {
	if bytes.Equal(cell, []byte("--")) {
		return nil
	}
	if bytes.HasPrefix(cell, []byte("(recursive")) {
		if t.withParams[r.Kind] {
			t.m.Recursive++ // only a second use of parameters is worth telling
		}
		return nil
	}
	cell = bytes.Trim(cell, "()") // frozen parameters are in brackets
	n, used, ok := parseCount(cell)
	if used == 0 || !ok {
		return fmt.Errorf("bad parameter count")
	}
	r.Params = n
	if n > 0 {
		t.withParams[r.Kind] = true
	}
	return nil
}

// finish turns the pre-order table into post-order rows. What torchinfo prints
// for a container is what its children do not have (leftover_params), so the
// counts stay as they are.
func (t *infoTable) finish() {
	n := len(t.rows)
	out := make([]Row, 0, n)
	// open containers by depth: index in t.rows and start in out
	type open struct{ row, start, depth int }
	var stack []open
	closeTo := func(depth int) {
		for len(stack) > 0 && stack[len(stack)-1].depth >= depth {
			o := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			r := t.rows[o.row].Row
			r.Start = int32(o.start)
			out = append(out, r)
		}
	}
	for i := range t.rows {
		d := t.rows[i].depth
		closeTo(d)
		if len(stack) > 512 {
			continue
		}
		stack = append(stack, open{i, len(out), d})
	}
	closeTo(-1)
	t.m.Unshown = t.m.unshown(out)
	if k := len(out) - 1; k > 0 && out[k].Start == 0 && t.rows[0].depth == 0 {
		out = out[:k] // the model itself
	}
	t.m.Rows = out
}
