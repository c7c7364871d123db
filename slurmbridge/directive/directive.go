// SPDX-License-Identifier: Apache-2.0

// Package directive reads the #CARMA lines of a batch script.
//
// The lines stand in the leading comment block of the script, where sbatch
// reads #SBATCH lines too: from the first line to the first line that is
// neither empty nor a comment, indented or not. A line is "#CARMA" followed by
// blanks and key=value words, or "#CARMA|" followed by one line of a model
// summary.
// The package is pure: bytes in, values out.
package directive

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"carma/slurmbridge/jobenv"
)

// Limits of reading. A script may be 4 MiB (slurm.conf max_script_size); text
// beyond these limits is refused, with the limit's name, instead of being read.
const (
	maxLines       = 200     // #CARMA lines, without summary lines
	maxWordBytes   = 8 << 10 // of all of them: a word costs more than its bytes
	MaxSummary     = 1 << 20 // bytes of model summary
	maxHeader      = 2 << 20 // bytes of leading comment block
	maxHeaderLines = 1 << 15 // its lines; a line costs more than its bytes
	maxOption      = 1 << 10 // of --carma
	maxErrorValue  = 40      // bytes of a user's value that an error repeats
)

// maxKept is how much of a summary is kept: more than the estimator takes
// (summary.MaxBytes), so that the estimator sees that there is too much.
const maxKept = 256<<10 + 1

// Messages for a script that is too long.
var (
	headerTooLong = fmt.Sprintf("the leading comment block is longer than %d MiB", maxHeader>>20)
	headerTooTall = fmt.Sprintf("the leading comment block has more than %d lines; print less of the model or give mem=",
		maxHeaderLines)
	summaryTooLong = fmt.Sprintf("the model summary is longer than %d MiB; give mem= instead", MaxSummary>>20)
)

// Policy says how the user wants the job placed.
type Policy string

// The values of policy= that say whether to share. The others, Placements, name
// a way of placing a job that shares.
const (
	PolicyUnset     Policy = ""
	PolicyShared    Policy = "shared"
	PolicyExclusive Policy = "exclusive"
)

// Placement is the placement policy that the user asks for; empty: the site's.
func (p Policy) Placement() string {
	if slices.Contains(Placements, string(p)) {
		return string(p)
	}
	return ""
}

// Signal is what a job is warned with before its time limit, as by sbatch
// --signal. The zero value: no signal.
type Signal struct {
	Number  int
	Seconds int  // before the end; Slurm may be a minute early
	Batch   bool // "B:": the batch shell alone, instead of the steps
}

// Directive is what the #CARMA lines of one script say. A zero field was not
// given. Sizes and batches are per GPU.
type Directive struct {
	Present bool   // the script has at least one #CARMA line
	Off     bool   // "off": never share, never requeue
	MemMiB  int64  // mem=, the user's own figure; wins over every estimate
	Policy  Policy // policy=
	Batch   int    // batch=
	Seq     int    // seq=, tokens
	Input   [3]int // input=CxHxW, CxL or N; zeros: fewer dimensions

	Optimizer string // optim=
	Foreach   *bool  // foreach=
	Precision string // precision=
	Parallel  string // parallel=
	Attention string // attn=
	GradCkpt  bool   // grad_ckpt=
	Dropout   *bool  // dropout=, whether dropout layers are active
	Dynamic   bool   // dynamic_shapes=, lengths or sizes vary between steps
	Params    int64  // params=, unique trainable parameters
	SMActPct  int    // smact=, expected SM activity in percent

	MaxSlowdown float64 // slowdown=, times its time alone

	Signal  Signal // signal=
	Requeue jobenv.Requeue
	Job     string // job=, the name of what runs, by which CARMA learns
	// Vars are the names, in order, of variables whose values tell runs apart: vars=.
	Vars []string

	Summary []byte // the "#CARMA|" lines, joined with newlines; cut at 256 KiB

	given []given
}

// given is a key and its line, or where else it stood.
type given struct {
	key  string
	line int
}

// Line returns the line of the script (from 1) on which key was given, or what Error.Line has for another place.
func (d *Directive) Line(key string) int {
	if i := d.find(key); i >= 0 {
		return d.given[i].line
	}
	return OfOption
}

// find returns the place of key in given, or -1.
func (d *Directive) find(key string) int {
	return slices.IndexFunc(d.given, func(g given) bool { return g.key == key })
}

// again says where else a key stood.
func (d *Directive) again(key string) string {
	if line := d.Line(key); line > 0 {
		return fmt.Sprintf("already given on line %d", line)
	}
	return "given twice"
}

// Where tells people where key was given.
func (d *Directive) Where(key string) string { return where(d.Line(key)) }

// Keys that stand on no line of the script have these in place of one.
const (
	OfOption    = 0  // --carma
	OfVariable  = -1 // CARMA in the environment
	OfPartition = -2 // the partition's directive in carma.toml
)

func where(line int) string {
	switch line {
	case OfOption:
		return "--carma"
	case OfVariable:
		return "the variable CARMA"
	case OfPartition:
		return "the partition's directive"
	}
	return fmt.Sprintf("line %d", line)
}

// Equal tells whether d and o say the same, on whatever lines.
func (d Directive) Equal(o Directive) bool {
	d.given, o.given = nil, nil
	return reflect.DeepEqual(d, o)
}

