// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"carma/slurmbridge/version"
)

// widthsFrom is from how many jobs the widths of a table's columns are taken.
const widthsFrom = 1000

// table prints aligned columns, two blanks between them and none at the ends.
func (r *Report) table(ctx context.Context, out io.Writer) (found bool, err error) {
	jobs, rest, err := first(ctx, r.sources, r.sel, widthsFrom, 20*widthsFrom)
	if err != nil {
		return false, err
	}
	width := make([]int, len(r.columns))
	var cell []byte
	for i, c := range r.columns {
		if width[i] = c.width; c.width > 0 {
			continue
		}
		if r.header {
			width[i] = utf8.RuneCountInString(c.title)
		}
		for _, j := range jobs {
			cell = r.style.appendText(cell[:0], c.kind, c.of(j))
			width[i] = max(width[i], utf8.RuneCount(cell))
		}
	}
	w := bufio.NewWriterSize(out, 1<<16)
	if r.header {
		line := []byte{}
		for i, c := range r.columns {
			line = r.pad(line, []byte(c.title), i, width[i])
		}
		w.Write(append(bytes.TrimRight(line, " "), '\n'))
	}
	row := func(b []byte, j *job) []byte {
		begin := len(b)
		var scratch [128]byte
		for i := range r.columns {
			cell := r.style.appendText(scratch[:0], r.columns[i].kind, r.columns[i].of(j))
			b = r.pad(b, cell, i, width[i])
		}
		return append(b[:begin+len(bytes.TrimRight(b[begin:], " "))], '\n')
	}
	if !rest {
		for _, j := range jobs {
			w.Write(row(nil, j))
		}
		return len(jobs) > 0, w.Flush()
	}
	found, err = r.stream(ctx, w, row, nil)
	if err != nil {
		return found, err
	}
	return found, w.Flush()
}

// pad adds a cell and the blanks around it. A cell too long for the user's
// width is cut, with a + as in sacct.
func (r *Report) pad(line, cell []byte, i, width int) []byte {
	if i > 0 {
		line = append(line, ' ', ' ')
	}
	n := utf8.RuneCount(cell)
	c := &r.columns[i]
	if c.width > 0 && n > width {
		runes := []rune(string(cell))
		cell, n = append([]byte(string(runes[:width-1])), '+'), width
	}
	right := c.kind.right() && !c.left
	if !right {
		line = append(line, cell...)
	}
	for ; n < width; n++ {
		line = append(line, ' ')
	}
	if right {
		line = append(line, cell...)
	}
	return line
}

// lines is a part of the output.
type lines struct {
	text []byte
	jobs int
}

// stream writes a row for each job; between stands between two of them.
func (r *Report) stream(ctx context.Context, w *bufio.Writer, row func([]byte, *job) []byte,
	between []byte) (found bool, err error) {
	used := sync.Pool{New: func() any { return &lines{} }}
	err = each(ctx, r.sources, r.sel, func() *lines { return used.Get().(*lines) },
		func(l *lines, j *job) {
			if l.jobs++; l.jobs > 1 {
				l.text = append(l.text, between...)
			}
			l.text = row(l.text, j)
		},
		func(l *lines) error {
			if found && l.jobs > 0 {
				w.Write(between)
			}
			found = found || l.jobs > 0
			_, err := w.Write(l.text)
			l.text, l.jobs = l.text[:0], 0
			used.Put(l)
			return err
		})
	return found, err
}

// apart has another character in place of each separator in a user's text, from there on, and of one that would end
// with the separator behind the text: the text makes no columns.
func apart(b []byte, from int, separator string) []byte {
	if separator == "" || bytes.IndexByte(b[from:], separator[0]) < 0 {
		return b
	}
	with := "?"
	if strings.Contains(separator, with) {
		with = "_"
	}
	text := strings.ReplaceAll(string(b[from:]), separator, with)
	for i := strings.Index(text+separator, separator); i < len(text); i = strings.Index(text+separator, separator) {
		text = text[:i] + with + text[i+1:]
	}
	return append(b[:from], text...)
}

