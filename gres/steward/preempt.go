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

// So many preemptors of one user, and of all, are looked at each time: users decide how many
// wait. Of those that ask for the same one is, until a node is found.
const (
	preemptorsOfUser = 16
	preemptorsOfAll  = 64
)

// occupant is a job that runs on a node, and how many GPUs it has there at most.
type occupant struct {
	schedule.Preemptible
	gpus  int
	hangs bool // it completes, and does not go
}

// Preempt returns the jobs that wait for room, may preempt others, and are to be sent to a
// node: to one whose GPUs would do if all had gone that they may preempt, whichever GPUs
// these have. A node is sent one job at a time. Of jobs on several nodes, with features or
// in a reservation it is not known where they can run.
func Preempt(queue []schedule.Job, nodes []schedule.Node, rules schedule.Preemption, ours func(partition string) bool,
	now time.Time) []Preemptor {
	booked := map[string]tres.List{}
	busy, on := map[string]bool{}, map[string][]occupant{}
	var waiting []*schedule.Job
	for i := range queue {
		j := &queue[i]
		b, known := booked[j.TresPerNode]
		if !known {
			b = tres.Read(j.TresPerNode)
			booked[j.TresPerNode] = b
		}
		if b.Sent() && (j.State == jobstate.Pending && !j.Reason.IsOfItsUser() || j.Reason == jobstate.InProlog) {
			busy[cmp.Or(j.ReqNodes, j.Nodes)] = true
		}
		switch {
		case j.State == jobstate.Running, j.State == jobstate.Completing && rules.Hangs(j.End, now):
			names, _ := hostlist.Expand(j.Nodes)
			for _, name := range names {
				on[name] = append(on[name], occupant{preemptible(j, j.Partition), max(b.K, int(b.GPUs)),
					j.State == jobstate.Completing})
			}
		case b.Anywhere() && !b.Whole() && j.State == jobstate.Pending && j.Reason.IsRoom() &&
			j.ReqNodes == "" && j.Features == "" && j.Reservation == "" && j.NodeCount <= 1:
			waiting = append(waiting, j)
		}
	}
	slices.SortStableFunc(waiting, func(a, b *schedule.Job) int { return cmp.Compare(b.Priority, a.Priority) })
	type request struct {
		partition, qos string
		gpus           int
	}
	inVain, ofUser, searches := map[request]bool{}, map[uint32]int{}, 0
	var sent []Preemptor
	for _, j := range waiting {
		r := request{j.Partition, j.QOS, booked[j.TresPerNode].K}
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
			if busy[n.Name] || !n.Up {
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
		list := booked[j.TresPerNode]
		sent = append(sent, Preemptor{*j, best, list.Rebook(tres.SentMiB, list.ReserveMiB())})
	}
	return sent
}

func preemptible(j *schedule.Job, partition string) schedule.Preemptible {
	return schedule.Preemptible{Partition: partition, QOS: j.QOS, Start: j.Start, Reservation: j.Reservation}
}

// makesRoom tells whether a job would have its GPUs on the node if all had gone that it
// may preempt, as one of selves, and how many GPUs the others have at most.
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

// Stayed returns the jobs that were sent to a node and wait all the same, with what they
// are to book instead: such a job may run on any node again. known tells of those that
// were sent a moment ago.
func Stayed(queue []schedule.Job, known func(id uint32) bool) []Rebooking {
	var list []Rebooking
	for _, j := range queue {
		if books := tres.Read(j.TresPerNode); j.State == jobstate.Pending && books.Sent() && !known(j.ID) {
			mib := books.ReserveMiB()
			list = append(list, Rebooking{j, books.Rebook(mib, mib)})
		}
	}
	return list
}
