// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"carma/slurmbridge/features"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
)

// index has at hand what is asked about each waiting job, so that no waiting job costs
// a look at all jobs, and few cost a look at all nodes: users decide how many jobs
// wait.
type index struct {
	in      Input
	held    map[uint32]bool    // jobs that nodes keep GPUs for, or that are sent to preempt
	started map[string][]start // by partition, first those that come last in the queue
	// By partition, in the order of ids; latest is of the job and all behind the job.
	startedByID map[string][]start
	free        map[string][]*node // by partition, the soonest free first
	nodes       map[string]*node   // by name
	classes     [][]string         // features of nodes
	looks       int                // at a job or a node, for a test
}

// smallest is the least GPU memory among the partitions of a waiting job: a job that
// names several is booked so that it can run in each of them. 0: not known.
func smallest(fullMiB map[string]int64, partitions string) (mib int64) {
	for p := range strings.SplitSeq(partitions, ",") {
		if full := fullMiB[p]; full > 0 && (mib == 0 || full < mib) {
			mib = full
		}
	}
	return mib
}

// start is a running job of ours.
type start struct {
	priority int64
	id       uint32
	latest   time.Time // latest start in the list up to here
}

// node is a node that may keep GPUs.
type node struct {
	schedule.Node
	hash  uint16 // of its name
	class int    // of its features
	jobs  int    // running
	end   time.Time
}

// search is what tells one search for a node from another.
type search struct {
	partition, reqNodes, features string
	gpus                          int
	several                       bool   // nodes
	skipped                       string // nodes where its holds were in vain
}

// So many searches of a partition for one user, and for all, are made for one decision, by turns.
const (
	searchesOfUser = 16
	searchesOfAll  = 256
)

// longestConstraint is longer than any constraint that a person writes.
const longestConstraint = 1024

func newIndex(in Input) *index {
	x := &index{in: in, held: map[uint32]bool{}, started: map[string][]start{},
		startedByID: map[string][]start{}, free: map[string][]*node{},
		nodes: map[string]*node{}}
	classOf := map[string]int{}
	for _, n := range in.Nodes {
		x.looks++
		if !n.Up || n.GPUs == 0 {
			continue
		}
		if h, taken := HoldIn(n.Extra); taken {
			x.held[h.JobID] = true
			continue
		}
		class, ok := classOf[n.Features]
		if !ok {
			class = len(x.classes)
			classOf[n.Features] = class
			x.classes = append(x.classes, strings.Split(n.Features, ","))
		}
		x.nodes[n.Name] = &node{Node: n, hash: hashOf(n.Name), class: class}
	}
	for i := range in.Queue {
		if j := &in.Queue[i]; j.State == jobstate.Running {
			x.run(j)
		}
	}
	for partition, list := range x.started {
		byID := slices.SortedFunc(slices.Values(list), func(a, b start) int { return cmp.Compare(a.id, b.id) })
		for i := len(byID) - 2; i >= 0; i-- {
			if after := byID[i+1].latest; after.After(byID[i].latest) {
				byID[i].latest = after
			}
		}
		x.startedByID[partition] = byID
		slices.SortFunc(list, func(a, b start) int {
			return cmp.Or(cmp.Compare(a.priority, b.priority),
				cmp.Compare(b.id, a.id))
		})
		for i := 1; i < len(list); i++ {
			if before := list[i-1].latest; before.After(list[i].latest) {
				list[i].latest = before
			}
		}
	}
	// By name first, which the order of nodes is.
	for _, n := range in.Nodes {
		if own := x.nodes[n.Name]; own != nil {
			for _, p := range n.Partitions {
				x.free[p] = append(x.free[p], own)
			}
		}
	}
	for _, list := range x.free {
		slices.SortStableFunc(list, func(a, b *node) int { return cmp.Or(cmp.Compare(a.jobs, b.jobs), a.end.Compare(b.end)) })
	}
	return x
}

// run counts a running job on its nodes and among the jobs that may have passed others.
func (x *index) run(j *schedule.Job) {
	names, _ := hostlist.Expand(j.Nodes)
	for _, name := range names {
		x.looks++
		if n := x.nodes[name]; n != nil {
			n.jobs++
			if j.End.After(n.end) {
				n.end = j.End
			}
		}
	}
	if j.MiB > 0 {
		x.started[j.Partition] = append(x.started[j.Partition], start{j.Priority, j.ID, j.Start})
	}
}

// waits tells whether a job waits for GPUs of ours and for nothing else. A job whose place we cannot
// judge is left alone. slurmctld plans the start of a job that takes all GPUs of its nodes; beside
// jobs without a time limit it cannot, and a hold helps where one node is enough.
func (x *index) waits(j *schedule.Job) bool {
	if j.MiB == 0 || j.State != jobstate.Pending || j.Reservation != "" || j.NodeCount > 1 && x.in.takesAll(j) {
		return false
	}
	return j.Reason.IsRoom()
}

// large tells whether any other job can pass the request: a request for several GPUs at
// once, or for a whole GPU.
func (x *index) large(j *schedule.Job) bool {
	full := smallest(x.in.FullMiB, j.Partition)
	return j.GPUs > 1 || full > 0 && j.MiB >= full
}

