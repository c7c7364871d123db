// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"fmt"
	"strings"
	"testing"
)

// tree is torchinfo's text of rows "Kind [shape] params", children of one model.
func tree(rows ...string) string {
	var b strings.Builder
	b.WriteString("Layer (type:depth-idx)    Output Shape    Param #\n====\nNet    --   --\n")
	for i, r := range rows {
		kind, rest, _ := strings.Cut(r, " ")
		fmt.Fprintf(&b, "├─%s: 1-%d   %s\n", kind, i+1, rest)
	}
	return b.String()
}

// shaped are the rows of a perceptron over sequences, and of one behind a pooling or a
// view, with shapes as given.
func shaped(shape, last string) string {
	shape = shape + ", %d]   %d"
	var rows []string
	for range 4 {
		rows = append(rows, fmt.Sprintf("Linear "+shape, 2048, 2048*2049), fmt.Sprintf("ReLU "+shape, 2048, 0))
	}
	if last != "" {
		rows = append(rows, fmt.Sprintf("Linear %s, 1000]   %d", last, 2049*1000))
	}
	return tree(rows...)
}

func images(rows ...string) string {
	for i, r := range rows {
		rows[i] = "Conv2d [" + r + "]   9408"
		if i > 0 {
			rows[i] = "Conv2d [" + r + "]   36864"
		}
	}
	return tree(rows...)
}

// An estimate is sure only where the first dimension of the shapes is the batch, and
// otherwise not below that of the same model printed batch first.
func TestFirstDimension(t *testing.T) {
	const batch, long = 32, 128
	sequences := shaped(fmt.Sprintf("[1, %d", long), "")
	of := func(text string, batch, seq int) Estimate {
		t.Helper()
		e, err := Analytic(Spec{Summary: []byte(text), Batch: batch, Seq: seq, Base: DefaultBase()})
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		return e
	}
	attention := func(shape string) string {
		return tree("Linear ["+shape+", 1024]  1049600", "MultiheadAttention ["+shape+", 1024]  3148800",
			"Linear ["+shape+", 1024]  1049600")
	}
	for _, c := range []struct {
		name, text string
		seq        int
		want       Confidence
		like       string // batch first
	}{
		{"batch of one", sequences, 0, Sure, sequences},
		{"another batch", shaped("[8, 128", ""), 0, Sure, sequences},
		{"as many tokens as samples", shaped("[1, 32", ""), 0, Sure, shaped("[1, 32", "")},
		{"tokens as many as the batch, said", shaped("[8, 32", ""), 32, Sure, shaped("[1, 32", "")},
		{"pooled", shaped("[8, 128", "[8"), 0, Sure, shaped("[1, 128", "[1")},
		{"sequence first", shaped("[128, 32", ""), 0, Unsure, sequences},
		{"sequence first of one sample", shaped("[128, 1", ""), 0, Unsure, sequences},
		{"sequence first, seq= said", shaped("[128, 4", ""), 128, Unsure, sequences},
		{"sequence first inside", tree("Embedding [8, 128, 2048]  2048000", "Linear [128, 8, 8192]  16785408",
			"ReLU [128, 8, 8192]  0", "Linear [128, 8, 2048]  16779264"), 0, Unsure, tree("Embedding [8, 128, 2048]  2048000",
			"Linear [8, 128, 8192]  16785408", "ReLU [8, 128, 8192]  0", "Linear [8, 128, 2048]  16779264")},
		{"sequence first, flattened behind", shaped("[128, 32", "[4096"), 0, Unsure, shaped("[32, 128", "[32, 128")},
		{"attention, sequence first by default", attention("128, 4"), 0, Unsure, attention("4, 128")},
		{"frames in the batch", shaped("[640, 16", "[32"), 0, Unsure, shaped("[32, 320", "[32")},
		{"proposals", shaped("[32, 16", "[32000"), 0, Unsure, shaped("[32, 16", "[32, 1000")},
		{"convolutions of one sample", images("64, 112, 112", "64, 112, 112", "64, 112, 112"), 0, Bound,
			images("1, 64, 112, 112", "1, 64, 112, 112", "1, 64, 112, 112")},
		{"features of one sample", tree("Linear [2048]  4196352", "Linear [2048]  4196352"), 0, Unsure,
			tree("Linear [1, 2048]  4196352", "Linear [1, 2048]  4196352")},
		{"a table of positions", tree("Embedding [8, 128, 2048]  2048000", "Embedding [128, 2048]  262144",
			"Linear [8, 128, 8192]  16785408", "ReLU [8, 128, 8192]  0", "Linear [8, 128, 2048]  16779264"), 0, Sure,
			tree("Embedding [8, 128, 2048]  2048000", "Linear [8, 128, 8192]  16785408", "ReLU [8, 128, 8192]  0",
				"Linear [8, 128, 2048]  16779264")},
		{"torchsummary, two samples behind the sequence", "Linear-1 [-1, 2, 2048] 4196352\n", 128, Unsure,
			"Linear-1 [-1, 128, 2048] 4196352\n"},
		{"torchsummary, the sequence is not known", "Linear-1 [-1, 2, 2048] 4196352\n", 0, Bound, ""},
		{"torchsummary, no batch", "Conv2d-1 [-1, 112, 112] 9408\n", 0, Bound, ""},
	} {
		e := of(c.text, batch, c.seq)
		check(t, c.name, e)
		if e.Confidence != c.want {
			t.Errorf("%s: %s, want %s: %v", c.name, e.Confidence, c.want, e.Reasons)
		}
		if c.like == "" {
			continue
		}
		if want := of(c.like, batch, c.seq); e.MiB < want.MiB*97/100 {
			t.Errorf("%s: %d MiB, batch first %d", c.name, e.MiB, want.MiB)
		}
	}
}
