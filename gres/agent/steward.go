// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"carma/gres/capacity"
	"carma/gres/lease"
	"carma/gres/steward"
	"carma/slurmbridge/config"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/schedule"
)

// The steward is the agent of the first node that is up, of these many by name: the
// other agents need not look which node has the steward. Their rank is looked up again
// so often.
const (
	stewards  = 3
	rankEvery = time.Hour
	// slurmctld packs all nodes to tell which are up: of so many more nodes each asks an hour more rarely.
	manyNodes = 1000
	// first looks of all agents together, when the agents start together: all nodes cost slurmctld 10 ms where there
	// are 1,000 (slurmbridge/sctl, ofNode)
	firstLooksPerSecond = 5
	// times as long as its questions for nodes and jobs took, the steward rests before it asks again:
	// what slurmctld spends on the answers, a fifth of this time or less, stays below 1 % of a core
	stewardRests = 20
	longestRest  = 5 * time.Minute // also where slurmctld did not answer
)

// Steward is the part of an agent for the queue of the cluster, where the agent is the steward: holds, jobs to
// release, jobs to send where they preempt others.
type Steward struct {
	Node    string
	Config  *config.Config
	Log     *slog.Logger
	Cluster Cluster
	Jobs    Known
	Own     OwnNode

	publishing *atomic.Bool // the agent publishes: slurmctld compares constraints
	is         atomic.Bool  // this agent is the steward; keep tells sendPreemptors
	nodes      atomic.Int64 // in the partitions; keep tells the agent's compare
	placing    sync.Mutex   // keep and sendPreemptors place holds

	// keep:
	waits    steward.Waits
	vains    steward.Vains
	releases steward.Releases
	rank     int // of this node among the nodes that may have the steward
	ranked   time.Duration
	counted  time.Duration            // when the nodes were counted
	rested   time.Duration            // until then the steward rests
	refused  map[uint32]time.Duration // users for whom no hold could be placed, and until when other users come first

	// sendPreemptors:
	preemptors preemptors
}

// restAfter is how long the steward rests after questions that took so long. On a busy node
// questions may take long that cost slurmctld nothing; no hold is to come much later because
// of this.
func restAfter(took, holdAfter time.Duration) time.Duration {
	longest := longestRest
	if holdAfter > 0 {
		longest = min(longest, holdAfter/4)
	}
	return min(stewardRests*took, longest)
}

// keep does the steward's work, if the agent is the steward.
func (s *Steward) keep(ctx context.Context, now time.Duration) {
	if !s.publishing.Load() {
		return
	}
	partitions := s.Config.PartitionNames()
	if s.counted == 0 || now-s.counted >= rankEvery {
		names, err := s.Cluster.NodeNames(ctx, partitions)
		if err != nil {
			s.Log.Warn("find the steward", "error", err)
			return
		}
		s.nodes.Store(int64(len(names)))
		if i := slices.Index(names, s.Node); s.counted == 0 && (i < 0 || i >= stewards) { // the first look at once
			all := time.Duration(len(names)) * time.Second / firstLooksPerSecond
			s.rested = now + time.Duration(float64(all)*capacity.Phase(s.Node))
		}
		s.counted = now
	}
	if s.ranked != 0 && s.rank >= stewards && now-s.ranked < rankEvery*time.Duration(1+s.nodes.Load()/manyNodes) ||
		now < s.rested {
		return
	}
	s.decide(ctx, partitions, now)
}

// decide places a hold, if the agent is the steward.
func (s *Steward) decide(ctx context.Context, partitions []string, now time.Duration) {
	began := lease.Now()
	defer func() { s.rested = now + restAfter(lease.Now()-began, s.Config.Hold.After.D()) }()
	nodes, err := s.Cluster.Nodes(ctx, partitions)
	if err != nil {
		s.Log.Warn("find the steward", "error", err)
		return
	}
	s.rank, s.ranked = rankOf(nodes, s.Node), now
	s.is.Store(firstUp(nodes) == s.Node && s.rank < stewards)
	if !s.is.Load() {
		return
	}
	queue, err := s.Cluster.Queue(ctx, partitions)
	if err != nil {
		s.Log.Warn("read the queue", "error", err)
		return
	}
	if s.waits == nil {
		s.waits, s.vains, s.releases = steward.Waits{}, steward.Vains{}, steward.Releases{}
		s.refused = map[uint32]time.Duration{}
	}
	in := steward.Input{Sizes: s.sizes(), Queue: queue, Nodes: nodes, After: s.Config.Hold.After.D(), Now: time.Now(),
		Vains: s.vains}
	s.release(ctx, in)
	if s.Config.Hold.After == 0 {
		return
	}
	s.restoreWaits(ctx, queue, nodes)
	maps.DeleteFunc(s.refused, func(_ uint32, until time.Duration) bool { return until <= now })
	in.Queue = slices.DeleteFunc(slices.Clone(queue), func(j schedule.Job) bool { return s.refused[j.UID] > now })
	d, ok := steward.Decide(in)
	if !ok {
		return
	}
	if err := s.place(ctx, &d); err != nil {
		s.Log.Warn("place a hold", "job", d.Job.ID, "node", d.Node, "error", err)
		s.refused[d.Job.UID] = now + steward.VainAfter
		return
	}
	s.Log.Info("a request has waited long; hold placed", "job", d.Hold.JobID, "gpus", d.Hold.GPUs, "mib", d.Hold.MiB,
		"node", d.Node)
}

