// SPDX-License-Identifier: Apache-2.0

// Package tres reads and writes the GRES lists of Slurm job requests and
// nodes: "gres:gpu:a100:2,gres:carma:12288", "gres/gpu=1", "gpu:16(S:0-1)".
package tres

import (
	"iter"
	"strconv"
	"strings"
	"unicode"
)

// GPU counts slots, several to a GPU. Carma counts the MiB of GPU memory that all GPUs of a
// node have together; a job consumes its booking on each of its GPUs (docs/adr/0003).
const (
	GPU   = "gpu"
	Carma = "carma"
)

// Entry is one word of a list.
type Entry struct {
	Name  string
	Type  string // of a typed GRES, else empty
	Count int64  // 1 where the text gives none
	text  string // as written
}

// String returns the entry as written.
func (e Entry) String() string { return e.text }

// prefix returns the text before the name.
func (e Entry) prefix() string { return e.text[:max(strings.Index(e.text, e.Name), 0)] }

// Parse yields the entries of list. Parse takes every spelling of Slurm 22.05
// to 26.05: with "gres:" or "gres/" in front or without, ":" or "=" before the
// count, a type or none, counts with a suffix K, M, G, T or P, and socket or
// index notes in parentheses. An entry without a readable count keeps its whole
// text, so that Without loses nothing.
func Parse(list string) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		// Cut at commas outside parentheses: "gpu:4(IDX:0-1,3)" is one entry.
		depth, start := 0, 0
		for i := 0; i <= len(list); i++ {
			switch {
			case i == len(list) || list[i] == ',' && depth == 0:
				if w := strings.TrimSpace(list[start:i]); w != "" && w != "(null)" && !yield(parse(w)) {
					return
				}
				start = i + 1
			case list[i] == '(':
				depth++
			case list[i] == ')' && depth > 0:
				depth--
			}
		}
	}
}

func parse(word string) Entry {
	e := Entry{text: word, Count: 1}
	s := strings.TrimPrefix(strings.TrimPrefix(word, "gres:"), "gres/")
	if i := strings.IndexByte(s, '('); i >= 0 {
		s = s[:i]
	}
	var three [3]string // as most have
	parts := three[:0]
	for part := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == ':' || r == '=' }) {
		parts = append(parts, part)
	}
	if len(parts) > 1 {
		if n, ok := count(parts[len(parts)-1]); ok {
			e.Count, parts = n, parts[:len(parts)-1]
		}
	}
	if len(parts) > 1 {
		e.Type = strings.Join(parts[1:], ":")
	}
	if len(parts) > 0 {
		e.Name = parts[0]
	}
	return e
}

