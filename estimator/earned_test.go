// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"carma/estimator/graph"
)

// rows makes a torchsummary text: kind, shape and parameters a line.
func torchsummary(total int64, rows ...string) []byte {
	var b strings.Builder
	b.WriteString("        Layer (type)               Output Shape         Param #\n")
	for i, r := range rows {
		kind, rest, _ := strings.Cut(r, " ")
		shape, params, _ := strings.Cut(rest, " ")
		if params == "" {
			params = "0"
		}
		shape = "[-1, " + strings.ReplaceAll(shape, "x", ", ") + "]"
		fmt.Fprintf(&b, "%20s  %25s %15s\n", fmt.Sprintf("%s-%d", kind, i+1), shape, params)
	}
	if total > 0 {
		fmt.Fprintf(&b, "Total params: %d\n", total)
	}
	return []byte(b.String())
}

// encoder is a transformer of one block, whose container has the given class.
func encoder(block string, total int64) []byte {
	return torchsummary(
		total,
		"Conv2d 192x14x14 147648", "Identity 196x192", "PatchEmbed 196x192",
		"LayerNorm 196x192 384", "Linear 196x576 111168", "Linear 196x192 37056", "Dropout 196x192", "Attention 196x192",
		"LayerNorm 196x192 384", "Linear 196x768 148224", "GELU 196x768", "Linear 196x192 147648", "Mlp 196x192",
		block+" 196x192",
		"LayerNorm 196x192 384", "Linear 1000 193000",
	)
}

const encoderParams = 147648 + 384 + 111168 + 37056 + 384 + 148224 + 147648 + 384 + 193000

func TestEarned(t *testing.T) {
	vit := func(block string, total int64) Spec {
		return Spec{Batch: 64, Input: [3]int{3, 224, 224}, Dropout: Off, Summary: encoder(block, total)}
	}
	for _, c := range []struct {
		name string
		s    Spec
		want Confidence
		why  string
	}{
		{"known classes", vit("Block", encoderParams), Sure, ""},
		{"a block by its last word", vit("NeverSeenBlock", encoderParams), Sure, ""},
		{"a class that nobody measured", vit("Whirl", encoderParams), Unsure, "1 modules are of class Whirl"},
		{"a table of positions and a class token", vit("Block", encoderParams+197*192), Sure, ""},
		{"a table of relative positions", vit("Block", encoderParams+27*27*3), Unsure, "2187 parameters belong to calls"},
		{"a module used twice, counted once", vit("Block", encoderParams-37056), Unsure, "37056 parameters belong to calls"},
	} {
		c.s.Base = DefaultBase()
		e, err := Analytic(c.s)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if e.Confidence != c.want || c.why != "" && !strings.Contains(strings.Join(e.Reasons, "\n"), c.why) {
			t.Errorf("%s: %s because %q, want %s because %q", c.name, e.Confidence, e.Reasons, c.want, c.why)
		}
	}
}

// What cuDNN would take on an empty GPU is told, and neither booked nor a reason to be unsure.
func TestWish(t *testing.T) {
	const transform = 2048 * 1024 * 32 * 17 * 8 >> 20 // MiB of all filters, transformed
	text := torchsummary(0, "Conv2d 2048x14x14 2097152", "BatchNorm2d 2048x14x14 4096", "ReLU 2048x14x14")
	for _, batch := range []int{8, 64} {
		e, err := Analytic(Spec{Batch: batch, Input: [3]int{1024, 14, 14}, Summary: text, Base: DefaultBase()})
		if err != nil {
			t.Fatal(err)
		}
		if e.WishMiB != transform-e.scratchMiB() || e.ReserveMiB != Sure.Reserve(e.MiB) || e.ReserveMiB > transform {
			t.Errorf("batch %d: wish %d MiB, reserve %d of %d MiB", batch, e.WishMiB, e.ReserveMiB, e.MiB)
		}
	}
	e, err := Analytic(Spec{Batch: 8, Input: [3]int{1024, 1, 1}, Summary: torchsummary(0, "Linear 10 10250"),
		Base: DefaultBase()})
	if err != nil || e.WishMiB != 0 {
		t.Errorf("without a convolution: wish %d MiB, %v", e.WishMiB, err)
	}
	e, err = Analytic(Spec{Batch: 8, Input: [3]int{1024, 14, 14}, Base: DefaultBase(),
		Summary: torchsummary(0, "Conv2d 2048x14x14 900000000000000")})
	if err != nil || e.WishMiB > mostWishMiB {
		t.Errorf("filters without number: wish %d MiB, %v", e.WishMiB, err)
	}
}

