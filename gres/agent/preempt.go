// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"carma/gres/lease"
	"carma/gres/steward"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// preemptors is what the steward knows of jobs that may preempt others.
type preemptors struct {
	rules  schedule.Preemption
	asked  time.Duration            // about the rules
	looked time.Duration            // the last time
	took   time.Duration            // to ask for the queue
	waited map[uint32]bool          // at the last look
	sent   map[uint32]time.Duration // when
	vain   map[uint32]time.Duration // when a job was let go that was sent in vain
}

// slurmctld is asked so often who may preempt whom, and, where somebody may, who waits; a
// job that was sent to a node and does not start there is let go after so long.
const (
	rulesEvery = time.Minute
	waitsEvery = 3 * time.Second
	sentFor    = 5 * time.Minute
	vainFor    = 30 * time.Minute // it is not sent again
	// times what asking for the queue took: a long one costs slurmctld a tenth of a core at most
	restFor = 10
)

// sendPreemptors sends jobs that may preempt others, and wait at two looks, to a node. At
// the first look slurmctld may just not have come to them.
func (a *Agent) sendPreemptors(ctx context.Context, now time.Duration) {
	p := &a.preemptors
	if a.Cluster == nil || !a.steward.Load() || now-p.looked < restFor*p.took {
		return
	}
	p.looked = now
	if p.asked == 0 || now-p.asked >= rulesEvery {
		p.asked = now
		rules, err := a.Cluster.Preemption(ctx)
		if err != nil {
			a.Log.Warn("query which jobs may preempt others", "error", err)
			return
		}
		p.rules = rules
	}
	if !p.rules.ByPartition && !p.rules.ByQOS {
		return
	}
	partitions := a.preempted()
	asked := lease.Now()
	queue, err := a.Cluster.Queue(ctx, partitions)
	p.took = lease.Now() - asked
	if err != nil {
		a.Log.Warn("look for jobs that preempt", "error", err)
		return
	}
	a.letGo(ctx, queue, now)
	var nodes []schedule.Node
	ours := func(name string) bool {
		_, ok := a.Config.Partition[name]
		return ok && !a.Config.RecoveryOf(name)
	}
	waiting := a.waitingPreemptors(queue, ours)
	if len(waiting) > 0 {
		if nodes, err = a.Cluster.Nodes(ctx, a.Config.PartitionNames()); err != nil {
			a.Log.Warn("look for jobs that preempt", "error", err)
			return
		}
	}
	for _, j := range steward.Preempt(queue, nodes, p.rules, ours, time.Now()) {
		if _, vain := p.vain[j.ID]; vain || !p.waited[j.ID] {
			continue
		}
		if err := a.send(ctx, j, now); err != nil {
			a.Log.Warn("send a job to a node where it preempts others", "job", j.ID, "node", j.Node, "error", err)
			continue
		}
		a.Log.Info("a job is sent to a node where it preempts others", "job", j.ID, "node", j.Node)
	}
	p.waited = waiting
}

// preempted lists the partitions whose jobs may be on our nodes.
func (a *Agent) preempted() []string {
	names := a.Config.PartitionNames()
	for name := range a.preemptors.rules.Rules {
		if a.preemptors.rules.ByPartition && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// waitingPreemptors are those jobs of the queue that wait for room and may preempt others.
func (a *Agent) waitingPreemptors(queue []schedule.Job, ours func(string) bool) map[uint32]bool {
	waiting := map[uint32]bool{}
	for _, j := range queue {
		if j.State != jobstate.Pending || !j.Reason.IsRoom() {
			continue
		}
		for partition := range strings.SplitSeq(j.Partition, ",") {
			self := schedule.Preemptible{Partition: partition, QOS: j.QOS}
			if ours(partition) && a.preemptors.rules.Preempts(self) {
				waiting[j.ID] = true
			}
		}
	}
	return waiting
}

func (a *Agent) send(ctx context.Context, j steward.Preemptor, now time.Duration) (err error) {
	id := j.ID
	if j.Unsplit() {
		if id, err = a.Cluster.Split(ctx, j.Job); err != nil {
			return err
		}
	}
	if err := a.changeWaiting(ctx, id, j.Job, sctl.Change{TresPerNode: j.Books, ReqNodes: j.Node}); err != nil {
		return err
	}
	if a.preemptors.sent == nil {
		a.preemptors.sent = map[uint32]time.Duration{}
	}
	a.preemptors.sent[id] = now
	return nil
}

// letGo lets jobs run anywhere again that have not started where they were sent.
func (a *Agent) letGo(ctx context.Context, queue []schedule.Job, now time.Duration) {
	p := &a.preemptors
	for id, at := range p.vain {
		if now-at >= vainFor {
			delete(p.vain, id)
		}
	}
	// One that cannot run there at all (BadConstraints: --exclude, memory), or that its user
	// holds, keeps the node from others.
	stuck, arrays := map[uint32]bool{}, map[uint32]uint32{}
	for _, j := range queue {
		stuck[j.ID], arrays[j.ID] = j.State == jobstate.Pending && j.Reason.IsOfItsUser(), j.ArrayJobID
	}
	for id, at := range p.sent {
		if now-at >= sentFor || stuck[id] {
			delete(p.sent, id)
			if p.vain == nil {
				p.vain = map[uint32]time.Duration{}
			}
			p.vain[id], p.vain[cmp.Or(arrays[id], id)] = now, now // the array's other tasks are alike
		}
	}
	known := func(id uint32) bool { _, ok := p.sent[id]; return ok }
	for _, j := range steward.Stayed(queue, known) {
		if err := a.changeWaiting(ctx, j.ID, j.Job, sctl.Change{TresPerNode: j.Books, AnyNode: true}); err != nil {
			a.Log.Warn("let a job run anywhere again", "job", j.ID, "error", err)
		}
	}
}

// changeWaiting changes a waiting job that is asked about alone before, and left where it
// is not what it was in the list.
func (a *Agent) changeWaiting(ctx context.Context, id uint32, j schedule.Job, change sctl.Change) error {
	now, err := a.Jobs.Job(ctx, id)
	if err != nil {
		return err
	}
	words, err := a.Jobs.Words(ctx, id)
	if err != nil {
		return err
	}
	if now.UID != j.UID || now.ArrayJobID != j.ArrayJobID || now.State != jobstate.Pending ||
		words.TresPerNode != j.TresPerNode {
		return errors.New("it is not what it was in the queue")
	}
	if now.HetJobID != 0 { // an update of the leader is one of all components (update_job_str)
		return errors.New("it is a part of a heterogeneous job")
	}
	return a.Cluster.Update(ctx, now.Target(), change)
}
