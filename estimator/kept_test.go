// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"strings"
	"testing"
)

// A counted number of kept bytes replaces the inferred one.
func TestKeptBytes(t *testing.T) {
	s := fixture(t, "resnet.txt")
	plain, err := Analytic(s)
	if err != nil {
		t.Fatal(err)
	}
	const extra = 64 * mebi
	for _, perSample := range []string{"12,000,000", "30,000,000"} {
		s.Summary = []byte(strings.Replace(string(text(t, "resnet.txt")), "Total params",
			"Kept bytes per sample: "+perSample+"\nTotal params", 1))
		e, err := Analytic(s)
		if err != nil {
			t.Fatal(err)
		}
		check(t, perSample, e)
		if d := e.MiB - plain.MiB; perSample[0] == '3' && d*mebi < extra {
			t.Errorf("30 MB a sample give %d MiB, the summary alone %d", e.MiB, plain.MiB)
		}
	}
}
