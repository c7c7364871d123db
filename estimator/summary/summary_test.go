// SPDX-License-Identifier: Apache-2.0

package summary

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// brief writes a row as "Kind shape params start".
func brief(r *Row) string {
	return fmt.Sprintf("%s%v %d %d", r.Kind, r.Out.D[:r.Out.N], r.Params, r.Start)
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, text string
		format     Format
		batch      int32
		rows       []string
	}{
		{
			"torchsummary", "  Conv2d-1   [-1, 64, 112, 112]   9,408\n Linear-2 [-1, 10] 650\n", TorchSummary, 0,
			[]string{"Conv2d[64 112 112] 9408 -1", "Linear[10] 650 -1"},
		},
		{"fixed batch", "Linear-1 [32, 10] 650\n", TorchSummary, 32, []string{"Linear[10] 650 -1"}},
		{"log noise", "INFO [main] x: Linear-1 [-1, 10] 650 done\nloss 0.3\n", TorchSummary, 0,
			[]string{"Linear[10] 650 -1"}},
		{"wrapped", "Linear-1\n   [-1, 10]\n  650\n", TorchSummary, 0, []string{"Linear[10] 650 -1"}},
		{"colours and returns", "\x1b[1mLinear-1\x1b[0m [-1, 10] 1_650\r\n", TorchSummary, 0, []string{"Linear[10] 1650 -1"}},
		{"two outputs", "LSTM-1 [[-1, 5, 8], [-1, 3]] 7\n", TorchSummary, 0, []string{"LSTM[5 8] 7 -1"}},
		{
			"torchinfo", "Layer (type:depth-idx)   Output Shape   Param #\nNet  [2, 10]  --\n├─Block: 1-1  [2, 4]  --\n│    " +
				"└─Linear: 2-1  [2, 4]  20\n├─ReLU: 1-2 [2, 4] (recursive)\n",
			TorchInfo, 2, []string{"Linear[4] 20 0", "Block[4] 0 0", "ReLU[4] 0 2"},
		},
		{
			"torchinfo columns", "Layer (type (var_name))  Input Shape  Output Shape  Param #  Kernel Shape\n├─Conv2d (c)  " +
				"[1, 3, 9, 9]  [1, 8, 7, 7]  (224)  [3, 3]\n",
			TorchInfo, 1, []string{"Conv2d[8 7 7] 224 0"},
		},
		{
			"all columns of torchinfo", "Layer (type:depth-idx) Kernel Shape  Groups  " +
				"Input Shape  Output Shape  Param #  Param %  " +
				"Mult-Adds  Trainable\nNet  --  --  [7, 1, 28, 28]  [7, 10]  --  --  --  True\n" +
				"├─Conv2d: 1-1  [5, 5]  1  [7, 1, 28, 28]  [7, 10, 24, 24]  260  1.19%  1,048,320  True\n",
			TorchInfo, 7, []string{"Conv2d[10 24 24] 260 0"},
		},
		{
			"torchinfo in ASCII", "Layer (type)  Output Shape  Param #\nNet  --  --\n+ Block  [1, 64, 16, 16]  --\n" +
				"|    + Conv2d  [1, 64, 32, 32]  9,408\n|    |    + ReLU  [1, 64, 32, 32]  --\n+ echo training begins\n" +
				"+ Linear  [1, 10]  650\n",
			TorchInfo, 1, []string{"ReLU[64 32 32] 0 0", "Conv2d[64 32 32] 9408 0", "Block[64 16 16] 0 0", "Linear[10] 650 3"},
		},
		{
			"torchinfo's tensors of modules", "Layer (type:depth-idx)  Kernel Shape  Output Shape  Param #\nNet  --  --  --\n" +
				"├─Conv2d: 1-1  [5, 5]  [7, 10, 24, 24]  260\n│    └─weight  [1, 10, 5, 5]      ├─250\n" +
				"│    └─bias  [10]      └─10\n├─ParameterList: 1-2  --  --  300\n│    └─0  [10, 30]      300\n",
			TorchInfo, 7, []string{"Conv2d[10 24 24] 260 0", "ParameterList[] 300 1"},
		},
		{
			"torchinfo's tensors without an index", "Layer (type)  Kernel Shape  Output Shape  Param #\nNet  --  --  --\n" +
				"├─Linear  --  [7, 10]  60\n│    └─weight  [5, 10]      ├─50\n│    └─bias  [10]      └─10\n",
			TorchInfo, 7, []string{"Linear[10] 60 0"},
		},
		{"keras", " conv2d (Conv2D)    (None, 26, 26, 32)   320\n", Keras, 0, []string{"Conv2D[26 26 32] 320 0"}},
		{
			"repr", "Net(\n  (a): Linear(in_features=4, out_features=2, bias=True)\n  (b): Sequential(\n    (0): ReLU()\n  " +
				")\n)\n",
			Repr, 0, []string{"Linear[] 10 0", "ReLU[] 0 1", "Sequential[] 0 1", "Net[] 0 0"},
		},
		{
			"repr with counts", "Net(\n  (a): XLAttention(\n    (n): LayerNorm((8,), eps=1e-12), 16 params\n  ), 80 " +
				"params\n), 1,080 params\n",
			Repr, 0, []string{"LayerNorm[] 16 0", "XLAttention[] 64 0", "Net[] 1000 0"},
		},
		{
			"repeated", "Net(\n  (0-2): 3 x Block(\n    (l): Linear(4, 4)\n  )\n)\n",
			Repr, 0, []string{"Linear[] 20 0", "Block[] 0 0", "Linear[] 20 2", "Block[] 0 2", "Linear[] 20 4", "Block[] 0 4",
				"Net[] 0 0"},
		},
		{"data parallel", "DataParallel(\n  (module): Linear(in_features=4, out_features=2, bias=False), 8 params\n), 8 " +
			"params\n", Repr, 0, []string{"Linear[] 8 0"}},
	} {
		m, err := Parse([]byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if m.Format != c.format || m.Batch != c.batch {
			t.Errorf("%s: %v with batch %d, want %v with %d", c.name, m.Format, m.Batch, c.format, c.batch)
		}
		var got []string
		for i := range m.Rows {
			got = append(got, brief(&m.Rows[i]))
		}
		if strings.Join(got, ", ") != strings.Join(c.rows, ", ") {
			t.Errorf("%s:\n got %s\nwant %s", c.name, strings.Join(got, ", "), strings.Join(c.rows, ", "))
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct {
		name, text string
		is         error
	}{
		{"empty", "", ErrEmpty},
		{"binary", "Linear-1 [-1, 10] 650\x00", ErrNoModel},
		{"not utf-8", "Linear-1 [-1, 10] 650\xff", ErrNoModel},
		{"prose", "hello\n", ErrNoModel},
		{"too long", strings.Repeat("x", MaxBytes+1), ErrTooLarge},
		{"too many lines", strings.Repeat("x\n", maxLines+1), ErrTooLarge},
		{"too many carriage returns", strings.Repeat("x\r", maxLines+1), ErrTooLarge},
		{"too many rows", strings.Repeat("A-1 [1,1] 1\n", MaxRows+1), ErrTooLarge},
		{"too many repetitions", "N(\n (0-9): 999999 x Linear(1, 1)\n)\n", ErrMisread},
		{"expansion", "N(\n (0-9): 19000 x Linear(1, 1)\n)\n", ErrTooLarge},
		{"expansion in two steps", "N(\n (0-9): 50 x B(\n (0-9): 50 x C(\n (a): Linear(1, 1)\n )\n )\n)\n", ErrTooLarge},
		{"nesting", "N(\n" + strings.Repeat("(a): B(\n", 600), ErrTooLarge},
		{"bad count", "├─Linear: 1-1 [1, 8] 99999999999999999999\n", ErrMisread},
	} {
		if _, err := Parse([]byte(c.text)); !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %v", c.name, err, c.is)
		}
	}
}

// Lines of a log around torchinfo's table are no rows of it, and do not spoil it.
func TestLogAroundATree(t *testing.T) {
	const table = "Layer (type:depth-idx)   Output Shape   Param #\n====\nNet   [8, 10]   --\n" +
		"├─Linear: 1-1   [8, 10]   110\n====\nTotal params: 110\n"
	const log = "Loading data done\nEpoch 0 starts now 7\nEpoch: 3 of 9\nDone\n"
	m, err := Parse([]byte(log + table + log))
	if err != nil || len(m.Rows) != 1 || m.Rows[0].Kind != "Linear" || len(m.More) != 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	m, err = Parse([]byte("Linear: 1-1   [8, 10]   110\nReLU: 1-2   --\nLinear: 1-3   1,100\n├─ReLU: 1-4  [8, 10]  --\n"))
	if err != nil || len(m.Rows) != 4 {
		t.Errorf("rows whose tree is lost: %+v, %v", m, err)
	}
}

func TestShape(t *testing.T) {
	for _, c := range []struct {
		text  string
		want  string
		batch int32
		extra int64
		ok    bool
	}{
		{"[-1, 64, 7, 7] x", "[64 7 7]", -1, 0, true},
		{"[[-1, 2, 3], [-1, 5]]", "[2 3]", -1, 5, true},
		{"(None, 28, 28)", "[28 28]", -1, 0, true},
		{"[8]", "[]", 8, 0, true},
		{"[1, -2]", "[]", 1, 0, false},
		{"[1, 2, 3, 4, 5, 6, 7]", "[2 3 4 5 42]", 1, 0, true},
	} {
		s, batch, extra, used, ok := parseShape([]byte(c.text))
		if got := fmt.Sprint(s.D[:s.N]); used == 0 || got != c.want || batch != c.batch || extra != c.extra || ok != c.ok {
			t.Errorf("%s: %s batch %d extra %d used %d ok %v", c.text, got, batch, extra, used, ok)
		}
	}
	for _, bad := range []string{"[", "[1, 2", "[a]", "[1, 99999999999]", "[[[[1]]]]", "[-]"} {
		if _, _, _, used, ok := parseShape([]byte(bad)); used != 0 && ok {
			t.Errorf("%s is taken for a shape", bad)
		}
	}
}

func TestCount(t *testing.T) {
	for text, want := range map[string]int64{"1,234,567": 1234567, "12_345": 12345, "7": 7, "1,2": 1, "1234,5": 1234} {
		if n, used, ok := parseCount([]byte(text)); n != want || used == 0 || !ok {
			t.Errorf("%s: %d %d %v", text, n, used, ok)
		}
	}
	for _, bad := range []string{"-5", "9999999999999999999999"} {
		if _, used, ok := parseCount([]byte(bad)); used == 0 || ok {
			t.Errorf("%s: used %d ok %v", bad, used, ok)
		}
	}
}

// FuzzParse: any text gives an error or rows that keep their order.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("../testdata/*.txt")
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := Parse(text)
		if err != nil {
			return
		}
		if len(m.Rows) == 0 || len(m.Rows) > MaxRows {
			t.Fatalf("%d rows", len(m.Rows))
		}
		for i := range m.Rows {
			r := &m.Rows[i]
			if r.Params < 0 || r.Start > int32(i) || m.Format != TorchSummary && r.Start < 0 {
				t.Fatalf("row %d: %+v", i, r)
			}
		}
	})
}

// Rows of torchinfo's table add up to its total, or the print leaves layers out.
func TestUnshown(t *testing.T) {
	const table = "Layer (type:depth-idx)  Output Shape  Param #\nNet  [2, 10]  7\n├─Block: 1-1  [2, 4]  --\n" +
		"│    └─Linear: 2-1  [2, 4]  20\n"
	for end, want := range map[string]int64{"": 0, "Total params: 27\n": 0, "Total params: 1,027\n": 1000,
		"Total params: 7\n": -20,
		"Total params: 27\nTotal params: 0.1M\nTotal params: 2K\n": 0, "Total params: 27 (0.00 GB)\n": 0} {
		m, err := Parse([]byte(table + end))
		if err != nil || m.Unshown != want {
			t.Errorf("%q: %d, %v", end, m.Unshown, err)
		}
	}
}
