// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"sort"

	"carma/estimator"
)

// A run is a spike if it took scratch memory that the step does not need. What a step needs
// beside its tensors grows with the batch, a workspace that cuDNN wishes for does not. So a
// run is held against the runs of the same model at larger batches, by the published live
// peak alone: no estimate decides what a spike is.
const (
	// spikeTimes is how many times the excess at a larger batch a spike has at least, both
	// as shares of the live peak, and spikeAbove how much of the live peak more.
	spikeTimes = 1.5
	spikeAbove = 0.05
	spikeLeast = 0.25 // a smaller excess is none
	// Where all larger runs are spikes or failed, as large an excess is one up to batch 32
	// and at 64; the largest of ordinary runs are 0.4 and 0.7 (VGG).
	spikeAlone   = 0.5
	spikeAlone64 = 0.7
)

// needed is what a run needed at least: process, live peak by FakeTensor, Adam's two states.
func needed(faketensorMiB, params float64) float64 {
	return float64(estimator.DefaultBase().CuDNNMiB) + faketensorMiB + 2*params*4/(1<<20)
}

// excess is the share of what a run needed that it took beyond.
func (r *run) excess() float64 { return r.actualMiB/r.neededMiB - 1 }

// markSpikes sets the spikes of the runs of one source.
func markSpikes(runs []run) {
	of := map[string][]*run{}
	for i := range runs {
		if runs[i].neededMiB > 0 {
			of[runs[i].model] = append(of[runs[i].model], &runs[i])
		}
	}
	for _, same := range of {
		sort.Slice(same, func(a, b int) bool { return same[a].batch > same[b].batch })
		plain := -1.0 // the least excess of larger batches; below 0: none known
		for _, r := range same {
			x := r.excess()
			if plain >= 0 {
				r.spike = x > spikeLeast && x > spikeTimes*plain+spikeAbove
			} else {
				r.spike = r.batch <= 32 && x > spikeAlone || r.batch == 64 && x > spikeAlone64
			}
			if !r.spike && (plain < 0 || x < plain) {
				plain = max(x, 0)
			}
		}
	}
}

// need are the rows whose truth is what the step needs.
func need(rows []outcome) (plain, spikes []outcome) {
	for _, o := range rows {
		if o.spike {
			spikes = append(spikes, o)
		} else {
			plain = append(plain, o)
		}
	}
	return plain, spikes
}

// cardMiB is the A100-40GB of the timm runs.
const cardMiB = 40536

// printSpikes names the spikes, and says what the estimate shows of them. A job on a card
// cannot take more than the card.
func printSpikes(w io.Writer, rows []outcome) {
	_, spikes := need(rows)
	sort.Slice(spikes, func(a, b int) bool {
		return spikes[a].actualMiB-float64(spikes[a].est.MiB) > spikes[b].actualMiB-float64(spikes[b].est.MiB)
	})
	shown := 0
	for i := range spikes {
		if spikes[i].actualMiB <= 1.1*wished(&spikes[i]) {
			shown++
		}
	}
	fmt.Fprintf(w, "spikes: %d of %d rows took a workspace that the step does not need; need and wish together reach "+
		"%d of them\n", len(spikes), len(rows), shown)
	for i := range spikes {
		o := &spikes[i]
		fmt.Fprintf(w, "  %-36s %4d  measured %6.0f  need %6d  with the wish %6.0f  %s\n",
			o.model, o.batch, o.actualMiB, o.est.MiB, wished(o), o.est.Confidence)
	}
}

// wished is what the job may take on its card.
func wished(o *outcome) float64 { return min(float64(o.est.MiB+o.est.WishMiB), cardMiB) }

// Kinds of a miss, by what is known beside the truth.
const (
	missGraph    = "live tensors"  // the floor is not the published live peak: the graph is wrong
	scratchTaken = "scratch taken" // the tensors are right, and the run took more
	missUntaken  = "scratch not taken"
	farPct       = 5 // how far a floor may be from the published live peak
)

// miss is the kind of a row that is more than 10 % off.
func (o *outcome) miss() string {
	floor := float64(o.est.FloorMiB)
	switch {
	case o.neededMiB > 0 && (floor > o.neededMiB*(1+farPct/100.0) || floor < o.neededMiB*(1-farPct/100.0)):
		return missGraph
	case float64(o.est.MiB) < o.actualMiB:
		return scratchTaken
	}
	return missUntaken
}

// printMisses names the rows that are more than 10 % off, by kind.
func printMisses(w io.Writer, rows []outcome) {
	by := map[string][]outcome{}
	for _, o := range rows {
		if e := o.err(float64(o.est.MiB)); e > 0.10 || e < -0.10 {
			by[o.miss()] = append(by[o.miss()], o)
		}
	}
	for _, kind := range []string{missGraph, scratchTaken, missUntaken} {
		missed := by[kind]
		if len(missed) == 0 {
			continue
		}
		sort.Slice(missed, func(a, b int) bool { return missed[a].factor() > missed[b].factor() })
		fmt.Fprintf(w, "more than 10 %% off, %s: %d rows\n", kind, len(missed))
		for i := range missed[:min(len(missed), worstRows)] {
			printRow(w, &missed[i])
		}
	}
}
