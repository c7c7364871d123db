// SPDX-License-Identifier: Apache-2.0

// Package estimator says how much GPU memory a training job takes, from a
// model summary and what a #CARMA line tells: see README.md.
//
// The package is pure: an estimate opens no file, keeps no state and reads no
// clock, because the estimator runs inside slurmctld.
package estimator

import (
	"fmt"
	"strings"

	"carma/estimator/graph"
	"carma/estimator/training"
)

// Spec describes a training job. The zero value of an enum is its default.
type Spec struct {
	Summary []byte // model summary, any of the formats of package summary
	Batch   int    // per GPU; 0: the one printed in the summary
	Seq     int    // tokens per sample; 0: the length of the position table
	Input   [3]int // of a sample: CxHxW, CxL or N features; zeros: from the summary
	GPUs    int    // GPUs of the job; 0 or 1: one

	Optimizer training.Optimizer
	Foreach   Tri // torch's foreach optimizers; default on where torch does so
	Precision graph.Precision
	Parallel  Parallel
	Attention graph.Attention
	Dropout   Tri // whether dropout layers are active

	GradCheckpoint bool
	DynamicShapes  bool  // sequence lengths or image sizes vary between steps
	Params         int64 // unique trainable parameters, 0: all (LoRA, tied weights)

	Base Base
}

// Base is what a process holds outside of the caching allocator: the CUDA
// context and loaded kernels. It depends on GPU model, driver and MPS.
type Base struct {
	CuBLASMiB int64 // a model of matrix products only
	CuDNNMiB  int64 // a model with convolutions
}

// DefaultBase is the base measured on an A100-40GB: the smallest of 1,500 MLP
// runs without their segments, and what the smallest convolutional runs have
// beside theirs (estimator/README.md).
func DefaultBase() Base { return Base{CuBLASMiB: 1429, CuDNNMiB: 1709} }

// HopperBase is the base measured on an H200 (estimator/README.md). Programs for GPUs of compute
// capability 9.0 or newer load each kernel when it is first called, as CUDA does since 11.7; those
// of the runs behind DefaultBase loaded whole libraries.
func HopperBase() Base { return Base{CuBLASMiB: 732, CuDNNMiB: 800} }

// Tri is a choice that may be left open.
type Tri int8

// The choices.
const (
	Auto Tri = 0
	On   Tri = 1
	Off  Tri = -1
)

// Parallel as in the parallel= key.
type Parallel uint8

// The ways to use several GPUs.
const (
	None Parallel = iota
	DP
	DDP
	FSDP
	ZeRO1
	ZeRO2
	ZeRO3
)

var parallelWords = [...]string{"none", "dp", "ddp", "fsdp", "zero1", "zero2", "zero3"}

// ParseOptimizer reads the value of optim=.
func ParseOptimizer(s string) (training.Optimizer, error) {
	return parseWord[training.Optimizer]("optim", s, training.Optimizers[:])
}

// ParsePrecision reads the value of precision=.
func ParsePrecision(s string) (graph.Precision, error) {
	return parseWord[graph.Precision]("precision", s, graph.Precisions[:])
}

// ParseParallel reads the value of parallel=.
func ParseParallel(s string) (Parallel, error) {
	return parseWord[Parallel]("parallel", s, parallelWords[:])
}

// ParseAttention reads the value of attn=.
func ParseAttention(s string) (graph.Attention, error) {
	return parseWord[graph.Attention]("attn", s, graph.Attentions[:])
}

func (p Parallel) String() string { return parallelWords[int(p)%len(parallelWords)] }

func parseWord[T ~uint8](key, s string, words []string) (T, error) {
	for i, w := range words {
		if s == w {
			return T(i), nil
		}
	}
	return 0, fmt.Errorf("%s=%q is not known: use one of %s", key, s, strings.Join(words, ", "))
}
