// SPDX-License-Identifier: Apache-2.0

package answer

import "carma/estimator"

// model is a GPU with its memory by NVML.
type model struct {
	name   string
	memMiB int64
}

// models are the GPUs that a user is told of. 40536 is what drivers before R510
// show for the A100-40GB, on which the estimator was measured (later ones show
// 40960 and count their own part as used); 81920 and 81559 stand in nvidia-smi's
// output under R535 and later (NVML's total, driver's part included), 143771 in an
// H200's.
var models = []model{
	{"A100-40GB", 40536},
	{"A100-80GB", 81920},
	{"H100-80GB", 81559},
	{"H200-141GB", 143771},
}

// Fit says how many such jobs one GPU takes.
type Fit struct {
	GPU    string `json:"gpu"`
	MemMiB int64  `json:"mem_mib"`
	Jobs   int64  `json:"jobs"`
}

// fits fills GPUs as gres/choose does by memory: an idle GPU takes any job no
// larger than the GPU; each further job needs its reserve and the margin free.
func fits(e estimator.Estimate, marginMiB int64, gpus []model) []Fit {
	rows := make([]Fit, len(gpus))
	for i, g := range gpus {
		rows[i] = Fit{g.name, g.memMiB, jobsOn(g.memMiB, marginMiB, e)}
	}
	return rows
}

func jobsOn(memMiB, marginMiB int64, e estimator.Estimate) int64 {
	switch {
	case e.FloorMiB > memMiB || e.Confidence != estimator.Bound && e.MiB > memMiB:
		return 0
	case e.Confidence == estimator.Bound || e.ReserveMiB <= 0:
		return 1 // the job has the GPU to itself
	}
	return max((memMiB-marginMiB)/e.ReserveMiB, 1)
}
