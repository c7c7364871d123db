// SPDX-License-Identifier: Apache-2.0

// Package oomscan finds the messages with which frameworks tell that a GPU had
// no memory left, and tells them from those about other ends. It is pure: a
// reader in, a finding out. What it reads is a user's text and never leaves it.
package oomscan

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"
)

// Finding is the message that counts.
type Finding struct {
	Signature
	Offset int64 // of its first byte
	// BackOff: a message after which programs make do with less, and after which this
	// one went on. It is a reason to requeue a job only where NVML saw the same.
	BackOff bool
}

const (
	chunk = 256 << 10
	// A message is judged by its line, of a long one by so much around it, and by
	// what follows within the same stretch.
	before, after = 256, 2048
	// lastPart is how much of the end of a text is looked at for its last words.
	lastPart = 8 << 10
)

// Scan reads r to its end and returns the weightiest message in it, the first
// of several; ok is false if there is none. It keeps one chunk in memory
// whatever it reads.
func Scan(r io.Reader) (best Finding, ok bool, err error) {
	buf := make([]byte, 0, lastPart+chunk+after)
	var base int64 // offset of buf[0]
	from := 0      // buf before this has been searched
	for {
		n, err := io.ReadFull(r, buf[len(buf):min(len(buf)+chunk, cap(buf))])
		buf = buf[:len(buf)+n]
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return Finding{}, false, err
		}
		to := len(buf) - after // messages that begin later are not all here yet
		if end {
			to = len(buf)
		}
		to = max(to, from)
		if s, at, w := first(buf, from, to, best.rank()); at >= 0 {
			best, ok = Finding{s, base + int64(at), w == backOff}, true
		}
		if end {
			best, ok = lastWord(best, ok, buf, base)
			return best, ok, nil
		}
		keep := max(to-lastPart, 0)
		base += int64(keep)
		buf = buf[:copy(buf, buf[keep:])]
		from = to - keep
	}
}

// rank is the weight of a finding; 0 of none.
func (f Finding) rank() int {
	switch {
	case f.ID == "":
		return 0
	case f.BackOff:
		return backOff
	}
	return f.weight()
}

// lastWord decides about a message after which programs go on, by what the text, of
// which buf is the last part, says behind it. An error of another kind is what ended the
// program; where nothing of its own follows, it did not go on.
func lastWord(f Finding, ok bool, buf []byte, base int64) (Finding, bool) {
	if !f.BackOff {
		return f, ok
	}
	tail := buf[max(len(buf)-lastPart, 0):]
	begin := base + int64(len(buf)-len(tail))
	rest := tail
	if f.Offset >= begin {
		rest = tail[f.Offset-begin:]
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			rest = rest[i+1:]
		} else {
			rest = nil
		}
	}
	if all := raised().FindAll(rest, -1); len(all) > 0 {
		// Its name is all that some versions of TensorFlow say in that line.
		if !bytes.Contains(all[len(all)-1], []byte("ResourceExhausted")) {
			return Finding{}, false
		}
		f.BackOff = false
		return f, true
	}
	f.BackOff = f.Offset < begin || goesOn(rest)
	return f, true
}

// first returns the weightiest signature above a weight that begins in
// text[from:to], where, and what it weighs there. Of several it is the one that begins
// first; of messages after which programs go on the last, for that one may be the end.
func first(text []byte, from, to, above int) (best Signature, at, weight int) {
	at, weight = -1, above
	t := lookup()
	for i := from + t.shortest - 1; i < len(text) && i-t.shortest < to-1; {
		block := uint16(text[i-1])<<8 | uint16(text[i])
		if step := t.skip[block]; step > 0 {
			i += int(step)
			continue
		}
		begin := i - t.shortest + 1
		for _, s := range t.ending[block] {
			if s.weight() <= weight && weight != backOff || !bytes.HasPrefix(text[begin:], []byte(s.text)) {
				continue
			}
			if w := s.weigh(text, begin); w > weight || w == weight && w == backOff {
				best, at, weight = s, begin, w
			}
		}
		i++
	}
	return best, at, weight
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

// lookup makes the tables when they are needed: every hook has this package in it,
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

// weigh judges the message that begins at text[at] by its line and by what follows; 0: it
// is none.
func (s Signature) weigh(text []byte, at int) int {
	whole, from := line(text, at)
	if !bytes.Contains(whole[from:], []byte(s.with)) {
		return 0
	}
	for _, word := range s.unless {
		if bytes.Contains(whole, []byte(word)) {
			return 0
		}
	}
	w := s.weight()
	if w == ofMemory && (allocators[s.ID] && retried(whole, from) || caught(text[at:])) {
		return backOff
	}
	return w
}

// caught tells whether the program says, on the next lines, that it tries again with less.
func caught(text []byte) bool {
	text = text[:min(len(text), after)]
	for range caughtWithin {
		i := bytes.IndexByte(text, '\n')
		if i < 0 {
			return false
		}
		text = text[i+1:]
		next, _, _ := bytes.Cut(text, []byte{'\n'})
		for _, words := range triesAgain {
			if bytes.Contains(next, []byte(words)) {
				return true
			}
		}
	}
	return false
}

// line returns what stands around text[at] on its line, and where in it at is.
func line(text []byte, at int) (whole []byte, from int) {
	begin := max(at-before, 0)
	if i := bytes.LastIndexByte(text[begin:at], '\n'); i >= 0 {
		begin += i + 1
	}
	end := min(at+after, len(text))
	if i := bytes.IndexByte(text[at:end], '\n'); i >= 0 {
		end = at + i
	}
	return text[begin:end], at - begin
}