// count reads a GRES count; suffixes are powers of 1024 (gres.html).
func count(s string) (int64, bool) {
	shift := 0
	if s != "" {
		if i := strings.IndexByte("kmgtp", s[len(s)-1]|0x20); i >= 0 {
			shift, s = 10*(i+1), s[:len(s)-1]
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 1<<62>>shift {
		return 0, false
	}
	return n << shift, true
}

// List is the content of a GRES list, as found by Read.
type List struct {
	Text string
	GPUs int64 // sum of its gpu entries
	MiB  int64 // booked on all GPUs of a node together; -1: nothing is booked
}

// Read reads a list once for all that is asked of it.
func Read(text string) List {
	l := List{Text: text, MiB: -1}
	var gpus byType
	for e := range Parse(text) {
		switch e.Name {
		case GPU:
			l.GPUs = gpus.with(e)
		case Carma:
			l.MiB = e.Count
		}
	}
	return l
}

// Books tells whether the list books memory.
func (l List) Books() bool { return l.MiB >= 0 }

// Each is the list's booking on each of a node's gpus GPUs; 0: nothing.
func (l List) Each(gpus int) int64 {
	if l.MiB < 0 || gpus <= 0 {
		return 0
	}
	return l.MiB / int64(gpus)
}

// byType adds up the counts of one GRES. Of several entries of one type slurmctld takes the last:
// --gres=gpu:4 --gpus-per-node=4 asks for four (src/common/gres.c, _get_next_job_gres(), 22.05.8).
// It skips one whose count is 0, and reads only one of the spellings "gres:gpu", "gres/gpu" and
// "gpu": so of a list with several of them, no count is lost.
type byType struct {
	last  [8]Entry // more types are counted as often as named
	types int
	sum   int64
}

func (b *byType) with(e Entry) (sum int64) {
	if e.Count == 0 {
		return min(b.sum, 1<<40)
	}
	i := 0
	for i < b.types && (b.last[i].Type != e.Type || b.last[i].prefix() != e.prefix()) {
		i++
	}
	if i < b.types {
		b.sum -= b.last[i].Count
	} else if i < len(b.last) {
		b.types++
	}
	e.Count = min(e.Count, 1<<40)
	if i < len(b.last) {
		b.last[i] = e
	}
	b.sum = min(b.sum+e.Count, 1<<50)
	return min(b.sum, 1<<40)
}

// Unclear returns the first entry about GPUs of a request that slurmctld may count otherwise than Parse does; empty:
// there is none. "gpu: 2" are two GPUs in Slurm 22.05 and one in 24.11, "gpu:+2" the other way round, "gpu=2" is one
// in 22.05, and "gpu:0,gpu:2" none in 23.11 (TestSpellingsBySlurm). equals: Slurm takes a count behind "=", as from
// 23.11 on.
func (l List) Unclear(equals bool) string {
	if l.GPUs == 0 {
		return ""
	}
	if strings.ContainsFunc(l.Text, unicode.IsSpace) { // which Parse takes away
		return l.Text
	}
	for e := range Parse(l.Text) {
		if e.Name == GPU && (e.Count == 0 || !isPlain(e.text[strings.Index(e.text, GPU)+len(GPU):], equals)) {
			return e.text
		}
	}
	return ""
}

// isPlain tells whether what stands behind a name is ":TYPE", ":COUNT", ":TYPE:COUNT" or nothing.
func isPlain(rest string, equals bool) bool {
	parts, begins := 0, false
	for i := range len(rest) {
		switch c := rest[i]; {
		case c == ':' || c == '=' && equals:
			if begins {
				return false
			}
			parts, begins = parts+1, true
		case isLetterOrDigit(c), !begins && (c == '_' || c == '-' || c == '.'):
			begins = false
		default:
			return false
		}
	}
	return parts <= 2 && !begins
}

func isLetterOrDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// Without returns the list as written, less the entries that book memory.
func (l List) Without() string {
	if l.MiB < 0 { // as of all but requeued jobs
		return l.Text
	}
	_, rest := l.Part(Carma)
	return rest
}

// Part returns the entries of one GRES as written, and the others.
func (l List) Part(name string) (part, rest string) {
	for e := range Parse(l.Text) {
		if e.Name == name {
			part = Add(part, e.text)
		} else {
			rest = Add(rest, e.text)
		}
	}
	return part, rest
}

// Rebook returns the list with mib MiB as its booking; a list without a booking stays unchanged.
func (l List) Rebook(mib int64) string {
	if l.MiB < 0 {
		return l.Text
	}
	prefix := "gres:"
	if strings.Contains(l.Text, "gres/") {
		prefix = "gres/"
	}
	return Book(l.Without(), prefix, mib)
}

// Book adds to list a booking of mib MiB on all of a job's GPUs of a node
// together. prefix is the running Slurm's: "gres:" or "gres/".
func Book(list, prefix string, mib int64) string {
	return Add(list, prefix+Carma+":"+strconv.FormatInt(mib, 10))
}

// Add appends entry to list.
func Add(list, entry string) string {
	if list == "" {
		return entry
	}
	return list + "," + entry
}
