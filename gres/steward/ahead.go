// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"cmp"
	"slices"
	"time"

	"carma/gres"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/tres"
)

// So many jobs of one user, and of all, are looked at for one start: more than a node
// has places for. With a bound for all alone a user's many would hide those of others.
const (
	maxOfUser = 64
	maxAhead  = 1024
)

// Ahead returns, in slurmctld's order, the jobs that wait for GPUs of ours, could run on
// the node, and come before a job there that names it; none if that job does not. Such
// are those of higher priority, and of the same and submitted before. A job with features,
// or on several nodes, is left out: whether and when it could run there is not known.
func Ahead(queue []schedule.Job, id uint32, node string, now time.Time) []schedule.Job {
	i := slices.IndexFunc(queue, func(j schedule.Job) bool { return j.ID == id })
	if i < 0 {
		return nil
	}
	job := queue[i]
	if books := tres.Read(job.TresPerNode); books.K == 0 || books.Anywhere() {
		return nil
	}
	var ahead []schedule.Job
	for _, j := range queue {
		before := j.Priority > job.Priority || j.Priority == job.Priority && j.ID < job.ID
		if before && wantsNow(j, node, now) && j.Reservation == job.Reservation && j.Features == "" && j.NodeCount <= 1 {
			ahead = append(ahead, j)
		}
	}
	slices.SortStableFunc(ahead, func(a, b schedule.Job) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.ID, b.ID))
	})
	seen := map[uint32]int{}
	ahead = slices.DeleteFunc(ahead, func(j schedule.Job) bool {
		seen[j.UID]++
		return seen[j.UID] > maxOfUser
	})
	return ahead[:min(len(ahead), maxAhead)]
}

// wantsNow tells whether a job would take GPUs of the node now: it waits for room, backs
// off as this node or another has returned it to the queue that it names, or is in its Prolog there.
func wantsNow(j schedule.Job, node string, now time.Time) bool {
	books := tres.Read(j.TresPerNode)
	switch {
	case books.K == 0 || j.ReqNodes != "" && !hostlist.Contains(j.ReqNodes, node):
		return false
	case j.State == jobstate.Running:
		return j.Reason == jobstate.InProlog && hostlist.Contains(j.Nodes, node)
	case j.State != jobstate.Pending:
		return false
	case j.Eligible.After(now) || j.Reason == jobstate.BeginTime || j.Reason == jobstate.InProlog:
		return !books.Anywhere() && BacksOff(j.Restarts, j.Submitted, j.Eligible)
	}
	return j.Reason.IsRoom()
}

// Request is what a waiting job asks of a node, as far as its booking tells; fullMiB is the
// memory of a GPU, by partition.
func Request(j schedule.Job, fullMiBOf map[string]int64) gres.Request {
	books := tres.Read(j.TresPerNode)
	mib, fullMiB := books.FreeMiB(), smallest(fullMiBOf, j.Partition)
	return gres.Request{JobID: j.ID, UID: j.UID, GPUs: books.K, ReserveMiB: mib, Exclusive: fullMiB > 0 && mib >= fullMiB}
}
