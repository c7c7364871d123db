// SPDX-License-Identifier: Apache-2.0

package script

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strings"
	"unicode"

	"carma/slurmbridge/directive"
)

// Edit is the wanted content of the #CARMA lines of a script.
type Edit struct {
	Keys    []string // key=value words; they replace words of the same key
	Summary []byte   // nil: the script's own stays
}

// Empty tells whether there is nothing to put in.
func (e Edit) Empty() bool { return len(e.Keys) == 0 && e.Summary == nil }

// Words names the edit's words for the script.
func (e Edit) Words() []string {
	w := e.Keys
	if e.Summary != nil {
		w = append(w[:len(w):len(w)], fmt.Sprintf("a summary of %d lines", len(summaryLines(e.Summary))))
	}
	return w
}

// headerLine is a line of the leading comment block with its line end.
type headerLine struct {
	kind directive.Kind
	text string
}

// Apply returns script with the edit made. Keys that stand in the script get
// their new value where they stand; the others make one new line behind the
// last #CARMA line, or else behind the last #SBATCH line, or else behind the
// first line where that begins with #!. A summary replaces the one that stands
// there. All else stays byte for byte, and a second time changes nothing.
//
// The error is for the user; a *directive.Error names the line of script.
func (e Edit) Apply(script []byte) ([]byte, error) {
	if e.Empty() {
		return script, nil
	}
	if err := e.check(script); err != nil {
		return nil, err
	}
	header, body := split(script)
	eol := lineEnd(header)
	missing := e.putKeys(header)
	if err := readable(header); err != nil {
		return nil, err
	}
	keysAt, summaryAt := places(header)
	var b strings.Builder
	write := func(text string) {
		if so := b.String(); text != "" && so != "" && !strings.HasSuffix(so, "\n") {
			// The script ended without a line end.
			b.WriteString(strings.TrimPrefix(eol, so[len(so)-1:]))
		}
		b.WriteString(text)
	}
	for i := 0; i <= len(header); i++ {
		if i == keysAt && len(missing) > 0 {
			write("#CARMA " + strings.Join(missing, " ") + eol)
		}
		if i == summaryAt && e.Summary != nil {
			for _, line := range summaryLines(e.Summary) {
				write("#CARMA| " + line + eol)
			}
		}
		if i < len(header) && (header[i].kind != directive.Summary || e.Summary == nil) {
			write(header[i].text)
		}
	}
	write(string(body))
	out := []byte(b.String())
	if len(out) > MaxBytes {
		return nil, fmt.Errorf("it would be larger than %d MiB with the summary; use --write=mem", MaxBytes>>20)
	}
	_, err := directive.Parse(out)
	return out, plainly(err)
}

// lineEnd is how the first line ends, which may lack its line feed.
func lineEnd(header []headerLine) string {
	if len(header) > 0 && strings.HasSuffix(strings.TrimSuffix(header[0].text, "\n"), "\r") {
		return "\r\n"
	}
	return "\n"
}

// check refuses text that no batch script can hold.
func (e Edit) check(script []byte) error {
	switch {
	case len(script) == 0:
		return errors.New("it is empty: not a batch script")
	case bytes.IndexByte(script, 0) >= 0:
		return errors.New("it holds a NUL character: not a batch script")
	case bytes.IndexByte(e.Summary, 0) >= 0:
		return errors.New("the summary holds a NUL character: not text")
	}
	return nil
}

// split cuts a script behind its leading comment block.
func split(script []byte) (header []headerLine, body []byte) {
	for len(script) > 0 {
		end := bytes.IndexByte(script, '\n') + 1
		if end == 0 {
			end = len(script)
		}
		kind, _ := directive.Classify(bytes.TrimSuffix(script[:end], []byte{'\n'}))
		if kind == directive.Command {
			break
		}
		header = append(header, headerLine{kind, string(script[:end])})
		script = script[end:]
	}
	return header, script
}

// putKeys gives the keys that stand in the header their new values and returns
// the words of the others. A key that stands there twice, which is an error,
// is left once.
func (e Edit) putKeys(header []headerLine) (missing []string) {
	given := map[string]string{}
	for _, w := range e.Keys {
		given[keyOf(w)] = w
	}
	put := map[string]bool{}
	for i := range header {
		if header[i].kind != directive.Keys {
			continue
		}
		const start = len("#CARMA")
		text := header[i].text
		var b strings.Builder
		b.WriteString(text[:start])
		done := start // of text
		for w := range wordsOf(text[start:]) {
			key := keyOf(w.text)
			if given[key] == "" {
				continue
			}
			if !put[key] {
				b.WriteString(text[done:start+w.at] + given[key])
			} else {
				b.WriteString(strings.TrimRightFunc(text[done:start+w.at], unicode.IsSpace))
			}
			put[key] = true
			done = start + w.at + len(w.text)
		}
		header[i].text = b.String() + text[done:]
	}
	for _, w := range e.Keys {
		if !put[keyOf(w)] {
			missing = append(missing, w)
			put[keyOf(w)] = true
		}
	}
	return missing
}

// placedWord is a word of a #CARMA line and where it begins.
type placedWord struct {
	at   int
	text string
}

// wordsOf yields the words of the text behind #CARMA, up to a comment, as the
// directive's parser sees them.
func wordsOf(text string) iter.Seq[placedWord] {
	return func(yield func(placedWord) bool) {
		at := 0
		for w := range strings.FieldsSeq(text) {
			if w[0] == '#' {
				return
			}
			at += strings.Index(text[at:], w)
			if !yield(placedWord{at, w}) {
				return
			}
			at += len(w)
		}
	}
}

// readable tells whether the user's lines that the edit leaves can be parsed.
// Summaries do not count here, so that the lines keep their numbers and a
// summary that is too long can be replaced.
func readable(header []headerLine) error {
	var b bytes.Buffer
	for _, l := range header {
		if l.kind == directive.Keys {
			b.WriteString(strings.TrimRight(l.text, "\r\n"))
		}
		b.WriteByte('\n')
	}
	_, err := directive.Parse(b.Bytes())
	return err
}

// places returns the lines of the header in front of which new keys and a
// summary go.
func places(header []headerLine) (keysAt, summaryAt int) {
	last := map[directive.Kind]int{directive.Keys: -1}
	firstSummary, sbatch := -1, -1
	for i, l := range header {
		last[l.kind] = i
		if l.kind == directive.Summary && firstSummary < 0 {
			firstSummary = i
		}
		if strings.HasPrefix(l.text, "#SBATCH") {
			sbatch = i
		}
	}
	switch {
	case last[directive.Keys] >= 0:
		keysAt = last[directive.Keys] + 1
	case firstSummary >= 0:
		keysAt = firstSummary
	case sbatch >= 0:
		keysAt = sbatch + 1
	case len(header) > 0 && strings.HasPrefix(header[0].text, "#!"):
		keysAt = 1
	}
	summaryAt = keysAt
	if firstSummary >= 0 {
		summaryAt = firstSummary
	}
	return keysAt, summaryAt
}

// summaryLines cuts a summary into lines as they can stand in a script:
// sbatch refuses one with DOS line ends.
func summaryLines(summary []byte) []string {
	lines := strings.Split(strings.TrimRight(string(summary), "\r\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], "\r")
	}
	return lines
}

// plainly leaves out the line number, as the line is of a text that the user
// has never seen.
func plainly(err error) error {
	var d *directive.Error
	if !errors.As(err, &d) {
		return err
	}
	return errors.New(strings.TrimPrefix(d.Key+": "+d.Reason, ": "))
}
