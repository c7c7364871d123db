// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"context"
	"fmt"

	"carma/gres"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/tres"
)

// again asks slurmctld about a job with an earlier run: an Epilog, perhaps of
// another node, may have raised its booking, and the environment still holds the
// first attempt's request. Without an answer the job gets whole GPUs.
func (n *Node) again(ctx context.Context, h jobenv.Hook, r *gres.Request, about *jobMeta, slurm Jobs) (j sctl.Job,
	w sctl.Words, retry string) {
	ctx, cancel := n.part(ctx)
	defer cancel()
	j, err := ask(ctx, h, slurm)
	if err == nil {
		w, err = slurm.Words(ctx, h.JobID)
	}
	if err != nil {
		n.Log.Warn("query what a job books now; it gets whole GPUs", "job", h.JobKey, "error", err)
		if !r.Exclusive {
			makeExclusive(r, about)
		}
		return j, w, retryUnknown
	}
	mib := tres.Read(w.TresPerNode).Each(h.Carma.GPUs)
	if mib > 0 && !r.Exclusive {
		if r.ReserveMiB = mib; mib >= about.FullMiB {
			makeExclusive(r, about)
		}
	}
	if mib <= h.Carma.ReserveMiB && h.Carma.Requeue != jobenv.RequeueTimeout { // nothing of ours was done to it
		return j, w, retryUnknown
	}
	return j, w, cmp.Or(admincomment.RetryReason(w.AdminComment), retryUnknown)
}

// ask asks slurmctld about the job of a hook. An answer about another user's job is
// never acted on.
func ask(ctx context.Context, h jobenv.Hook, slurm Jobs) (sctl.Job, error) {
	j, err := slurm.Job(ctx, h.JobID)
	if err != nil {
		return sctl.Job{}, err
	}
	if j.ID != h.JobID || j.UID != h.UID {
		return sctl.Job{}, fmt.Errorf("slurmctld names job %d of uid %d where slurmd has %d of uid %d", j.ID, j.UID, h.JobID,
			h.UID)
	}
	return j, nil
}

// makeExclusive turns a request to share into one for whole GPUs.
func makeExclusive(r *gres.Request, about *jobMeta) {
	r.Exclusive, r.ReserveMiB = true, about.FullMiB
	about.Mode = jobenv.ModeExclusive
}

// retryUnknown is told to a job that was requeued for a reason other than
// CARMA's: its user, an administrator, preemption, a node that failed.
const retryUnknown = "requeued"
