// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"carma/contrib/threadclock"
)

const mib = 1 << 20

// small is two steps of a model of one layer: 8 MiB of parameters, activations
// of 4 MiB a batch of 8, a gradient, a state.
const small = `carma-trace 1
torch 2.6.0
batch 8 4
optimizer SGD
s p8388608 a4194304:2097152 g8388608 o8388608
e +0+1m+2+3-3-2
e +1+2-1-2
end
`

func mustParse(t testing.TB, text string) *Trace {
	t.Helper()
	tr, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestParse(t *testing.T) {
	tr := mustParse(t, small)
	if tr.Torch != "2.6.0" || tr.Batch != [2]int64{8, 4} || tr.Optimizer != "SGD" || tr.Convolves() {
		t.Errorf("%+v", tr)
	}
}

// Copies reach into what they make, and deaths count births.
func TestEvents(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"+0+1-1-2", "b0 b1 d1 d0"},
		{"+0=1,3-1-2-3-4", "b0 b0 b0 b0 d3 d2 d1 d0"},
		{"+0-1=2,4", "b0 d0 b0 d1 b0 d2"},
		{"+0+1+2~0~1~1", "b0 b1 b2 d0 d1 d2"},
		{"+0+1+2~2~-1~-1", "b0 b1 b2 d2 d1 d0"},
		{"m+0m", "m b0 m"},
		{"+0f0d0w0", "b0 f0 D0 w0"},
	} {
		tr := mustParse(t, "carma-trace 1\ns a1 a2 a3\nc 8,8,4,4,3x3,1,1,4,n\ne "+c.text+"\nend\n")
		var got []string
		for _, e := range tr.events {
			word := string("bdmfDw"[e.kind])
			if e.kind != matmul {
				word += strconv.Itoa(int(e.n))
			}
			got = append(got, word)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %s, want %s", c.text, strings.Join(got, " "), c.want)
		}
	}
}

func TestConvolution(t *testing.T) {
	tr := mustParse(t, "carma-trace 1\ns a4\nc 800:400,1600:800,64,3,7x5,1,2,4,t\ne +0f0\nend\n")
	want := convolution{
		in: pair{800, 400}, out: pair{1600, 800}, OutChannels: 64, InChannels: 3, Kernel: [3]int64{7, 5, 1}, Dims: 2,
		Groups: 1, Stride: 2, ElemBytes: 4, Transposed: true,
	}
	if got := tr.convolutions[0]; got != want {
		t.Errorf("%+v", got)
	}
}

