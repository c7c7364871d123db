// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"carma/slurmbridge/extra"
	"carma/slurmbridge/features"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
)

// Releases are the jobs released by the steward.
//
// slurmctld compares a job's constraint with all nodes of the cluster. Where the only nodes that satisfy the
// constraint are no nodes for the job (of another partition, without the features, not named), slurmctld believes
// that the job can never run, and holds it: BadConstraints, priority 0 (_build_node_list and schedule, 24.11.5 to
// 26.05.3). Nothing but a release ends the hold, and a release before a node of the job's satisfies the constraint
// ends in the same way.
type Releases map[task]released

// task is a job, or a task of an array.
type task struct{ id, array uint32 }

type released struct {
	at    time.Time
	tries int // in a row
}

// So many releases are made at once, and of one user: each is a request to slurmctld.
const (
	releasesOfAll  = 32
	releasesOfUser = 8
)

// A job that is held again at once waits for something else than GPUs (more memory than any free node has, say),
// or others were faster. The next release comes after releaseAgain, then after twice as long, and so on.
const (
	releaseAgain     = 10 * time.Second
	longestReleaseIn = 5 * time.Minute
	mostDoublings    = 5
)

// Due returns the held jobs to release now, as a node of the job's can take each. The longest wait comes first:
// slurmctld tells the priority of no held job.
func (r Releases) Due(in Input, tags extra.Tags) (due []schedule.Job) {
	places := places{in: in, tags: tags, searches: map[uint32]int{}, known: map[wish]bool{}}
	held := map[task]bool{}
	var waiting []*schedule.Job
	for i := range in.Queue {
		j := &in.Queue[i]
		if j.State != jobstate.Pending || j.Reason != jobstate.BadConstraints || j.MiB == 0 {
			continue
		}
		t := task{j.ID, j.ArrayTask}
		held[t] = true
		if was, again := r[t]; again &&
			in.Now.Sub(was.at) < min(releaseAgain<<min(was.tries-1, mostDoublings), longestReleaseIn) {
			continue
		}
		waiting = append(waiting, j)
	}
	for t, was := range r {
		if !held[t] && in.Now.Sub(was.at) > longestReleaseIn {
			delete(r, t)
		}
	}
	slices.SortStableFunc(waiting, func(a, b *schedule.Job) int {
		return cmp.Or(a.Eligible.Compare(b.Eligible), cmp.Compare(a.ID, b.ID), cmp.Compare(a.ArrayTask, b.ArrayTask))
	})
	ofUser := map[uint32]int{}
	for _, j := range waiting {
		if len(due) == releasesOfAll {
			break
		}
		if ofUser[j.UID] == releasesOfUser || !places.take(j) {
			continue
		}
		ofUser[j.UID]++
		t := task{j.ID, j.ArrayTask}
		r[t] = released{in.Now, r[t].tries + 1}
		due = append(due, *j)
	}
	return due
}

// places finds out which jobs could start somewhere.
type places struct {
	in       Input
	tags     extra.Tags
	counts   []map[string]int64 // of in.Nodes, when first asked for
	known    map[wish]bool      // results of searches
	searches map[uint32]int     // of a user
}

// wish is what tells one search from another.
type wish struct {
	uid                           uint32
	partition, reqNodes, features string
	gpus, nodes                   int
	mib                           int64
}

// take tells whether as many nodes as a job asks for, of the nodes that the job can have, satisfy the job's
// constraint by the counts that they publish. A user's further searches are not made: users decide how many jobs
// wait.
func (p *places) take(j *schedule.Job) bool {
	at := wish{j.UID, j.Partition, j.ReqNodes, j.Features, j.GPUs, j.NodeCount, j.MiB}
	can, known := p.known[at]
	if !known && p.searches[j.UID] < searchesOfUser && len(p.known) < searchesOfAll {
		p.searches[j.UID]++
		can = p.search(j)
		p.known[at] = can
	}
	return can
}

func (p *places) search(j *schedule.Job) bool {
	if len(j.Features) > longestConstraint {
		return false
	}
	wanted, err := features.Parse(j.Features)
	if err != nil {
		return false
	}
	names, _ := hostlist.Expand(j.ReqNodes)
	partitions := partitionsOf(j)
	key, least := extra.Key(j.GPUs), j.MiB
	if p.in.takesAll(j) {
		key, least = extra.All, int64(j.GPUs)
	}
	own := extra.UserKey(j.GPUs, p.tags.Of(j.UID))
	left := max(j.NodeCount, 1)
	for i, n := range p.in.Nodes {
		if !n.Up || n.GPUs == 0 || len(names) > 0 && !slices.Contains(names, n.Name) ||
			!slices.ContainsFunc(partitions, func(name string) bool { return slices.Contains(n.Partitions, name) }) {
			continue
		}
		if counts := p.countsOf(i); max(counts[key], counts[own]) < least {
			continue
		}
		has := strings.Split(n.Features, ",")
		if !wanted.May(func(f string) bool { return slices.Contains(has, f) }, j.NodeCount) {
			continue
		}
		if left--; left == 0 {
			return true
		}
	}
	return false
}

func (p *places) countsOf(i int) map[string]int64 {
	if p.counts == nil {
		p.counts = make([]map[string]int64, len(p.in.Nodes))
	}
	if p.counts[i] == nil {
		p.counts[i], _ = extra.Counts(p.in.Nodes[i].Extra) // a text that is no JSON has none
		if p.counts[i] == nil {
			p.counts[i] = map[string]int64{}
		}
	}
	return p.counts[i]
}
