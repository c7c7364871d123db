// SPDX-License-Identifier: Apache-2.0

package directive

import (
	"bytes"
	"fmt"
)

// Kind is what a line of a script is to CARMA.
type Kind uint8

// The kinds of lines.
const (
	Comment Kind = iota // a comment of others, or an empty line
	Keys                // #CARMA key=value ...
	Summary             // #CARMA| one line of a model summary
	Command             // ends the leading comment block
)

// Classify tells what a line is, given without its line feed, and returns the
// text behind #CARMA or "#CARMA| ". As for sbatch (src/sbatch/opt.c,
// _opt_batch_script) a comment may be indented, and only what begins the line
// counts.
func Classify(line []byte) (Kind, []byte) {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	if len(line) == 0 || line[0] != '#' {
		if trimmed := bytes.TrimLeft(line, " \t\v\f\r"); len(trimmed) > 0 && trimmed[0] != '#' {
			return Command, nil
		}
		return Comment, nil
	}
	after, ok := bytes.CutPrefix(line, []byte("#CARMA"))
	switch {
	case !ok:
		return Comment, nil
	case len(after) > 0 && after[0] == '|':
		return Summary, bytes.TrimPrefix(after[1:], []byte{' '})
	case len(after) == 0 || after[0] == ' ' || after[0] == '\t':
		return Keys, after
	}
	return Comment, nil
}

// Unread returns the first line that was meant for CARMA, as a key behind it shows, and is not read, as an
// *Error that says where it belongs; nil: there is none.
func Unread(script []byte) *Error {
	n := 0
	for rest := script; len(rest) > 0 && n < maxHeaderLines && len(script)-len(rest) < maxHeader; {
		line, after, _ := bytes.Cut(rest, []byte{'\n'})
		kind, _ := Classify(line)
		// Behind a byte order mark or a no-break space a comment is a command for a shell, too.
		hidden := kind == Command && bytes.HasPrefix(trimBlanks(line), []byte{'#'})
		if (kind == Comment || hidden) && meant(line) {
			return &Error{n + 1, "", fmt.Sprintf("%q is not read: #CARMA and a blank begin a line", shorten(string(line)))}
		}
		if kind == Command {
			return unreadBehind(rest, n)
		}
		rest = after
		n++
	}
	return nil
}

// mostBehind bounds the search behind the first command, as a script may be one of two megabytes of "#CARMA " alone.
const mostBehind = 1000

// unreadBehind looks behind the first command, n lines below the first.
func unreadBehind(text []byte, n int) *Error {
	name := []byte("#CARMA ")
	for at, found := 0, 0; at < len(text) && found < mostBehind; found++ {
		i := bytes.Index(text[at:], name)
		if i < 0 {
			return nil
		}
		at += i
		if at > 0 && text[at-1] != '\n' {
			at += len(name)
			continue
		}
		if line, _, _ := bytes.Cut(text[at:min(len(text), at+maxOption)], []byte{'\n'}); meant(line) {
			n += bytes.Count(text[:at], []byte{'\n'}) + 1
			return &Error{n, "", "a #CARMA line behind the first command is not read; put it before"}
		}
		at += len(name)
	}
	return nil
}

// meant tells whether a comment is a #CARMA line but for blanks and case.
func meant(line []byte) bool {
	i := bytes.IndexByte(line, '#')
	if i < 0 {
		return false
	}
	word := trimBlanks(line[i+1:])
	if len(word) < len("carma") || word[0]|0x20 != 'c' || !bytes.EqualFold(word[:len("carma")], []byte("carma")) {
		return false
	}
	first := trimBlanks(word[len("carma"):])
	if len(first) == len(word)-len("carma") { // nothing stands between
		return false
	}
	end := bytes.IndexFunc(first, func(r rune) bool { return r < 'a' || r > 'z' && r != '_' })
	if end < 0 {
		end = len(first)
	}
	key, known := keys[string(first[:end])]
	return known && (key.flag || bytes.HasPrefix(first[end:], []byte{'='}))
}

// trimBlanks takes away what looks like a blank, a no-break space or a byte order mark too.
func trimBlanks(s []byte) []byte { return bytes.TrimLeft(s, " \t\u00a0\u2007\u202f\ufeff") }
