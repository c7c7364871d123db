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
	"carma/slurmbridge/tres"
)

// Preemptor is a waiting job that is to be sent to a node, where its Prolog preempts
// others (docs/adr/0014).
type Preemptor struct {
	schedule.Job
	Node  string
	Books string // the GRES that it asks for from then on
}

// Preempt returns the jobs that wait for room, may preempt others, and are to be sent to a
// node: to one whose GPUs would do if all had gone that they may preempt, whichever GPUs
// these have. A node is sent one job at a time. Of jobs on several nodes, with features or
// in a reservation it is not known where they can run.
func Preempt(queue []schedule.Job, nodes []schedule.Node, rules schedule.Preemption, ours func(partition string) bool, now time.Time) []Preemptor {
	busy := map[string]bool{}
	for _, j := range queue {
		if tres.Sent(j.TresPerNode) && (j.State == jobstate.Pending || j.Reason == jobstate.InProlog) {
			busy[cmp.Or(j.ReqNodes, j.Nodes)] = true
		}
	}
	var waiting []schedule.Job
	for _, j := range queue {
		k, _, anywhere := tres.Booking(j.TresPerNode)
		if k > 0 && anywhere && j.State == jobstate.Pending && j.Reason.IsRoom() && j.ReqNodes == "" && j.Features == "" && j.Reservation == "" && j.NodeCount <= 1 {
			waiting = append(waiting, j)
		}
	}
	slices.SortStableFunc(waiting, func(a, b schedule.Job) int { return cmp.Compare(b.Priority, a.Priority) })
	var sent []Preemptor
	for _, j := range waiting {
		best, fewest := "", 0
		for _, n := range nodes {
			if busy[n.Name] || !n.Up {
				continue
			}
			if keepers, ok := preemptible(j, n, queue, rules, ours, now); ok && (best == "" || keepers < fewest) {
				best, fewest = n.Name, keepers
			}
		}
		if best == "" {
			continue
		}
		busy[best] = true
		sent = append(sent, Preemptor{j, best, tres.Rebook(j.TresPerNode, tres.SentMiB, tres.Reserve(j.TresPerNode))})
	}
	return sent
}

// preemptible tells whether a job would have its GPUs on the node if all had gone that it
// may preempt, and how many GPUs the others have at most.
func preemptible(j schedule.Job, n schedule.Node, queue []schedule.Job, rules schedule.Preemption, ours func(string) bool, now time.Time) (keepers int, ok bool) {
	k, _, _ := tres.Booking(j.TresPerNode)
	for partition := range strings.SplitSeq(j.Partition, ",") {
		self := schedule.Preemptible{Partition: partition, QOS: j.QOS}
		if !ours(partition) || !slices.Contains(n.Partitions, partition) || !rules.Preempts(self) {
			continue
		}
		keepers, victims := 0, false
		for _, r := range queue {
			if r.State != jobstate.Running || !hostlist.Contains(r.Nodes, n.Name) {
				continue
			}
			if _, may := rules.May(self, schedule.Preemptible{Partition: r.Partition, QOS: r.QOS, Start: r.Start}, now); may {
				victims = true
				continue
			}
			gpus, _, _ := tres.Booking(r.TresPerNode)
			keepers += max(gpus, int(tres.GPUs(r.TresPerNode)))
		}
		if victims && keepers+k <= n.GPUs {
			return keepers, true
		}
	}
	return 0, false
}

// Stayed returns the jobs that were sent to a node and wait all the same, with what they
// are to book instead: such a job may run on any node again. known tells of those that
// were sent a moment ago.
func Stayed(queue []schedule.Job, known func(id uint32) bool) []Rebooking {
	var list []Rebooking
	for _, j := range queue {
		if j.State == jobstate.Pending && tres.Sent(j.TresPerNode) && !known(j.ID) {
			mib := tres.Reserve(j.TresPerNode)
			list = append(list, Rebooking{j, tres.Rebook(j.TresPerNode, mib, mib)})
		}
	}
	return list
}
