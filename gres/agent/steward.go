// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/steward"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// The steward is the agent of the first node that is up, of these many by name:
// the others need not look who that is. Their rank is looked up again so often.
const (
	stewards  = 3
	rankEvery = time.Hour
	// slurmctld packs all nodes to tell which are up: of so many more nodes each asks an hour more rarely.
	manyNodes = 1000
	// times what asking for nodes and jobs took, the steward rests before it asks again: what
	// slurmctld spends on it, a fifth of that or less, stays below 1 % of a core
	stewardRests = 20
	longestRest  = 5 * time.Minute // also where slurmctld did not answer
)

// restAfter is how long the steward rests after questions that took so long. On a busy node they
// take long that cost slurmctld nothing; no hold is to come much later for it.
func restAfter(took, holdAfter time.Duration) time.Duration {
	longest := longestRest
	if holdAfter > 0 {
		longest = min(longest, holdAfter/4)
	}
	return min(stewardRests*took, longest)
}

// keepSteward does the steward's work if it is this agent's.
func (a *Agent) keepSteward(ctx context.Context, now time.Duration) {
	if a.Cluster == nil || !a.publishing.Load() {
		return
	}
	partitions := a.Config.PartitionNames()
	if a.counted == 0 || now-a.counted >= rankEvery {
		names, err := a.Cluster.NodeNames(ctx, partitions)
		if err != nil {
			a.Log.Warn("find the steward", "error", err)
			return
		}
		a.nodes.Store(int64(len(names)))
		a.counted = now
	}
	if a.ranked != 0 && a.rank >= stewards && now-a.ranked < rankEvery*time.Duration(1+a.nodes.Load()/manyNodes) ||
		now < a.rested {
		return
	}
	a.decide(ctx, partitions, now)
}

// decide places a hold, if this agent is the steward.
func (a *Agent) decide(ctx context.Context, partitions []string, now time.Duration) {
	began := lease.Now()
	defer func() { a.rested = now + restAfter(lease.Now()-began, a.Config.Hold.After.D()) }()
	nodes, err := a.Cluster.Nodes(ctx, partitions)
	if err != nil {
		a.Log.Warn("find the steward", "error", err)
		return
	}
	a.rank, a.ranked = rankOf(nodes, a.Node), now
	a.steward.Store(firstUp(nodes) == a.Node && a.rank < stewards)
	if !a.steward.Load() {
		return
	}
	queue, err := a.Cluster.Queue(ctx, partitions)
	if err != nil {
		a.Log.Warn("read the queue", "error", err)
		return
	}
	if a.waits == nil {
		a.waits, a.vains, a.releases = steward.Waits{}, steward.Vains{}, steward.Releases{}
	}
	in := steward.Input{Sizes: a.sizes(), Queue: queue, Nodes: nodes, After: a.Config.Hold.After.D(), Now: time.Now(),
		Vains: a.vains}
	a.release(ctx, in)
	if a.Config.Hold.After == 0 {
		return
	}
	a.restoreWaits(ctx, queue, nodes)
	d, ok := steward.Decide(in)
	if !ok {
		return
	}
	if d.Job.Unsplit() {
		if d.Hold.JobID, err = a.Cluster.Split(ctx, d.Job); err != nil {
			a.Log.Warn("place a hold", "job", d.Job.ID, "error", err)
			return
		}
	}
	if err := a.placeHold(ctx, d.Node, d.Hold); err != nil {
		a.Log.Warn("place a hold", "job", d.Hold.JobID, "error", err)
		return
	}
	a.Log.Info("a request has waited long; hold placed", "job", d.Hold.JobID, "gpus", d.Hold.GPUs, "mib", d.Hold.MiB,
		"node", d.Node)
}

// release releases the jobs that slurmctld holds though nodes of theirs can take them now.
func (a *Agent) release(ctx context.Context, in steward.Input) {
	tags, err := extra.ReadTags(a.Config.Slurm.UserKey, os.ReadFile)
	if err != nil {
		a.Log.Warn("release jobs that slurmctld holds for BadConstraints", "error", err)
		return
	}
	for _, j := range a.releases.Due(in, tags) {
		if err := a.Cluster.ReleaseBad(ctx, j); err != nil {
			a.Log.Warn("release a job that slurmctld holds for BadConstraints", "job", j.ID, "error", err)
			continue
		}
		a.Log.Info("slurmctld held a job though its nodes are but full; it is released", "job", j.ID)
	}
}

func (a *Agent) sizes() steward.Sizes {
	s := steward.Sizes{FullMiB: map[string]int64{}, GPUs: map[string]int{}}
	for name, p := range a.Config.Partition {
		s.FullMiB[name], s.GPUs[name] = p.GPUMemMiB, p.GPUsPerNode
	}
	return s
}

