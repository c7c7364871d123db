// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"fmt"

	"carma/estimator/baseline"
	"carma/estimator/summary"
	"carma/estimator/trace"
)

// ByMethod estimates from a summary by the name of a method: analytic, horus or
// gpumemnet.
func ByMethod(method string, s Spec) (Estimate, error) {
	switch method {
	case "analytic":
		return Analytic(s)
	case "horus":
		return Horus(s)
	case "gpumemnet":
		return GPUMemNet(s)
	}
	return Estimate{}, fmt.Errorf("no method %q to estimate a summary", method)
}

// Horus estimates with the published formula of Horus, to compare with.
func Horus(s Spec) (Estimate, error) {
	m, err := s.parse()
	if err != nil {
		return Estimate{}, err
	}
	n, err := baseline.Horus(m, int64(s.Batch))
	if err != nil {
		return Estimate{}, err
	}
	return plain(n, "Horus' formula"), nil
}

// GPUMemNet estimates with the published behaviour of GPUMemNet: the upper
// bound of a bucket of 1 GB (MLP) or 8 GB (CNN, Transformer).
func GPUMemNet(s Spec) (Estimate, error) {
	m, err := s.parse()
	if err != nil {
		return Estimate{}, err
	}
	a, err := Analytic(s)
	if err != nil {
		return Estimate{}, err
	}
	return plain(baseline.GPUMemNet(baseline.FamilyOf(m), a.MiB), "GPUMemNet's bucket"), nil
}

// FakeTensor takes a number that the user's own FakeTensorMode run gave.
func FakeTensor(peakMiB int64) (Estimate, error) {
	n, err := baseline.FakeTensor(peakMiB)
	if err != nil {
		return Estimate{}, err
	}
	return plain(n, "FakeTensor's live peak"), nil
}

// Oracle takes the true use, which only a simulation knows.
func Oracle(useMiB int64) (Estimate, error) {
	if useMiB <= 0 || useMiB > 1<<24 {
		return Estimate{}, fmt.Errorf("oracle: a use of %d MiB is out of range", useMiB)
	}
	e := plain(useMiB, "measured")
	e.ReserveMiB = useMiB
	e.Confidence = Sure
	return e, nil
}

func (s *Spec) parse() (*summary.Model, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if trace.Is(s.Summary) {
		return nil, errTrace
	}
	m, err := summary.Parse(s.Summary)
	if err != nil {
		return nil, fmt.Errorf("estimate from summary: %w", err)
	}
	return m, nil
}

// plain is an estimate that is one number.
func plain(n int64, name string) Estimate {
	e := Estimate{FloorMiB: n, MiB: n, Confidence: Unsure, Parts: []Part{{name, n}}}
	e.ReserveMiB = n + MarginMiB
	return e
}
