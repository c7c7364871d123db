// SPDX-License-Identifier: Apache-2.0

package summary

import (
	"bytes"
	"fmt"
	"strings"
)

// repr reads print(model), with or without parameter counts behind the
// modules:
//
//	(query): Linear(in_features=768, out_features=768, bias=True), 590,592 params
//	(0-11): 12 x BertLayer(
//	), 7,087,872 params
//
// An outermost module behind another, or a name already in the model, begins
// another model.
func repr(text []byte) ([]*Model, error) {
	p := reprParser{names: nameTable{}}
	p.begin(min(bytes.Count(text, []byte{'\n'})+1, MaxRows))
	ls := lines{rest: text}
	for lineNo := 1; ; lineNo++ {
		line, more := ls.next()
		if !more {
			break
		}
		if totals(p.m, line) || ruler(line) {
			continue
		}
		if err := p.line(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", lineNo, err)
		}
	}
	for len(p.open) > 0 { // cut off text
		if err := p.close(-1); err != nil {
			return nil, err
		}
	}
	p.finish()
	return p.found, nil
}

type reprParser struct {
	found []*Model
	m     *Model // the last of them
	all   int    // rows of the models before
	names nameTable
	tops  map[string]bool // names outside of any module of this text
	open  []reprOpen
}

// begin begins a model.
func (p *reprParser) begin(rows int) {
	p.m = &Model{Format: Repr, TotalParams: -1, Rows: make([]Row, 0, rows)}
	p.found, p.tops = append(p.found, p.m), map[string]bool{}
}

// outermost is told of a module outside of any other, perhaps another model.
func (p *reprParser) outermost(name string) {
	if len(p.m.Rows) > 0 && (name == "" || p.tops[name]) && len(p.found) < maxModels {
		p.all += len(p.m.Rows)
		p.finish()
		p.begin(0)
	}
	p.tops[name] = true
}

type reprOpen struct {
	row    Row
	repeat int
}

const (
	maxDepth  = 512
	maxRepeat = 20000 // of "N x"; a greater number is a slip of the pen
)

// reprLine says whether a line looks like a line of a module representation.
func reprLine(line []byte) bool {
	t := bytes.TrimSpace(line)
	if i := bytes.Index(t, []byte("): ")); i > 0 && bytes.IndexByte(t[i:], '(') > 0 {
		return true
	}
	n := 0
	for n < len(t) && (isIdent(t[n]) || t[n] == '.') {
		n++
	}
	return n > 0 && !isDigit(t[0]) && n+1 == len(t) && t[n] == '('
}

func (p *reprParser) line(line []byte) error {
	t := bytes.TrimSpace(line)
	name, rest := childName(t)
	if name == nil && len(p.open) > 0 {
		if n, ok := closer(t); ok {
			return p.close(n)
		}
	}
	if name == nil {
		rest = t
		if len(p.open) == 0 && !reprLine(t) {
			return nil
		}
	}
	repeat := 1
	if n, used, ok := parseCount(rest); used > 0 && bytes.HasPrefix(rest[used:], []byte(" x ")) {
		if !ok || n < 1 || n > maxRepeat {
			return fmt.Errorf("%w: bad repetition %q", ErrMisread, clip(rest))
		}
		repeat = int(n)
		rest = rest[used+3:]
	}
	kind, args := kindArgs(rest)
	if kind == nil {
		if len(p.m.Rows) > 0 {
			p.m.Skipped++
		}
		return nil
	}
	if i := bytes.LastIndexByte(kind, '.'); i >= 0 {
		kind = kind[i+1:]
	}
	if len(p.open) == 0 {
		p.outermost(p.names.of(name))
	}
	r := Row{Kind: p.names.of(kind), Name: p.names.of(name), Params: -1}
	r.Attr.DropP = -1
	if len(args) == 0 { // opens a container
		if len(p.open) >= maxDepth {
			return fmt.Errorf("%w: modules nested deeper than %d", ErrTooLarge, maxDepth)
		}
		r.Start = int32(len(p.m.Rows))
		p.open = append(p.open, reprOpen{r, repeat})
		return nil
	}
	inner, after, ok := matched(args)
	if !ok {
		p.m.Skipped++
		return nil
	}
	readArgs(&r, inner)
	n, err := paramSuffix(after)
	if err != nil {
		return err
	}
	r.Params = n
	r.Start = int32(len(p.m.Rows))
	return p.add(r, repeat)
}

func clip(b []byte) []byte { return b[:min(len(b), 40)] }

// childName finds "(name): " and gives the name and the rest.
func childName(t []byte) (name, rest []byte) {
	for at := 0; at < len(t); {
		i := bytes.IndexByte(t[at:], '(')
		if i < 0 {
			return nil, nil
		}
		i += at
		j := i + 1
		for j < len(t) && (isIdent(t[j]) || t[j] == '.' || t[j] == '-') {
			j++
		}
		if j > i+1 && bytes.HasPrefix(t[j:], []byte("): ")) {
			return t[i+1 : j], t[j+3:]
		}
		at = i + 1
		if at > 200 {
			return nil, nil
		}
	}
	return nil, nil
}

