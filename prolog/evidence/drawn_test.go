// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"carma/prolog/oomscan"
)

// drawn is what a program printed, from a public thread (oomscan/testdata/threads/README.md).
type drawn struct{ thread, kind, text string }

func read(t *testing.T, name string) (list []drawn) {
	t.Helper()
	text, err := os.ReadFile("../oomscan/testdata/threads/" + name)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range strings.Split("\n"+string(text), "\n@ ")[1:] {
		head, body, _ := strings.Cut(entry, "\n")
		thread, kind, ok := strings.Cut(head, " = ")
		if !ok {
			thread, kind = head, "oom"
		}
		list = append(list, drawn{thread, kind, body + "\n"})
	}
	return list
}

// memories are the peaks of a job that booked 10 GiB.
var memories = []struct {
	name string
	peak int64
}{{"99 %", 10138}, {"93 %", 9523}, {"40 %", 4096}, {"not seen", 0}}

// ending is what the program printed when it ended for another reason, after it had gone on.
const ending = "Epoch 2/10: loss=0.124\nsaved to out/last.ckpt\nTraceback (most recent call last):\n" +
	"  File \"train.py\", line 88, in <module>\nValueError: Input 0 is incompatible with the layer\n"

// outcome of a text of a job that fails an hour after its start.
func outcome(text string, peak int64) Outcome {
	f := oomscan.Scan([]byte(text))
	e := Evidence{Text: TextOf(f.Kind, f.Grade, f.Survived, f.OtherEnd), End: EndOf(1, 0, 3600)}
	e.Memory = MemoryOf(e.Text, peak, 10240, false, false)
	return e.Decide()
}

// confusion is a table of docs/bench/oom.md on the texts of a draw, and its rates by memory: of the OOMs that were
// found, and of the others that were called OOM.
func confusion(t *testing.T, draw string) (table string, found, wrong [4]float64) {
	type row struct {
		n      int
		called [4]int
	}
	rows := map[string]*row{}
	for _, d := range append(read(t, draw+"-oom.txt"), read(t, draw+"-other.txt")...) {
		if rows[d.kind] == nil {
			rows[d.kind] = &row{}
		}
		rows[d.kind].n++
		if d.kind == "goes-on" {
			d.text += ending
		}
		for i, m := range memories {
			if o := outcome(d.text, m.peak); o == Proven || o == Said {
				rows[d.kind].called[i]++
			}
		}
	}
	var b strings.Builder
	b.WriteString("| kind | texts |")
	for _, m := range memories {
		fmt.Fprintf(&b, " called OOM, %s |", m.name)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(memories)) + "\n")
	others := 0
	for _, kind := range slices.SortedFunc(maps.Keys(rows), func(a, b string) int {
		return cmp.Or(cmp.Compare(b2i(b == "oom"), b2i(a == "oom")), cmp.Compare(a, b))
	}) {
		r := rows[kind]
		fmt.Fprintf(&b, "| %s | %d |", kind, r.n)
		for _, n := range r.called {
			fmt.Fprintf(&b, " %d |", n)
		}
		b.WriteString("\n")
		for i, n := range r.called {
			if kind == "oom" {
				found[i] = float64(n) / float64(r.n)
			} else {
				wrong[i] += float64(n)
			}
		}
		if kind != "oom" {
			others += r.n
		}
	}
	for i := range wrong {
		wrong[i] /= float64(others)
	}
	return b.String(), found, wrong
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Every row of the table but that of what cannot be read has a text of a program.
func TestEveryTextHasAFixture(t *testing.T) {
	have := map[Text]int{}
	paths, err := filepath.Glob("../oomscan/testdata/*/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f := oomscan.Scan(text)
		have[TextOf(f.Kind, f.Grade, f.Survived, f.OtherEnd)]++
	}
	for _, name := range []string{"evidence.txt", "goes-on.txt", "drawn-other.txt", "again-other.txt", "third-other.txt"} {
		for _, d := range read(t, name) {
			f := oomscan.Scan([]byte(d.text))
			have[TextOf(f.Kind, f.Grade, f.Survived, f.OtherEnd)]++
		}
	}
	for _, text := range []Text{Strong, Weak, Disguise, Survived, Hint, None, OtherEnd, Profiling} {
		if have[text] == 0 {
			t.Errorf("no fixture is %q", text)
		}
	}
}

// Texts that look like a lack of GPU memory are not called that, unless NVML saw the job near its limit: then most
// are not.
func TestLookAlikes(t *testing.T) {
	paths, err := filepath.Glob("../oomscan/testdata/other/*.txt")
	if err != nil || len(paths) < 35 {
		t.Fatal(len(paths), err)
	}
	var near []string
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, peak := range []int64{0, 4096} {
			if o := outcome(string(text), peak); o == Proven || o == Said {
				t.Errorf("%s, peak %d: %s", path, peak, o)
			}
		}
		if o := outcome(string(text), 10138); o == Proven {
			near = append(near, strings.TrimSuffix(filepath.Base(path), ".txt"))
		}
	}
	// Whether this is a lack of memory, memory alone tells.
	want := []string{"none-cublas-not-initialized"}
	if !slices.Equal(near, want) {
		t.Errorf("at the limit: %q, want %q", near, want)
	}
}

func TestDrawn(t *testing.T) {
	page, err := os.ReadFile("../../docs/bench/oom.md")
	if err != nil {
		t.Fatal(err)
	}
	type bound struct{ found, wrong float64 }
	for draw, bounds := range map[string][4]bound{
		"drawn": {{0.98, 0.2}, {0.98, 0.2}, {0.8, 0}, {0.8, 0}},
		"third": {{0.98, 0}, {0.98, 0}, {0.8, 0}, {0.8, 0}},
		"again": {{0.98, 0.04}, {0.98, 0.04}, {0.95, 0}, {0.95, 0}},
	} {
		table, found, wrong := confusion(t, draw)
		for i, b := range bounds {
			if found[i] < b.found || wrong[i] > b.wrong {
				t.Errorf("%s, with a peak of %s: found %.2f, wrong %.2f; want %+v", draw, memories[i].name, found[i], wrong[i], b)
			}
		}
		if !strings.Contains(string(page), table) {
			t.Errorf("docs/bench/oom.md holds another table of %s; this is it now:\n%s", draw, table)
		}
	}
}
