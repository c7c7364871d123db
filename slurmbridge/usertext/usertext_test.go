// SPDX-License-Identifier: Apache-2.0

package usertext

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	for s, want := range map[string]string{
		"":                            "",
		"train.sh":                    "train.sh",
		"tr ain~!":                    "tr ain~!",
		"größe 東京 é":                  "größe 東京 é",
		"e\u0301":                     "e\u0301",                // a mark on a letter
		"\x1b[2Jgone":                 "?[2Jgone",               // clear the screen
		"\x1b]0;title\x07":            "?]0;title?",             // set the window's title
		"\u009b31mred":                "?31mred",                // CSI in one character
		"\x9b31m":                     "?31m",                   // and in one byte
		"a\nb\r\tc\x00\x7f":           "a?b??c??",               // lines, columns, DEL
		"\u202egpj.exe":               "?gpj.exe",               // right to left
		"\u2066x\u2069\u200f":         "?x??",                   // isolates, marks
		"a\u200bb\ufeffc\u2060":       "a?b?c?",                 // no width
		"a\u2028b\u2029":              "a?b?",                   // line separators
		"\xff\xfe\xc3":                "???",                    // no UTF-8
		"\ufffd":                      "?",                      // what had been none
		"\U000e0041":                  "?",                      // tags
		"\u00a0|":                     "?|",                     // a blank that is none
		strings.Repeat("x", 256):      strings.Repeat("x", 256), // as long as may be
		strings.Repeat("x", 257):      strings.Repeat("x", 255) + "+",
		strings.Repeat("ö", 256):      strings.Repeat("ö", 256),
		strings.Repeat("ö", 100_000):  strings.Repeat("ö", 255) + "+",
		strings.Repeat("\x1b", 1_000): strings.Repeat("?", 255) + "+",
	} {
		if got := Clean(s); got != want {
			t.Errorf("%.40q: %.40q, want %.40q", s, got, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { Clean("slurm-train.sh") }); n > 0 {
		t.Errorf("%v allocations for a plain text", n)
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "train", "\x1b[2J", "\u202eabc", "\xff", strings.Repeat("é", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := Clean(s)
		for _, r := range c {
			if !unicode.IsPrint(r) {
				t.Errorf("%q has %q", c, r)
			}
		}
		if !utf8.ValidString(c) || utf8.RuneCountInString(c) > Most || Clean(c) != c {
			t.Errorf("%q becomes %q", s, c)
		}
	})
}
