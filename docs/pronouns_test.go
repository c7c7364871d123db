// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Comments name a thing again where a pronoun would do: a pronoun sends the reader back to look for its noun. A
// package with fewer words than fewestWords may have any rate.
const (
	mostPronouns = 6 // in 100 words of comment of a package
	fewestWords  = 200
)

var pronouns = []string{"it", "that", "this", "they", "those", "what", "who", "such", "one"}

// comment is a group of comment lines, with the number of its words and of the pronouns among them.
type comment struct {
	at              token.Position
	words, pronouns int
}

// excess is how many pronouns the comment has beyond its share.
func (c comment) excess() int { return 100*c.pronouns - mostPronouns*c.words }

// TestPronouns: comments of Go files have at most mostPronouns pronouns in 100 words, in each package.
func TestPronouns(t *testing.T) {
	looked := 0
	for name := range imports(t) {
		var list []comment
		var all comment
		for _, file := range sources(t, name) {
			list = append(list, commentsOf(t, file, nil)...)
		}
		for _, c := range list {
			all.words += c.words
			all.pronouns += c.pronouns
		}
		looked += all.words
		if all.words < fewestWords || all.excess() <= 0 {
			continue
		}
		slices.SortStableFunc(list, func(a, b comment) int { return cmp.Compare(b.excess(), a.excess()) })
		var dense strings.Builder
		for _, c := range list[:min(len(list), 8)] {
			fmt.Fprintf(&dense, "\n\t%s: %d in %d words", c.at, c.pronouns, c.words)
		}
		t.Errorf("%s: %d pronouns in %d words of comment: %.1f in 100, more than %d; most in%s", name, all.pronouns,
			all.words, 100*float64(all.pronouns)/float64(all.words), mostPronouns, &dense)
	}
	if looked < 50000 {
		t.Errorf("%d words looked at", looked)
	}
}

// commentsOf counts the words and pronouns of a file's comments. The text is the file's if src is nil. Directives,
// the license, and the C code in front of import "C" are no comments.
func commentsOf(t *testing.T, file string, src any) (list []comment) {
	t.Helper()
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	preamble := map[*ast.CommentGroup]bool{}
	for _, d := range tree.Decls {
		d, ok := d.(*ast.GenDecl)
		if !ok || d.Tok != token.IMPORT {
			continue
		}
		for _, s := range d.Specs {
			if s := s.(*ast.ImportSpec); s.Path.Value == `"C"` {
				preamble[d.Doc], preamble[s.Doc] = true, true
			}
		}
	}
	for _, group := range tree.Comments {
		c := comment{at: set.Position(group.Pos())}
		for _, line := range group.List {
			if !preamble[group] && !isDirective(line.Text) {
				c.count(line.Text)
			}
		}
		if c.words > 0 {
			list = append(list, c)
		}
	}
	return list
}

// isDirective tells whether a comment line speaks to a program: //go:build, //export, and the license.
func isDirective(line string) bool {
	return regexp.MustCompile(`^//([a-z]+:|export |extern |line |nolint)`).MatchString(line) ||
		strings.HasPrefix(line, "// SPDX-")
}

func (c *comment) count(text string) {
	for _, word := range regexp.MustCompile(`[A-Za-z']+`).FindAllString(text, -1) {
		c.words++
		if slices.Contains(pronouns, strings.ToLower(word)) {
			c.pronouns++
		}
	}
}

func TestPronounsCounted(t *testing.T) {
	const head = "// SPDX-License-Identifier: Apache-2.0\n\n"
	for _, c := range []struct {
		src             string
		words, pronouns int
		at              string // lines of the comments counted
	}{
		{head + "package p\n", 0, 0, ""},
		{head + "// Package p is what it is.\npackage p\n", 6, 2, "3"},
		{head + "package p\n\n// One, THAT and those: such.\nvar a = 1 // who\n", 6, 5, "5 6"},
		{head + "package p\n\nvar a = \"// it is that\" // a text\n", 2, 0, "5"},
		{head + "package p\n\nvar a = `\n// it is that\n`\n", 0, 0, ""},
		{head + "package p\n\n// item, its, whatever, onethat, it's\nvar a = 1\n", 5, 0, "5"},
		{head + "package p\n\n/* A block\nof this kind */\nvar a = 1\n", 5, 1, "5"},
		{head + "//go:build that\n\npackage p\n\n//go:embed this\nvar a = 1\n", 0, 0, ""},
		{head + "package p\n\n// #include <it.h>\n// int that(int one);\nimport \"C\"\n\n//export one\n" +
			"func one() {}\n", 0, 0, ""},
		{head + "package p\n\n// This is a package.\nimport \"fmt\"\n", 4, 1, "5"},
		{head + "package p\n\n// a is that.\n//\n// It has two parts.\nvar a = 1\n", 7, 2, "5"},
	} {
		var all comment
		var at []string
		for _, c := range commentsOf(t, "p.go", c.src) {
			all.words += c.words
			all.pronouns += c.pronouns
			at = append(at, fmt.Sprint(c.at.Line))
		}
		if all.words != c.words || all.pronouns != c.pronouns || strings.Join(at, " ") != c.at {
			t.Errorf("%d pronouns in %d words on lines %q, want %d in %d on %q:\n%s", all.pronouns, all.words,
				strings.Join(at, " "), c.pronouns, c.words, c.at, c.src)
		}
	}
}
