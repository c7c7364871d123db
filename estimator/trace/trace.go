// SPDX-License-Identifier: Apache-2.0

// Package trace reads what contrib/summary/carma_trace.py writes, the births
// and deaths of a GPU's memory in two training steps (docs/trace.md), and
// plays them on the simulated caching allocator.
//
// The package is pure and bounded: the code runs inside slurmctld on text that
// anybody wrote.
package trace

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// Limits on a text.
const (
	maxBytes        = 256 << 10
	maxEvents       = 1 << 16
	maxSizes        = 1 << 14
	maxConvolutions = 1 << 13
	maxNotes        = 64
	maxNote         = 200     // bytes of a note that are kept
	maxBatch        = 1 << 24 // as #CARMA batch=
	maxStorage      = 1 << 40 // bytes; more than any GPU has
)

const magic = "carma-trace "

// purpose tells what a storage holds.
type purpose uint8

// The classes.
const (
	parameters purpose = iota
	gradients
	optimizerState
	activations
	workspace // of cuDNN and cuBLAS, which no trace shows
	nClasses
)

// pair is an amount at the two batch sizes of a trace.
type pair struct{ first, second int64 }

type size struct {
	bytes pair
	class purpose
}

// convolution is one of the model's, as far as cuDNN's workspace goes.
type convolution struct {
	in, out                   pair // bytes
	OutChannels, InChannels   int64
	Kernel                    [3]int64 // 1 where it has fewer dimensions
	Dims                      int
	Groups, Stride, ElemBytes int64
	Transposed                bool
}

// kind of an event.
type kind uint8

const (
	birth kind = iota
	death
	matmul
	forward // of a convolution
	backwardData
	backwardWeight
)

// event is one step of the replay. n is the size of a birth, the number of the
// birth whose storage dies, or the convolution.
type event struct {
	kind kind
	n    int32
}

// Trace is a parsed text.
type Trace struct {
	Torch      string
	Batch      [2]int64 // 0: not known; the second 0: one batch was traced
	Optimizer  string
	Precision  string   // empty: fp32
	Parallel   string   // empty: one process
	Expandable bool     // expandable_segments was on
	Unseen     []string // the memory not shown by the trace
	Single     string   // why there is no second batch

	sizes        []size
	convolutions []convolution
	events       []event
	births       int
}

// errVersion says that the text is of a form that is not known here.
var errVersion = errors.New("the trace is of another version than 1: use the carma_trace.py of this installation")

// Is tells whether text is a trace.
func Is(text []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(text[:min(len(text), 4096)], " \t\r\n"), []byte(magic))
}

// Convolves tells whether the model has a convolution, which loads cuDNN.
func (t *Trace) Convolves() bool { return len(t.convolutions) > 0 }

// Events is the number of births, deaths and operations.
func (t *Trace) Events() int { return len(t.events) }

type parser struct {
	t     *Trace
	line  int
	raw   []token // as written, copies resolved
	alive []bool  // by birth
	deep  int32
	ended bool
}

// token is an event as written.
type token struct {
	sign byte
	n    int32
}

// Parse reads a trace.
func Parse(text []byte) (*Trace, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("the trace is longer than %d KiB: give mem= instead", maxBytes>>10)
	}
	p := parser{t: &Trace{}}
	// Most traces unfold to some four times their bytes.
	guess := min(4*len(text), maxEvents)
	p.raw, p.alive, p.t.events = make([]token, 0, guess), make([]bool, 0, guess/2), make([]event, 0, guess)
	seen := false
	for rest := text; len(rest) > 0; {
		var line []byte
		line, rest, _ = bytes.Cut(rest, []byte{'\n'})
		p.line++
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if !seen {
			if !bytes.Equal(line, []byte(magic+"1")) {
				return nil, errVersion
			}
			seen = true
			continue
		}
		if p.ended {
			return nil, fmt.Errorf("line %d of the trace: text behind its end", p.line)
		}
		if err := p.parseLine(line); err != nil {
			return nil, fmt.Errorf("line %d of the trace: %w", p.line, err)
		}
	}
	switch {
	case !p.ended:
		return nil, errors.New("the trace has no end: it was cut off; print it again")
	case p.t.births == 0:
		return nil, errors.New("the trace is empty: nothing was on a GPU")
	}
	return p.t, nil
}

