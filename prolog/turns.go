// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"time"

	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/steward"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/schedule"
)

// inTurn returns the ledger as the job is to use it. slurmctld starts a job that names
// its nodes there whatever they offer, so that its Prolog would be there first when a
// GPU becomes free: ahead of all that wait in the queue until slurmctld hears of it
// (docs/adr/0012).
func (n *Node) inTurn(l *launch, ledger Ledger, slurm Waiting) Ledger {
	if n.Config.Placement.BySlurm() {
		return ledger
	}
	return &turns{Ledger: ledger, node: n, hook: l.Hook, slurm: slurm,
		yields: l.Carma.NamesNodes || l.books.K > 0 && !l.books.Anywhere()}
}

// turns is the ledger for a job that gives those their turn who wait before it. One that
// slurmctld started by what the node offers has had its own.
type turns struct {
	Ledger
	node   *Node
	hook   jobenv.Hook
	slurm  Waiting
	yields bool // it names its nodes, or may by now
	looked time.Time
	err    error // of the last look
	ahead  []gres.Request
}

// Slurmctld is asked again so often who waits, and given so long to answer.
const (
	queueEvery    = 5 * time.Second
	queueDeadline = 3 * time.Second
)

// Acquire leaves those who are ahead what they would be given now.
func (t *turns) Acquire(
	ctx context.Context, job lease.Job, r gres.Request, choice lease.Choose,
) ([]lease.Granted, error) {
	if t.yields {
		t.look(ctx)
	}
	policy := choose.Policy(t.node.Config.Placement.Policy)
	after := func(readings []gres.Reading, leases []gres.Lease, last string) ([]string, gres.Daemon) {
		uuids, daemon := choice(readings, leases, last)
		if len(uuids) == 0 || len(t.ahead) == 0 { // nothing to leave to others
			return uuids, daemon
		}
		in := choose.Input{Readings: readings, Leases: leases, Thresholds: t.node.Thresholds, Last: last}
		return choice(readings, choose.Behind(policy, in, t.ahead), last)
	}
	return t.Ledger.Acquire(ctx, job, r, after)
}

// errBehind means that a job has no claim to GPUs that are not free yet.
var errBehind = errors.New("jobs that come before it are waiting")

// Hold keeps GPUs for the job if nobody waits who is ahead of it.
func (t *turns) Hold(ctx context.Context, job, uid uint32, gpus int, mib int64, uuids []string) error {
	t.yields = true
	if t.look(ctx); t.err != nil {
		return t.err
	}
	if len(t.ahead) > 0 {
		return errBehind
	}
	return t.Ledger.Hold(ctx, job, uid, gpus, mib, uuids)
}

// look asks who is ahead. Without an answer it is unchanged: the job is not to wait for
// a slurmctld that is away.
func (t *turns) look(ctx context.Context) {
	if time.Since(t.looked) < queueEvery {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, queueDeadline)
	defer cancel()
	c := &t.node.Config
	partitions := []string{t.hook.Partition}
	if recovery := c.Partition[t.hook.Partition].Recovery; recovery != "" {
		partitions = append(partitions, recovery)
	}
	var queue []schedule.Job
	queue, t.err = t.slurm.Queue(ctx, partitions)
	t.looked = time.Now()
	if t.err != nil {
		t.node.Log.Warn("query jobs that wait for this node", "job", t.hook.JobKey, "error", t.err)
		return
	}
	fullMiB := map[string]int64{}
	for name, p := range c.Partition {
		fullMiB[name] = p.GPUMemMiB
	}
	before := len(t.ahead)
	t.ahead = t.ahead[:0]
	for _, j := range steward.Ahead(queue, t.hook.JobID, t.node.Name, time.Now()) {
		t.ahead = append(t.ahead, steward.Request(j, fullMiB))
	}
	if len(t.ahead) > 0 && before == 0 {
		t.node.Log.Info("waits its turn: it names its node, and jobs of higher priority wait",
			"job", t.hook.JobKey, "ahead", len(t.ahead), "first", t.ahead[0].JobID)
	}
}
