// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"fmt"

	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/tres"
)

// books is the job's booking, as slurmctld has the booking. No update changes the booking of a started job.
func (l *launch) books(ctx context.Context, slurm Jobs) (tres.List, error) {
	if l.booking == nil {
		words, err := slurm.Words(ctx, l.JobID)
		if err != nil {
			return tres.List{}, fmt.Errorf("query what job %s books: %w", l.JobKey, err)
		}
		list := tres.Read(words.TresPerNode)
		l.booking = &list
	}
	return *l.booking, nil
}

// exceeds tells whether a job needs more than its booking: job_submit has not seen the job, GPUs were added later, or
// the sizes of GPUs were mistaken. Such a job yields to all jobs with a full booking.
func (l *launch) exceeds(list tres.List) bool {
	each := min(l.request.ReserveMiB, l.Carma.FullMiB) // here GPUs may be larger than those of the booking
	return !l.Carma.Annotated || !list.Books() || int64(l.request.GPUs)*each > list.MiB
}

// rebooked is the change by which a job books mib MiB of each GPU.
func rebooked(h jobenv.Hook, list tres.List, mib int64, tags extra.Tags) sctl.Change {
	change := sctl.Change{TresPerNode: list.Rebook(int64(h.Carma.GPUs) * mib)}
	if list.Books() {
		change.Extra = awaiting(h, mib, tags)
	}
	return change
}

// awaiting is the constraint by which a job waits for a node with GPUs of mib MiB to give; empty where no node
// publishes the figure, and for a job on all GPUs of several nodes.
func awaiting(h jobenv.Hook, mib int64, tags extra.Tags) string {
	if !h.Carma.Counted || h.Carma.All && !h.OneNode {
		return ""
	}
	return extra.Ask(h.Carma.GPUs, mib, tags.Of(h.UID))
}
