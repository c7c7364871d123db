// SPDX-License-Identifier: Apache-2.0

package db

import "testing"

// BenchmarkParseComment is what carma-report --from slurmdbd does for each job.
func BenchmarkParseComment(b *testing.B) {
	comment, err := MergeComment(1, Comment{}, []Attempt{attempt(1, 0)})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := ParseComment(1, Comment{Text: comment}); err != nil {
			b.Fatal(err)
		}
	}
}