// delimited prints output for programs: raw numbers, a separator, quotes where
// CSV wants them, and otherwise a question mark for a separator in a text.
func (r *Report) delimited(ctx context.Context, out io.Writer, separator string, csv, trailing bool) (bool, error) {
	w := bufio.NewWriterSize(out, 1<<16)
	end := func(line []byte) []byte {
		if !trailing {
			line = line[:len(line)-len(separator)]
		}
		return append(line, '\n')
	}
	if r.header {
		var line []byte
		for _, c := range r.columns {
			line = append(append(line, c.name...), separator...)
		}
		w.Write(end(line))
	}
	s := r.style
	s.raw = true
	found, err := r.stream(ctx, w, func(b []byte, j *job) []byte {
		for i := range r.columns {
			c := &r.columns[i]
			v := c.of(j)
			from := len(b)
			if v.known || !csv {
				b = s.appendText(b, c.kind, v)
			}
			switch {
			case csv && bytes.ContainsAny(b[from:], ",\"\n\r"):
				b = append(b[:from], quoteCSV(b[from:])...)
			case !csv && c.kind == text:
				b = apart(b, from, separator)
			}
			b = append(b, separator...)
		}
		return end(b)
	}, nil)
	if err != nil {
		return found, err
	}
	return found, w.Flush()
}

func quoteCSV(cell []byte) []byte {
	quoted := append([]byte{'"'}, bytes.ReplaceAll(cell, []byte{'"'}, []byte(`""`))...)
	return append(quoted, '"')
}

// json prints every field of every job (docs/json.md).
func (r *Report) json(ctx context.Context, out io.Writer) (bool, error) {
	w := bufio.NewWriterSize(out, 1<<16)
	fmt.Fprintf(w, "{\n  \"schema\": %q,\n  \"version\": %q,\n  \"jobs\": [\n", "carma.report/1", version.String())
	keys := make([]string, len(fields))
	for i := range fields {
		keys[i] = `, "` + fields[i].json + `": `
	}
	keys[0] = "    {" + keys[0][2:]
	found, err := r.stream(ctx, w, func(b []byte, j *job) []byte {
		for i := range fields {
			b = append(b, keys[i]...)
			b = appendJSON(b, fields[i].kind, fields[i].of(j))
		}
		return append(b, '}')
	}, []byte(",\n"))
	if err != nil {
		return found, err
	}
	if found {
		w.WriteByte('\n')
	}
	w.WriteString("  ]\n}\n")
	return found, w.Flush()
}

func appendJSON(b []byte, k kind, v value) []byte {
	switch {
	case k == yesNo:
		return strconv.AppendBool(b, v.num != 0)
	case k == ids:
		return appendList(b, v.text, func(b []byte, id string) []byte { return append(b, id...) })
	case k == words:
		return appendList(b, v.text, appendQuoted)
	case !v.known:
		return append(b, "null"...)
	case k == text:
		return appendQuoted(b, v.text)
	}
	return appendNumber(b, v.num)
}

func appendList(b []byte, list string, one func([]byte, string) []byte) []byte {
	b = append(b, '[')
	for list != "" {
		var word string
		word, list, _ = strings.Cut(list, ",")
		if b = one(b, word); list != "" {
			b = append(b, ", "...)
		}
	}
	return append(b, ']')
}

// appendNumber writes a figure with at most three decimals.
func appendNumber(b []byte, v float64) []byte {
	if whole := int64(v); float64(whole) == v {
		return strconv.AppendInt(b, whole, 10)
	}
	thousandths := int64(math.Round(v * 1000))
	if thousandths < 0 {
		b, thousandths = append(b, '-'), -thousandths
	}
	b = strconv.AppendInt(b, thousandths/1000, 10)
	rest := thousandths % 1000
	if rest == 0 {
		return b
	}
	b = append(b, '.', byte('0'+rest/100))
	if rest%100 != 0 {
		b = append(b, byte('0'+rest/10%10))
	}
	if rest%10 != 0 {
		b = append(b, byte('0'+rest%10))
	}
	return b
}

// appendQuoted writes a JSON string.
func appendQuoted(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	if plainText(s) {
		return append(append(b, s...), '"')
	}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

func plainText(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// HelpFormat lists the columns.
func HelpFormat(w io.Writer) {
	for _, f := range fields {
		fmt.Fprintf(w, "%-12s %s\n", f.name, f.help)
	}
}
