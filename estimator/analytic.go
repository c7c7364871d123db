// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"errors"
	"fmt"
	"slices"

	"carma/estimator/graph"
	"carma/estimator/summary"
	"carma/estimator/trace"
	"carma/estimator/training"
)

// Limits on the values of a Spec; beyond them a value is a slip of the pen.
const (
	maxBatch = 1 << 20
	maxSeq   = 1 << 22
	maxDim   = 1 << 20 // flat features
	maxGPUs  = 1 << 16
	// maxShared bounds the tensors examined for shared weights.
	maxShared = 8
)

// Fitted constants; README.md explains the data and their meaning.
const (
	cuBLASBytes = 8519680 // cuBLAS' workspace on A100, from PyTorch's allocator: 4096 KiB x 2 + 16 KiB x 8
	ncclMiB     = 400     // NCCL's channels and buffers; not measured here
	iterations  = 2       // the second iteration adds what the states broke up; a third adds nothing
)

// Names of parts on which the confidence depends.
const (
	workspacePart     = "workspace"
	fragmentationPart = "fragmentation"
)

// errBatch says that neither the user nor the summary gives a batch size.
var errBatch = errors.New("batch size unknown: the summary has -1, say batch=")

// Analytic estimates from the model summary: the summary is parsed, turned into
// the list of operations of a training step, and the list is played on a
// simulation of PyTorch's caching allocator. Analytic fails on a summary or a
// Spec that cannot be read; a summary understood only in part lowers the
// confidence.
//
// A text of carma_trace.py is played instead: see package trace.
func Analytic(s Spec) (Estimate, error) {
	if trace.Is(s.Summary) {
		return traced(s, FittedScratch())
	}
	return analytic(s, refit{measured: wasMeasured})
}

// refit holds the constants fitted beside the base, and the measured classes.
type refit struct {
	workspaceQuarters int64
	measured          func(kind string) bool // enough for a sure estimate
}

// FittedScratch is cuDNN's workspace as fitted on traces (README.md).
func FittedScratch() trace.Scratch {
	return trace.Scratch{Forward: 4, Data: 8, Weight: 4, Few: 6, Grouped: 4, Patch: 12, Point: 2}
}

// RefitTrace is Analytic of a trace with other constants, for cross-validation.
func RefitTrace(s Spec, o trace.Scratch) (Estimate, error) { return traced(s, o) }

// Refit is Analytic with another value of the only constant fitted beside the
// base, for cross-validation: the scratch memory of backward convolutions in
// quarters of the bytes they read and write.
func Refit(s Spec, workspaceQuarters int64) (Estimate, error) {
	return analytic(s, refit{workspaceQuarters, wasMeasured})
}

// Rejudge is Analytic with other measured classes than in measured.go, for cross-validation.
func Rejudge(s Spec, measured func(kind string) bool) (Estimate, error) {
	return analytic(s, refit{0, measured})
}

func analytic(s Spec, fitted refit) (Estimate, error) {
	m, err := s.parse()
	if err != nil {
		return Estimate{}, err
	}
	var e Estimate
	switch {
	case m.Format == summary.Keras:
		return kerasEstimate(m), nil
	case len(m.More) > 0:
		e, err = several(s, append([]*summary.Model{m}, m.More...), fitted)
	default:
		e, err = ofModel(s, m, fitted, newWork(m))
	}
	if err != nil {
		return Estimate{}, err
	}
	if m.Again {
		e.lower(Unsure, "the text shows a model more than once, and it is counted once: if several such models are trained, "+
			"trace the step")
		e.want(Trace)
	}
	if m.Left {
		e.lower(Bound, "further models of the text are left out: it has more than %d rows", summary.MaxRows)
		e.want(Trace)
	}
	e.margin()
	return e, nil
}

