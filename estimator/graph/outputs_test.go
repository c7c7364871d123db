// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"fmt"
	"strings"
	"testing"

	"carma/estimator/summary"
)

// build makes the graph of torchsummary rows "kind shape parameters", one sample.
func build(t *testing.T, input Shape, total int64, rows ...string) *Graph {
	t.Helper()
	var b strings.Builder
	for i, r := range rows {
		f := strings.Fields(r + " 0")
		shape := "[-1, " + strings.ReplaceAll(f[1], "x", ", ") + "]"
		fmt.Fprintf(&b, "%20s  %25s %15s\n", fmt.Sprintf("%s-%d", f[0], i+1), shape, f[2])
	}
	if total > 0 {
		fmt.Fprintf(&b, "Total params: %d\n", total)
	}
	m, err := summary.Parse([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return Build(m, Options{Batch: 1, Dropout: -1, Input: input})
}

// What is kept for the backward pass, in units of one map of 4 channels, by the calls
// and by the outputs of the rows. Each came out wrong on measured models.
func TestTwoCountsOfKept(t *testing.T) {
	const unit = 4 * 32 * 32 * 4
	for _, c := range []struct {
		name           string
		rows           []string
		calls, outputs int64
	}{
		// The sample, a convolution, its norm, which the activation overwrites, a
		// depthwise convolution, and the sum of its norm with the norm of its input.
		{"norms side by side", []string{
			"Conv2d 4x32x32 16", "BatchNorm2d 4x32x32 8", "ReLU 4x32x32", "Conv2d 4x32x32 36", "BatchNorm2d 4x32x32 8",
			"Identity 4x32x32", "BatchNorm2d 4x32x32 8", "ReLU 4x32x32", "Conv2d 4x32x32 16",
		}, 5, 6},
		// x*scale + shift: x is kept, and the result by the next convolution.
		{"a scale that is learned", []string{
			"Conv2d 4x32x32 16", "BatchNorm2d 4x32x32 8", "ReLU 4x32x32", "LearnableAffineBlock 4x32x32 1", "Conv2d 4x32x32 16",
		}, 4, 5},
	} {
		g := build(t, summary.Dims(4, 32, 32), 0, c.rows...)
		if g.Kept/unit != c.calls || g.ByOutputs/unit != c.outputs {
			t.Errorf("%s: %d maps by the calls, %d by the outputs; want %d and %d",
				c.name, g.Kept/unit, g.ByOutputs/unit, c.calls, c.outputs)
		}
	}
}

// A conditional convolution mixes a weight for each sample of those of its experts.
func TestConditionalConvolution(t *testing.T) {
	const weight = 64 * 64 * 4
	plain := build(t, summary.Dims(64, 8, 8), 0, "Conv2d 64x8x8 4096", "SiLU 64x8x8", "Conv2d 64x8x8 4096")
	mixed := build(t, summary.Dims(64, 8, 8), 0, "Conv2d 64x8x8 4096", "SiLU 64x8x8", "CondConv2d 64x8x8 16384")
	if d := mixed.Kept - plain.Kept; d != weight || mixed.Guessed > 0 {
		t.Errorf("%d bytes more than a plain one keeps, %d guessed; want %d and none", d, mixed.Guessed, weight)
	}
}

// Parameters that no row shows are told from those that a habit explains.
func TestHidden(t *testing.T) {
	block := []string{
		"LayerNorm 49x64 128", "Linear 49x64 4160", "Block 49x64",
		"LayerNorm 49x64 128", "Linear 49x64 4160", "Block 49x64",
	}
	const shown = 2 * (128 + 4160)
	for _, c := range []struct {
		name       string
		more, want int64
	}{
		{"none", 0, 0},
		{"a class token", 64, 0},
		{"a table of positions", 49 * 64, 0},
		{"a table of positions and a class token", 50 * 64, 0},
		{"a temperature", 1, 0},
		{"a table of relative positions", 13 * 13 * 2, 13 * 13 * 2},
		{"a module that is used twice", -4160, -4160},
	} {
		if g := build(t, summary.Dims(49, 64), shown+c.more, block...); g.Hidden != c.want {
			t.Errorf("%s: %d, want %d", c.name, g.Hidden, c.want)
		}
	}
}

// A map that is passed on beside its block is the one of that shape, and no guess.
func TestShortcutOfAnUncutBlock(t *testing.T) {
	g := build(t, summary.Dims(3, 32, 32), 0,
		"Conv2d 8x32x32 216", "BatchNorm2d 8x32x32 16", "ReLU 8x32x32", "MaxPool2d 8x16x16",
		"Conv2d 8x16x16 64", "BatchNorm2d 8x16x16 16", "ReLU 8x16x16", "Conv2d 32x16x16 256", "BatchNorm2d 32x16x16 64",
		"Identity 8x16x16", "Conv2d 32x16x16 256", "BatchNorm2d 32x16x16 64", "ReLU 32x16x16", "Bottleneck 32x16x16",
	)
	if g.Guessed != 0 {
		t.Errorf("%d bytes guessed", g.Guessed)
	}
}

func TestPattern(t *testing.T) {
	for kind, want := range map[string]string{
		"LevitBlock": "*Block", "TalkingHeadAttn": "*Attn", "LiteMLA": "*MLA", "StemV2": "*V2", "MHSA": "*MHSA",
		"Attention2d": "*Attention2d", "ConvBNAct": "*Act", "net": "*net", "": "*",
		"Conv2d": "convolution", "LayerNorm2d": "layer norm", "NewGELUActivation": "composed activation",
	} {
		if got := Pattern(kind); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
}
