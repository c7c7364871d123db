// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
)

// Preemptor is a waiting job that is to be sent to a node, where its Prolog
// preempts others (docs/adr/0014).
type Preemptor struct {
	schedule.Job
	Node string
}

// So many preemptors of one user, and of all, are looked at each time: users decide how many
// wait. Of jobs with the same request one is looked at, until a node is found.
const (
	preemptorsOfUser = 16
	preemptorsOfAll  = 64
)

// occupant is a job running on a node, and the number of its GPUs there at most.
type occupant struct {
	schedule.Preemptible
	gpus  int
	hangs bool // the job completes, and does not go
}

// Preempt returns the jobs that wait for room, may preempt others, and are to be sent to a node: to a
// node whose GPUs would do if all jobs had gone that the job may preempt, whichever GPUs these have. A
// node is sent one job at a time. Where jobs on several nodes, with features or in a reservation can run
// is not known. For a job that takes all GPUs of its node slurmctld preempts by itself, since the memory
// that such a job books is consumed.
func Preempt(queue []schedule.Job, nodes []schedule.Node, rules schedule.Preemption, ours func(partition string) bool,
	sizes Sizes, now time.Time) []Preemptor {
	on := map[string][]occupant{}
	var waiting []*schedule.Job
	for i := range queue {
		j := &queue[i]
		switch {
		case j.State == jobstate.Running, j.State == jobstate.Completing && rules.Hangs(j.End, now):
			names, _ := hostlist.Expand(j.Nodes)
			for _, name := range names {
				on[name] = append(on[name], occupant{preemptible(j, j.Partition), j.GPUs, j.State == jobstate.Completing})
			}
		case j.MiB > 0 && !sizes.takesAll(j) && j.State == jobstate.Pending && j.Reason.IsRoom() &&
			j.Features == "" && j.Reservation == "" && j.NodeCount <= 1:
			waiting = append(waiting, j)
		}
	}
	busy := map[string]bool{}
	for i := range nodes {
		if _, held := HoldIn(nodes[i].Extra); held {
			busy[nodes[i].Name] = true
		}
	}
	slices.SortStableFunc(waiting, func(a, b *schedule.Job) int { return cmp.Compare(b.Priority, a.Priority) })
	type request struct {
		partition, qos, node string
		gpus                 int
	}
	inVain, ofUser, searches := map[request]bool{}, map[uint32]int{}, 0
	var sent []Preemptor
	for _, j := range waiting {
		r := request{j.Partition, j.QOS, j.ReqNodes, j.GPUs}
		var selves []schedule.Preemptible
		for partition := range strings.SplitSeq(j.Partition, ",") {
			if self := preemptible(j, partition); ours(partition) && rules.Preempts(self) {
				selves = append(selves, self)
			}
		}
		if len(selves) == 0 || inVain[r] || ofUser[j.UID] >= preemptorsOfUser || searches+len(selves) > preemptorsOfAll {
			continue
		}
		ofUser[j.UID] += len(selves)
		searches += len(selves)
		best, fewest := "", 0
		for i := range nodes {
			n := &nodes[i]
			if busy[n.Name] || !n.Up || j.ReqNodes != "" && j.ReqNodes != n.Name {
				continue
			}
			if keepers, ok := makesRoom(selves, n, on[n.Name], r.gpus, &rules, now); ok && (best == "" || keepers < fewest) {
				best, fewest = n.Name, keepers
			}
		}
		if best == "" {
			inVain[r] = true
			continue
		}
		busy[best] = true
		sent = append(sent, Preemptor{*j, best})
	}
	return sent
}

func preemptible(j *schedule.Job, partition string) schedule.Preemptible {
	return schedule.Preemptible{Partition: partition, QOS: j.QOS, Start: j.Start, Reservation: j.Reservation}
}

// makesRoom tells whether a job would have its GPUs on the node if all jobs had gone
// that it may preempt, as one of selves, and how many GPUs the others have at most.
func makesRoom(selves []schedule.Preemptible, n *schedule.Node, there []occupant, gpus int, rules *schedule.Preemption,
	now time.Time) (keepers int, ok bool) {
	for _, self := range selves {
		if !slices.Contains(n.Partitions, self.Partition) {
			continue
		}
		keepers, victims := 0, false
		for _, o := range there {
			if _, may := rules.May(self, o.Preemptible, now); may && !o.hangs {
				victims = true
				continue
			}
			keepers += o.gpus
		}
		if victims && keepers+gpus <= n.GPUs {
			return keepers, true
		}
	}
	return 0, false
}