// restoreWaits gives jobs of the queue the time since which they really wait, and finds out whose
// holds were in vain, by what this steward has seen and others have left in their nodes' Extra,
// and leaves it in that of its own node.
func (a *Agent) restoreWaits(ctx context.Context, queue []schedule.Job, nodes []schedule.Node) {
	now, every := time.Now(), a.Config.Capacity.Compare.D()
	for i := range nodes {
		a.waits.Learn(extra.Word(nodes[i].Extra, extra.Waits), now)
		a.vains.Learn(extra.Word(nodes[i].Extra, extra.Vains), now)
	}
	a.waits.Restore(queue, now, every)
	for _, s := range a.vains.Look(queue, nodes, now, every) {
		a.Log.Info("a hold was in vain; the job gets none there for a while", "job", s.Job, "node", s.Node)
	}
	// The own node first: what others have left goes when it stands here.
	left := map[string]string{extra.Waits: a.waits.Word(), extra.Vains: a.vains.Word(), extra.Vain: ""}
	if err := a.leave(ctx, nodes, func(name string) bool { return name == a.Node }, left); err != nil {
		a.Log.Warn("save waiting times for the next steward", "error", err)
		return
	}
	none := map[string]string{extra.Waits: "", extra.Vains: "", extra.Vain: ""}
	if err := a.leave(ctx, nodes, func(name string) bool { return name != a.Node }, none); err != nil {
		a.Log.Warn("remove words from a node's Extra", "error", err)
	}
}

// leave sets words in the Extra of some nodes, where they are others.
func (a *Agent) leave(ctx context.Context, nodes []schedule.Node, which func(name string) bool,
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
			errs = append(errs, a.setWords(ctx, n.Name, changed))
		}
	}
	return errors.Join(errs...)
}

// placeHold has a node keep GPUs for a job, or preempt others for it.
func (a *Agent) placeHold(ctx context.Context, node string, h steward.Hold) error {
	a.placing.Lock()
	defer a.placing.Unlock()
	text, err := a.Cluster.Node(ctx, node)
	if err != nil {
		return err
	}
	if other, held := steward.HoldIn(text); held {
		return fmt.Errorf("node %s has a hold for job %d meanwhile", node, other.JobID)
	}
	return a.setWords(ctx, node, map[string]string{extra.Hold: h.String()})
}

// setWords sets words in a node's Extra. The node itself may write there at the same moment, as this one may in
// its own: who has lost a word or a count writes it again.
func (a *Agent) setWords(ctx context.Context, node string, words map[string]string) error {
	if node == a.Node {
		return a.Publisher.SetWords(ctx, words)
	}
	before, err := a.Cluster.Node(ctx, node)
	if err != nil {
		return err
	}
	after, err := steward.SetWords(before, words)
	if err != nil || after == before {
		return err
	}
	return a.Cluster.SetNodeExtra(ctx, node, after)
}

// rankOf is how many nodes come before this one that may have the steward: those that are
// off, or away, leave it to others.
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

// followExtra keeps GPUs as the node's Extra says, and takes the word out
// of it when the job has started, has gone, waits for what its user has set, or did not
// come in time. It says so there where the hold was in vain, or cannot be kept.
func (a *Agent) followExtra(ctx context.Context, text string, s lease.Snapshot) {
	hold, ok := steward.HoldIn(text)
	// Other holds that were in vain stand in no Extra: the node made them itself.
	maps.DeleteFunc(a.vain, func(id uint32, _ time.Time) bool { return id != hold.JobID })
	if !ok || a.Cluster == nil {
		return
	}
	j, err := a.Jobs.Job(ctx, hold.JobID)
	comes := false
	if err == nil {
		comes = a.comes(j)
	}
	if err != nil && !errors.Is(err, sctl.ErrNoJob) {
		a.Log.Warn("query a job that is to get a hold", "job", hold.JobID, "error", err)
		return
	}
	age := time.Since(hold.Since)
	kept := slices.IndexFunc(s.Holds, func(h lease.Hold) bool { return h.JobID == hold.JobID })
	if kept >= 0 {
		age = s.Holds[kept].Age // by a clock that nobody sets
	}
	// Its time is over, whatever the steward's clock says, unless the steward decided anew since.
	ended, vain := a.vain[hold.JobID]
	vain = vain && ended.Sub(hold.Since) > steward.HoldTimeout/2
	if comes && age < steward.HoldTimeout && !vain {
		if j.State != jobstate.Pending || kept >= 0 || hold.Preempts != "" { // for that its Prolog keeps GPUs
			return
		}
		if a.Thresholds.MaxSlowdown > 0 {
			hold.MiB = 0 // what the job expects is known to its Prolog
		}
		r := a.kept(hold.JobID, j.UID, hold.GPUs, hold.MiB)
		if uuids := choose.Soonest(a.strictest(), s.Readings, s.Leases, r, a.Thresholds); uuids != nil {
			a.Log.Info("hold started", "job", hold.JobID, "gpus", uuids, "mib", hold.MiB)
			if err := a.Ledger.Hold(ctx, hold.JobID, j.UID, hold.GPUs, hold.MiB, uuids); err != nil {
				a.Log.Error("start a hold", "error", err)
			}
			return
		}
		a.Log.Warn("place a hold", "job", hold.JobID, "error", "too few GPUs here accept jobs")
		// The steward is to look for another node, unless GPUs are but held for others, which ends soon.
		unheld := slices.Clone(s.Readings)
		for i := range unheld {
			unheld[i].HeldFor = 0
		}
		vain = choose.Soonest(a.strictest(), unheld, s.Leases, r, a.Thresholds) == nil
	}
	if err := a.Ledger.DropHold(ctx, hold.JobID); err != nil {
		a.Log.Error("end a hold", "error", err)
	}
	words := map[string]string{extra.Hold: ""}
	if vain && comes && j.State == jobstate.Pending {
		words[extra.Vain] = steward.VainWord(hold)
	}
	if err := a.Publisher.SetWords(ctx, words); err != nil {
		a.Log.Warn("remove a hold from the node's Extra", "error", err)
		return
	}
	delete(a.vain, hold.JobID)
}