func (p *parser) parseLine(line []byte) error {
	word, rest, _ := bytes.Cut(line, []byte{' '})
	rest = bytes.TrimSpace(rest)
	t := p.t
	switch string(word) {
	case "e":
		return p.events(rest)
	case "s":
		return eachWord(rest, p.size)
	case "c":
		return eachWord(rest, p.convolution)
	case "batch":
		return p.batch(rest)
	case "torch":
		t.Torch = note(rest)
	case "optimizer":
		t.Optimizer = note(rest)
	case "precision":
		t.Precision = note(rest)
	case "parallel":
		t.Parallel = note(rest)
	case "segments":
		if string(rest) != "expandable" {
			return errors.New("segments are expandable or not named")
		}
		t.Expandable = true
	case "unseen":
		if len(t.Unseen) < maxNotes {
			t.Unseen = append(t.Unseen, note(rest))
		}
	case "single":
		t.Single = note(rest)
	case "end":
		p.ended = true
	default:
		return fmt.Errorf("unknown word %q", note(word))
	}
	return nil
}

// note makes a user's text fit for a log: printable ASCII of bounded length.
func note(text []byte) string {
	out := make([]byte, 0, min(len(text), maxNote))
	for _, c := range text[:min(len(text), maxNote)] {
		if c < ' ' || c > '~' {
			c = '?'
		}
		out = append(out, c)
	}
	return string(out)
}

func eachWord(text []byte, do func(word []byte) error) error {
	for len(text) > 0 {
		word, rest, _ := bytes.Cut(text, []byte{' '})
		if len(word) > 0 {
			if err := do(word); err != nil {
				return err
			}
		}
		text = rest
	}
	return nil
}

func (p *parser) batch(text []byte) error {
	k := 0
	return eachWord(text, func(word []byte) error {
		n, err := number(word, maxBatch)
		if err != nil || n == 0 || k == 2 || k == 1 && n == p.t.Batch[0] {
			return errors.New("batch is one number, or two that differ")
		}
		p.t.Batch[k] = n
		k++
		return nil
	})
}

// number reads a decimal number of at most most.
func number(text []byte, most int64) (int64, error) {
	if len(text) == 0 || len(text) > 18 {
		return 0, errors.New("not a number")
	}
	var n int64
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, errors.New("not a number")
		}
		n = 10*n + int64(c-'0')
	}
	if n > most {
		return 0, fmt.Errorf("%d is more than there can be", n)
	}
	return n, nil
}

// amount reads N, or N:M for the two batch sizes.
func amount(text []byte) (pair, error) {
	one, two, both := bytes.Cut(text, []byte{':'})
	first, err := number(one, maxStorage)
	if err != nil {
		return pair{}, err
	}
	second := first
	if both {
		if second, err = number(two, maxStorage); err != nil {
			return pair{}, err
		}
	}
	return pair{first, second}, nil
}

func (p *parser) size(word []byte) error {
	if len(p.t.sizes) == maxSizes {
		return errors.New("too many sizes")
	}
	class := bytes.IndexByte([]byte("pgoa"), word[0])
	if class < 0 {
		return fmt.Errorf("size %q is not of class p, g, o or a", note(word))
	}
	b, err := amount(word[1:])
	if err != nil {
		return fmt.Errorf("size %q: %w", note(word), err)
	}
	p.t.sizes = append(p.t.sizes, size{b, purpose(class)})
	return nil
}

// convolution reads IN,OUT,OUT_CHANNELS,IN_CHANNELS,KERNEL,GROUPS,STRIDE,BYTES,n|t.
func (p *parser) convolution(word []byte) error {
	if len(p.t.convolutions) == maxConvolutions {
		return errors.New("too many convolutions")
	}
	c, ok := readConvolution(word)
	if !ok {
		return fmt.Errorf("%q is not a convolution", note(word))
	}
	p.t.convolutions = append(p.t.convolutions, c)
	return nil
}

func readConvolution(word []byte) (convolution, bool) {
	f := bytes.Split(word, []byte{','})
	if len(f) != 9 || len(f[8]) != 1 || f[8][0] != 'n' && f[8][0] != 't' {
		return convolution{}, false
	}
	c := convolution{Kernel: [3]int64{1, 1, 1}, Transposed: f[8][0] == 't'}
	var err [2]error
	c.in, err[0] = amount(f[0])
	c.out, err[1] = amount(f[1])
	if err[0] != nil || err[1] != nil {
		return c, false
	}
	const mostChannels, mostKernel = 1 << 24, 1 << 16
	for _, to := range []struct {
		text []byte
		n    *int64
	}{{f[2], &c.OutChannels}, {f[3], &c.InChannels}, {f[5], &c.Groups}, {f[6], &c.Stride}, {f[7], &c.ElemBytes}} {
		n, err := number(to.text, mostChannels)
		if err != nil || n == 0 {
			return c, false
		}
		*to.n = n
	}
	for i, k := range bytes.Split(f[4], []byte{'x'}) {
		n, err := number(k, mostKernel)
		if i == len(c.Kernel) || err != nil || n == 0 {
			return c, false
		}
		c.Kernel[i] = n
		c.Dims = i + 1
	}
	return c, true
}

