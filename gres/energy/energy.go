// SPDX-License-Identifier: Apache-2.0

// Package energy splits the energy of a GPU in an interval among the GPU's holders. The
// package is pure. The rule (docs/adr/0006): the idle floor goes equally to the holders
// at the time, the rest by SM activity; energy used while nobody holds the GPU stays
// nobody's. Nothing is made and nothing lost: the shares and the rest add up to the
// GPU's own counter.
package energy

import (
	"math"
	"slices"
)

// Holder is a job that held the GPU in an interval. Processes of no job are a holder
// too.
type Holder struct {
	From, To float64 // part of the interval, 0 to 1
	Activity float64 // SM activity of its own while it held the GPU, in any unit
}

// Share is a holder's part of an interval.
type Share struct {
	IdleJ    float64 // of the floor
	DynamicJ float64 // of the rest
	Held     float64 // of the interval: time by holders at the time
	Shared   float64 // of the interval: time with another holder
}

// Split divides the joules of an interval, floorJ of them idle floor. Activity counts
// for a holder's time on the GPU. Without any, the dynamic part goes as the floor does.
func Split(joules, floorJ float64, holders []Holder) (shares []Share, unownedJ float64) {
	shares = make([]Share, len(holders))
	owned := hold(holders, shares)
	sum := 0.0
	for _, h := range holders {
		sum += h.Activity * (h.To - h.From)
	}
	floorJ = min(max(floorJ, 0), joules)
	dynamicJ := joules - floorJ
	for i, h := range holders {
		shares[i].IdleJ = floorJ * shares[i].Held
		if sum > 0 {
			shares[i].DynamicJ = dynamicJ * h.Activity * (h.To - h.From) / sum
		} else {
			shares[i].DynamicJ = dynamicJ * shares[i].Held
		}
	}
	unownedJ = floorJ * (1 - owned)
	if sum <= 0 {
		unownedJ += dynamicJ * (1 - owned)
	}
	return shares, unownedJ
}

// hold fills in Held and Shared and returns the part of the interval in which
// anybody held the GPU.
func hold(holders []Holder, shares []Share) (owned float64) {
	marks := make([]float64, 0, 2*len(holders))
	for _, h := range holders {
		marks = append(marks, h.From, h.To)
	}
	slices.Sort(marks)
	for m := 1; m < len(marks); m++ {
		from, length := marks[m-1], marks[m]-marks[m-1]
		if length <= 0 {
			continue
		}
		there := func(h Holder) bool { return h.From <= from && from < h.To }
		n := 0
		for _, h := range holders {
			if there(h) {
				n++
			}
		}
		for i, h := range holders {
			if !there(h) {
				continue
			}
			shares[i].Held += length / float64(n)
			if n > 1 {
				shares[i].Shared += length
			}
		}
		if n > 0 {
			owned += length
		}
	}
	return owned
}

// Evidence is what is known of a holder's SM activity.
type Evidence struct {
	ProcessPct  float64 // SM utilisation of the holder's processes (NVML); NaN: not told for the GPU
	ExpectedPct float64 // when alone; 0: not known
	Present     bool    // a process of the holder is on the GPU
	MPS         bool    // a client of the GPU's MPS server
}

// Activities weighs the holders of a GPU: by the utilisation of their processes where
// NVML tells, else by their expected activity, else equally among holders with a
// process there. serverPct is the MPS server's own utilisation by NVML: some drivers
// count its clients there.
func Activities(holders []Evidence, serverPct float64) []float64 {
	w := make([]float64, len(holders))
	told := serverPct > 0
	for i, h := range holders {
		if h.ProcessPct > 0 {
			w[i], told = h.ProcessPct, true
		}
	}
	if !told {
		spread(holders, w, 1, func(h Evidence) bool { return h.Present })
		return w
	}
	if serverPct > 0 {
		spread(holders, w, serverPct, func(h Evidence) bool { return h.Present && h.MPS })
	}
	return w
}

// spread adds an amount to the weights of the holders that take part: by their
// expected activity if it is known of all, else equally.
func spread(holders []Evidence, w []float64, amount float64, takesPart func(Evidence) bool) {
	n, sum, known := 0, 0.0, true
	for _, h := range holders {
		if takesPart(h) {
			n++
			sum += h.ExpectedPct
			known = known && h.ExpectedPct > 0
		}
	}
	for i, h := range holders {
		switch {
		case !takesPart(h):
		case known:
			w[i] += amount * h.ExpectedPct / sum
		default:
			w[i] += amount / float64(n)
		}
	}
}

// Rate is how fast jobs that share a GPU get on, 1 when as fast as alone: SM work is
// conserved, so that the activity of the GPU is the sum of the activities that the jobs
// have when alone, slowed by one rate (thesis 4.2: runs of 2 to 4 jobs, within 3 %).
// NaN where the activity of the GPU, or the activity that one of the present jobs has
// when alone, is not known. A job that is alone on the GPU gets on at rate 1 in any
// case.
func Rate(smactPct float64, holders []Evidence) float64 {
	n, sum, known := 0, 0.0, !math.IsNaN(smactPct)
	for _, h := range holders {
		if h.Present {
			n++
			sum += h.ExpectedPct
			known = known && h.ExpectedPct > 0
		}
	}
	switch {
	case n < 2:
		return 1
	case !known:
		return math.NaN()
	}
	return min(smactPct/sum, 1)
}
