// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"fmt"

	"carma/estimator/trace"
)

// Ways of an estimate.
const (
	FromSummary = "summary"
	FromTrace   = "trace"
)

// farBatch is how many times the larger traced batch, or a part of the smaller,
// an estimate may be for and still be sure.
const farBatch = 8

// traced estimates from the trace of a training step: nothing of the model has
// to be inferred. What a #CARMA line says of the model is in the trace already;
// the batch alone may be another.
func traced(s Spec, o trace.Scratch) (Estimate, error) {
	if err := s.check(); err != nil {
		return Estimate{}, err
	}
	t, err := trace.Parse(s.Summary)
	if err != nil {
		return Estimate{}, fmt.Errorf("estimate from trace: %w", err)
	}
	r := t.Replay(trace.Options{Batch: int64(s.Batch), CuBLAS: cuBLASBytes, Workspace: o})
	e := Estimate{Path: FromTrace, CuDNN: t.Convolves(), Rows: t.Events(), Params: r.Params / bytesPerParam(t)}
	e.fillTraced(s, t, r)
	e.judgeTrace(s, t, r)
	e.wish(t.Transform())
	e.margin()
	return e, nil
}

func bytesPerParam(t *trace.Trace) int64 {
	if t.Precision == "bf16" || t.Precision == "fp16" {
		return 2
	}
	return 4
}

// fillTraced turns bytes into the numbers and parts of the estimate.
func (e *Estimate) fillTraced(s Spec, t *trace.Trace, r trace.Result) {
	base := s.Base.CuBLASMiB
	if e.CuDNN {
		base = s.Base.CuDNNMiB
	}
	if t.Parallel != "" {
		base += ncclMiB
	}
	e.fillParts(base, r.Reserved, r.Peak, r.Parts[:])
}

// judgeTrace sets the confidence by what was seen and what was not.
func (e *Estimate) judgeTrace(s Spec, t *trace.Trace, r trace.Result) {
	if !r.Complete {
		e.lower(Bound, "the trace is too long to replay: the live bytes are a lower bound")
	}
	for _, what := range t.Unseen {
		e.lower(Unsure, "the trace does not show %s", what)
	}
	if t.Precision != "" {
		e.lower(Unsure, "precision %s has not been measured", t.Precision)
	}
	if t.Parallel != "" {
		e.lower(Unsure, "parallel %s has not been measured", t.Parallel)
	}
	if t.Expandable {
		e.lower(Unsure, "expandable segments have not been measured")
	}
	if s.DynamicShapes {
		e.lower(Unsure, "shapes that change from step to step fragment the memory")
	}
	if pct := e.scratchShare(); e.CuDNN && pct > scratchPct {
		e.lower(Unsure, "%d %% is scratch memory of convolutions and the gaps that it leaves: "+
			"cuDNN chooses how much when it runs", pct)
	}
	e.judgeBatch(int64(s.Batch), t)
	if e.Parts[1].MiB == 0 && e.Params == 0 {
		e.lower(Bound, "no parameters were on the GPU while it was traced")
	}
	e.Assumed = append(e.Assumed, "the trace's own sample, optimizer and precision; of the #CARMA keys only batch counts")
}

// judgeBatch says what another batch than the traced one means.
func (e *Estimate) judgeBatch(batch int64, t *trace.Trace) {
	low, high := min(t.Batch[0], t.Batch[1]), max(t.Batch[0], t.Batch[1])
	switch {
	case batch == 0 && t.Batch[0] > 0:
		e.Assumed = append(e.Assumed, fmt.Sprintf("batch %d, as traced", t.Batch[0]))
	case batch == 0 || batch == t.Batch[0]:
	case t.Batch[0] == 0:
		e.lower(Bound, "the trace does not say its batch, and batch=%d was asked for: trace again with that batch", batch)
	case t.Batch[1] == 0:
		why := t.Single
		if why == "" {
			why = "one batch was traced"
		}
		e.lower(Bound, "the trace is of batch %d alone, and batch=%d was asked for (%s): trace again with that batch",
			t.Batch[0], batch, why)
	case batch < low || batch > high:
		e.Assumed = append(e.Assumed, fmt.Sprintf(
			"batch %d is outside of the traced %d to %d: extrapolated", batch, low, high))
		if batch > farBatch*high || batch*farBatch < low {
			e.lower(Unsure, "batch %d is far outside of the traced %d to %d", batch, low, high)
		}
	case batch != high:
		e.Assumed = append(e.Assumed, fmt.Sprintf("batch %d is between the traced %d and %d: interpolated", batch, low, high))
	}
}
