// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"os"

	"carma/db"
	"carma/gres/lease"
	"carma/gres/output"
	"carma/slurmbridge/jobenv"
)

// Lost is the record of an attempt that ended with its node, or its slurmd: without an
// Epilog. slurmctld's account of the job is added later.
func (n *Node) Lost(held lease.Held) db.Attempt {
	a := attempt(jobenv.Hook{}, held, n.metaOf(held), verdict{}, n.Config.Idle.After.D())
	a.State = db.NodeFail
	return a
}

// EndEarlier writes the record of an earlier attempt of the job with leases still here, and ends
// the leases: its slurmd died, and the job runs there again. The file for its tasks goes first.
func (n *Node) EndEarlier(ctx context.Context, h jobenv.Hook, ledger Ending, records LostRecords) {
	n.ForgetEarlier(h)
	held, ok, err := ledger.Find(ctx, h.JobKey)
	if err == nil && (!ok || held.Restart == h.Restart) {
		return
	}
	if err == nil {
		n.Log.Warn("an earlier attempt had no Epilog; its lease ends", "job", held.JobKey)
		if err := records.PutLost(ctx, n.Lost(held)); err != nil {
			n.Log.Error("write record", "job", held.JobKey, "error", err)
		}
		err = errors.Join(ledger.Release(ctx, held.JobKey), output.Drop(n.RunDir, held.JobKey))
	}
	if err != nil {
		n.Log.Error("end the lease of an earlier attempt", "job", h.JobKey, "error", err)
	}
}

// ForgetEarlier removes the file for the tasks of an earlier attempt, or of another job of the id, with a
// lease or without: where this attempt gets no GPU, and writes no file of its own, tasks would read the
// old file.
func (n *Node) ForgetEarlier(h jobenv.Hook) {
	t, err := readTaskFile(n.RunDir, h.JobID)
	if err != nil || t.Restart != h.Restart || t.UID != 0 && t.UID != h.UID {
		os.Remove(taskPath(n.RunDir, h.JobID))
	}
}
