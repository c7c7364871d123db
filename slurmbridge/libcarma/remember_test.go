// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"reflect"
	"testing"

	"carma/estimator"
)

func TestMemory(t *testing.T) {
	text, err := os.ReadFile("../../estimator/testdata/resnet.txt")
	if err != nil {
		t.Fatal(err)
	}
	var m memory
	spec := estimator.Spec{Summary: text, Batch: 32, Base: estimator.DefaultBase()}
	want, err := estimator.Analytic(spec)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := m.byMethod("analytic", spec); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if len(m.answers) != 1 {
		t.Errorf("%d answers of one question", len(m.answers))
	}
	// Whatever else is asked is another question.
	other := spec
	other.Batch = 64
	a, _ := m.byMethod("analytic", other)
	b, _ := m.byMethod("another", spec)
	if a.MiB == want.MiB || b.MiB == want.MiB || len(m.answers) != 3 {
		t.Errorf("%d answers, %d and %d MiB", len(m.answers), a.MiB, b.MiB)
	}
	for i := range 2 * rememberMost {
		if _, err := m.byMethod("analytic", estimator.Spec{Summary: fmt.Append(nil, "no summary ", i)}); err == nil {
			t.Fatal("nonsense has an estimate")
		}
	}
	if len(m.answers) > rememberMost {
		t.Errorf("%d answers are kept", len(m.answers))
	}
}
