// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/steward"
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
	if a.Cluster == nil {
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
	a.rebook(ctx, a.decide(ctx, partitions, now), now)
}

// decide places a hold, if this agent is the steward, and returns the bookings to correct: what
// that takes is up to users, and no reason to rest.
func (a *Agent) decide(ctx context.Context, partitions []string, now time.Duration) []steward.Rebooking {
	began := lease.Now()
	defer func() { a.rested = now + restAfter(lease.Now()-began, a.Config.Hold.After.D()) }()
	nodes, err := a.Cluster.Nodes(ctx, partitions)
	if err != nil {
		a.Log.Warn("find the steward", "error", err)
		return nil
	}
	a.rank, a.ranked = rankOf(nodes, a.Node), now
	a.steward.Store(firstUp(nodes) == a.Node && a.rank < stewards)
	if !a.steward.Load() || a.Config.Hold.After == 0 {
		return nil
	}
	queue, err := a.Cluster.Queue(ctx, partitions)
	if err != nil {
		a.Log.Warn("read the queue", "error", err)
		return nil
	}
	in := steward.Input{Queue: queue, Nodes: nodes, FullMiB: map[string]int64{}, After: a.Config.Hold.After.D(),
		Now: time.Now()}
	gpus := map[string]int{}
	for name, p := range a.Config.Partition {
		in.FullMiB[name], gpus[name] = p.GPUMemMiB, p.GPUsPerNode
	}
	misbooked := steward.NeedsRebooking(queue, in.FullMiB, gpus)
	if a.waits == nil {
		a.waits, a.vains = steward.Waits{}, steward.Vains{}
	}
	in.Vains = a.vains
	a.restoreWaits(ctx, queue, nodes)
	if d, ok := steward.Decide(in); ok {
		a.placeHold(ctx, d, nodes)
	}
	return misbooked
}

// restoreWaits gives jobs of the queue the time since which they really wait, and finds out whose
// holds were in vain, by what this steward has seen and others have left in the anchor's Comment,
// and leaves it there.
func (a *Agent) restoreWaits(ctx context.Context, queue []schedule.Job, nodes []schedule.Node) {
	now, every := time.Now(), a.Config.Capacity.Compare.D()
	i := slices.IndexFunc(nodes, func(n schedule.Node) bool { return n.Name == jobstate.Anchor })
	if i >= 0 {
		a.waits.Learn(nodes[i].Comment, now)
		a.vains.Learn(nodes[i].Comment, now)
	}
	a.waits.Restore(queue, now, every)
	for _, s := range a.vains.Look(queue, nodes, now, every) {
		a.Log.Info("a hold was in vain; the job gets none there for a while", "job", s.Job, "node", s.Node)
	}
	if i >= 0 {
		before := nodes[i].Comment
		if after := a.vains.Comment(a.waits.Comment(before)); after != steward.Comment(before, nil) {
			if err := a.Cluster.SetNodeComment(ctx, jobstate.Anchor, after); err != nil {
				a.Log.Warn("save waiting times for the next steward", "error", err)
				return
			}
		}
	}
	for n := range nodes {
		after, said := steward.WithoutVain(nodes[n].Comment)
		if n != i && said {
			if err := a.Cluster.SetNodeComment(ctx, nodes[n].Name, after); err != nil {
				a.Log.Warn("remove a hold from the node's Comment", "error", err)
			}
			nodes[n].Comment = after
		}
	}
}

// placeHold writes a decision into the node's Comment.
func (a *Agent) placeHold(ctx context.Context, d steward.Decision, nodes []schedule.Node) {
	hold := d.Hold
	if d.Job.Unsplit() {
		var err error
		if hold.JobID, err = a.Cluster.Split(ctx, d.Job); err != nil {
			a.Log.Warn("place a hold", "job", d.Job.ID, "error", err)
			return
		}
	}
	for _, n := range nodes {
		if n.Name != d.Node {
			continue
		}
		if err := a.Cluster.SetNodeComment(ctx, n.Name, steward.Comment(n.Comment, &hold)); err != nil {
			a.Log.Warn("place a hold", "job", hold.JobID, "error", err)
			return
		}
		a.Log.Info("a request has waited long; hold placed", "job", hold.JobID, "gpus", hold.GPUs, "mib", hold.MiB, "node",
			n.Name)
	}
}

// So many bookings of one user, and of all, are corrected at one look: users decide how many need
// it, and each costs slurmctld three calls.
const (
	rebookedOfUser = 16
	rebookedOfAll  = 64
)

// rebook corrects what jobs have booked, first of those with which that was not tried for longest.
// Each is asked about alone before, and left where it is not what it was in the list.
func (a *Agent) rebook(ctx context.Context, misbooked []steward.Rebooking, now time.Duration) {
	tried, ofUser, all := map[uint32]time.Duration{}, map[uint32]int{}, 0
	for _, j := range misbooked {
		tried[j.ID] = a.tried[j.ID]
	}
	a.tried = tried
	slices.SortStableFunc(misbooked, func(x, y steward.Rebooking) int { return cmp.Compare(tried[x.ID], tried[y.ID]) })
	for _, j := range misbooked {
		if ofUser[j.UID] == rebookedOfUser || all == rebookedOfAll {
			continue
		}
		ofUser[j.UID]++
		all++
		tried[j.ID] = now
		if err := a.rebookOne(ctx, j); err != nil {
			a.Log.Warn("correct the booking of a job after an update", "job", j.ID, "error", err)
			continue
		}
		a.Log.Info("booking of a job corrected after an update", "job", j.ID)
	}
}

func (a *Agent) rebookOne(ctx context.Context, r steward.Rebooking) error {
	now, err := a.Jobs.Job(ctx, r.ID)
	if err != nil {
		return err
	}
	words, err := a.Jobs.Words(ctx, r.ID)
	if err != nil {
		return err
	}
	t := now.Target()
	if now.Unsplit {
		t = now.WaitingTasks()
	}
	if now.UID != r.UID || now.ArrayJobID != r.ArrayJobID || now.State != r.State ||
		words.TresPerNode != r.TresPerNode {
		return errors.New("it is not what it was in the queue")
	}
	if now.HetJobID != 0 { // an update of the leader is one of all components (update_job_str)
		return errors.New("it is a part of a heterogeneous job")
	}
	return a.Cluster.Update(ctx, t, sctl.Change{TresPerNode: r.Books})
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

// followComment keeps GPUs as the node's Comment says, and takes the word out
// of it when the job has started, has gone, waits for what its user has set, or did not
// come in time. It says so there where the hold was in vain, or cannot be kept.
func (a *Agent) followComment(ctx context.Context, comment string, s lease.Snapshot) {
	hold, ok := steward.ParseComment(comment)
	// Other holds that were in vain stand in no Comment: the node made them itself.
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
		if j.State != jobstate.Pending || kept >= 0 {
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
	after := steward.Comment(comment, nil)
	if vain && comes && j.State == jobstate.Pending {
		after = steward.VainComment(comment, hold)
	}
	if err := a.Cluster.SetNodeComment(ctx, a.Node, after); err != nil {
		a.Log.Warn("remove a hold from the node's Comment", "error", err)
		return
	}
	delete(a.vain, hold.JobID)
}