// ofModel estimates one model, by the larger of two readings where its shapes can be
// read in two ways.
func ofModel(s Spec, m *summary.Model, fitted refit, w *work) (Estimate, error) {
	r, doubtful := otherReading(s, m)
	many := r.model != nil && w.rows > twiceRows
	w.brief = r.model != nil && w.rows > briefRows
	before := w.ops
	e, err := asPrinted(s, m, fitted, w)
	switch {
	case err != nil || !doubtful:
		return e, err
	case many:
		e.want(Trace)
		e.lower(Bound, "%s; the text has too many rows to be read in both ways", r.reason)
		e.margin()
		return e, nil
	}
	other := Estimate{}
	if r.model != nil {
		w.ops = before // the same lines
		if other, err = asPrinted(s, r.model, fitted, w); err != nil {
			return Estimate{}, err
		}
	}
	e = larger(e, other, r)
	if w.moves <= 0 && !slices.Contains(e.Reasons, tooLarge) {
		e.lower(Bound, tooLarge)
	}
	return e, nil
}

// asPrinted takes the first dimension of the outputs for the batch.
func asPrinted(s Spec, m *summary.Model, fitted refit, w *work) (Estimate, error) {
	batch := s.Batch
	if batch == 0 && m.Batch > 0 {
		batch = int(m.Batch)
	}
	if batch == 0 {
		return Estimate{}, errBatch
	}
	o := s.options(batch)
	o.WorkspaceQuarters = fitted.workspaceQuarters
	g := graph.Build(m, o)
	e := Estimate{Path: FromSummary, CuDNN: g.CuDNN, Rows: len(m.Rows), Assumed: g.Assumed}
	if s.Batch == 0 {
		e.Assumed = append(e.Assumed, fmt.Sprintf("batch %d, as printed in the summary", batch))
	}
	if m.Wrapper == "DataParallel" && s.Parallel == None && s.GPUs > 1 {
		s.Parallel = DP
		e.Assumed = append(e.Assumed, "parallel=dp, as the summary shows DataParallel")
	}
	for _, u := range g.Unknown {
		e.Unknown = append(e.Unknown, Unknown(u))
	}
	e.Params = applyParams(g, s.Params, &e)
	p := s.plan(g)
	p.Moves = w.moves
	w.ops += len(g.Ops) + len(g.Params)
	if w.brief {
		p.Iterations = 1
	}
	if denseText(s, w.ops) {
		p.Iterations = 1
		e.lower(Unsure, "the summary is denser than any tool prints: simulated in simplified form")
	}
	r := training.Run(g, p)
	w.moves -= r.Moves
	n := measuredKept(s, m, batch)
	if n > 0 {
		// Counted, not inferred: the difference is live at the peak.
		r.Correct(n - g.Kept)
		g.Guessed = 0
	} else if more := s.moreByOutputs(g); more > 0 {
		r.Correct(more)
		e.Assumed = append(e.Assumed, "memory kept for the backward pass was counted from the modules' outputs")
	}
	e.fill(s, r)
	e.judge(s, m, g, r)
	e.earn(s, m, g, r, fitted.measured, n > 0)
	e.wish(g.Transform)
	e.remedy(g, hiddenModules(m))
	e.margin()
	return e, nil
}

func (s *Spec) parse() (*summary.Model, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	m, err := summary.Parse(s.Summary)
	if err != nil {
		return nil, fmt.Errorf("estimate from summary: %w", err)
	}
	return m, nil
}

// check refuses numbers that no training has.
func (s *Spec) check() error {
	for _, c := range [...]struct {
		key      string
		val, max int
	}{
		{"batch", s.Batch, maxBatch}, {"seq", s.Seq, maxSeq}, {"gpus", s.GPUs, maxGPUs},
		{"input", s.Input[0], maxDim}, {"input", s.Input[1], maxDim}, {"input", s.Input[2], maxDim},
	} {
		if c.val < 0 || c.val > c.max {
			return fmt.Errorf("%s=%d is out of range: use 1 to %d", c.key, c.val, c.max)
		}
	}
	if s.Params < 0 || s.Params > summary.MaxParams {
		return fmt.Errorf("params=%d is out of range", s.Params)
	}
	if s.Base.CuBLASMiB < 0 || s.Base.CuDNNMiB < 0 || max(s.Base.CuBLASMiB, s.Base.CuDNNMiB) > 1<<20 {
		return fmt.Errorf("base of %d and %d MiB is out of range", s.Base.CuBLASMiB, s.Base.CuDNNMiB)
	}
	if n := s.Input; n[0] == 0 && n[1] > 0 || n[1] == 0 && n[2] > 0 {
		return fmt.Errorf("input=%dx%dx%d is not the size of a sample: use N, CxL or CxHxW", n[0], n[1], n[2])
	}
	return nil
}

