// SPDX-License-Identifier: Apache-2.0

// Package docs_test holds the documentation to the program: what a page names
// must be there, and what a user or an administrator meets must be in a page.
package docs_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
)

const root = ".."

// page is one Markdown file, its code taken apart.
type page struct {
	path   string // from the root of the repository
	text   string
	fences []fence
	inline []span // `code` outside of fences
	prose  []span // lines outside of fences and tables
}

type fence struct {
	lang string
	text string
	line int
}

type span struct {
	text string
	line int
}

var inlineCode = regexp.MustCompile("`([^`]+)`")

// pages reads every Markdown file of the repository.
func pages(t *testing.T) []page {
	t.Helper()
	var all []page
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || path == filepath.Join(root, "data") ||
			slices.Contains([]string{"bin", "lib", "build", "testdata"}, d.Name())):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		all = append(all, parse(rel, string(text)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 {
		t.Fatalf("%d pages below %s", len(all), root)
	}
	return all
}

func parse(path, text string) page {
	p := page{path: path, text: text}
	var open *fence
	for i, line := range strings.Split(text, "\n") {
		mark, isMark := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isMark && open == nil:
			open = &fence{lang: mark, line: i + 1}
		case isMark:
			p.fences, open = append(p.fences, *open), nil
		case open != nil:
			open.text += line + "\n"
		default:
			if !strings.HasPrefix(mark, "|") {
				p.prose = append(p.prose, span{line, i + 1})
			}
			for _, m := range inlineCode.FindAllStringSubmatch(line, -1) {
				p.inline = append(p.inline, span{m[1], i + 1})
			}
		}
	}
	return p
}

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	unlinked = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// anchor is what a heading is linked by (as GitHub makes it).
func anchor(heading string) string {
	return strings.ReplaceAll(unlinked.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// TestProseWidth: lines of prose have at most 100 columns. The changelog has one line for each change.
func TestProseWidth(t *testing.T) {
	const most = 100
	for _, p := range pages(t) {
		if p.path == "CHANGELOG.md" {
			continue
		}
		for _, l := range p.prose {
			if n := utf8.RuneCountInString(l.text); n > most {
				t.Errorf("%s:%d: %d columns", p.path, l.line, n)
			}
		}
	}
}

func TestLinks(t *testing.T) {
	for _, p := range pages(t) {
		prose := p.text
		for _, f := range p.fences {
			prose = strings.ReplaceAll(prose, f.text, "")
		}
		for _, m := range link.FindAllStringSubmatch(prose, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			file, section, _ := strings.Cut(m[1], "#")
			target := filepath.Join(filepath.Dir(p.path), file)
			if file == "" {
				target = p.path
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: link to %s: there is no %s", p.path, m[1], target)
				continue
			}
			if section == "" || filepath.Ext(target) != ".md" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(root, target))
			if err != nil {
				t.Fatal(err)
			}
			var anchors []string
			for _, h := range heading.FindAllStringSubmatch(string(text), -1) {
				anchors = append(anchors, anchor(h[1]))
			}
			if !slices.Contains(anchors, section) {
				t.Errorf("%s: link to %s: no such heading", p.path, m[1])
			}
		}
	}
}

// configKeys are the keys of carma.toml, "section.key"; a table of tables is
// "section.*.key".
func configKeys() []string {
	var keys []string
	var walk func(typ reflect.Type, prefix string)
	walk = func(typ reflect.Type, prefix string) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name := prefix + f.Tag.Get("toml")
			switch {
			case f.Type.Kind() == reflect.Struct && f.Type.NumField() > 0 && f.Type.Field(0).Tag.Get("toml") != "":
				walk(f.Type, name+".")
			case f.Type.Kind() == reflect.Map && f.Type.Elem().Kind() == reflect.Struct:
				keys = append(keys, name+".*")
				walk(f.Type.Elem(), name+".*.")
			case f.Type.Kind() == reflect.Map:
				keys = append(keys, name, name+".*")
			default:
				keys = append(keys, name)
			}
		}
	}
	walk(reflect.TypeOf(config.Config{}), "")
	return keys
}

// known tells whether key is one of keys, "*" standing for any name.
func known(key string, keys []string) bool {
	for _, k := range keys {
		pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(k), `\*`, `[^.]+`) + "$"
		if regexp.MustCompile(pattern).MatchString(key) {
			return true
		}
	}
	return false
}

