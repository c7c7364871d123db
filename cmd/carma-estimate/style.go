// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// width is that of a terminal as everybody has one.
const width = 80

// style is how text looks.
type style struct {
	colour bool
	ascii  bool
}

// Colours, as parameters of ECMA-48's SGR.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

// colourful tells whether f is a terminal whose user wants colours
// (no-color.org).
func colourful(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

func (s style) paint(colour, text string) string {
	if !s.colour || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// bar draws n of the most cells that all shares are drawn to; what is there at
// all has one.
func (s style) bar(n, of int64, cells int64) string {
	if n <= 0 || of <= 0 {
		return ""
	}
	mark := "█"
	if s.ascii {
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