func TestParseErrors(t *testing.T) {
	body := func(lines string) string {
		return "carma-trace 1\ns a1 a2\nc 8,8,4,4,3x3,1,1,4,n\n" + lines + "\nend\n"
	}
	for _, c := range []struct{ text, want string }{
		{"", "has no end"},
		{"carma-trace 1\n", "has no end"},
		{"carma-trace 1\nend\n", "is empty"},
		{"carma-trace 2\nend\n", "another version"},
		{"Layer (type)\n", "another version"},
		{body("e +0") + "e +0\n", "line 6 of the trace: text behind its end"},
		{body("e +2"), "line 4 of the trace: size 2 is not one of 2"},
		{body("e +0-2"), "storage -1 ends, which is not there"},
		{body("e +0-1-1"), "storage 0 ends, which is not there"},
		{body("e +0~7"), "storage 7 ends, which is not there"},
		{body("e +0f1"), "convolution 1 is not one of 1"},
		{body("e +0=2,1"), "a copy from 2 back of 1 tokens, where there are 1"},
		{body("e +0=1"), "a copy is =DISTANCE,LENGTH"},
		{body("e +0=1,99999999"), "more than 65536 events"},
		{body("e +0=1,0"), "a copy from 1 back of 0 tokens"},
		{body("e +0=1,65536"), "more than 65536 events: give mem= instead"},
		{body("e +0=1,65535\ne +0"), "more than 65536 events"},
		{body("e +"), `event "+" has no number`},
		{body("e x1"), `unknown event "x"`},
		{body("e +0 +1"), `event " " has no number`},
		{body("frob 1"), `unknown word "frob"`},
		{body("batch 8 8"), "batch is one number, or two that differ"},
		{body("batch 8 4 2"), "batch is one number"},
		{body("batch 0"), "batch is one number"},
		{body("s x1"), "is not of class p, g, o or a"},
		{body("s a-1"), "not a number"},
		{body("s a9999999999999"), "more than there can be"},
		{body("c 1,2"), `"1,2" is not a convolution`},
		{body("segments odd"), "segments are expandable"},
		{"carma-trace 1\n" + strings.Repeat(" ", maxBytes), "longer than 256 KiB"},
	} {
		_, err := Parse([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v, want %s", c.text, err, c.want)
		}
	}
	if _, err := Parse([]byte("carma-trace 2\n")); !errors.Is(err, errVersion) {
		t.Error(err)
	}
}

func TestIs(t *testing.T) {
	for text, want := range map[string]bool{
		"carma-trace 1\n": true, "\n  carma-trace 9": true, "Layer (type)": false, "": false,
	} {
		if Is([]byte(text)) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

func TestReplay(t *testing.T) {
	tr := mustParse(t, small)
	// 8 of parameters, 8 of state and 4 of activations are alive with 8 of gradient.
	r := tr.Replay(Options{})
	if r.Peak != 28*mib || !r.Complete || r.Params != 8*mib {
		t.Errorf("%+v", r)
	}
	// All come from segments of 20 MiB: 8+4+8 in one, 8 in the other.
	if r.Reserved != 40*mib {
		t.Errorf("reserved %d", r.Reserved/mib)
	}
	if r.Parts != [nClasses]int64{8 * mib, 8 * mib, 8 * mib, 4 * mib, 0} {
		t.Errorf("parts %v", r.Parts)
	}
	// Half of the batch and the double lie on the line through the two sizes.
	for batch, want := range map[int64]int64{4: 26, 8: 28, 16: 32, 2: 25} {
		if r := tr.Replay(Options{Batch: batch}); r.Peak != want*mib {
			t.Errorf("batch %d: peak of %d MiB, want %d", batch, r.Peak/mib, want)
		}
	}
	// The first matrix product takes a cuBLAS workspace for good, and so does that of the backward pass.
	r = tr.Replay(Options{CuBLAS: 12 * mib})
	if r.Reserved != 64*mib || r.Peak != 52*mib || r.Parts[workspace] != 24*mib {
		t.Errorf("with cuBLAS: %+v", r)
	}
	tr = mustParse(t, strings.Replace(small, "+1m", "+1", 1))
	if r := tr.Replay(Options{CuBLAS: 12 * mib}); r.Reserved != 40*mib || r.Parts[workspace] != 0 {
		t.Errorf("without a matrix product: %+v", r)
	}
}

// A workspace takes what is free, or opens a segment; then it is free again.
func TestScratch(t *testing.T) {
	const text = "carma-trace 1\nbatch 8 4\ns a16777216:8388608\n" +
		"c 16777216:8388608,16777216:8388608,%s,n\ne +0+0f0d0w0-1\nend\n"
	s := Scratch{Forward: 2, Data: 9, Weight: 4, Few: 3, Grouped: 6, Patch: 12, Point: 4}
	for _, c := range []struct {
		shape string
		want  int64 // MiB
	}{
		{"64,64,3x3,1,1,4", 32 + 16 + 72},
		{"64,64,1x1,1,1,4", 32 + 32},
		{"64,64,3x3,64,1,4", 32},     // depthwise
		{"64,64,3x3,2,1,4", 32 + 48}, // groups
		{"64,64,2x2,1,2,4", 32 + 96}, // windows that do not overlap
		{"64,3,3x3,1,1,4", 32 + 24},  // an image
	} {
		tr := mustParse(t, fmt.Sprintf(text, c.shape))
		if r := tr.Replay(Options{Workspace: s}); r.Reserved != c.want*mib {
			t.Errorf("%s: %d MiB, want %d", c.shape, r.Reserved/mib, c.want)
		}
		if r := tr.Replay(Options{Workspace: s, Batch: 4}); r.Reserved > c.want*mib/2+20*mib {
			t.Errorf("%s: %d MiB at half of the batch", c.shape, r.Reserved/mib)
		}
	}
}

func fixtures(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(names) == 0 {
		t.Fatal("no traces in testdata", err)
	}
	out := map[string][]byte{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(name)] = text
	}
	return out
}

// The traces of the repository are read, and give what their models take.
func TestFixtures(t *testing.T) {
	for name, want := range map[string]struct{ params, peakMiB int64 }{
		"resnet18.txt": {4 * 11689512, 838},
	} {
		text, ok := fixtures(t)[name]
		if !ok {
			t.Errorf("no %s", name)
			continue
		}
		tr := mustParse(t, string(text))
		r := tr.Replay(Options{})
		t.Logf("%s: %d events, %+v", name, tr.Events(), r)
		if want.params != 0 && r.Params != want.params {
			t.Errorf("%s: %d bytes of parameters, want %d", name, r.Params, want.params)
		}
		if want.peakMiB != 0 && (r.Peak/mib < want.peakMiB-5 || r.Peak/mib > want.peakMiB+5) {
			t.Errorf("%s: %d MiB, want about %d", name, r.Peak/mib, want.peakMiB)
		}
	}
}

// dense are texts that make the most work for what they are.
func dense() map[string][]byte {
	var sizes, convolutions, mixed bytes.Buffer
	for i := range 8000 {
		fmt.Fprintf(&sizes, " a%d", 513+512*i*7919)
	}
	for i := range 8000 {
		fmt.Fprintf(&mixed, "+%d", i)
	}
	for i := range 4000 {
		fmt.Fprintf(&mixed, "-%d", 2*i+1+4000-i%2)
	}
	for range 5000 {
		convolutions.WriteString(" 1099511627776:1,1099511627776:1,99,99,3x3x3,1,1,4,n")
	}
	head := "carma-trace 1\nbatch 8 4\ns" + sizes.String()
	return map[string][]byte{
		"births":       []byte(head + "\ne +0=1,65535\nend\n"),
		"toggle":       []byte(head + "\ne +0-1=2,65534\nend\n"),
		"distinct":     []byte(head + "\ne " + mixed.String()[:5*8000] + "\nend\n"),
		"sawtooth":     []byte(head + "\ne " + comb(8000) + "\nend\n"),
		"convolutions": []byte("carma-trace 1\ns a1\nc" + convolutions.String() + "\ne +0f0d1w2=3,60000\nend\n"),
		"unseen":       []byte("carma-trace 1\n" + strings.Repeat("unseen x\n", 20000)),
		"blank":        bytes.Repeat([]byte("\n"), maxBytes),
		"nothing":      append([]byte("carma-trace 1\n"), bytes.Repeat([]byte("\n"), maxBytes-20)...),
	}
}

// comb makes n births of different sizes, ends every other, and does it again
// with other sizes: a free list as long and as mixed as there can be.
func comb(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "+%d", i*37%n)
	}
	b.WriteString("~0~2=1," + strconv.Itoa(n/2-2))
	for i := range n {
		fmt.Fprintf(&b, "+%d", i*41%n)
	}
	return b.String()
}

