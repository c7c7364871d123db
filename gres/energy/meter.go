// SPDX-License-Identifier: Apache-2.0

package energy

import "math"

// wrapJ is where a counter of 32 bits of millijoules starts anew. NVML's counter
// has 64 bits and starts anew with the driver; older boards were seen to hand
// out the lower half.
const wrapJ = (1 << 32) / 1000.0

// longS is a time in which a node may have been off: a counter that has started anew
// then says more than the present power.
const longS = 60

// wildFactor is how many times the energy that follows from the power a counter may
// advance by before it is not believed.
const wildFactor = 1e5

// Meter turns looks at a GPU into the energy of the interval between them, from
// the total-energy counter where there is one, else from power.
type Meter struct {
	counterJ, watts float64
	looked          bool
}

// Since returns a meter that has seen a counter before, as after a restart.
func Since(counterJ float64) Meter { return Meter{counterJ: counterJ, watts: math.NaN(), looked: true} }

// Add takes the figures of a look, seconds after the look before; NaN stands for a
// figure that cannot be read. Add returns the energy of the interval, NaN where it
// is not known.
func (m *Meter) Add(counterJ, watts, seconds float64) (joules float64) {
	was := *m
	*m = Meter{counterJ, watts, true}
	if !was.looked || seconds <= 0 {
		return math.NaN()
	}
	byPower := integrate(was.watts, watts, seconds)
	d := counterJ - was.counterJ
	switch {
	case math.IsNaN(d):
		return byPower
	case d < 0 && was.counterJ < wrapJ && was.counterJ > 0.9*wrapJ && counterJ < 0.1*wrapJ:
		return d + wrapJ
	case d < 0 && (math.IsNaN(byPower) || seconds > longS):
		return counterJ // what the counter has counted since it started anew
	case d < 0, d > wildFactor*(byPower+1): // false with NaN
		return byPower
	}
	return d
}

// integrate is the energy between two looks at power.
func integrate(w0, w1, seconds float64) float64 {
	switch {
	case math.IsNaN(w0):
		return w1 * seconds
	case math.IsNaN(w1):
		return w0 * seconds
	}
	return (w0 + w1) / 2 * seconds
}

// Floor is the power that a GPU draws with nobody on it, learned while nobody is
// there. The floor is measured as the rest is, so that a simulated GPU whose clock
// runs faster has a floor that fits.
type Floor struct {
	Watts float64 // NaN: never seen idle
	low   float64 // least seen with somebody on the GPU; 0: none
}

// floorWeight is the weight of an idle interval against the intervals before.
const floorWeight = 0.1

// Learn takes an interval with nobody on the GPU.
func (f *Floor) Learn(joules, seconds float64) {
	switch w := joules / seconds; {
	case math.IsNaN(w) || seconds <= 0:
	case math.IsNaN(f.Watts):
		f.Watts = w
	default:
		f.Watts += floorWeight * (w - f.Watts)
	}
}

// Joules is the floor's part of an interval with somebody on the GPU. For a GPU never
// seen idle the floor is the least power seen.
func (f *Floor) Joules(joules, seconds float64) float64 {
	if !math.IsNaN(f.Watts) {
		return min(f.Watts*seconds, joules)
	}
	if w := joules / seconds; f.low == 0 || w < f.low {
		f.low = w
	}
	return min(f.low*seconds, joules)
}