func (s *Spec) options(batch int) graph.Options {
	o := graph.Options{
		Batch: int64(batch), Seq: int32(s.Seq), Dropout: int8(s.Dropout),
		Precision: s.Precision, Attention: s.Attention,
	}
	for k, n := range s.Input {
		if n > 0 {
			o.Input.D[k] = int32(n)
			o.Input.N = uint8(k + 1)
		}
	}
	return o
}

// plan says how the optimizer and the parallel mode lay out memory.
func (s *Spec) plan(g *graph.Graph) training.Plan {
	p := training.Plan{
		Optimizer: s.Optimizer, Foreach: s.Foreach != Off, ParamBytes: 4, GradBytes: 4,
		StateShards: 1, GradShards: 1, ParamShards: 1, Replicas: 1,
		Checkpoint: s.GradCheckpoint, Iterations: iterations, CuBLAS: cuBLASBytes,
	}
	if s.Precision.Half() {
		p.ParamBytes, p.GradBytes = 2, 2
	}
	n := int64(s.GPUs)
	if n <= 1 {
		return p
	}
	switch s.Parallel {
	case DP:
		p.Replicas = n
	case DDP:
		p.Buckets = true
	case ZeRO1:
		p.StateShards = n
		p.Buckets = true
	case ZeRO2:
		p.StateShards, p.GradShards = n, n
	case ZeRO3, FSDP:
		p.StateShards, p.GradShards, p.ParamShards = n, n, n
		p.Gather = 2 * largestBlock(g) * p.ParamBytes // one block used, one fetched ahead
	}
	return p
}

// largestBlock estimates the parameters of the largest unit that FSDP gathers:
// a block has at most a dozen tensors.
func largestBlock(g *graph.Graph) int64 {
	var best, sum int64
	const window = 12
	for i := range g.Params {
		sum += g.Params[i].Elems
		if i >= window {
			sum -= g.Params[i-window].Elems
		}
		best = max(best, sum)
	}
	return best
}

// moreByOutputs is how many bytes the outputs of the rows show to be kept beyond the
// bytes that the graph finds, where the graph had to guess: calls without a row keep
// more. Of 464 measured runs with such bytes, 59 in a hundred are within 10 % without
// the addition, 73 with it.
func (s *Spec) moreByOutputs(g *graph.Graph) int64 {
	if s.GradCheckpoint || g.GuessedPct() < unsurePct {
		return 0
	}
	n := g.ByOutputs
	if s.Precision != graph.FP32 {
		n /= 2
	}
	return max(n-g.Kept, 0)
}

// applyParams settles which parameters are trained. A count below the summary's
// means shared weights if the count is most of the summary's, and adapters in a
// frozen model (LoRA) if the count is a fraction.
func applyParams(g *graph.Graph, want int64, e *Estimate) int64 {
	var n int64
	for i := range g.Params {
		n += g.Params[i].Elems
	}
	if want <= 0 || want >= n {
		return n
	}
	if 2*want >= n {
		// Shared weights: the largest tensors are the ones counted twice.
		drop := n - want
		for passes := 0; drop > 0 && passes < maxShared; passes++ {
			k := 0
			for i := range g.Params {
				if g.Params[i].Elems > g.Params[k].Elems {
					k = i
				}
			}
			d := min(drop, g.Params[k].Elems)
			if d == 0 {
				break
			}
			g.Params[k].Elems -= d
			drop -= d
		}
		return want + drop
	}
	for i := range g.Params {
		g.Params[i].Frozen = true
	}
	const adapters = 64 // LoRA's matrices are many and small
	for k := 0; k < adapters; k++ {
		g.Params = append(g.Params, graph.Param{Elems: want/adapters + 1})
	}
	last := len(g.Ops) - 1
	if last >= 0 {
		g.Ops = append(g.Ops, graph.Op{
			In: [3]int32{-1, -1, -1}, Out: -1,
			Params: [2]int32{int32(len(g.Params) - adapters), int32(len(g.Params))},
		})
	}
	e.Assumed = append(e.Assumed, fmt.Sprintf("%d trainable parameters as adapters in a frozen model (params=)", want))
	return n + want
}