// passed tells whether a job behind the request has started while the request waited: a
// job of lower priority, or of the same and submitted later; of a request held for BadConstraints, without a
// priority in squeue, a job submitted later. All have the same under
// priority/multifactor without weights, the default from 23.11 on (read_config.h).
// Requests as small as the others are not passed; to keep GPUs for them would help
// nobody.
func (x *index) passed(j *schedule.Job) bool {
	for partition := range strings.SplitSeq(j.Partition, ",") {
		if j.Reason == jobstate.BadConstraints && j.Priority == 0 { // slurmctld does not tell the priority then
			list := x.startedByID[partition]
			after := sort.Search(len(list), func(i int) bool { return list[i].id > j.ID })
			if after < len(list) && list[after].latest.After(j.Eligible) {
				return true
			}
			continue
		}
		list := x.started[partition]
		after := sort.Search(len(list), func(i int) bool {
			r := list[i]
			return r.priority > j.Priority || r.priority == j.Priority && r.id <= j.ID
		})
		if after > 0 && list[after-1].latest.After(j.Eligible) {
			return true
		}
	}
	return false
}

// partitionsOf are the partitions to search for nodes.
func partitionsOf(j *schedule.Job) []string {
	partitions := strings.Split(j.Partition, ",")
	return partitions[:min(len(partitions), searchesOfUser)]
}

// portion are the searches for a user's requests.
type portion struct {
	asked []search
	costs []int
	spent int
}

// turns returns the waiting jobs that a node is searched for, in their order: of jobs with
// the same request the first, and of each user's requests as many as fit into the user's
// share of the searches. All have a turn before anybody has a second, so that no user takes
// the searches that others need.
func (x *index) turns(waiting []*schedule.Job) []*schedule.Job {
	type own struct {
		uid uint32
		search
	}
	known, portions := map[own]bool{}, map[uint32]*portion{}
	searches := make([]search, len(waiting))
	var users []*portion // the first in the queue first
	for i, j := range waiting {
		x.looks++
		of := portions[j.UID]
		if of == nil {
			of = &portion{}
			portions[j.UID] = of
			users = append(users, of)
		}
		r := search{j.Partition, j.ReqNodes, j.Features, j.GPUs, j.NodeCount > 1, ""}
		if skipped := x.skipped(j); len(skipped) > 0 {
			r.skipped = fmt.Sprint(slices.Sorted(slices.Values(skipped)))
		}
		searches[i] = r
		if len(of.asked) < searchesOfUser && !known[own{j.UID, r}] {
			known[own{j.UID, r}] = true
			of.asked, of.costs = append(of.asked, r), append(of.costs, len(partitionsOf(j)))
		}
	}
	made, left := map[search]bool{}, searchesOfAll
	for turn := 1; turn <= searchesOfUser && left > 0; turn++ {
		for _, of := range users {
			for len(of.asked) > 0 {
				if r, cost := of.asked[0], of.costs[0]; !made[r] {
					if of.spent+cost > turn || cost > left {
						break
					}
					made[r] = true
					of.spent += cost
					left -= cost
				}
				of.asked, of.costs = of.asked[1:], of.costs[1:]
			}
		}
	}
	var list []*schedule.Job
	for i, j := range waiting {
		if len(made) == 0 {
			break
		}
		if made[searches[i]] {
			delete(made, searches[i])
			list = append(list, j)
		}
	}
	return list
}

// soonest returns the node that will be free for the job first, judged by the fewest
// running jobs, then by the earliest end of the last of them. Which nodes a job excludes
// is not asked here: the node ends such a hold as one in vain, and the next one goes elsewhere.
func (x *index) soonest(j *schedule.Job) string {
	gpus, partitions := j.GPUs, partitionsOf(j)
	does, ok := x.featured(j)
	if !ok {
		return ""
	}
	skipped := x.skipped(j)
	fits := func(n *node) bool {
		x.looks++
		return n.GPUs >= gpus && does[n.class] && !slices.Contains(skipped, n.hash)
	}
	var best *node
	better := func(n *node) {
		if best == nil || cmp.Or(cmp.Compare(n.jobs, best.jobs), n.end.Compare(best.end),
			strings.Compare(n.Name, best.Name)) < 0 {
			best = n
		}
	}
	if j.ReqNodes == "" {
		for _, partition := range partitions {
			if i := slices.IndexFunc(x.free[partition], fits); i >= 0 {
				better(x.free[partition][i])
			}
		}
	}
	names, _ := hostlist.Expand(j.ReqNodes)
	for _, name := range names {
		n := x.nodes[name]
		if n != nil && slices.ContainsFunc(partitions, func(p string) bool { return slices.Contains(n.Partitions, p) }) &&
			fits(n) {
			better(n)
		}
	}
	if best == nil {
		return ""
	}
	return best.Name
}

// skipped are the nodes where a job gets no hold for a while.
func (x *index) skipped(j *schedule.Job) []uint16 {
	_, nodes := x.in.Vains.rests(j, x.in.Now)
	return nodes
}

// featured tells which classes of nodes have the features wanted by a job.
func (x *index) featured(j *schedule.Job) (does []bool, ok bool) {
	if len(j.Features) > longestConstraint {
		return nil, false
	}
	e, err := features.Parse(j.Features)
	if err != nil {
		return nil, false
	}
	does = make([]bool, len(x.classes))
	for i, features := range x.classes {
		does[i] = e.May(func(f string) bool { return slices.Contains(features, f) }, j.NodeCount)
	}
	return does, true
}
