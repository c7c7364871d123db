// SPDX-License-Identifier: Apache-2.0

package features

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestMay(t *testing.T) {
	for _, c := range []struct {
		text  string
		nodes int
		of    string // nodes by their features, of a, b, ab, c, abc and - (none)
	}{
		{"", 1, "a b ab c abc -"},
		{"a", 1, "a ab abc"},
		{"a&b", 1, "ab abc"},
		{"a,b", 1, "ab abc"},
		{"a|b", 1, "a b ab abc"},
		{"a|b&c", 1, "abc"}, // from left to right
		{"a&b|c", 1, "ab c abc"},
		{"a|(b&c)", 1, "a ab abc"},
		{"(a|b)&c", 1, "abc"},
		{"[a|b]", 4, "a b ab abc"},
		{"[a|b]&c", 1, "abc"},
		{"[a*2&b*4]", 6, "a b ab abc"},
		{"[(a&b)*1&c*1]", 2, "ab c abc"},
		{"a*4", 1, "a ab abc"},
		{"a*4", 16, "a b ab c abc -"},
		{"a*4&c", 16, "c abc"},
		{"[a]", 1, "a ab abc"},
	} {
		e, err := Parse(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		var got []string
		for _, node := range []string{"a", "b", "ab", "c", "abc", "-"} {
			if e.May(func(f string) bool { return strings.Contains(node, f) }, c.nodes) {
				got = append(got, node)
			}
		}
		if !slices.Equal(got, strings.Fields(c.of)) {
			t.Errorf("%s for %d nodes: %v, want %s", c.text, c.nodes, got, c.of)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"&a", "a&", "a||b", "(a", "a)", "[a", "a]", "(a]", "a*", "a*0", "a*x", "a(b)", "()",
		"*2", "((((((a))))))"} {
		if _, err := Parse(text); !errors.Is(err, errSyntax) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("[(a&b|c)*2&d*1]")
	f.Fuzz(func(t *testing.T, text string) {
		if e, err := Parse(text); err == nil {
			e.May(func(string) bool { return false }, 1)
		}
	})
}
