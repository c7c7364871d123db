// SPDX-License-Identifier: Apache-2.0

// Package estimator says how much GPU memory a training job takes, from a
// model summary and what a #CARMA line tells: see README.md.
//
// It is pure: it opens no file, keeps no state and reads no clock, because it
// runs inside slurmctld.
package estimator

import (
	"fmt"
	"strings"

	"carma/estimator/training"
)

// Spec describes a training job. The zero value of an enum is its default.
type Spec struct {
	Summary []byte // model summary, any of the formats of package summary
	Batch   int    // per GPU; 0: the one printed in the summary
	Seq     int    // tokens per sample; 0: the length of the position table
	Input   [3]int // of a sample: CxHxW, CxL or N features; zeros: from the summary
	GPUs    int    // GPUs of the job; 0 or 1: one

	Optimizer Optimizer
	Foreach   Tri // torch's foreach optimizers; default on where torch does so
	Precision Precision
	Parallel  Parallel
	Attention Attention
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

// DefaultBase is the base measured on an A100-40GB: 1443 MiB is the smallest
// of 1,500 MLP runs, 1720 the middle of what families left out in turn pick
// for convolutional models (estimator/README.md).
func DefaultBase() Base { return Base{CuBLASMiB: 1443, CuDNNMiB: 1720} }

// Tri is a choice that may be left open.
type Tri int8

// The choices.
const (
	Auto Tri = 0
	On   Tri = 1
	Off  Tri = -1
)

// Optimizer as in the optim= key.
type Optimizer uint8

// The optimizers.
const (
	Adam Optimizer = iota
	AdamW
	AdamWHF
	SGD
	SGDMomentum
	Adagrad
	Adadelta
	RMSprop
	Adafactor
	Adam8bit
)

var optimizerWords = [...]string{"adam", "adamw", "adamw_hf", "sgd", "sgdm", "adagrad", "adadelta", "rmsprop",
	"adafactor", "adam8bit"}

// Precision as in the precision= key.
type Precision uint8

// The precisions.
const (
	FP32 Precision = iota
	AMP
	BF16
	FP16
)

var precisionWords = [...]string{"fp32", "amp", "bf16", "fp16"}

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

// Attention as in the attn= key.
type Attention uint8

// The attention kernels.
const (
	AttnAuto Attention = iota
	Eager
	SDPA
	Flash
)

var attentionWords = [...]string{"auto", "eager", "sdpa", "flash"}

// ParseOptimizer reads the value of optim=.
func ParseOptimizer(s string) (Optimizer, error) {
	return parseWord[Optimizer]("optim", s, optimizerWords[:])
}

// ParsePrecision reads the value of precision=.
func ParsePrecision(s string) (Precision, error) {
	return parseWord[Precision]("precision", s, precisionWords[:])
}

// ParseParallel reads the value of parallel=.
func ParseParallel(s string) (Parallel, error) {
	return parseWord[Parallel]("parallel", s, parallelWords[:])
}

// ParseAttention reads the value of attn=.
func ParseAttention(s string) (Attention, error) {
	return parseWord[Attention]("attn", s, attentionWords[:])
}

func (o Optimizer) String() string { return word(int(o), optimizerWords[:]) }
func (p Precision) String() string { return word(int(p), precisionWords[:]) }
func (p Parallel) String() string  { return word(int(p), parallelWords[:]) }
func (a Attention) String() string { return word(int(a), attentionWords[:]) }

func word(i int, words []string) string {
	if i < len(words) {
		return words[i]
	}
	return "unknown"
}

func parseWord[T ~uint8](key, s string, words []string) (T, error) {
	for i, w := range words {
		if s == w {
			return T(i), nil
		}
	}
	return 0, fmt.Errorf("%s=%q is not known: use one of %s", key, s, strings.Join(words, ", "))
}

// simulated maps an optimizer to what the simulation knows.
func (o Optimizer) simulated() training.Optimizer {
	switch o {
	case AdamWHF:
		return training.AdamHF
	case SGD:
		return training.SGD
	case SGDMomentum:
		return training.SGDMomentum
	case Adagrad:
		return training.Adagrad
	case Adadelta:
		return training.Adadelta
	case RMSprop:
		return training.RMSprop
	case Adafactor:
		return training.Adafactor
	case Adam8bit:
		return training.Adam8bit
	}
	return training.Adam
}