// Nothing makes more work than is allowed, however it is written.
func TestDense(t *testing.T) {
	for name, text := range dense() {
		if len(text) > maxBytes {
			t.Errorf("%s: %d bytes", name, len(text))
		}
		tr, err := Parse(text)
		if err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		r := tr.Replay(Options{Batch: 9, CuBLAS: mib, Workspace: Scratch{9, 9, 9, 9, 9, 9, 9}})
		if r.Reserved < r.Peak {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// FuzzTrace: what is read is what a reader of the description reads, and it
// plays to what its own births and deaths add up to.
func FuzzTrace(f *testing.F) {
	for _, text := range fixtures(f) {
		f.Add(string(text), int64(8))
	}
	f.Add(small, int64(4))
	f.Add("carma-trace 1\nbatch 8 4\ns a1:1099511627776 p512\nc 8,8,4,4,3x3,1,1,4,n\ne +0m+1f0-2=3,2~0\nend\n",
		int64(1<<24))
	f.Add("carma-trace 1\nsegments expandable\ns a30000000 a50000000\ne +0+1-2-1+0=4,3\nend\n", int64(1))
	f.Fuzz(func(t *testing.T, text string, batch int64) {
		tr, err := Parse([]byte(text))
		if err != nil {
			for _, c := range err.Error() {
				if c < ' ' || c > '~' {
					t.Fatalf("error holds %q", c)
				}
			}
			return
		}
		if batch < 0 || batch > maxBatch {
			return
		}
		want := naive(text, tr, batch)
		r := tr.Replay(Options{Batch: batch, CuBLAS: 1000, Workspace: Scratch{1, 2, 3, 4, 5, 6, 7}})
		if !r.Complete {
			return
		}
		// Blocks are rounded up to 512 bytes, and what is too small to be split
		// off a block stays with it: at most 1 MiB.
		if r.Peak < want.peak || r.Peak > want.peak+int64(want.most)*(mib+512) {
			t.Errorf("peak %d, births and deaths add up to %d, %d at most alive", r.Peak, want.peak, want.most)
		}
		if tr.births != want.births || r.Reserved < r.Peak || r.Reserved < 0 {
			t.Errorf("%d births, want %d; %+v", tr.births, want.births, r)
		}
	})
}

// added is what a trace's births and deaths add up to.
type added struct {
	peak         int64
	most, births int
}

// naive reads the events a second time, with strings and lists.
func naive(text string, tr *Trace, batch int64) (a added) {
	var stream []string
	for _, line := range strings.Split(text, "\n") {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "e ")
		if !ok {
			continue
		}
		line = strings.TrimSpace(line)
		for line != "" {
			n := strings.IndexAny(line[1:], "+-~mfdw=")
			if line[0] == '~' && strings.HasPrefix(line[1:], "-") {
				n = strings.IndexAny(line[2:], "+-~mfdw=")
				if n >= 0 {
					n++
				}
			}
			token := line
			if n >= 0 {
				token = line[:n+1]
			}
			line = line[len(token):]
			if token[0] != '=' {
				stream = append(stream, token)
				continue
			}
			one, two, _ := strings.Cut(token[1:], ",")
			distance, _ := strconv.Atoi(one)
			length, _ := strconv.Atoi(two)
			for range length {
				stream = append(stream, stream[len(stream)-distance])
			}
		}
	}
	var born []int64
	live, alive, deep := int64(0), 0, 0
	for _, token := range stream {
		n, _ := strconv.Atoi(token[1:])
		id := len(born) - n
		switch token[0] {
		case '+':
			born = append(born, tr.at(tr.sizes[n].bytes, batch))
			live += born[len(born)-1]
			alive++
		case '~':
			deep += n
			id = deep
			fallthrough
		case '-':
			live -= born[id]
			alive--
		}
		a.peak, a.most = max(a.peak, live), max(a.most, alive)
	}
	a.births = len(born)
	return a
}

func TestDenseTime(t *testing.T) {
	work := map[string]func(){}
	for name, text := range dense() {
		work[name] = func() {
			if tr, err := Parse(text); err == nil {
				tr.Replay(Options{Batch: 9, CuBLAS: mib, Workspace: Scratch{9, 9, 9, 9, 9, 9, 9}})
			}
		}
	}
	threadclock.Judge(t, work)
}
