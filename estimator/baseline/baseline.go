// SPDX-License-Identifier: Apache-2.0

// Package baseline has the published estimators that the analytic one is
// compared with. None of them is meant for use: they are selectable so that a
// site can see the difference.
package baseline

import (
	"fmt"

	"carma/estimator/graph"
	"carma/estimator/summary"
)

const mib = 1 << 20

// horusOverheadMiB is the constant of Horus' formula for framework and context.
const horusOverheadMiB = 800

// Horus is the formula of Horus (Yeung et al., TPDS 2022) as CARMA's authors
// applied it: B*A + P + B*G + d, with A the outputs of convolutions, norms and
// activations, P the parameters, G their gradients, counted per sample, and d
// a constant. The published figures of five models agree with it to 1 MiB.
//
// It gives MiB. It fails where there is no batch size.
func Horus(m *summary.Model, batch int64) (int64, error) {
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
	const bytes = 4
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

// Family is the kind of network that GPUMemNet has a classifier for.
type Family uint8

// GPUMemNet's three classifiers.
const (
	MLP Family = iota
	CNN
	Transformer
)

// FamilyOf tells a model's family by its layers.
func FamilyOf(m *summary.Model) Family {
	f := MLP
	for i := range m.Rows {
		switch m.Rows[i].Kind {
		case "LayerNorm", "MultiheadAttention", "Embedding":
			return Transformer
		case "Conv2d", "Conv1d", "Conv3d":
			f = CNN
		}
	}
	return f
}

// bucketMiB is the width of GPUMemNet's classes: 1 GB for MLPs, 8 GB for CNNs
// and Transformers (published with 1 to 2 and 8).
func bucketMiB(f Family) int64 {
	if f == MLP {
		return 1000
	}
	return 8000
}

// GPUMemNet is the published behaviour of GPUMemNet: the upper bound of the
// bucket into which the true use falls. Its classifiers are not part of this
// project; with the best figure at hand for the use this is what a classifier
// that never errs would say, which is kinder than it deserves.
func GPUMemNet(f Family, useMiB int64) int64 {
	w := bucketMiB(f)
	if useMiB <= 0 {
		return w
	}
	return (useMiB + w - 1) / w * w
}

// FakeTensor passes on the peak that PyTorch's FakeTensorMode gave the user:
// live tensors of forward and backward, without optimizer, context, workspace
// and fragmentation. It fails on a number that cannot be one.
func FakeTensor(peakMiB int64) (int64, error) {
	if peakMiB <= 0 || peakMiB > 1<<20 {
		return 0, fmt.Errorf("faketensor: a peak of %d MiB is out of range", peakMiB)
	}
	return peakMiB, nil
}