// Weights that a map of channels was taken for were multiplied into terabytes.
func TestMapsAreNoWeights(t *testing.T) {
	e, err := Analytic(Spec{
		Batch: 64, Input: [3]int{3, 224, 224}, Base: DefaultBase(),
		Summary: torchsummary(0,
			"Conv2d 512x14x14 393216", "Conv2d 2048x14x14 1048576", "BatchNorm2d 2048x14x14 4096", "ConvNorm 2048x14x14",
			"SiLU 1024x14x14", "Conv2d 512x14x14 524288", "BatchNorm2d 512x14x14 1024", "ConvNorm 512x14x14",
			"Attention 512x14x14"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if e.MiB > 4096 {
		t.Errorf("one attention over maps: %d MiB", e.MiB)
	}
}

// A wrong multiplication in one count shows against the other.
func TestTwoCounts(t *testing.T) {
	const kept = 1000 << 20
	for _, c := range []struct {
		calls, outputs, all, mib int64
		precision                graph.Precision
		want                     Confidence
	}{
		{kept, kept, 2 * kept, 4000, graph.FP32, Sure},
		{kept, kept * 11 / 10, 2 * kept, 4000, graph.FP32, Sure},
		{kept, kept * 10 / 13, 2 * kept, 4000, graph.FP32, Unsure},
		{kept, kept * 13 / 10, 2 * kept, 4000, graph.FP32, Unsure},
		{kept, kept * 13 / 10, 2 * kept, 20000, graph.FP32, Sure}, // a small part of the whole
		{5 * kept, kept, 2 * kept, 9000, graph.FP32, Bound},
		{5 * kept, 5 * kept, 2 * kept, 9000, graph.FP32, Bound},
		{kept, 2 * kept, 2 * kept, 4000, graph.AMP, Sure}, // never sure for another reason
	} {
		e := Estimate{MiB: c.mib}
		e.twoCounts(Spec{Precision: c.precision}, &graph.Graph{Kept: c.calls, ByOutputs: c.outputs, Outputs: c.all})
		if e.Confidence != c.want {
			t.Errorf("%+v: %s because %q", c, e.Confidence, e.Reasons)
		}
	}
}

// Names are looked up by halves.
func TestMeasuredInOrder(t *testing.T) {
	if !slices.IsSorted(measured[:]) {
		t.Error("measured.go is out of order: run contrib/bench/estimator -measured estimator/measured.go")
	}
	for kind, want := range map[string]bool{"OddBlock": true, "Conv2d": true, "XLNetModel": true, "Whirl": false} {
		if wasMeasured(kind) != want {
			t.Errorf("%s: %v", kind, !want)
		}
	}
}

// The features of a sample tell what a perceptron's first layer reads.
func TestFlatInput(t *testing.T) {
	table := torchsummary(0, "Linear 512 401920", "ReLU 512", "Linear 10 5130")
	repr := []byte("Net(\n  (a): Linear(in_features=784, out_features=512, bias=True)\n" +
		"  (b): Linear(in_features=512, out_features=10, bias=True)\n)\n")
	for _, c := range []struct {
		name  string
		text  []byte
		input [3]int
	}{
		{"table", table, [3]int{784}}, {"table, features untold", table, [3]int{}},
		{"representation", repr, [3]int{784}}, {"map that is flattened", table, [3]int{1, 28, 28}},
	} {
		e, err := Analytic(Spec{Summary: c.text, Batch: 65536, Input: c.input, Base: DefaultBase()})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		// The samples, twice: that of the last step stays until the next is there.
		if least := DefaultBase().CuBLASMiB + 2*cuBLASBytes>>20 + 196 + 128; e.FloorMiB < least || e.Confidence == Bound {
			t.Errorf("%s: floor %d MiB, at least %d; %s because %q", c.name, e.FloorMiB, least, e.Confidence, e.Reasons)
		}
	}
	for _, bad := range [][3]int{{0, 28, 28}, {1, 0, 28}, {0, 0, 3}, {1 << 21}} {
		if _, err := Analytic(Spec{Summary: table, Batch: 1, Input: bad}); err == nil {
			t.Errorf("input %v: no error", bad)
		}
	}
}

// What is said to help does: the size of a sample before a trace, a trace where calls
// were inferred, a run where nothing else shows it.
func TestRemedy(t *testing.T) {
	image := [3]int{3, 224, 224}
	conv := func(kernel string) []byte {
		return []byte("Net(\n  (a): Conv2d(3, 64, kernel_size=" + kernel + ", stride=(1, 1))\n  (b): ReLU()\n)\n")
	}
	deep := []byte("Layer (type:depth-idx)   Output Shape   Param #\nNet   [32, 10]   --\n" +
		"├─Whirl: 1-1   [32, 10]   5,000\n├─Linear: 1-2   [32, 10]   110\n")
	for _, c := range []struct {
		name string
		s    Spec
		want Remedy
	}{
		{"sure", Spec{Batch: 64, Input: image, Summary: encoder("Block", encoderParams)}, NoRemedy},
		{"no size of a sample", Spec{Batch: 8, Summary: conv("(3, 3)")}, SaySample},
		{"modules without children", Spec{Batch: 32, Summary: deep}, MoreDepth},
		{"a class never measured", Spec{Batch: 64, Input: image, Summary: encoder("Whirl", encoderParams)}, Trace},
		{
			"another precision",
			Spec{Batch: 64, Precision: graph.BF16, Input: image, Summary: encoder("Block", encoderParams)},
			FirstRun,
		},
	} {
		c.s.Base = DefaultBase()
		e, err := Analytic(c.s)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if e.Remedy != c.want {
			t.Errorf("%s: remedy %d, want %d; %s because %q", c.name, e.Remedy, c.want, e.Confidence, e.Reasons)
		}
	}
}

// Where the graph had to guess, the outputs of the rows are believed if they say more.
func TestMoreByOutputs(t *testing.T) {
	for _, c := range []struct {
		s                      Spec
		kept, guessed, outputs int64
		want                   int64
	}{
		{Spec{}, 1000, 100, 1300, 300},
		{Spec{}, 1000, 100, 900, 0},
		{Spec{}, 1000, 0, 1300, 0},
		{Spec{GradCheckpoint: true}, 1000, 100, 1300, 0},
		{Spec{Precision: graph.BF16}, 500, 100, 1300, 150},
	} {
		if got := c.s.moreByOutputs(&graph.Graph{Kept: c.kept, Guessed: c.guessed, ByOutputs: c.outputs}); got != c.want {
			t.Errorf("%+v: %d more, want %d", c, got, c.want)
		}
	}
}

// What users are told to be booked is what is.
func TestMarginsInDocs(t *testing.T) {
	doc, err := os.ReadFile("../docs/user.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		fmt.Sprintf("estimate + %d %% + %d MiB, of a trace %d %%", sureMarginPct, MarginMiB, tracedMarginPct),
		fmt.Sprintf("estimate + %d %% + %d MiB |", unsureMarginPct, MarginMiB),
	} {
		if !strings.Contains(string(doc), text) {
			t.Errorf("docs/user.md does not say: %s", text)
		}
	}
}

// An attention inside an attention counts once, and what a block holds itself is seen in
// every format that shows it.
func TestCountsByFormat(t *testing.T) {
	bert := fixture(t, "bert_repr.txt")
	bert.Seq = 512
	own := Spec{Batch: 32, Input: [3]int{49, 64}, Base: DefaultBase()}
	own.Summary = []byte(`Layer (type:depth-idx)   Output Shape   Param #
Net   [32, 49, 64]   --
├─Block: 1-1   [32, 49, 64]   1,000
│    └─Linear: 2-1   [32, 49, 64]   4,160
├─Block: 1-2   [32, 49, 64]   1,000
│    └─Linear: 2-2   [32, 49, 64]   4,160
`)
	for _, c := range []struct {
		name string
		s    Spec
		why  string // "" for sure
	}{{"bert", bert, ""}, {"own parameters", own, "2000 parameters belong to calls"}} {
		e, err := Analytic(c.s)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if (c.why == "") != (e.Confidence == Sure) || !strings.Contains(strings.Join(e.Reasons, "\n"), c.why) {
			t.Errorf("%s: %s because %q", c.name, e.Confidence, e.Reasons)
		}
	}
}
