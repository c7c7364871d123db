// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"carma/estimator/graph"
	"carma/estimator/summary"
)

// horusOverheadMiB is the constant of Horus' formula for framework and context.
const horusOverheadMiB = 800

// horus is the formula of Horus (Yeung et al., TPDS 2022) as CARMA's authors
// applied it: B*A + P + B*G + d, with A the outputs of convolutions, norms and
// activations, P the parameters, G their gradients, counted per sample, and d
// a constant. The published figures of five models agree with it to 1 MiB.
//
// The result is in MiB. Without a batch size horus fails.
func horus(m *summary.Model, batch int64) (int64, error) {
	if batch <= 0 {
		batch = int64(m.Batch)
	}
	if batch <= 0 {
		return 0, fmt.Errorf("horus: batch size unknown")
	}
	var acts, params int64
	for i := range m.Rows {
		r := &m.Rows[i]
		params = sum(params, r.Params)
		if r.HasOut && graph.ConvNormAct(r.Kind) {
			acts = sum(acts, r.Out.Elems())
		}
	}
	const bytes, mib = 4, 1 << 20
	if sum(acts, params) > 1<<50/batch {
		return 0, fmt.Errorf("horus: the summary's numbers are out of range")
	}
	return (batch*(acts+params)+params)*bytes/mib + horusOverheadMiB, nil
}

func sum(a, b int64) int64 {
	if a > 1<<60-b {
		return 1 << 60
	}
	return a + b
}
