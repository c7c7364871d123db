// SPDX-License-Identifier: Apache-2.0

package jobenv

import "fmt"

// JobKey names an attempt of a job on this node.
type JobKey struct {
	JobID   uint32
	Restart uint32 // SLURM_JOB_RESTART_COUNT
}

func (k JobKey) String() string {
	if k.Restart == 0 {
		return fmt.Sprint(k.JobID)
	}
	return fmt.Sprintf("%d (restart %d)", k.JobID, k.Restart)
}