// TestConfigKeys: every `section.key` and `[section] key` is one, and every
// piece of TOML could stand in carma.toml.
func TestConfigKeys(t *testing.T) {
	keys := configKeys()
	var sections []string
	for _, k := range keys {
		section, _, _ := strings.Cut(k, ".")
		if !slices.Contains(sections, section) {
			sections = append(sections, section)
		}
	}
	names := strings.Join(sections, "|")
	dotted := regexp.MustCompile(`^(` + names + `)((?:\.[a-z0-9_-]+)+)(?: = .*)?$`)
	bracketed := regexp.MustCompile(`^\[(` + names + `)((?:\.[A-Za-z0-9_-]+)?)\] ([a-z_]+)`)
	found := 0
	for _, p := range pages(t) {
		for _, s := range p.inline {
			key := ""
			if m := dotted.FindStringSubmatch(s.text); m != nil {
				key = m[1] + m[2]
			} else if m := bracketed.FindStringSubmatch(s.text); m != nil {
				key = m[1] + m[2] + "." + m[3]
			}
			if key == "" {
				continue
			}
			found++
			if !known(key, keys) {
				t.Errorf("%s:%d: carma.toml has no %s", p.path, s.line, key)
			}
		}
		for _, f := range p.fences {
			if f.lang != "toml" {
				continue
			}
			found++
			if _, err := config.Parse(f.text); err != nil {
				t.Errorf("%s:%d: %v", p.path, f.line, err)
			}
		}
	}
	if found < 20 {
		t.Errorf("%d keys found in all pages", found)
	}
}

// TestDirectiveKeys: the user's page has a row for every key, with its words.
func TestDirectiveKeys(t *testing.T) {
	user, err := os.ReadFile("user.md")
	if err != nil {
		t.Fatal(err)
	}
	_, err = directive.Parse([]byte("#CARMA frobnicate=1\n"))
	_, list, ok := strings.Cut(fmt.Sprint(err), "known are ")
	if !ok {
		t.Fatalf("no list of keys in %v", err)
	}
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|(.*)$").FindAllStringSubmatch(string(user), -1) {
		rows[m[1]] += m[2]
	}
	for _, key := range strings.Fields(list) {
		if rows[key] == "" {
			t.Errorf("user.md has no row for #CARMA %s", key)
		}
	}
	for key, words := range map[string][]string{
		"optim": directive.Optimizers, "precision": directive.Precisions, "parallel": directive.Parallels,
		"attn": directive.Attentions, "policy": directive.Placements,
	} {
		for _, w := range words {
			if !strings.Contains(rows[key], "`"+w+"`") {
				t.Errorf("user.md: the row of %s lacks %s", key, w)
			}
		}
	}
}

var logged = regexp.MustCompile(`\b[lL]og\.(?:Info|Warn|Error)\(\s*"([^"]+)"`)

// TestLogLines: what a program logs stands in the page of log messages.
func TestLogLines(t *testing.T) {
	page, err := os.ReadFile("log-messages.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, dir := range []string{"cmd", "db", "gres", "prolog", "slurmbridge"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range logged.FindAllStringSubmatch(string(text), -1) {
				found++
				if !strings.Contains(string(page), "`"+m[1]+"`") {
					t.Errorf("%s logs %q; docs/log-messages.md does not say what it means", path, m[1])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 30 {
		t.Errorf("%d log lines found", found)
	}
}

var namedTest = regexp.MustCompile("`(Test\\w+)`")

// TestSituations: each row of the table names tests, and they are there.
func TestSituations(t *testing.T) {
	page, err := os.ReadFile("situations.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	files, err := filepath.Glob(filepath.Join(root, "contrib", "devcluster", "*_test.go"))
	for _, file := range files {
		text, failed := os.ReadFile(file)
		if err == nil {
			err = failed
		}
		code.Write(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|--") || strings.HasPrefix(line, "| situation ") {
			continue
		}
		rows++
		tests := namedTest.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 {
			t.Errorf("no test: %s", line)
		}
		for _, m := range tests {
			_, body, found := strings.Cut(code.String(), "func "+m[1]+"(t *testing.T) {\n")
			body, _, _ = strings.Cut(body, "\n}\n")
			if !found {
				t.Errorf("no %s in contrib/devcluster: %s", m[1], line)
			} else if !strings.Contains(body, "nothingLeft()") {
				t.Errorf("%s does not require that nothing is left: %s", m[1], line)
			}
		}
	}
	if rows == 0 {
		t.Error("no situations")
	}
}

// TestADRs: decisions are numbered through, and listed.
func TestADRs(t *testing.T) {
	all, err := filepath.Glob(filepath.Join(root, "docs/adr/[0-9]*.md"))
	if err != nil || len(all) < 20 {
		t.Fatalf("%d ADRs: %v", len(all), err)
	}
	list, err := os.ReadFile(filepath.Join(root, "docs/adr/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range all {
		name := filepath.Base(path)
		if !strings.HasPrefix(name, fmt.Sprintf("%04d-", i+1)) ||
			!strings.Contains(string(list), fmt.Sprintf("\n| [%d](%s) |", i+1, name)) {
			t.Errorf("%s is not number %d, or not so in docs/adr/README.md", name, i+1)
		}
	}
}
