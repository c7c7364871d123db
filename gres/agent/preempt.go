// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"carma/gres/lease"
	"carma/gres/steward"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
)

// preemptors is what the steward knows of jobs that may preempt others.
type preemptors struct {
	rules  schedule.Preemption
	asked  time.Duration   // about the rules
	looked time.Duration   // the last time
	took   time.Duration   // to ask for the queue
	waited map[uint32]bool // at the last look
	sent   map[uint32]sent
	vain   map[uint32]time.Duration // when a job sent in vain was let go
}

// sent is where a job was sent, and when.
type sent struct {
	node string
	at   time.Duration
}

// slurmctld is asked so often for the rules of preemption, and, where somebody may
// preempt, for the waiting jobs; a job that was sent to a node and does not start
// there is let go after so long.
const (
	rulesEvery = time.Minute
	waitsEvery = 3 * time.Second
	sentFor    = 5 * time.Minute
	vainFor    = 30 * time.Minute // the job is not sent again
	// times the time that the question for the queue took: a long queue costs slurmctld a tenth
	// of a core at most
	restFor = 10
)

// sendPreemptors sends jobs that may preempt others, and wait at two looks, to a node. At
// the first look slurmctld may just not have come to them.
func (s *Steward) sendPreemptors(ctx context.Context, now time.Duration) {
	p := &s.preemptors
	if !s.is.Load() {
		p.sent = nil // another steward looks after them
		return
	}
	if now-p.looked < restFor*p.took {
		return
	}
	p.looked = now
	if p.asked == 0 || now-p.asked >= rulesEvery {
		p.asked = now
		rules, err := s.Cluster.Preemption(ctx)
		if err != nil {
			s.Log.Warn("query which jobs may preempt others", "error", err)
			return
		}
		p.rules = rules
	}
	if !p.rules.ByPartition && !p.rules.ByQOS {
		return
	}
	partitions := s.preempted()
	asked := lease.Now()
	queue, err := s.Cluster.Queue(ctx, partitions)
	p.took = lease.Now() - asked
	if err != nil {
		s.Log.Warn("look for jobs that preempt", "error", err)
		return
	}
	ours := func(name string) bool {
		_, ok := s.Config.Partition[name]
		return ok && !s.Config.RecoveryOf(name)
	}
	waiting := s.waitingPreemptors(queue, ours)
	var nodes []schedule.Node
	if len(waiting) > 0 || p.sent == nil {
		if nodes, err = s.Cluster.Nodes(ctx, s.Config.PartitionNames()); err != nil {
			s.Log.Warn("look for jobs that preempt", "error", err)
			return
		}
		s.learnSent(nodes, now)
	}
	s.letGo(ctx, queue, now)
	for _, j := range steward.Preempt(queue, nodes, p.rules, ours, s.sizes(), time.Now()) {
		if _, vain := p.vain[j.ID]; vain || !p.waited[j.ID] {
			continue
		}
		if err := s.send(ctx, j, now); err != nil {
			s.Log.Warn("send a job to a node where it preempts others", "job", j.ID, "node", j.Node, "error", err)
			continue
		}
		s.Log.Info("a job is sent to a node where it preempts others", "job", j.ID, "node", j.Node)
	}
	p.waited = waiting
}

// learnSent takes over the jobs that another steward has sent.
func (s *Steward) learnSent(nodes []schedule.Node, now time.Duration) {
	p := &s.preemptors
	if p.sent == nil {
		p.sent = map[uint32]sent{}
	}
	for i := range nodes {
		h, ok := steward.HoldIn(nodes[i].Extra)
		if _, known := p.sent[h.JobID]; ok && h.Preempts != "" && !known {
			p.sent[h.JobID] = sent{nodes[i].Name, now}
		}
	}
}

