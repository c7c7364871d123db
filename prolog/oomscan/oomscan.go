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
}

const (
	chunk = 256 << 10
	// A message is judged by its line, of a long one by so much around it.
	before, after = 256, 1024
)

// Scan reads r to its end and returns the weightiest message in it, the first
// of several; ok is false if there is none. It keeps one chunk in memory
// whatever it reads.
func Scan(r io.Reader) (best Finding, ok bool, err error) {
	buf := make([]byte, 0, before+chunk+after)
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
		if s, at := first(buf, from, to, best.weight0()); at >= 0 {
			best, ok = Finding{s, base + int64(at)}, true
		}
		if end {
			return best, ok, nil
		}
		keep := max(to-before, 0)
		base += int64(keep)
		buf = buf[:copy(buf, buf[keep:])]
		from = to - keep
	}
}

// weight0 is the weight of a finding; 0 of none.
func (f Finding) weight0() int {
	if f.ID == "" {
		return 0
	}
	return f.weight()
}

// first returns the weightiest signature above a weight that begins in
// text[from:to], of several the one that begins first, and where.
func first(text []byte, from, to, above int) (best Signature, at int) {
	at = -1
	t := lookup()
	for i := from + t.shortest - 1; i < len(text) && i-t.shortest < to-1; {
		block := uint16(text[i-1])<<8 | uint16(text[i])
		if step := t.skip[block]; step > 0 {
			i += int(step)
			continue
		}
		begin := i - t.shortest + 1
		for _, s := range t.ending[block] {
			if s.weight() > above && bytes.HasPrefix(text[begin:], []byte(s.text)) && s.fits(text, begin) {
				best, at, above = s, begin, s.weight()
			}
		}
		i++
	}
	return best, at
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

// fits judges the line that holds the message, which begins at text[at].
func (s Signature) fits(text []byte, at int) bool {
	whole, from := line(text, at)
	if !bytes.Contains(whole[from:], []byte(s.with)) {
		return false
	}
	for _, word := range s.unless {
		if bytes.Contains(whole, []byte(word)) {
			return false
		}
	}
	return true
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
