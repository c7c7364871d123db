// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strconv"
	"strings"

	"carma/slurmbridge/config"
	"carma/slurmbridge/tres"
)

// money tells what charges or limits jobs by gres/gpu. That GRES counts slots: a job that shares
// a GPU counts as much as a job with the GPU to itself, and --exclusive as all slots of the
// node.
func (d *diagnosis) money() {
	d.part("billing", "does not charge jobs that share a GPU for all of it", func(say func(Level, string, string)) {
		const counts = " counts a job that shares a GPU as one that owns it"
		var mib int64
		for _, name := range d.Config.PartitionNames() {
			p := d.Config.Partition[name]
			mib = max(mib, p.GPUMemMiB)
			if _, line, ok := d.nodesOf(name); ok {
				weights := line.Get("TRESBillingWeights")
				by, scale, changed := byCarma(weights, p)
				why := counts
				if !countsGPUs(weights) {
					why = " is rounded down to whole numbers: a job that shares a GPU costs too little, or nothing"
				}
				if changed {
					say(Warn, "partition "+name+": TRESBillingWeights="+weights+why,
						"TRESBillingWeights=\""+by+"\""+alike(scale))
				}
			}
		}
		if v := d.setting("PriorityWeightTRES"); countsGPUs(v) {
			say(Warn, "PriorityWeightTRES="+v+counts, "weigh gres/carma in place of gres/gpu")
		}
		var of []string
		for _, l := range d.Limits {
			if countsGPUs(l.TRES) {
				of = append(of, fmt.Sprintf("%s %s=%s", l.Of, l.Name, l.TRES))
			}
		}
		if len(of) > 0 {
			more := ""
			if len(of) > 3 {
				more = fmt.Sprintf(" and %d more", len(of)-3)
				of = of[:3]
			}
			say(Warn, strings.Join(of, "; ")+more+counts,
				fmt.Sprintf("limit gres/%s: %d for each GPU", tres.Carma, mib))
		}
	})
}

// alike tells which other values must be multiplied.
func alike(scale int) string {
	if scale == 1 {
		return ""
	}
	return fmt.Sprintf(", and prices and limits by billing x %d", scale)
}

// countsGPUs tells whether a list of TRES names gres/gpu, with a type or without.
func countsGPUs(list string) bool {
	for _, w := range words(list) {
		name, _, _ := strings.Cut(lower(w), "=")
		if name == "gres/gpu" || strings.HasPrefix(name, "gres/gpu:") {
			return true
		}
	}
	return false
}

// leastOfGPU is the least that a whole GPU is to be billed: slurmdbd bills a job a whole number, rounded
// down (job_mgr.c, billable_tres; seen with 24.11.5: a quarter of a GPU at 1 is billed as nothing).
const leastOfGPU = 1000

// byCarma returns billing weights in which a GPU of the partition's size weighs as much as before, by its memory.
// All weights are multiplied by scale where jobs that share would otherwise be rounded down.
func byCarma(weights string, p config.Partition) (by string, scale int, changed bool) {
	var kept []string
	most, carma := 0.0, 0.0
	for _, w := range words(weights) {
		name, value, _ := strings.Cut(lower(w), "=")
		weight, _ := strconv.ParseFloat(value, 64)
		switch {
		case countsGPUs(w):
			most, changed = max(most, weight), true
		case name == "gres/"+tres.Carma:
			carma = weight * float64(p.GPUMemMiB)
		default:
			kept = append(kept, w)
		}
	}
	of := max(most, carma)
	for scale = 1; of > 0 && of*float64(scale) < leastOfGPU; scale *= 10 {
		changed = true
	}
	if !changed {
		return weights, 1, false
	}
	for i, w := range kept {
		kept[i] = scaled(w, scale)
	}
	return strings.Join(append(kept, "gres/"+tres.Carma+"="+perMiB(of*float64(scale), p.GPUMemMiB)), ","), scale, true
}

// scaled multiplies a weight, as CPU=1.0 or Mem=0.25G.
func scaled(w string, by int) string {
	name, value, _ := strings.Cut(w, "=")
	number := strings.TrimRight(value, "KMGTPkmgtp")
	weight, err := strconv.ParseFloat(number, 64)
	if by == 1 || err != nil {
		return w
	}
	return name + "=" + strconv.FormatFloat(weight*float64(by), 'f', -1, 64) + value[len(number):]
}

// perMiB is the weight of a MiB, where a GPU weighs so much.
func perMiB(weight float64, gpuMiB int64) string {
	return strconv.FormatFloat(weight/float64(max(gpuMiB, 1)), 'f', 8, 64)
}
