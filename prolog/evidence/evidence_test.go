// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The table of docs/bench/oom.md is the one of the code.
func TestTableInTheDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("| text | end |")
	for _, m := range Memories {
		fmt.Fprintf(&b, " %s |", m)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(Memories)) + "\n")
	for _, r := range table {
		fmt.Fprintf(&b, "| %s | %s |", r.Text, r.End)
		for _, o := range r.Outcomes {
			fmt.Fprintf(&b, " %s |", o)
		}
		b.WriteString("\n")
	}
	page, err := os.ReadFile("../../docs/bench/oom.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), b.String()) {
		t.Errorf("docs/bench/oom.md holds another table; this is the code's:\n%s", b.String())
	}
}

func TestMemoryOf(t *testing.T) {
	for _, c := range []struct {
		peak, booked int64
		preallocated bool
		fullCard     bool
		want         Memory
	}{
		{0, 10240, false, false, Unknown}, {0, 10240, false, true, Unknown}, {5000, 0, false, false, Unknown},
		{9215, 10240, false, false, Below}, {9216, 10240, false, false, Near}, {10035, 10240, false, false, Near},
		{10036, 10240, false, false, AtLimit}, {12288, 10240, false, false, AtLimit},
		{9300, 10240, true, false, Preallocated}, {4000, 10240, false, true, Below}, {5120, 10240, false, true, AtLimit},
	} {
		for _, text := range []Text{Strong, Weak, Disguise} {
			if got := MemoryOf(text, c.peak, c.booked, c.preallocated, c.fullCard); got != c.want {
				t.Errorf("%s, %+v: %s", text, c, got)
			}
		}
	}
	for peak, want := range map[int64]Memory{0: Unknown, 5120: Below, 9300: Near, 10035: Near, 10036: Preallocated,
		10444: Preallocated, 10445: AtLimit, 12288: AtLimit} {
		for _, text := range []Text{Survived, OtherEnd} { // of which a full card is no evidence
			if got := MemoryOf(text, peak, 10240, false, peak == 5120); got != want && (want != Preallocated || got != AtLimit) {
				t.Errorf("%s, peak %d: %s, want %s", text, peak, got, want)
			}
		}
		for _, text := range []Text{None, Hint} {
			if got := MemoryOf(text, peak, 10240, false, peak == 5120); got != want {
				t.Errorf("%s, peak %d: %s, want %s", text, peak, got, want)
			}
		}
	}
}

func TestEndOf(t *testing.T) {
	for _, c := range []struct {
		code, signal int
		ranS         float64
		want         End
	}{
		{0, 0, 1, Well}, {1, 0, 600, AtStart}, {1, 0, 601, Later}, {137, 0, 5, Later}, {0, 9, 5, Later}, {127, 0, 5, AtStart},
	} {
		if got := EndOf(c.code, c.signal, c.ranS); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// Every end of a job finds a row, and what is decided says why.
func TestEveryCell(t *testing.T) {
	for _, text := range []Text{Strong, Weak, Disguise, Survived, Hint, None, OtherEnd, Unread, Profiling} {
		for _, end := range []End{AtStart, Later, Well} {
			for _, m := range Memories {
				for _, neighbour := range []string{"", "job 9 ended on its GPU"} {
					e := Evidence{Text: text, Program: "PyTorch", End: end, Memory: m, PeakMiB: 9000, BookedMiB: 10240,
						Neighbour: neighbour}
					o, note := e.Decide(), e.Note()
					says := strings.Contains(note, "GPU") || strings.Contains(note, "used")
					if (o == Proven || o == Said) && (end == Well || !says) {
						t.Errorf("%+v: %s, %q", e, o, note)
					}
					if o == Proven && m != AtLimit && m != Near {
						t.Errorf("%+v: proven without memory", e)
					}
					if o == Beside && neighbour == "" || neighbour != "" && end != Well && o == No && note == "" {
						t.Errorf("%+v: %s, %q", e, o, note)
					}
				}
			}
		}
	}
}

func TestNote(t *testing.T) {
	for _, c := range []struct {
		e    Evidence
		want string
	}{
		{Evidence{Text: Strong, Program: "PyTorch", End: Later, Memory: AtLimit, PeakMiB: 10137, BookedMiB: 10240},
			"PyTorch says so; it used 9.9 GiB of the 10.0 GiB that it booked"},
		{Evidence{Text: Strong, Program: "PyTorch", End: Later, Memory: Unknown, BookedMiB: 10240},
			"PyTorch says so; its memory was not seen on the GPU"},
		{Evidence{Text: Weak, Program: "any program", End: Later, Memory: Below, PeakMiB: 4096, BookedMiB: 10240},
			"it says that memory was not enough, as it may for want of GPU memory, but it used 4.0 GiB of the " +
				"10.0 GiB that it booked: not taken for out of memory"},
		{Evidence{Text: OtherEnd, End: AtStart, Memory: Below, PeakMiB: 4096, BookedMiB: 10240,
			Neighbour: "job 9 ended on its GPU 4 s before"},
			"job 9 ended on its GPU 4 s before it failed; nothing shows that it ran out of memory itself"},
		{Evidence{Text: Profiling, Program: "vLLM", End: AtStart, Memory: Unknown,
			Neighbour: "job 9 ended on its GPU 4 s before"},
			"vLLM found the free memory of the GPU changed at its start: job 9 ended on its GPU 4 s before it failed"},
	} {
		if got := c.e.Note(); got != c.want {
			t.Errorf("%q\nwant %q", got, c.want)
		}
	}
}
