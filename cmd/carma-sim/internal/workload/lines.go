// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bytes"
	"fmt"
	"io"
)

// What no trace has, and a file that is none may have.
const (
	maxLine        = 1 << 20    // bytes
	maxSubmissions = 10_000_000 // of a trace
)

// lines passes a file on, refuses it where a line is too long, and knows which
// line an offset lies on.
type lines struct {
	file   string
	r      io.Reader
	off    int64
	start  int64   // of the line that is being read
	ends   []int64 // offsets of line ends after the last one that was asked about
	passed int     // line ends before
	limit  bool    // of the length of a line; at then tells the last line only
}

func (l *lines) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	for at := 0; at < n; {
		i := bytes.IndexByte(p[at:n], '\n')
		if i < 0 {
			break
		}
		at += i + 1
		l.start = l.off + int64(at)
		if l.limit {
			l.passed++
		} else {
			l.ends = append(l.ends, l.start-1)
		}
	}
	l.off += int64(n)
	if l.limit && l.off-l.start > maxLine {
		return 0, &lineError{File: l.file, Line: l.at(l.start), Reason: fmt.Sprintf("longer than %d bytes; is this a trace?",
			maxLine), Fatal: true}
	}
	return n, err
}

// at returns the line that off lies on, from 1. Offsets must not go back.
func (l *lines) at(off int64) int {
	n := 0
	for n < len(l.ends) && l.ends[n] < off {
		n++
	}
	l.passed += n
	l.ends = l.ends[:copy(l.ends, l.ends[n:])]
	return l.passed + 1
}