// preempted lists the partitions whose jobs may be on our nodes.
func (s *Steward) preempted() []string {
	names := s.Config.PartitionNames()
	for name := range s.preemptors.rules.Rules {
		if s.preemptors.rules.ByPartition && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// waitingPreemptors are the jobs of the queue that wait for room and may preempt others.
func (s *Steward) waitingPreemptors(queue []schedule.Job, ours func(string) bool) map[uint32]bool {
	waiting := map[uint32]bool{}
	for _, j := range queue {
		if j.State != jobstate.Pending || !j.Reason.IsRoom() {
			continue
		}
		for partition := range strings.SplitSeq(j.Partition, ",") {
			self := schedule.Preemptible{Partition: partition, QOS: j.QOS}
			if ours(partition) && s.preemptors.rules.Preempts(self) {
				waiting[j.ID] = true
			}
		}
	}
	return waiting
}

// send lets a node's Extra tell slurmctld that the node has the memory for the job's user, and the job's
// Prolog that it is to preempt others. The job alone is asked about before, and left where it has changed
// since it was listed.
func (s *Steward) send(ctx context.Context, j steward.Preemptor, now time.Duration) (err error) {
	id := j.ID
	if j.Unsplit() {
		if id, err = s.Cluster.Split(ctx, j.Job); err != nil {
			return err
		}
	}
	is, err := s.Jobs.Job(ctx, id)
	if err != nil {
		return err
	}
	if is.UID != j.UID || is.ArrayJobID != j.ArrayJobID || is.State != jobstate.Pending {
		return errors.New("it is not what it was in the queue")
	}
	if is.HetJobID != 0 { // its Prolog preempts for all components or none
		return errors.New("it is a part of a heterogeneous job")
	}
	tags, err := extra.ReadTags(s.Config.Slurm.UserKey, os.ReadFile)
	if err != nil {
		return err
	}
	hold := steward.Hold{JobID: id, GPUs: j.GPUs, MiB: j.MiB, Since: time.Now(), Preempts: tags.Of(j.UID)}
	if err := s.placeHold(ctx, j.Node, hold); err != nil {
		return err
	}
	s.preemptors.sent[id] = sent{j.Node, now}
	return nil
}

// letGo ends the sending of jobs to nodes where they have started, or cannot: a job that cannot run there
// at all (--exclude, memory), or that its user holds, keeps the node from others.
func (s *Steward) letGo(ctx context.Context, queue []schedule.Job, now time.Duration) {
	p := &s.preemptors
	for id, at := range p.vain {
		if now-at >= vainFor {
			delete(p.vain, id)
		}
	}
	if len(p.sent) == 0 {
		return
	}
	jobs := map[uint32]*schedule.Job{}
	for i := range queue {
		jobs[queue[i].ID] = &queue[i]
	}
	for id, to := range p.sent {
		j, waits := jobs[id], false
		if j != nil {
			waits = j.State == jobstate.Pending
			comes := waits && !j.Reason.IsOfItsUser() && now-to.at < sentFor
			inProlog := j.Reason == jobstate.InProlog && hostlist.Contains(j.Nodes, to.node)
			if comes || inProlog && now-to.at < steward.HoldTimeout {
				continue
			}
		}
		if waits {
			if p.vain == nil {
				p.vain = map[uint32]time.Duration{}
			}
			p.vain[id], p.vain[cmp.Or(j.ArrayJobID, id)] = now, now // the array's other tasks are alike
		}
		if err := s.endSent(ctx, id, to.node); err != nil { // the next look tries again
			s.Log.Warn("end the hold of a job that was to preempt others", "job", id, "node", to.node, "error", err)
			continue
		}
		delete(p.sent, id)
	}
}

// endSent takes the hold out of the node's Extra, unless another job's hold stands
// there by now.
func (s *Steward) endSent(ctx context.Context, id uint32, node string) error {
	text, err := s.Cluster.Node(ctx, node)
	if err != nil {
		return err
	}
	if h, _ := steward.HoldIn(text); h.JobID != id || h.Preempts == "" {
		return nil
	}
	return s.setWords(ctx, node, map[string]string{extra.Hold: ""})
}
