// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"fmt"
	"math"

	"carma/estimator"
	"carma/estimator/history"
	"carma/estimator/method"
	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
)

// estimate sets the method, the estimate and, in ReserveMiB, what a job that
// shares would book: 0 if it should have a GPU of its own. The user's own figure
// wins over earlier runs, these over a summary. A missing estimate is no error:
// the job runs alone, and Note says why.
func (a *Annotation) estimate(d directive.Directive, part config.Partition, s Site) {
	a.Method = method.None
	seen, known := s.History.Find(a.Key)
	if known && a.SMActPct == 0 {
		a.SMActPct = int(math.Round(seen.SMActPct))
	}
	if d.MemMiB > 0 {
		a.Method = method.User
		a.EstMiB = min(d.MemMiB, a.FullMiB)
		a.ReserveMiB = a.EstMiB
		return
	}
	var floorMiB int64
	if len(d.Summary) > 0 && s.Estimator != method.None {
		floorMiB = a.estimateSummary(d, part, s)
	}
	if known && d.Present {
		a.Method, a.EstMiB, a.Note = method.History, seen.PeakMiB, ""
		a.ReserveMiB = max(seen.Reserve(), floorMiB)
		if seen.Differ() {
			a.Note = fmt.Sprintf("its runs differ, %d to %d MiB, and the largest is booked: %s", seen.LeastMiB(), seen.PeakMiB,
				history.TellApart)
		}
	}
}

// estimateSummary estimates by the job's model summary and returns what no run of
// it can be below; 0: not known.
func (a *Annotation) estimateSummary(d directive.Directive, part config.Partition, s Site) (floorMiB int64) {
	e, err := s.Estimate(s.Estimator, s.SpecOf(d, a.GPUs, part))
	if err != nil {
		a.Note = err.Error()
		return 0
	}
	if e.MiB > 0 {
		a.Method, a.EstMiB, a.ReserveMiB = s.Estimator, e.MiB, e.ReserveMiB
	}
	if e.Confidence == estimator.Bound {
		a.ReserveMiB = 0
		a.Note = append(e.Reasons, "a lower bound only")[0]
	}
	return e.FloorMiB
}

// SpecOf is what the estimator is asked for a directive here, where earlier runs
// tell how far its base is off. They lower no base that the partition gives: they may have
// been estimated by the default.
func (s Site) SpecOf(d directive.Directive, gpus int, part config.Partition) estimator.Spec {
	spec := SpecOf(d, gpus, part)
	shift := s.History.ShiftMiB(part.GPUMemMiB)
	spec.Base.CuBLASMiB = max(spec.Base.CuBLASMiB+shift, part.BaseCuBLASMiB)
	spec.Base.CuDNNMiB = max(spec.Base.CuDNNMiB+shift, part.BaseCuDNNMiB)
	return spec
}

// SpecOf is what the estimator is asked for a directive. gpus is the number of
// GPUs of one node.
func SpecOf(d directive.Directive, gpus int, part config.Partition) estimator.Spec {
	spec := estimator.Spec{
		Summary: d.Summary, Batch: d.Batch, Seq: d.Seq, Input: d.Input, GPUs: gpus,
		Foreach: tri(d.Foreach), Dropout: tri(d.Dropout),
		GradCheckpoint: d.GradCkpt, DynamicShapes: d.Dynamic, Params: d.Params,
		Base: baseOf(part),
	}
	// The directive takes the estimator's words only (TestWords), so there
	// is no error to see here.
	if d.Optimizer != "" {
		spec.Optimizer, _ = estimator.ParseOptimizer(d.Optimizer)
	}
	if d.Precision != "" {
		spec.Precision, _ = estimator.ParsePrecision(d.Precision)
	}
	if d.Parallel != "" {
		spec.Parallel, _ = estimator.ParseParallel(d.Parallel)
	}
	if d.Attention != "" {
		spec.Attention, _ = estimator.ParseAttention(d.Attention)
	}
	return spec
}

// baseOf is the partition's base; what the partition does not say is the default.
func baseOf(part config.Partition) estimator.Base {
	base := estimator.DefaultBase()
	if part.BaseCuBLASMiB > 0 {
		base.CuBLASMiB = part.BaseCuBLASMiB
	}
	if part.BaseCuDNNMiB > 0 {
		base.CuDNNMiB = part.BaseCuDNNMiB
	}
	return base
}

func tri(b *bool) estimator.Tri {
	switch {
	case b == nil:
		return estimator.Auto
	case *b:
		return estimator.On
	}
	return estimator.Off
}
