// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"carma/db/texttable"
)

// width is the usual width of a terminal.
const width = 80

// bar draws n of the most cells that all shares are drawn to; any share above 0 has
// a cell.
func bar(s texttable.Style, n, of, cells int64) string {
	if n <= 0 || of <= 0 {
		return ""
	}
	mark := "█"
	if s.ASCII {
		mark = "#"
	}
	return strings.Repeat(mark, int(max((n*cells+of/2)/of, 1)))
}

// printable makes foreign text fit for a terminal. A summary may hold anything.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// wrap breaks text into lines of at most width columns: head in front of the
// first, as many blanks in front of the others.
func wrap(head, text string) string {
	indent := utf8.RuneCountInString(head)
	var b strings.Builder
	b.WriteString(head)
	at := indent
	for i, w := range strings.Fields(printable(text)) {
		n := utf8.RuneCountInString(w)
		switch {
		case i == 0:
		case at+1+n > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(w)
		at += n
	}
	return strings.TrimRight(b.String(), " ") + "\n"
}
