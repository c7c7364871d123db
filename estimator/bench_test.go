// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkAnalytic times parse and estimate of the real summaries.
func BenchmarkAnalytic(b *testing.B) {
	dir := cmp.Or(os.Getenv("CARMA_DATA"), "../data") + "/memory/real_summaries"
	files, _ := filepath.Glob(dir + "/*.txt")
	if len(files) == 0 {
		b.Skipf("%s is not present", dir)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			b.Fatal(err)
		}
		s := Spec{Summary: text, Batch: 32, Seq: 512, Input: [3]int{3, 224, 224}, Base: DefaultBase()}
		b.Run(filepath.Base(f), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Analytic(s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
