// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strconv"
	"strings"

	"carma/slurmbridge/config"
	"carma/slurmbridge/tres"
)

// money tells what charges or limits jobs by gres/gpu. That counts slots: a job that shares a GPU
// counts as one that owns it, and --exclusive as all slots of the node.
func (d *diagnosis) money() {
	d.part("billing", "does not charge jobs that share a GPU for all of it", func(say func(Level, string, string)) {
		const counts = " counts a job that shares a GPU as one that owns it"
		var mib int64
		for _, name := range d.Config.PartitionNames() {
			p := d.Config.Partition[name]
			mib = max(mib, p.GPUMemMiB)
			if _, line, ok := d.nodesOf(name); ok {
				weights := line.Get("TRESBillingWeights")
				if by, changed := byCarma(weights, p); changed {
					say(Warn, "partition "+name+": TRESBillingWeights="+weights+counts, "TRESBillingWeights=\""+by+"\"")
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

// byCarma returns billing weights in which a GPU of the partition's size weighs as much as before,
// by its memory.
func byCarma(weights string, p config.Partition) (by string, changed bool) {
	var kept []string
	most := 0.0
	for _, w := range words(weights) {
		if !countsGPUs(w) {
			kept = append(kept, w)
			continue
		}
		_, value, _ := strings.Cut(w, "=")
		weight, _ := strconv.ParseFloat(value, 64)
		most, changed = max(most, weight), true
	}
	if !changed {
		return weights, false
	}
	return strings.Join(append(kept, "gres/"+tres.Carma+"="+perMiB(most, p.GPUMemMiB)), ","), true
}

// perMiB is the weight of one MiB, where a GPU weighs so much.
func perMiB(weight float64, gpuMiB int64) string {
	return strconv.FormatFloat(weight/float64(max(gpuMiB, 1)), 'f', 8, 64)
}
