// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"fmt"
	"strings"
	"testing"

	"carma/estimator/summary"
)

// kept is what a summary keeps for the backward pass, in elements per sample.
func kept(t *testing.T, text string, o Options) int64 {
	t.Helper()
	m, err := summary.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o.Batch = 2
	two := Build(m, o).Kept
	o.Batch = 1
	return (two - Build(m, o).Kept) / 4
}

func rows(r ...string) string {
	var b strings.Builder
	for i, s := range r {
		kind, rest, _ := strings.Cut(s, " ")
		fmt.Fprintf(&b, "%s-%d %s\n", kind, i+1, rest)
	}
	return b.String()
}

// What PyTorch keeps (tools/autograd/derivatives.yaml), in elements a sample.
func TestKept(t *testing.T) {
	img := Options{Input: summary.Dims(3, 8, 8), Dropout: 1}
	vec := Options{Dropout: 1}
	for _, c := range []struct {
		name string
		text string
		opt  Options
		want int64
	}{
		{"linear keeps its input", rows("Linear [-1, 10] 110"), vec, 10},
		{"relu's output is the next input", rows("Linear [-1, 10] 110", "ReLU [-1, 10] 0", "Linear [-1, 5] 55"), vec,
			10 + 10},
		{"gelu keeps its input too", rows("Linear [-1, 10] 110", "GELU [-1, 10] 0", "Linear [-1, 5] 55"), vec, 10 + 10 + 10},
		{"sigmoid keeps its output", rows("Linear [-1, 10] 110", "Sigmoid [-1, 10] 0"), vec, 10 + 10},
		{"dropout keeps a byte mask", rows("Linear [-1, 8] 88", "Dropout [-1, 8] 0", "Linear [-1, 4] 36"), vec, 10 + 2 + 8},
		{"conv, norm, relu", rows("Conv2d [-1, 4, 8, 8] 108", "BatchNorm2d [-1, 4, 8, 8] 8", "ReLU [-1, 4, 8, 8] 0"), img,
			3*64 + 256 + 256},
		{"max pool keeps input and indices", rows("Conv2d [-1, 4, 8, 8] 108", "MaxPool2d [-1, 4, 4, 4] 0"), img,
			3*64 + 256 + 2*64},
		{"layer norm keeps two numbers a row", rows("Linear [-1, 7, 10] 110", "LayerNorm [-1, 7, 10] 20"), vec, 70 + 70 + 14},
		{"a residual adds one tensor", rows(
			"Linear [-1, 7, 8] 72",
			"LayerNorm [-1, 7, 8] 16", "Linear [-1, 7, 8] 72", "FooBlock [-1, 7, 8] 0",
			"LayerNorm [-1, 7, 8] 16", "Linear [-1, 7, 8] 72", "FooBlock [-1, 7, 8] 0",
		), vec, 56 + 2*(56+14+56)},
		{"a gate keeps map and weights", rows(
			"Conv2d [-1, 16, 8, 8] 432", "Conv2d [-1, 4, 1, 1] 68", "ReLU [-1, 4, 1, 1] 0", "Conv2d [-1, 16, 1, 1] 80",
			"Sigmoid [-1, 16, 1, 1] 0", "SEModule [-1, 16, 8, 8] 0", "Conv2d [-1, 8, 8, 8] 128",
		), img, 3*64 + 16 + 4 + 16 + 1024 + 1024},
		{"summed branches read the block's input, stem and gate stay outside", rows(
			"Conv2d [-1, 4, 8, 8] 108", "BatchNorm2d [-1, 4, 8, 8] 8", "FooStem [-1, 4, 8, 8] 0",
			"Conv2d [-1, 4, 8, 8] 36", "BatchNorm2d [-1, 4, 8, 8] 8", "Conv2d [-1, 4, 8, 8] 16", "BatchNorm2d [-1, 4, 8, 8] 8",
			"RepVggDw [-1, 4, 8, 8] 0", "Conv2d [-1, 8, 8, 8] 32",
		), img, 3*64 + 256 + 256 + 2*256 + 256},
		{"fused attention keeps qkv, its result and a number a row and head", rows(
			"Linear [-1, 10, 128] 16512", "LayerNorm [-1, 10, 128] 256",
			"Linear [-1, 10, 384] 49536", "Linear [-1, 10, 128] 16512", "Attention [-1, 10, 128] 0",
		), vec, 1280 + (1280 + 20) + 1280 + 3840 + 1280 + 2*10},
	} {
		if got := kept(t, c.text, c.opt); got != c.want {
			t.Errorf("%s: %d elements a sample, want %d", c.name, got, c.want)
		}
	}
}

