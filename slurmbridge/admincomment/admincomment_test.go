// SPDX-License-Identifier: Apache-2.0

package admincomment

import (
	"strings"
	"testing"
)

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		"as it is, 1 < 2":         "as it is, 1 < 2",
		"\"a\\b\"\n\x1b[31mé\x7f": "'a'b'??[31m??",
		strings.Repeat("x", 100):  strings.Repeat("x", 100),
		strings.Repeat("x", 101):  strings.Repeat("x", 97) + "...",
		strings.Repeat("é", 101):  strings.Repeat("?", 97) + "...",
	} {
		if got := plain(text); got != want {
			t.Errorf("plain(%q) = %q, want %q", text, got, want)
		}
	}
}
