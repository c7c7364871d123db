// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"carma/gres"
	"carma/slurmbridge/jobenv"
)

// GPU is a GPU of a job as programs of the site look for it: hooks, jobstats.
type GPU struct {
	Index int    `json:"index"` // NVML's
	UUID  string `json:"uuid"`
	Minor int    `json:"minor"` // N of /dev/nvidiaN
}

// Numbers are those of GPUs.
func Numbers(gpus []gres.GPU) []GPU {
	list := make([]GPU, 0, len(gpus))
	for _, g := range gpus {
		list = append(list, GPU{g.Index, g.UUID, g.Minor})
	}
	return list
}

// GPUsOf returns the GPUs of a job on this node, from the file its Prolog left for its tasks, readable
// for everybody; none without the file.
func GPUsOf(runDir string, job uint32) ([]GPU, error) {
	t, err := readTaskFile(runDir, job)
	return t.GPUs, err
}

// printNumbers puts the GPUs' own numbers where Slurm has written the slots' numbers. A step's children
// find SLURM_STEP_GPUS anew: slurmstepd sets or removes the variable for each step, and SLURM_JOB_GPUS for
// each batch script (gres_common_gpu_set_env, 22.05 to 26.05).
func (t taskFile) printNumbers(w io.Writer, known bool, get jobenv.Getenv) error {
	if len(t.GPUs) == 0 && len(t.UUIDs) > 0 {
		return nil // an older program's file
	}
	var b strings.Builder
	number := func(name string, uuids []string) {
		if get(name) == "" {
			return
		}
		var list []string
		for _, g := range t.GPUs {
			if n := strconv.Itoa(g.Index); slices.Contains(uuids, g.UUID) && !slices.Contains(list, n) {
				list = append(list, n)
			}
		}
		fmt.Fprintf(&b, "export %s=%s\n", name, strings.Join(list, ","))
	}
	slots, err := t.slotsOfStep(known, get)
	number("SLURM_JOB_GPUS", t.UUIDs)
	number("SLURM_STEP_GPUS", t.ofSlots(slots))
	if _, failed := io.WriteString(w, b.String()); failed != nil {
		return failed
	}
	return err
}
