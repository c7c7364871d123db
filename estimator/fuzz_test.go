// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"carma/estimator/graph"
	"carma/estimator/training"
)

// FuzzAnalytic feeds any text to all parsers and any numbers to the rest:
// there is an error, or an estimate that keeps its promises, and the same one
// twice.
func FuzzAnalytic(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for i, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, 1<<(i%8), 64*i, uint32(i*2654435761))
	}
	f.Add([]byte("Conv2d-1 [-1, 2147483647, 2147483647, 2147483647] 1125899906842624\n"), 1<<20, 1<<22, uint32(0xffffffff))
	f.Add([]byte("Linear-1 [[-1, 2], [-1, 3]] 9\nSoftmax-2 [-1, 0, 0] 0\n"), 1, 1, uint32(0))
	f.Add([]byte("A(\n (a): B(\n  (0-9999): 9999 x C()\n )\n)\n"), 1, 1, uint32(3))
	f.Add([]byte(resnet18Trace(f)), 64, 0, uint32(0))
	for _, text := range hostile() {
		f.Add(text, 32, 512, uint32(5))
	}
	f.Fuzz(func(t *testing.T, text []byte, batch, seq int, choice uint32) {
		s := Spec{Summary: text, Batch: batch, Seq: seq, Base: DefaultBase()}
		pick := func(n int) int {
			v := int(choice) % n
			choice /= uint32(n)
			return max(v, -v)
		}
		s.Optimizer = training.Optimizer(pick(len(training.Optimizers)))
		s.Precision = graph.Precision(pick(len(graph.Precisions)))
		s.Parallel = Parallel(pick(len(parallelWords)))
		s.Attention = graph.Attention(pick(len(graph.Attentions)))
		s.GPUs = pick(5)
		s.GradCheckpoint = pick(2) == 1
		s.Foreach = Tri(pick(3) - 1)
		s.Dropout = Tri(pick(3) - 1)
		if pick(2) == 1 {
			s.Input = [3]int{3, 1 + pick(512), 1 + pick(512)}
		}
		if pick(2) == 1 {
			s.Params = int64(choice)
		}
		e, err := Analytic(s)
		if err != nil {
			return
		}
		check(t, "fuzz", e)
		again, err := Analytic(s)
		if err != nil || fmt.Sprint(e) != fmt.Sprint(again) {
			t.Errorf("two runs differ: %v, %v and %v", err, e, again)
		}
	})
}
