// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"carma/contrib/threadclock"
	"carma/estimator/summary"
	"carma/estimator/training"
)

// hostile are the summaries that make the most work for what they are: as many
// rows as are taken of each kind, sizes that leave gaps, nesting, repetitions, and
// texts without a row. None comes from a model.
func hostile() map[string][]byte {
	rows := func(head, row, tail string) []byte {
		var b bytes.Buffer
		b.WriteString(head)
		for i := range summary.MaxRows - 2 {
			fmt.Fprintf(&b, row, i)
		}
		b.WriteString(tail)
		return b.Bytes()
	}
	texts := map[string][]byte{
		"table":      rows("Layer (type)\n", "Conv2d-%d [-1, 64, 112, 112] 9,408\n", ""),
		"tree":       rows("Net\n", "├─Block: 1-%d [32, 77, 64] 300\n", ""),
		"repetition": []byte(fmt.Sprintf("A(\n (0): %d x Linear(in_features=70, out_features=70)\n)\n", summary.MaxRows-2)),
		"nesting": []byte(strings.Repeat("(a): B(\n", 500) +
			strings.Repeat("(x): Linear(in_features=7, out_features=7)\n", 400) + strings.Repeat(")\n", 500)),
		"short":   bytes.Repeat([]byte("x\n"), summary.MaxBytes/2),
		"long":    bytes.Repeat([]byte("(a (b (c (d "), summary.MaxBytes/12),
		"escapes": bytes.Repeat([]byte("\x1b[0m"), summary.MaxBytes/4),
		"keras":   append([]byte("Model: \"\n"), bytes.Repeat([]byte("│(│"), summary.MaxBytes/7-2)...),
		"classes": rows("Layer (type)\n", "C%[1]dBlock-%[1]d [-1, 8, 8, 8] 0\n", ""),
		"branches": []byte(strings.Repeat("(a): RepVggBlock(\n", 1400) + strings.Repeat("(x): BatchNorm2d(7)\n", 1500) +
			strings.Repeat(")\n", 1400)),
		"1 MiB": bytes.Repeat([]byte(" (l): Linear(in_features=512, out_features=512, bias=True)\n"), 1<<20/60),
	}
	for _, layer := range []string{
		"Linear(in_features=512, out_features=512, bias=True)", "Conv2d(64, 64, kernel_size=(3, 3))", "ReLU()",
		"LSTM(64, 64)",
		"LayerNorm((512,))", "BatchNorm2d(64)", "Embedding(1000, 64)", "Softmax()", "Upsample(scale_factor=2.0)",
		"Foo(bar=1)",
	} {
		name, _, _ := strings.Cut(layer, "(")
		texts[name] = rows("Net(\n", " (l%d): "+layer+"\n", ")\n")
	}
	var sizes bytes.Buffer
	sizes.WriteString("Layer (type)\n")
	for i := range summary.MaxRows - 2 {
		kind := [...]string{"Conv2d", "ReLU", "Linear", "Softmax", "LayerNorm", "Block", "Dropout"}[i%7]
		fmt.Fprintf(&sizes, "%s-%d [-1, %d, 64] %d\n", kind, i, 100+i*37%3000, i%3*1000)
	}
	texts["sizes"] = sizes.Bytes()
	var models bytes.Buffer
	for i := range summary.MaxRows {
		fmt.Fprintf(&models, "Layer (type)\nConv2d-%d [-1, %d, 64, 64] %d\n", i%300, 64+i*37%3000, i%3*1000)
	}
	texts["models"] = models.Bytes()
	for n, name := range map[int]string{1: "two readings", 8: "eight models in two readings"} {
		texts[name] = inTwoReadings(n, summary.MaxRows-10)
		texts[name+", fewer rows"] = inTwoReadings(n, twiceRows-10)
		texts[name+", even fewer"] = inTwoReadings(n, briefRows-10)
	}
	texts["three tools"] = append([]byte("A-1 [-1, 2] 3\nNet(\n"), texts["two readings"]...)
	return texts
}

// inTwoReadings are n trees whose outputs differ in their first dimension, so that each of
// them is estimated twice.
func inTwoReadings(n, rows int) []byte {
	var b bytes.Buffer
	for i := range rows {
		if i%(rows/n) == 0 {
			b.WriteString("Layer (type:depth-idx)\nNet [32, 9, 64] --\n")
		}
		kind := [...]string{"Conv2d", "ReLU", "Linear", "Softmax", "LayerNorm", "Block", "Dropout"}[i%7]
		fmt.Fprintf(&b, "├─%-30s [%d, %d, 64] %d\n", kind+": 1-1", 32+i%2*33, 100+i*37%3000, i%3*1000)
	}
	return b.Bytes()
}

// Nothing makes more rows than are allowed, however it is written.
func TestHostile(t *testing.T) {
	for name, text := range hostile() {
		e, err := Analytic(Spec{Summary: text, Batch: 32, Base: DefaultBase()})
		if err == nil && (e.Rows == 0 || e.Rows > summary.MaxRows) {
			t.Errorf("%s: %d rows", name, e.Rows)
		}
		if name == "1 MiB" && !errors.Is(err, summary.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A text of many rows is not read twice, and one budget is for all that is simulated of it.
func TestReadTwice(t *testing.T) {
	const unread = "too many rows to be read in both ways"
	for rows, want := range map[int]bool{twiceRows: false, twiceRows + 10: true} {
		e, err := Analytic(Spec{Summary: inTwoReadings(1, rows), Batch: 32, Base: DefaultBase()})
		if err != nil || e.Confidence != Bound || strings.Contains(strings.Join(e.Reasons, " "), unread) != want {
			t.Errorf("%d rows: %s %v, %v", rows, e.Confidence, e.Reasons, err)
		}
	}
	w := work{rows: 9, moves: 1}
	m, err := summary.Parse([]byte(asTree("G", 64, 4096, 4096)))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if e, err := ofModel(Spec{Base: DefaultBase()}, m, refit{measured: wasMeasured}, &w); err != nil || w.moves > 0 ||
			!strings.Contains(strings.Join(e.Reasons, " "), tooLarge) {
			t.Errorf("%d moves left: %s %v, %v", w.moves, e.Confidence, e.Reasons, err)
		}
	}
}

// TestHostileTime shows what the worst inputs cost: 10 ms of a thread's time is the most that a
// submission may. What bounds the cost is counted (summary.MaxBytes, MaxRows, training.Budget),
// so that an estimate never depends on how busy the machine is.
func TestHostileTime(t *testing.T) {
	work := map[string]func(){}
	for name, text := range hostile() {
		for _, s := range []Spec{
			{Optimizer: training.SGD, Foreach: On},
			{Optimizer: training.Adadelta, GradCheckpoint: true, GPUs: 4, Parallel: DP},
		} {
			s.Summary, s.Batch, s.Seq, s.Input, s.Base = text, 32, 512, [3]int{3, 224, 224}, DefaultBase()
			work[fmt.Sprintf("%s/%s", name, s.Parallel)] = func() { _, _ = Analytic(s) }
		}
	}
	threadclock.Judge(t, work)
}