// Error is a line that could not be understood.
type Error struct {
	Line   int    // from 1, or OfOption, OfVariable, OfPartition
	Key    string // as written, shortened; empty when the line itself is wrong
	Reason string // what is wrong and what to write instead
}

func (e *Error) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%s: %s", where(e.Line), e.Reason)
	}
	return fmt.Sprintf("%s: %s: %s", where(e.Line), e.Key, e.Reason)
}

// Parse reads the #CARMA lines of script. The error, if any, is an *Error for
// the first line that is wrong.
func Parse(script []byte) (Directive, error) {
	var d Directive
	n, carmaLines, wordBytes, summaryBytes := 0, 0, 0, 0
	for rest := script; len(rest) > 0; {
		var line []byte
		line, rest, _ = bytes.Cut(rest, []byte{'\n'})
		n++
		if len(script)-len(rest) > maxHeader {
			return d, tooLong(d, n, headerTooLong)
		} else if n > maxHeaderLines {
			return d, tooLong(d, n, headerTooTall)
		}
		kind, text := Classify(line)
		switch kind {
		case Command:
			return d, nil
		case Summary:
			if summaryBytes += len(text) + 1; summaryBytes > MaxSummary {
				return d, &Error{n, "", summaryTooLong}
			}
			d.Present = true
			if d.Summary == nil {
				d.Summary = make([]byte, 0, min(len(text)+1+len(rest), maxKept))
			}
			if room := maxKept - len(d.Summary); room > len(text) {
				d.Summary = append(append(d.Summary, text...), '\n')
			} else {
				d.Summary = append(d.Summary, text[:room]...)
			}
		case Keys:
			if carmaLines++; carmaLines > maxLines {
				return d, &Error{n, "", fmt.Sprintf("more than %d #CARMA lines", maxLines)}
			}
			if wordBytes += len(text); wordBytes > maxWordBytes {
				return d, &Error{n, "", fmt.Sprintf("the #CARMA lines are longer than %d KiB", maxWordBytes>>10)}
			}
			d.Present = true
			if err := d.parseLine(string(text), n); err != nil {
				return d, err
			}
		}
	}
	return d, nil
}

// tooLong is an error only for a script that uses CARMA: any other script is none
// of our business however it looks.
func tooLong(d Directive, line int, reason string) error {
	if !d.Present {
		return nil
	}
	return &Error{line, "", reason}
}

func (d *Directive) parseLine(text string, n int) error {
	for word := range strings.FieldsSeq(text) {
		if word[0] == '#' { // a comment, as on #SBATCH lines
			return nil
		}
		key, value, hasValue := strings.Cut(word, "=")
		k, known := keys[key]
		switch {
		case !known:
			return &Error{n, shorten(key), "unknown key; known are " + keyList}
		case k.flag && hasValue:
			return &Error{n, shorten(word), "takes no value; write " + key}
		case !k.flag && !hasValue:
			return &Error{n, shorten(key), "needs a value; write " + k.example}
		case d.find(k.name(key)) >= 0:
			return &Error{n, shorten(key), d.again(k.name(key))}
		}
		if err := k.set(d, value); err != nil {
			return &Error{n, shorten(word), err.Error() + "; write " + k.example}
		}
		d.given = append(d.given, given{k.name(key), n})
	}
	return nil
}

// Spaced puts blanks for the commas between the keys of an option. Commas between the names of vars= stay: a
// name has no "=", and is not a key that stands alone.
func Spaced(text string) string {
	names := false // the text before the comma ends with a name of vars=
	var b strings.Builder
	for i, part := range strings.Split(text, ",") {
		words := append(strings.Fields(part), "")
		first, last := words[0], words[max(len(words)-2, 0)]
		joined := names && first != "" && strings.HasPrefix(part, first) && !strings.Contains(first, "=") &&
			!keys[first].flag
		if joined {
			b.WriteByte(',')
		} else if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(part)
		names = strings.HasSuffix(part, last) && (joined && len(words) == 2 || strings.HasPrefix(last, "vars="))
	}
	return b.String()
}

// With returns what d says with the keys of another place (OfOption and so on) over it: each replaces the same
// key of d. Between keys are blanks, as on a line, or commas. The error, if any, is an *Error.
func (d Directive) With(text string, from int) (Directive, error) {
	if len(text) > maxOption {
		return d, &Error{from, "", fmt.Sprintf("longer than %d bytes", maxOption)}
	}
	text = Spaced(text)
	var over Directive
	if err := over.parseLine(text, from); err != nil {
		return d, err
	}
	d.Present = true
	d.given = slices.Clone(d.given)
	for _, g := range over.given {
		if i := d.find(g.key); i >= 0 {
			d.given = slices.Delete(d.given, i, i+1)
		}
		if k := keys[g.key]; k.clear != nil {
			k.clear(&d)
		}
	}
	return d, d.parseLine(text, from)
}

// shorten makes a user's word fit to repeat in one line of a message: printable
// ASCII, at most maxErrorValue bytes.
func shorten(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if b.Len() == maxErrorValue {
			b.WriteString("...")
			break
		}
		if c := s[i]; c < ' ' || c > '~' {
			b.WriteByte('?')
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