// closer reads ")" or "), 123 params" at the end of a line without an
// opening bracket; the count is -1 where absent.
func closer(t []byte) (int64, bool) {
	i := bytes.LastIndexByte(t, ')')
	if i < 0 || bytes.IndexByte(t, '(') >= 0 {
		return 0, false
	}
	n, err := paramSuffix(t[i+1:])
	if err != nil {
		return -1, true
	}
	return n, true
}

// paramSuffix reads ", 1,234 params"; -1 where there is none.
func paramSuffix(b []byte) (int64, error) {
	b = bytes.TrimLeft(b, " ,")
	n, used, ok := parseCount(b)
	if used == 0 || !bytes.HasPrefix(bytes.TrimLeft(b[used:], " "), []byte("param")) {
		return -1, nil
	}
	if !ok {
		return 0, fmt.Errorf("%w: bad parameter count %q", ErrMisread, clip(b))
	}
	return n, nil
}

// kindArgs reads "Kind(args..." ; args is empty for "Kind(".
func kindArgs(b []byte) (kind, args []byte) {
	i := 0
	for i < len(b) && (isIdent(b[i]) || b[i] == '.') {
		i++
	}
	if i == 0 || i >= len(b) || b[i] != '(' || isDigit(b[0]) {
		return nil, nil
	}
	return b[:i], b[i+1:]
}

// matched cuts args at the bracket that closes the opening bracket.
func matched(b []byte) (inner, after []byte, ok bool) {
	depth := 1
	for i, c := range b {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
			if depth == 0 {
				return b[:i], b[i+1:], true
			}
		}
	}
	return nil, nil, false
}

func (p *reprParser) add(r Row, repeat int) error {
	from := int(r.Start)
	p.m.Rows = append(p.m.Rows, r)
	n := len(p.m.Rows) - from
	if p.all+len(p.m.Rows)+n*(repeat-1) > MaxRows {
		return fmt.Errorf("%w: more than %d modules; print less of the model or give mem=", ErrTooLarge, MaxRows)
	}
	for k := 1; k < repeat; k++ {
		for i := 0; i < n; i++ {
			c := p.m.Rows[from+i]
			c.Start += int32(n * k)
			p.m.Rows = append(p.m.Rows, c)
		}
	}
	return nil
}

func (p *reprParser) close(total int64) error {
	o := p.open[len(p.open)-1]
	p.open = p.open[:len(p.open)-1]
	r := o.row
	var sum int64
	for i := int(r.Start); i < len(p.m.Rows); i++ {
		if n := p.m.Rows[i].Params; n > 0 {
			sum = addSat(sum, n)
		}
	}
	r.Params = 0
	if total > sum {
		r.Params = total - sum
	}
	return p.add(r, o.repeat)
}

// finish fills in missing counts and takes off the wrappers of the model:
// DataParallel, the model's own row.
func (p *reprParser) finish() {
	rows := p.m.Rows
	for i := range rows {
		if rows[i].Params >= 0 && rows[i].Start == int32(i) {
			p.m.Counted++
		}
		if rows[i].Params < 0 {
			rows[i].Params = countOf(&rows[i])
		}
	}
	for n := len(rows); n > 0; n = len(rows) {
		r := rows[n-1]
		switch r.Kind {
		case "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule":
			if r.Kind != "OptimizedModule" {
				p.m.Wrapper = r.Kind
			}
			rows = rows[:n-1]
			continue
		}
		break
	}
	p.m.Rows = rows
}

// countOf computes a module's parameters from its arguments.
func countOf(r *Row) int64 {
	a := &r.Attr
	in, out := int64(a.In), int64(a.Out)
	bias := int64(0)
	if a.Bias {
		bias = out
	}
	switch r.Kind {
	case "Linear", "NonDynamicallyQuantizableLinear":
		return addSat(mulSat(in, out), bias)
	case "Conv1d", "Conv2d", "Conv3d":
		k := mulSat(int64(max(a.Kernel[0], 1)), int64(max(a.Kernel[1], 1)))
		return addSat(mulSat(mulSat(in/int64(max(a.Groups, 1)), out), k), bias)
	case "ConvTranspose2d", "ConvTranspose1d":
		k := mulSat(int64(max(a.Kernel[0], 1)), int64(max(a.Kernel[1], 1)))
		return addSat(mulSat(mulSat(in, out/int64(max(a.Groups, 1))), k), bias)
	case "Embedding":
		return mulSat(in, out)
	case "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "GroupNorm", "SyncBatchNorm":
		if !a.Bias {
			return 0
		}
		return 2 * out
	}
	if len(r.Kind) > 7 && (strings.HasSuffix(r.Kind, "RMSNorm")) {
		return out
	}
	return 0
}