// denseText says that a summary makes more work for its length than the output
// of any of the tools; the bound limits the time of an estimate.
func denseText(s Spec, ops int) bool {
	const from, bytesEach = 16 << 10, 18
	return len(s.Summary) > from && bytesEach*ops > len(s.Summary)
}

// work is the most work for a text, whatever the number of its models and of their
// readings.
type work struct {
	rows  int   // of all models
	ops   int   // and parameters, of the models so far
	moves int64 // left of training.Budget
	brief bool  // one iteration each, for a model is read in two ways
}

// How many rows may be read in two ways, with the usual iterations and at all: two readings
// are then no more work than one of MaxRows.
const (
	briefRows = summary.MaxRows / 4
	twiceRows = summary.MaxRows / 2
)

func newWork(models ...*summary.Model) *work {
	w := work{moves: training.Budget}
	for _, m := range models {
		w.rows += len(m.Rows)
	}
	return &w
}

// measuredKept are the bytes kept for the backward pass, where the summary has
// them counted and they can be scaled: 0 otherwise.
func measuredKept(s Spec, m *summary.Model, batch int) int64 {
	n := m.KeptPerSample
	if n <= 0 || n > summary.MaxParams/int64(batch) || s.Precision == graph.AMP || s.GradCheckpoint {
		return 0
	}
	n *= int64(batch)
	if s.Precision != graph.FP32 {
		n /= 2
	}
	return n
}

// fill turns bytes into the numbers and parts of the estimate.
func (e *Estimate) fill(s Spec, r training.Result) {
	base := s.Base.CuBLASMiB
	if e.CuDNN {
		base = s.Base.CuDNNMiB
	}
	if s.GPUs > 1 && s.Parallel != None && s.Parallel != DP {
		base += ncclMiB
	}
	e.fillParts(base, r.Reserved, r.Peak, r.Parts[:])
}

// fillParts makes the estimate of base, segments and live peak; parts are in
// bytes and in the order of their names.
func (e *Estimate) fillParts(base, reserved, peak int64, parts []int64) {
	up := func(n int64) int64 { return (n + mebi - 1) / mebi }
	e.FloorMiB = base + up(peak)
	e.MiB = max(base+up(reserved), e.FloorMiB)
	e.Parts = []Part{{"base", base}}
	left := e.MiB - base
	for k, name := range [...]string{"parameters", "gradients", "optimizer", "activations", workspacePart} {
		n := min(parts[k]/mebi, left)
		e.Parts = append(e.Parts, Part{name, n})
		left -= n
	}
	e.Parts = append(e.Parts, Part{fragmentationPart, left})
}

// kerasEstimate: TensorFlow takes the whole GPU unless told otherwise
// (tf.config.experimental.set_memory_growth), so there is nothing to share.
func kerasEstimate(m *summary.Model) Estimate {
	e := Estimate{Confidence: Bound, Rows: len(m.Rows),
		Reasons: []string{"TensorFlow takes all of a GPU's memory by default: book a whole GPU"}}
	for i := range m.Rows {
		e.Params += m.Rows[i].Params
	}
	e.Params = max(e.Params, m.TotalParams) // a narrow terminal loses counts of rows
	const perParam = 16                     // value, gradient, two moments
	e.FloorMiB = e.Params / mebi * perParam
	e.MiB, e.ReserveMiB = e.FloorMiB, e.FloorMiB
	e.Parts = []Part{{"parameters", e.MiB}}
	return e
}
