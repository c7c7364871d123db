// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mostPronouns is how many pronouns 100 words of comment may have.
const mostPronouns = 6.0

// rigs are packages of the rigs and the simulator that have more, and how many: fewer with each release.
var rigs = map[string]float64{
	"contrib/bench/day": 7.1, "contrib/bench/estimator": 6.4, "contrib/bench/placement": 7.1, "contrib/bench/scale": 8.9,
	"contrib/gpucheck": 8.8, "contrib/progress": 9.5,
	"cmd/carma-sim/internal/live": 7.8, "cmd/carma-sim/internal/model": 7.6, "cmd/carma-sim/internal/replay": 7.0,
}

var (
	word     = regexp.MustCompile(`[A-Za-z']+`)
	pronouns = []string{"it", "that", "this", "they", "those", "what", "who", "such", "one"}
	// foreign is what a comment has for programs: directives, the licence, the code of cgo.
	foreign = regexp.MustCompile(`^//(go:|export |nolint|line |\s*SPDX-)`)
)

// countPronouns counts the words and the pronouns of a comment.
func countPronouns(text string) (words, found int) {
	for _, w := range word.FindAllString(text, -1) {
		words++
		if slices.Contains(pronouns, strings.ToLower(w)) {
			found++
		}
	}
	return words, found
}

func TestCountPronouns(t *testing.T) {
	for text, want := range map[string][2]int{
		"// It is one of those that the agent keeps.": {9, 4},
		"// The agent's lease; sites without Items.":  {6, 0},
		"": {0, 0},
	} {
		if words, found := countPronouns(text); [2]int{words, found} != want {
			t.Errorf("%q: %d words, %d pronouns", text, words, found)
		}
	}
}

// TestPronouns: comments name the thing again. A pronoun in each line makes the reader look back.
func TestPronouns(t *testing.T) {
	looked := 0
	for name := range imports(t) {
		words, found := 0, 0
		var worst []string
		for _, file := range sources(t, name) {
			set := token.NewFileSet()
			tree, err := parser.ParseFile(set, file, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, group := range tree.Comments {
				if isPreamble(tree, group) {
					continue
				}
				for _, c := range group.List {
					if foreign.MatchString(c.Text) {
						continue
					}
					n, k := countPronouns(c.Text)
					words, found = words+n, found+k
					if k > 2 {
						worst = append(worst, set.Position(c.Pos()).String())
					}
				}
			}
		}
		looked += words
		most := max(mostPronouns, rigs[name])
		if rate := 100 * float64(found) / float64(max(words, 1)); words >= 200 && rate > most {
			t.Errorf("%s: %.1f pronouns in 100 words of comment, more than %.1f: name the thing again, as at %s", name, rate,
				most, strings.Join(worst[:min(len(worst), 5)], ", "))
		} else if rigs[name] > mostPronouns && rate < rigs[name]-0.3 {
			t.Errorf("%s: %.1f pronouns in 100 words of comment by now: write that here", name, rate)
		}
	}
	if looked < 50000 {
		t.Errorf("%d words of comment looked at", looked)
	}
}

// isPreamble tells whether a comment is the C code of a file's import "C".
func isPreamble(tree *ast.File, group *ast.CommentGroup) bool {
	for _, d := range tree.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.IMPORT || g.Doc != group {
			continue
		}
		for _, s := range g.Specs {
			if s.(*ast.ImportSpec).Path.Value == `"C"` {
				return true
			}
		}
	}
	return false
}
