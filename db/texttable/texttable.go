// SPDX-License-Identifier: Apache-2.0

// Package texttable writes aligned tables of text.
package texttable

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Column is one column of a Table. Figures stand to the right, words to the
// left.
type Column struct {
	Title string
	Right bool
}

// Columns makes columns of titles; one of figures has a > in front.
func Columns(titles ...string) []Column {
	list := make([]Column, len(titles))
	for i, title := range titles {
		list[i].Title, list[i].Right = strings.CutPrefix(title, ">")
	}
	return list
}

// Table prints aligned rows under their titles.
type Table struct {
	Columns []Column
	Rows    [][]string
}

// WriteTo prints the table, two blanks between columns and none at the ends.
func (t Table) WriteTo(w io.Writer) (int64, error) {
	width := make([]int, len(t.Columns))
	titles := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		titles[i] = c.Title
		width[i] = utf8.RuneCountInString(c.Title)
		for _, row := range t.Rows {
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
		}
	}
	var b strings.Builder
	for _, row := range append([][]string{titles}, t.Rows...) {
		var line strings.Builder
		for i, text := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(text))
			if i > 0 {
				line.WriteString("  ")
			}
			if t.Columns[i].Right {
				line.WriteString(pad + text)
			} else {
				line.WriteString(text + pad)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}
