// SPDX-License-Identifier: Apache-2.0

// Package oomscan finds the messages of programs about a GPU without memory left, and tells such messages from others
// about other ends. The package is pure: a text in, a finding out. The text is a user's, and never leaves the package.
package oomscan

import (
	"bytes"
	"slices"
	"sync"
)

// Finding is the message that counts; without an ID no message does.
type Finding struct {
	Signature
	Offset int64 // of the line
	// Survived: long work of the program follows the message, or the program says that less memory will
	// do. Such a message is a reason to requeue a job only where NVML saw the same.
	Survived bool
	// OtherEnd: the last error of the text is about something else, and no message counts.
	OtherEnd bool
}

const (
	// A message is judged by its line; of a long line, so much around the message counts.
	before, after = 256, 2048
	// lastPart is how much of the end of a text is searched for last words.
	lastPart = 8 << 10
)

// Scan returns the weightiest message of a text: the first that the program did not survive, else the last survived
// one. The work is bounded by the length of the text.
func Scan(text []byte) Finding {
	p := parse(text)
	var best Finding
	weight := 0
	var h history
	last, passed, memory := p.lastErrors()
	for _, m := range p.some() {
		at, k, s := m.at, m.line, m.Signature
		survived, ok := s.judge(p, at, k)
		if !ok {
			continue
		}
		said := survived
		if s.Kind == GPUMemory && !survived {
			if h.lines == nil {
				h = p.history()
			}
			survived = h.longWorkAfter(k)
		}
		// An error of another kind ended the program, after more work.
		if s.Kind == GPUMemory && (survived && max(last, passed) > k || last > k && h.workBetween(k, last) >= 2) {
			best.OtherEnd = best.ID == ""
			continue
		}
		if w := s.Weight(survived); w > weight || w == weight && survived && s.Weight(false) >= best.Signature.Weight(false) {
			best, weight = Finding{Signature: s, Offset: p.lines[k].offset, Survived: survived}, w
			if said && memory > k { // memory had the last word, whatever the program tried before
				best.Survived = false
			}
		}
	}
	if best.ID == "" && last >= 0 {
		best.OtherEnd = true
	}
	if best.Grade == Weak && last > p.lineOf(best.Offset) {
		return Finding{OtherEnd: true}
	}
	return best
}

// match is a place of a signature.
type match struct {
	at, line int
	Signature
}

const (
	// perLine bounds what is judged of a line, and perText what of the beginning and of the end of a text.
	perLine, perText = 32, 1500
)

// some are the places of signatures to be judged: all, but of a text made of signatures.
func (p *parsed) some() []match {
	var all []match
	onLine := 0
	for at, s := range p.matches {
		m := match{at, p.lineAt(at), s}
		if n := len(all); n == 0 || all[n-1].line != m.line {
			onLine = 0
		}
		if onLine++; onLine > perLine {
			continue
		}
		if len(all) == 3*perText { // keeps the beginning and what was last
			all = append(all[:perText], all[2*perText:]...)
		}
		all = append(all, m)
	}
	return all
}

// matches calls yield with each place of a signature in the text.
func (p *parsed) matches(yield func(int, Signature) bool) {
	t := lookup()
	text := p.text
	for i := t.shortest - 1; i < len(text); {
		block := uint16(text[i-1])<<8 | uint16(text[i])
		if step := t.skip[block]; step > 0 {
			i += int(step)
			continue
		}
		begin := i - t.shortest + 1
		for _, s := range t.ending[block] {
			if bytes.HasPrefix(text[begin:], []byte(s.text)) && !yield(begin, s) {
				return
			}
		}
		i++
	}
}

// All signatures are looked for in one pass, as S. Wu and U. Manber do ("A fast
// algorithm for multi-pattern searching", 1994): by the last two bytes of a
// window as long as the shortest signature, skip tells how far the window may
// move; where it may not, ending holds the signatures whose beginning ends so.
type tables struct {
	shortest int
	skip     [1 << 16]uint8
	ending   map[uint16][]Signature
}

// lookup makes the tables on first use: every hook contains this package,
// and few scan.
var lookup = sync.OnceValue(func() *tables {
	t := &tables{
		shortest: len(slices.MinFunc(Signatures, func(a, b Signature) int { return len(a.text) - len(b.text) }).text),
		ending:   map[uint16][]Signature{},
	}
	for i := range t.skip {
		t.skip[i] = uint8(t.shortest - 1)
	}
	for _, s := range Signatures {
		for i := 1; i < t.shortest; i++ {
			block := uint16(s.text[i-1])<<8 | uint16(s.text[i])
			t.skip[block] = min(t.skip[block], uint8(t.shortest-1-i))
			if i == t.shortest-1 {
				t.ending[block] = append(t.ending[block], s)
			}
		}
	}
	return t
})

// judge tells whether the signature at text[at], on line k, is a message, by the line and the lines behind, and
// whether the program says there that less memory will do.
func (s Signature) judge(p *parsed, at, k int) (survived, ok bool) {
	whole, from := p.around(at, k)
	switch {
	case s.with == onGPU && !anyIn(whole, gpuWords), s.with != onGPU && !bytes.Contains(whole[from:], []byte(s.with)):
		return false, false
	case anyIn(whole, s.unless), s.Grade == Weak && inPath(whole, from, len(s.text)), p.isSource(k):
		return false, false
	case s.Kind == GPUMemory && p.ofPinned(k):
		return false, false
	case s.Kind != GPUMemory || s.Weight(false) == ofStart:
		return false, true
	}
	return (allocators[s.ID] && retried(whole, from) || p.caught(k)) && p.goesOn(k), true
}

// inPath tells whether line[from:from+n] is a part of the name of a file.
func inPath(line []byte, from, n int) bool {
	if from > 0 && (line[from-1] == '/' || line[from-1] == '\\') {
		return true
	}
	rest := line[min(from+n, len(line)):]
	return len(rest) > 2 && (rest[0] == '/' || rest[0] == '.' && rest[1] >= 'a' && rest[1] <= 'z')
}

func anyIn(line []byte, words []string) bool {
	for _, w := range words {
		if bytes.Contains(line, []byte(w)) {
			return true
		}
	}
	return false
}