// events reads the tokens of a line.
func (p *parser) events(text []byte) error {
	for len(text) > 0 {
		sign := text[0]
		n := 1
		for n < len(text) && (text[n] >= '0' && text[n] <= '9' || text[n] == '-' && n == 1 && sign == '~') {
			n++
		}
		digits := text[1:n]
		text = text[n:]
		if sign == '=' {
			distance, err := strconv.Atoi(string(digits))
			if err != nil || len(text) == 0 || text[0] != ',' {
				return errors.New("a copy is =DISTANCE,LENGTH")
			}
			n = 1
			for n < len(text) && text[n] >= '0' && text[n] <= '9' {
				n++
			}
			length, err := strconv.Atoi(string(text[1:n]))
			if err != nil {
				return errors.New("a copy is =DISTANCE,LENGTH")
			}
			text = text[n:]
			if err := p.copy(distance, length); err != nil {
				return err
			}
			continue
		}
		value := int64(0)
		if sign != 'm' || len(digits) > 0 {
			var err error
			if value, err = strconv.ParseInt(string(digits), 10, 32); err != nil {
				return fmt.Errorf("event %q has no number", note([]byte{sign}))
			}
		}
		if err := p.event(token{sign, int32(value)}); err != nil {
			return err
		}
	}
	return nil
}

var errEvents = fmt.Errorf("more than %d events: give mem= instead", maxEvents)

// copy repeats length tokens that began distance tokens ago; it may reach into
// what it makes, as for a run of equal layers.
func (p *parser) copy(distance, length int) error {
	if len(p.t.events)+length > maxEvents {
		return errEvents
	}
	if distance < 1 || distance > len(p.raw) || length < 1 || length > maxEvents {
		return fmt.Errorf("a copy from %d back of %d tokens, where there are %d", distance, length, len(p.raw))
	}
	for range length {
		if err := p.event(p.raw[len(p.raw)-distance]); err != nil {
			return err
		}
	}
	return nil
}

// event adds a token; it names only what there is.
func (p *parser) event(k token) error {
	t := p.t
	if len(t.events) == maxEvents {
		return errEvents
	}
	p.raw = append(p.raw, k)
	e := event{n: k.n}
	switch k.sign {
	case '+':
		if k.n < 0 || int(k.n) >= len(t.sizes) {
			return fmt.Errorf("size %d is not one of %d", k.n, len(t.sizes))
		}
		e.kind = birth
		p.alive = append(p.alive, true)
		t.births++
	case '-', '~':
		id := int64(t.births) - int64(k.n)
		if k.sign == '~' {
			id = int64(p.deep) + int64(k.n)
		}
		if id < 0 || id >= int64(t.births) || !p.alive[id] {
			return fmt.Errorf("storage %d ends, which is not there", id)
		}
		if k.sign == '~' {
			p.deep = int32(id)
		}
		p.alive[id] = false
		e.kind, e.n = death, int32(id)
	case 'm':
		e.kind = matmul
	case 'f', 'd', 'w':
		e.kind = forward
		if k.sign == 'd' {
			e.kind = backwardData
		} else if k.sign == 'w' {
			e.kind = backwardWeight
		}
		if k.n < 0 || int(k.n) >= len(t.convolutions) {
			return fmt.Errorf("convolution %d is not one of %d", k.n, len(t.convolutions))
		}
	default:
		return fmt.Errorf("unknown event %q", note([]byte{k.sign}))
	}
	t.events = append(t.events, e)
	return nil
}

// at is the amount at a batch, on the line through the two that were traced.
func (t *Trace) at(p pair, batch int64) int64 {
	if p.first == p.second || t.Batch[1] == 0 || batch == 0 || batch == t.Batch[0] {
		return p.first
	}
	slope := float64(p.second-p.first) / float64(t.Batch[1]-t.Batch[0])
	n := math.Round(float64(p.first) + slope*float64(batch-t.Batch[0]))
	return int64(min(max(n, 0), maxStorage))
}
