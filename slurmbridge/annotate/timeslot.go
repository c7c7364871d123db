// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"fmt"
	"time"

	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
	"carma/slurmbridge/jobenv"
)

// slot applies the partition's time slot, and what the job wants to happen at
// the end of its time. A job without a time limit gets the slot as its limit; a
// longer limit is cut to it, which its user is told unless the job is requeued
// for more.
func (a *Annotation) slot(d directive.Directive, job Job, name string, part config.Partition, ignoreBad bool) error {
	a.Signal = d.Signal
	endless := d.Requeue == jobenv.RequeueTimeout
	if d.Requeue == jobenv.RequeueNo {
		a.Requeue = d.Requeue
	}
	slot := uint32(part.TimeSlot.D() / time.Minute)
	if slot == 0 {
		if endless && !ignoreBad {
			return &directive.Error{Line: d.Line("requeue"), Key: "requeue",
				Reason: fmt.Sprintf("partition %s has no time slots", name)}
		}
		return nil
	}
	if endless {
		a.Requeue = d.Requeue
	}
	own := job.TimeLimit
	if own == NoVal {
		own = 0
	}
	if own != 0 && own <= slot {
		return nil
	}
	a.TimeLimitMin = slot
	if own != 0 && !endless {
		a.Advice = fmt.Sprintf("jobs of partition %s run in slots of %d:%02d:00: the time limit is cut to that; with "+
			"#CARMA requeue=timeout the job is requeued after each", name, slot/60, slot%60)
	}
	return nil
}
