// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"fmt"
	"strings"
	"testing"

	"carma/estimator/summary"
)

// Three tools' texts of one perceptron with layers of so many features.
func asTable(batch int, features ...int) string {
	var b strings.Builder
	b.WriteString("        Layer (type)               Output Shape         Param #\n====\n")
	for i, n := range features[1:] {
		fmt.Fprintf(&b, "  Linear-%d   [%d, %d]   %d\n  ReLU-%d  [%[2]d, %[3]d]  0\n",
			2*i+1, batch, n, (features[i]+1)*n, 2*i+2)
	}
	return b.String()
}

func asTree(name string, batch int, features ...int) string {
	var b strings.Builder
	b.WriteString("Layer (type:depth-idx)    Output Shape    Param #\n====\n")
	fmt.Fprintf(&b, "%s    [%d, %d]   --\n", name, batch, features[len(features)-1])
	for i, n := range features[1:] {
		fmt.Fprintf(&b, "├─Linear: 1-%d   [%d, %d]   %d\n├─ReLU: 1-%d  [%[2]d, %[3]d]  --\n",
			2*i+1, batch, n, (features[i]+1)*n, 2*i+2)
	}
	return b.String()
}

func asRepr(name string, features ...int) string {
	var b strings.Builder
	b.WriteString(name + "(\n")
	for i, n := range features[1:] {
		fmt.Fprintf(&b, "  (%d): Linear(in_features=%d, out_features=%d, bias=True), %d params\n  (%d): ReLU()\n",
			2*i, features[i], n, (features[i]+1)*n, 2*i+1)
	}
	return b.String() + ")\n"
}

// Several models in one text are all booked, and never sure.
func TestSeveralModels(t *testing.T) {
	big, small := []int{4096, 8192, 8192, 4096}, []int{4096, 2048, 1}
	one := func(text string) Estimate {
		t.Helper()
		e, err := Analytic(Spec{Summary: []byte(text), Batch: 64, Base: DefaultBase()})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	first, second := one(asTable(-1, big...)), one(asTable(-1, small...))
	if first.Confidence != Sure || second.Confidence != Sure {
		t.Fatalf("each alone: %s, %s: %v %v", first.Confidence, second.Confidence, first.Reasons, second.Reasons)
	}
	_, rowsOnly, _ := strings.Cut(asTable(-1, small...), "====\n")
	want := first.MiB + second.MiB - DefaultBase().CuBLASMiB
	for name, text := range map[string]string{
		"two tables":               asTable(-1, big...) + asTable(-1, small...),
		"two tables, no header":    asTable(-1, big...) + rowsOnly,
		"two trees":                asTree("G", 64, big...) + asTree("D", 64, small...),
		"two representations":      asRepr("G", big...) + asRepr("D", small...),
		"and a wrapper":            asRepr("G", big...) + "DataParallel(\n(module): " + asRepr("D", small...) + ")\n",
		"in a log":                 "G: " + asRepr("G", big...) + "D: " + asRepr("D", small...),
		"table and representation": asTable(-1, big...) + asRepr("D", small...),
		"representation and table": asRepr("D", small...) + asTable(-1, big...),
		"tree and representation":  asTree("G", 64, big...) + asRepr("D", small...),
		"table and tree":           asTable(-1, small...) + asTree("G", 64, big...),
	} {
		e := one(text)
		check(t, name, e)
		if e.Confidence != Unsure || !strings.Contains(e.Reasons[0], "2 models") {
			t.Errorf("%s: %s %v", name, e.Confidence, e.Reasons)
		}
		if e.MiB < want*95/100 || e.MiB > want*105/100 || e.Params != first.Params+second.Params {
			t.Errorf("%s: %d MiB of %d parameters, want %d of %d", name, e.MiB, e.Params, want, first.Params+second.Params)
		}
	}
	// A table that is cut off at a depth shows the same parameters in fewer layers.
	cut := "Layer (type:depth-idx)    Output Shape    Param #\n====\nG    [64, 4096]   --\n" +
		"├─Block: 1-1   [64, 4096]   134238208\n====\nTotal params: 134,238,208\n"
	for name, text := range map[string]string{"cut": cut, "cut and whole": cut + asRepr("G", big...)} {
		if e := one(text); e.Confidence != Bound || e.Params != first.Params || strings.Contains(e.Reasons[0], "2 models") {
			t.Errorf("%s: %d parameters, %s: %v", name, e.Params, e.Confidence, e.Reasons)
		}
	}
	// What is left out, for it has too many rows, is told.
	var many strings.Builder
	many.WriteString(asTree("G", 64, big...))
	for i := range summary.MaxRows - 10 {
		fmt.Fprintf(&many, "├─ReLU: 1-%d  [64, 9]  --\n", i+10)
	}
	if e := one(many.String() + asRepr("D", 5, 5, 5, 5, 5, 5)); e.Confidence != Bound ||
		!strings.Contains(strings.Join(e.Reasons, " "), "left out") {
		t.Errorf("too many rows: %s %v", e.Confidence, e.Reasons)
	}
	// What is printed again is one model, but two may be trained.
	for name, text := range map[string]string{
		"two tables":          asTable(-1, big...) + asTable(-1, big...),
		"two representations": asRepr("G", big...) + "DataParallel(\n(module): " + asRepr("G", big...) + ")\n",
		"three trees":         asTree("G", 64, big...) + asTree("G", 64, big...) + asTree("G", 64, big...),
	} {
		if e := one(text); e.Confidence != Unsure || e.MiB != first.MiB || !strings.Contains(e.Reasons[0], "counted once") {
			t.Errorf("%s again: %d MiB %s, want %d: %v", name, e.MiB, e.Confidence, first.MiB, e.Reasons)
		}
	}
	// The same model printed by two tools is one, and so is one beside what has no parameters.
	for name, text := range map[string]string{
		"table and representation": asTable(-1, big...) + asRepr("G", big...),
		"tree and representation":  asRepr("G", big...) + asTree("G", 64, big...),
		"transforms":               "Compose(\n    ToTensor()\n    Resize(size=224)\n)\n" + asTable(-1, big...),
		"a line of a log":          "iter-10 [10, 500] 1234\n" + asTree("G", 64, big...) + "step-20 [-1, 500] 1234\n",
		"a log behind":             asRepr("G", big...) + "iter-10 [-1, 500] 1234\n",
		"cut off":                  asTable(-1, big...)[:60] + "\n" + asTable(-1, big...),
	} {
		if e := one(text); e.Confidence != Sure || e.MiB != first.MiB {
			t.Errorf("%s: %d MiB %s, want %d: %v", name, e.MiB, e.Confidence, first.MiB, e.Reasons)
		}
	}
}
