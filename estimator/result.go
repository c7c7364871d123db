// SPDX-License-Identifier: Apache-2.0

package estimator

// mebi is 2^20 bytes.
const mebi = 1 << 20

// Confidence says how far an estimate can be trusted.
type Confidence uint8

// The confidences.
const (
	// Sure: the summary was understood; share a GPU with Reserve booked.
	Sure Confidence = iota
	// Unsure: parts were guessed; Reserve carries a wide margin.
	Unsure
	// Bound: the estimate is a lower bound only; book a whole GPU.
	Bound
)

// String gives the confidence's word.
func (c Confidence) String() string {
	switch c {
	case Sure:
		return "sure"
	case Unsure:
		return "unsure"
	}
	return "bound"
}

// Remedy is what would make an estimate from a summary sure, the least trouble first.
type Remedy uint8

// The remedies.
const (
	NoRemedy  Remedy = iota
	SaySample        // input= or seq=
	MoreDepth        // a summary of all levels
	Trace            // carma_trace.py: calls are seen and not inferred
	FirstRun         // nothing but a run shows it
)

// Part is a share of the estimate.
type Part struct {
	Name string
	MiB  int64
}

// Unknown counts the modules of a class not understood.
type Unknown struct {
	Kind  string
	Count int
}

// Estimate is the memory that a training run takes on its fullest GPU.
type Estimate struct {
	Path       string // FromSummary or FromTrace; empty: neither, as for Keras
	FloorMiB   int64  // base and live tensors: less is impossible
	MiB        int64  // what the step needs: the likely value of nvidia-smi's memory.used
	ReserveMiB int64  // memory to book
	WishMiB    int64  // what cuDNN may take beside MiB on an empty GPU, and gives up under a limit
	Confidence Confidence
	Parts      []Part   // in order; the sum is MiB
	Reasons    []string // why the confidence is not Sure
	Remedy     Remedy   // what would make it Sure
	Assumed    []string // what the user did not say
	Unknown    []Unknown
	Params     int64 // parameters counted
	Rows       int   // modules read
	CuDNN      bool  // the larger base was used
}
