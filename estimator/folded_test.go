// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"fmt"
	"strings"
	"testing"
)

// bottlenecks is what torchinfo prints of two residual blocks, the first with a shortcut.
const bottlenecks = `Layer (type:depth-idx)                   Output Shape              Param #
Net                                      [32, 10]                  --
├─Conv2d: 1-1                            [32, 64, 112, 112]        9,408
├─BatchNorm2d: 1-2                       [32, 64, 112, 112]        128
├─ReLU: 1-3                              [32, 64, 112, 112]        --
├─MaxPool2d: 1-4                         [32, 64, 56, 56]          --
├─Sequential: 1-5                        [32, 256, 56, 56]         --
│    └─Bottleneck: 2-1                   [32, 256, 56, 56]         --
│    │    └─Conv2d: 3-1                  [32, 64, 56, 56]          4,096
│    │    └─BatchNorm2d: 3-2             [32, 64, 56, 56]          128
│    │    └─ReLU: 3-3                    [32, 64, 56, 56]          --
│    │    └─Conv2d: 3-4                  [32, 256, 56, 56]         16,384
│    │    └─BatchNorm2d: 3-5             [32, 256, 56, 56]         512
SHORTCUT
│    │    └─ReLU: 3-7                    [32, 256, 56, 56]         --
│    └─Bottleneck: 2-2                   [32, 256, 56, 56]         --
│    │    └─Conv2d: 3-8                  [32, 64, 56, 56]          16,384
│    │    └─BatchNorm2d: 3-9             [32, 64, 56, 56]          128
│    │    └─ReLU: 3-10                   [32, 64, 56, 56]          --
│    │    └─Conv2d: 3-11                 [32, 256, 56, 56]         16,384
│    │    └─BatchNorm2d: 3-12            [32, 256, 56, 56]         512
│    │    └─ReLU: 3-13                   [32, 256, 56, 56]         --
├─AdaptiveAvgPool2d: 1-6                 [32, 256, 1, 1]           --
├─Linear: 1-7                            [32, 10]                  2,570
TOTAL
`

const (
	shortcut = "│    │    └─Sequential: 3-6              [32, 256, 56, 56]         --\n" +
		"│    │    │    └─Conv2d: 4-1             [32, 256, 56, 56]         16,384\n" +
		"│    │    │    └─BatchNorm2d: 4-2        [32, 256, 56, 56]         512"
	asOneRow = "│    │    └─Sequential: 3-6              [32, 256, 56, 56]         16,896"
	total    = "Total params: 83,530"
)