// The parameters of a convolution and its output say what it can read.
func TestConvFit(t *testing.T) {
	for _, c := range []struct {
		out    int32
		params int64
		in     int64
		score  int
		area   int64
		groups int64
	}{
		{64, 9408, 3, 3, 49, 1},
		{64, 1728, 3, 3, 9, 1},
		{96, 96 * 9, 96, 3, 9, 96},
		{256, 16384, 64, 3, 1, 1},
		{128, 128*4*9 + 128, 128, 1, 9, 32},
		{64, 36864, 63, 0, 0, 0},
		{0, 9, 9, 0, 0, 0},
	} {
		r := summary.Row{Kind: "Conv2d", Out: summary.Dims(c.out, 8, 8), Params: c.params}
		score, area, groups := convFit(&r, c.in)
		if score != c.score || score > 0 && (area != c.area || groups != c.groups) {
			t.Errorf("out %d params %d in %d: score %d area %d groups %d", c.out, c.params, c.in, score, area, groups)
		}
	}
}

// Definition order is brought into execution order.
func TestReorder(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{
			"activation defined last", "N(\n(m): GPT2MLP(\n(a): Linear(4, 8)\n(b): Linear(8, 4)\n(act): GELU()\n)\n)\n",
			"Linear GELU Linear GPT2MLP N",
		},
		{
			"norm defined before dropout", "N(\n(o): BertOutput(\n(d): Linear(4, 4)\n(n): LayerNorm((4,))\n(x): " +
				"Dropout(p=0.1)\n)\n)\n",
			"Linear Dropout LayerNorm BertOutput N",
		},
		{
			"norms defined last", "N(\n(l): LlamaDecoderLayer(\n(self_attn): LlamaAttention(\n(q): Linear(4, 4)\n)\n(mlp): " +
				"LlamaMLP(\n(g): Linear(4, 4)\n)\n(n1): LlamaRMSNorm((4,))\n(n2): LlamaRMSNorm((4,))\n)\n)\n",
			"LlamaRMSNorm Linear LlamaAttention LlamaRMSNorm Linear LlamaMLP LlamaDecoderLayer N",
		},
		{
			"one activation for all", "N(\n(b): BasicBlock(\n(c1): Conv2d(3, 8, kernel_size=(3, 3))\n(n1): " +
				"BatchNorm2d(8)\n(r): ReLU()\n(c2): Conv2d(8, 8, kernel_size=(3, 3))\n(n2): BatchNorm2d(8)\n)\n)\n",
			"Conv2d BatchNorm2d ReLU Conv2d BatchNorm2d ReLU BasicBlock N",
		},
	} {
		m, err := summary.Parse([]byte(c.text))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		intern(m.Rows)
		var got []string
		for _, r := range reorder(m.Rows) {
			got = append(got, r.Kind)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, s, c.want)
		}
	}
}

// Containers without depth are cut by what their siblings look like.
func TestSpans(t *testing.T) {
	text := rows(
		"Conv2d [-1, 8, 8, 8] 216",
		"Conv2d [-1, 8, 8, 8] 576", "BatchNorm2d [-1, 8, 8, 8] 16", "FooBlock [-1, 8, 8, 8] 0",
		"Conv2d [-1, 8, 8, 8] 576", "BatchNorm2d [-1, 8, 8, 8] 16", "FooBlock [-1, 8, 8, 8] 0",
	)
	m, err := summary.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	kinds, n := intern(m.Rows)
	spans(m.Rows, kinds, n)
	for i, want := range map[int]int32{3: 1, 6: 4} {
		if got := m.Rows[i].Start; got != want {
			t.Errorf("%s at row %d starts at %d, want %d", m.Rows[i].Kind, i, got, want)
		}
	}
}

// The parameters that no row shows: scales of two branches a block, beside a
// position table, or beside functional projections and relative positions.
func TestScaledTokens(t *testing.T) {
	block := summary.Dims(197, 768)
	const blocks, width = 12, 768
	table := int64(197 * width)
	for _, c := range []struct {
		what   string
		hidden int64
		want   bool
	}{
		{"class token and positions", table + width, false},
		{"nothing", 0, false},
		{"positions and scales", table + width + 2*blocks*width, true},
		{"class token and scales", width + 2*blocks*width, true},
		{"BEiT", blocks*(3*width*width+4*width+12*(27*27+3)) + width, true},
		{"functional projections only", blocks*(3*width*width+2*width) + table, false},
		{"less than nothing", -1, false},
	} {
		if got := scaledTokens(c.hidden, blocks, block); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
	if scaledTokens(0, 1, summary.Dims(1, 0)) {
		t.Error("blocks without width")
	}
}
