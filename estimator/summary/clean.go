// SPDX-License-Identifier: Apache-2.0

package summary

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// clean removes the additions of terminals and editors: ANSI escapes, carriage
// returns, byte order marks. It returns the input itself when there is
// nothing to remove.
func clean(text []byte) ([]byte, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, ErrEmpty
	}
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("%w: more than %d KiB; print less of the model or give mem=", ErrTooLarge, MaxBytes>>10)
	}
	if bytes.Count(text, []byte{'\n'})+bytes.Count(text, []byte{'\r'}) > maxLines {
		return nil, fmt.Errorf("%w: more than %d lines; print less of the model or give mem=", ErrTooLarge, maxLines)
	}
	if bytes.IndexByte(text, 0) >= 0 || !utf8.Valid(text) {
		return nil, fmt.Errorf("%w: it is not text", ErrNoModel)
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if bytes.IndexByte(text, 0x1b) < 0 && bytes.IndexByte(text, '\r') < 0 {
		return text, nil
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\r':
			if i+1 < len(text) && text[i+1] != '\n' {
				out = append(out, '\n')
			}
		case c == 0x1b:
			i = skipEscape(text, i)
		default:
			out = append(out, c)
		}
	}
	return out, nil
}

// skipEscape returns the index of the last byte of the escape sequence at i
// (ECMA-48: ESC [ parameters final byte, or ESC and one byte).
func skipEscape(text []byte, i int) int {
	if i+1 >= len(text) {
		return i
	}
	if text[i+1] != '[' {
		return i + 1
	}
	j := i + 2
	for j < len(text) && (text[j] < 0x40 || text[j] > 0x7e) {
		if text[j] == '\n' {
			return j - 1
		}
		j++
	}
	return j
}

// lines cuts text into lines without allocating one slice per line up front.
type lines struct{ rest []byte }

func (l *lines) next() ([]byte, bool) {
	if len(l.rest) == 0 {
		return nil, false
	}
	i := bytes.IndexByte(l.rest, '\n')
	if i < 0 {
		line := l.rest
		l.rest = nil
		return line, true
	}
	line := l.rest[:i]
	l.rest = l.rest[i+1:]
	return line, true
}

// nameTable holds the names seen, so that each is one string however often a
// summary repeats it.
type nameTable map[string]string

func (t nameTable) of(b []byte) string {
	name, ok := t[string(b)]
	if !ok {
		name = string(b)
		t[name] = name
	}
	return name
}

// parseCount reads a count with thousands separators (1,234 or 1_234 or
// 1 234 is not accepted: blanks separate columns). It gives the number and
// the bytes used; used is 0 when there is none. A count above MaxParams or a
// negative one gives ok=false with used > 0.
func parseCount(b []byte) (n int64, used int, ok bool) {
	i := 0
	if i < len(b) && b[i] == '-' {
		i++
	}
	start := i
	over := false
	for i < len(b) {
		c := b[i]
		switch {
		case c >= '0' && c <= '9':
			if n > MaxParams {
				over = true
			} else {
				n = n*10 + int64(c-'0')
			}
		case (c == ',' || c == '_') && i > start && groupOfThree(b[i+1:]):
		default:
			goto done
		}
		i++
	}
done:
	if i == start {
		return 0, 0, false
	}
	return n, i, !over && n <= MaxParams && start == 0
}

// groupOfThree: a thousands separator has three digits behind it.
func groupOfThree(b []byte) bool {
	return len(b) >= 3 && isDigit(b[0]) && isDigit(b[1]) && isDigit(b[2]) && (len(b) == 3 || !isDigit(b[3]))
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isIdent(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || isDigit(c)
}
func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// parseShape reads "[-1, 64, 112, 112]", "(None, 28, 28, 32)" or a nested list
// of such at b[0]. It gives the first tensor's shape without the batch, the
// batch, the elements of further tensors, and the bytes used (0: no shape).
func parseShape(b []byte) (s Shape, batch int32, extra int64, used int, ok bool) {
	depth, tensors, dims := 0, 0, 0
	cur := int64(1)
	i := 0
	ok = true
	for i < len(b) {
		c := b[i]
		switch {
		case c == '[' || c == '(':
			depth++
			if depth > 3 {
				return s, batch, extra, 0, false
			}
			dims = 0
			cur = 1
			i++
		case c == ']' || c == ')':
			depth--
			if dims > 0 {
				if tensors > 0 {
					extra = addSat(extra, cur)
				}
				tensors++
				dims = 0
			}
			i++
			if depth == 0 {
				return s, batch, extra, i, ok && tensors > 0
			}
		case c == ',' || isBlank(c):
			i++
		case c == '-' || isDigit(c):
			neg := c == '-'
			if neg {
				i++
			}
			var v int64
			digits := 0
			for i < len(b) && isDigit(b[i]) {
				if v < 1<<40 {
					v = v*10 + int64(b[i]-'0')
				}
				i++
				digits++
			}
			if digits == 0 || v > math31 {
				return s, batch, extra, 0, false
			}
			if neg {
				v = -v
			}
			switch {
			case dims == 0 && tensors == 0:
				batch = int32(v)
			case dims > 0 && v < 0:
				ok = false
			case dims > 0:
				cur = mulSat(cur, v)
				if tensors == 0 {
					if int(s.N) >= maxDims {
						s.D[maxDims-1] = int32(min(mulSat(int64(s.D[maxDims-1]), v), math31))
					} else {
						s.D[s.N] = int32(v)
						s.N++
					}
				}
			}
			dims++
		case c == 'N' && bytes.HasPrefix(b[i:], []byte("None")):
			if dims == 0 && tensors == 0 {
				batch = -1
			} else if dims > 0 && tensors == 0 && int(s.N) < maxDims {
				s.D[s.N] = 0
				s.N++
				cur = 0
			}
			dims++
			i += 4
		default:
			return s, batch, extra, 0, false
		}
	}
	return s, batch, extra, 0, false
}

const math31 = 1<<31 - 1

func addSat(a, b int64) int64 {
	if a > (1<<63-1)-b {
		return 1<<63 - 1
	}
	return a + b
}