// What torchinfo's table leaves out is counted, and an estimate of it is not sure.
func TestFolded(t *testing.T) {
	of := func(changes ...string) Estimate {
		text := strings.NewReplacer("SHORTCUT", shortcut, "TOTAL", total).Replace(bottlenecks)
		for i := 0; i < len(changes); i += 2 {
			text = strings.Replace(text, changes[i], changes[i+1], 1)
		}
		e, err := Analytic(Spec{Summary: []byte(text), Input: [3]int{3, 224, 224}, Base: DefaultBase()})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	whole := of()
	if whole.Confidence != Sure {
		t.Errorf("all layers: %s %v", whole.Confidence, whole.Reasons)
	}
	const block = "16,384\n│    │    └─BatchNorm2d: 3-12            [32, 256, 56, 56]         512"
	for _, c := range []struct {
		name    string
		e       Estimate
		want    Confidence
		reason  string
		exactly bool // as much as with all layers
	}{
		{"a shortcut of one layer", of(shortcut, asOneRow), Unsure, "16896 parameters are of layers", true},
		{"a shortcut of more layers", of(shortcut, strings.Replace(asOneRow, "16,896", "33,280", 1), "83,530", "99,914"),
			Bound, "33280 parameters are of layers", false},
		{"no row of it", of(shortcut+"\n", ""), Bound, "16896 parameters are of layers", false},
		{"few parameters in no row", of("83,530", "83,630"), Unsure, "100 parameters are of layers", true},
		{"rows beyond the total", of("83,530", "70,000"), Unsure, "the rows have 13530 parameters more", true},
		{"no total", of(total, ""), Sure, "", true},
		{"counts of a narrow print", of(block, strings.NewReplacer("16,384", "--", "512", "--").Replace(block)), Bound,
			"16896 parameters are of layers", true},
	} {
		if c.e.Confidence != c.want || !strings.Contains(strings.Join(c.e.Reasons, "; "), c.reason) {
			t.Errorf("%s: %s %v, want %s, %s", c.name, c.e.Confidence, c.e.Reasons, c.want, c.reason)
		}
		if off := max(c.e.FloorMiB-whole.FloorMiB, whole.FloorMiB-c.e.FloorMiB); c.exactly && off > 4 {
			t.Errorf("%s: %d MiB at least, %d with all layers", c.name, c.e.FloorMiB, whole.FloorMiB)
		}
	}
}

// Rotary embeddings of the model's own mean fused attention, those of each attention do not.
func TestRotaryOfModel(t *testing.T) {
	s := fixture(t, "llama_repr.txt")
	const rotary = "    (rotary_emb): LlamaRotaryEmbedding()\n"
	const proj = "          (o_proj): Linear(in_features=256, out_features=256, bias=False)\n"
	for name, c := range map[string]struct {
		text  string
		fused bool
	}{
		"of the model":          {string(s.Summary), true},
		"of each attention":     {strings.Replace(string(s.Summary), proj, proj+rotary, 1), false},
		"of none that it shows": {strings.Replace(string(s.Summary), rotary, "", 1), false},
	} {
		s.Summary = []byte(c.text)
		e, err := Analytic(s)
		if err != nil {
			t.Fatal(err)
		}
		if fused := !strings.Contains(strings.Join(e.Assumed, "; "), "attention in steps"); fused != c.fused {
			t.Errorf("%s: fused is %v: %v", name, fused, e.Assumed)
		}
	}
}

// cuDNN runs recurrent layers, but not their cells.
func TestRecurrentBase(t *testing.T) {
	base := DefaultBase()
	for kind, cuDNN := range map[string]bool{"LSTM": true, "GRU": true, "RNN": true, "LSTMCell": false} {
		e, err := Analytic(Spec{Batch: 8, Seq: 20, Input: [3]int{20, 32}, Base: base,
			Summary: torchsummary(0, "Linear 20x32 1056", kind+" 20x64 25088", "Linear 20x10 650")})
		want := map[bool]int64{false: base.CuBLASMiB, true: base.CuDNNMiB}[cuDNN]
		if err != nil || e.CuDNN != cuDNN || e.Parts[0].MiB != want {
			t.Errorf("%s: base %v, cuDNN %v, %v", kind, e.Parts[0], e.CuDNN, err)
		}
	}
}

// A class that chains a convolution, a norm and an activation needs no runs of its own; one
// that holds more does.
func TestChainsNeedNoEvidence(t *testing.T) {
	of := func(rows ...string) Estimate {
		text := "Layer (type:depth-idx)  Output Shape  Param #\nNet  [64, 10]  --\n"
		for i, r := range append(append([]string{"├─Conv2d 9,408"}, rows...), "├─ReLU --") {
			at := strings.LastIndex(r, " ")
			text += fmt.Sprintf("%s: %d-%d  [64, 64, 56, 56] %s\n", r[:at], 1+strings.Count(r, "│"), i, r[at:])
		}
		e, err := Analytic(Spec{Input: [3]int{3, 112, 112}, Base: DefaultBase(), Summary: []byte(text)})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	const quirky, conv = "├─QuirkyNormActivation --", "│    └─Conv2d 36,864"
	const norm, act = "│    └─BatchNorm2d 128", "│    └─ReLU --"
	for _, c := range []struct {
		rows []string
		want bool // measured, or nothing to measure
	}{
		{[]string{quirky, conv, norm, act}, true},
		{[]string{quirky, conv, act}, true},
		{[]string{quirky, conv, norm, act, conv, norm}, false},
		{[]string{quirky, norm, act, conv}, false},
		{[]string{"├─QuirkyNormActivation 77", conv, norm, act}, false},
	} {
		e := of(c.rows...)
		if got := !strings.Contains(strings.Join(e.Reasons, "; "), "QuirkyNormActivation"); got != c.want {
			t.Errorf("%v: %s %v", c.rows, e.Confidence, e.Reasons)
		}
	}
}