// place places a hold, for a task of an array once the task is a job of its own. slurmctld may refuse to change a job
// for as long as the job waits: by a number of CPUs, say, that does not go with CPUs for each GPU.
func (s *Steward) place(ctx context.Context, d *steward.Decision) error {
	if d.Job.Unsplit() {
		id, err := s.Cluster.Split(ctx, d.Job)
		if err != nil {
			return err
		}
		d.Hold.JobID = id
	}
	return s.placeHold(ctx, d.Node, d.Hold)
}

// release releases the jobs held by slurmctld though nodes of theirs can take them now.
func (s *Steward) release(ctx context.Context, in steward.Input) {
	tags, err := extra.ReadTags(s.Config.Slurm.UserKey, os.ReadFile)
	if err != nil {
		s.Log.Warn("release jobs that slurmctld holds for BadConstraints", "error", err)
		return
	}
	for _, j := range s.releases.Due(in, tags) {
		if err := s.Cluster.ReleaseBad(ctx, j); err != nil {
			s.Log.Warn("release a job that slurmctld holds for BadConstraints", "job", j.ID, "error", err)
			continue
		}
		s.Log.Info("slurmctld held a job though its nodes are but full; it is released", "job", j.ID)
	}
}

func (s *Steward) sizes() steward.Sizes {
	sizes := steward.Sizes{FullMiB: map[string]int64{}, GPUs: map[string]int{}}
	for name, p := range s.Config.Partition {
		sizes.FullMiB[name], sizes.GPUs[name] = p.GPUMemMiB, p.GPUsPerNode
	}
	return sizes
}

// restoreWaits gives jobs of the queue the time since when each really waits, and finds holds that were in
// vain, by what the steward has seen and what earlier stewards have left in the Extra of nodes, and leaves
// both in the Extra of the own node.
func (s *Steward) restoreWaits(ctx context.Context, queue []schedule.Job, nodes []schedule.Node) {
	now, every := time.Now(), s.Config.Capacity.Compare.D()
	for i := range nodes {
		s.waits.Learn(extra.Word(nodes[i].Extra, extra.Waits), now)
		s.vains.Learn(extra.Word(nodes[i].Extra, extra.Vains), now)
	}
	s.waits.Restore(queue, now, every)
	for _, v := range s.vains.Look(queue, nodes, now, every) {
		s.Log.Info("a hold was in vain; the job gets none there for a while", "job", v.Job, "node", v.Node)
	}
	// The own node first: what others have left is removed once the same stands
	// here.
	left := map[string]string{extra.Waits: s.waits.Word(), extra.Vains: s.vains.Word(), extra.Vain: ""}
	if err := s.leave(ctx, nodes, func(name string) bool { return name == s.Node }, left); err != nil {
		s.Log.Warn("save waiting times for the next steward", "error", err)
		return
	}
	none := map[string]string{extra.Waits: "", extra.Vains: "", extra.Vain: ""}
	if err := s.leave(ctx, nodes, func(name string) bool { return name != s.Node }, none); err != nil {
		s.Log.Warn("remove words from a node's Extra", "error", err)
	}
}

// leave sets words in the Extra of some nodes, where others stand.
func (s *Steward) leave(ctx context.Context, nodes []schedule.Node, which func(name string) bool,
	words map[string]string) error {
	var errs []error
	for _, n := range nodes {
		changed := map[string]string{}
		for key, word := range words {
			if which(n.Name) && extra.Word(n.Extra, key) != word {
				changed[key] = word
			}
		}
		if len(changed) > 0 {
			errs = append(errs, s.setWords(ctx, n.Name, changed))
		}
	}
	return errors.Join(errs...)
}

// placeHold has a node keep GPUs for a job, or preempt others for it.
func (s *Steward) placeHold(ctx context.Context, node string, h steward.Hold) error {
	s.placing.Lock()
	defer s.placing.Unlock()
	text, err := s.Cluster.Node(ctx, node)
	if err != nil {
		return err
	}
	if other, held := steward.HoldIn(text); held {
		return fmt.Errorf("node %s has a hold for job %d meanwhile", node, other.JobID)
	}
	return s.setWords(ctx, node, map[string]string{extra.Hold: h.String()})
}

// setWords sets words in a node's Extra. The node may write there at the same moment, as the steward may in the
// Extra of another node: a lost word or count is written again.
func (s *Steward) setWords(ctx context.Context, node string, words map[string]string) error {
	if node == s.Node {
		return s.Own.SetWords(ctx, words)
	}
	before, err := s.Cluster.Node(ctx, node)
	if err != nil {
		return err
	}
	after, err := steward.SetWords(before, words)
	if err != nil || after == before {
		return err
	}
	return s.Cluster.SetNodeExtra(ctx, node, after)
}

// rankOf is how many nodes that may have the steward come before this one: nodes
// that are off, or away, leave the role to others.
func rankOf(nodes []schedule.Node, node string) int {
	rank := 0
	for _, n := range nodes {
		if n.Name == node {
			return rank
		}
		if n.GPUs > 0 && n.Lives {
			rank++
		}
	}
	return stewards
}

func firstUp(nodes []schedule.Node) string {
	for _, n := range nodes {
		if n.Lives && n.GPUs > 0 {
			return n.Name
		}
	}
	return ""
}
