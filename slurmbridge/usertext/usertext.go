// SPDX-License-Identifier: Apache-2.0

// Package usertext makes a text that a user gave to Slurm - the name of a job, an account, a
// comment - fit to be shown: on a terminal, in a table, on a page, as a label.
package usertext

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Most bounds a text, in characters.
const Most = 256

// Clean puts a question mark, as ls(1) does, in the place of each character that prints
// nothing or changes how others print: control characters of ASCII and Latin-1 (escape
// sequences), line breaks, what turns the direction of writing, what has no width, bytes
// that are no UTF-8. A text that is too long is cut, with a + as Slurm's commands have it.
// Printable ASCII of at most Most characters stays as it is.
func Clean(s string) string {
	if plain(s) {
		return s
	}
	return Cut(s, Most)
}

// Cut is Clean for texts of at most so many characters.
func Cut(s string, most int) string {
	clean := make([]rune, 0, min(len(s), most+1))
	for _, r := range s {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			r = '?'
		}
		if clean = append(clean, r); len(clean) > most {
			clean = append(clean[:most-1], '+')
			break
		}
	}
	return string(clean)
}

// GiB shows a size.
func GiB(mib int64) string { return fmt.Sprintf("%.1f GiB", float64(mib)/1024) }

// plain tells whether s is short and of printable ASCII, as nearly all are.
func plain(s string) bool {
	if len(s) > Most {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i]-' ' > '~'-' ' {
			return false
		}
	}
	return true
}
