// SPDX-License-Identifier: Apache-2.0

package history

// The memory that frameworks take at their start, whatever their need:
// JAX 75 % of the card, vLLM, SGLang and JAX of old 90 %, TensorFlow all but what it leaves
// to the system (0.5 to 1.8 GiB by the GPU's generation, MinSystemMemory in its
// gpu_device.cc). Under a limit they all end at the limit. The CUDA context comes on
// top of what JAX counts.
const (
	slackPct    = 2
	contextMiB  = 600
	systemMiB   = 2560 // the system's part and what a driver keeps for itself
	systemMaxPc = 7    // of a card, for those of few GiB
)

// Preallocated tells what a peak is a part of, if it is one that frameworks take at
// their start: "75 %", "90 %" or "all of the GPU", or "its limit". Empty: none; the job may have
// needed just that. full is the memory of the GPU, 0 if it is not known; a limit of
// full is none.
func Preallocated(peak, limit, full int64) string {
	near := func(whole, pct, more int64) bool {
		part := whole * pct / 100
		return peak >= part-part*slackPct/100 && peak <= part+part*slackPct/100+more
	}
	switch {
	case peak <= 0:
		return ""
	case limit > 0 && (limit < full || full == 0) && near(limit, 100, 0):
		return "its limit"
	case full <= 0:
		return ""
	case peak >= full-min(systemMiB, full*systemMaxPc/100):
		return "all of the GPU"
	case near(full, 90, 0):
		return "90 %"
	case near(full, 75, contextMiB):
		return "75 %"
	}
	return ""
}
