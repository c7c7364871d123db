// SPDX-License-Identifier: Apache-2.0

// Package steward keeps requests from waiting for ever. slurmctld cannot plan the
// start of a request that no node offers at the moment, so smaller jobs pass it
// again and again. The steward finds such a request and the node that will be
// free for it soonest; that node then keeps GPUs for it.
// One agent of the cluster is the steward. What it decides travels in the
// Comment of the node: Slurm stays the only bus between nodes.
package steward

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/tres"
)

// Hold is a job that a node is to keep GPUs for.
type Hold struct {
	JobID uint32
	UID   uint32    // its user
	GPUs  int       // of one node
	MiB   int64     // that it needs; 0: all of each
	Since time.Time // when the steward decided
}

const prefix = "carma-hold="

// String is the word for a node's Comment.
func (h Hold) String() string {
	return fmt.Sprintf("%s%d:%d:%d:%d:%d", prefix, h.JobID, h.UID, h.GPUs, h.MiB, h.Since.Unix())
}

// ParseComment finds the hold in a node's Comment.
func ParseComment(comment string) (h Hold, ok bool) {
	for word := range strings.FieldsSeq(comment) {
		text, found := strings.CutPrefix(word, prefix)
		if !found {
			continue
		}
		f := strings.Split(text, ":")
		if len(f) != 5 {
			return Hold{}, false
		}
		id, err1 := strconv.ParseUint(f[0], 10, 32)
		uid, err2 := strconv.ParseUint(f[1], 10, 32)
		k, err3 := strconv.ParseUint(f[2], 10, 16)
		mib, err4 := strconv.ParseUint(f[3], 10, 32)
		since, err5 := strconv.ParseInt(f[4], 10, 64)
		if err := cmp.Or(err1, err2, err3, err4, err5); err != nil || id == 0 || k == 0 {
			return Hold{}, false
		}
		return Hold{JobID: uint32(id), UID: uint32(uid), GPUs: int(k), MiB: int64(mib), Since: time.Unix(since, 0)}, true
	}
	return Hold{}, false
}

// Comment puts a hold into a comment, or takes it out (nil), and keeps what
// others wrote there.
func Comment(comment string, h *Hold) string {
	var words []string
	for word := range strings.FieldsSeq(comment) {
		if !strings.HasPrefix(word, prefix) && word != "(null)" {
			words = append(words, word)
		}
	}
	if h != nil {
		words = append(words, h.String())
	}
	return strings.Join(words, " ")
}

// Input is the cluster as slurmctld tells it.
type Input struct {
	Queue   []sctl.QueuedJob // pending and running jobs of our partitions
	Nodes   []sctl.NodeState
	FullMiB map[string]int64 // memory of a GPU, by partition
	After   time.Duration    // a request must have waited so long
	Now     time.Time
}

// Decision is which node is to keep GPUs, and for which job: the hold has its id,
// which a task of an array may have to be given first.
type Decision struct {
	Node string
	Job  sctl.QueuedJob
	Hold Hold
}

// Decide returns the next decision. ok is false when nobody has waited too long,
// or no node can. GPUs are kept for one job of a user at a time: else who submits a
// hundred large jobs has them kept on a hundred nodes.
func Decide(in Input) (d Decision, ok bool) {
	served := map[uint32]bool{} // users
	for _, n := range in.Nodes {
		if h, ok := ParseComment(n.Comment); ok && n.Up {
			served[h.UID] = true
		}
	}
	var waiting []sctl.QueuedJob
	for _, j := range in.Queue {
		if !served[j.UID] && waits(j) && in.Now.Sub(j.Eligible) >= in.After && (in.large(j) || in.passed(j)) {
			waiting = append(waiting, j)
		}
	}
	slices.SortStableFunc(waiting, func(a, b sctl.QueuedJob) int {
		if a.Priority != b.Priority {
			return int(min(max(b.Priority-a.Priority, -1), 1))
		}
		return a.Eligible.Compare(b.Eligible)
	})
	for _, j := range waiting {
		k, mib, _ := tres.Booking(j.TresPerNode)
		if mib >= in.FullMiB[j.Partition] {
			mib = 0
		}
		if node := in.soonest(j, k); node != "" {
			return Decision{node, j, Hold{j.ID, j.UID, k, mib, in.Now}}, true
		}
	}
	return Decision{}, false
}

// waits tells whether a job waits for GPUs of ours and for nothing else. One
// whose place we cannot judge is left alone. A job that names its node is started
// whatever the node offers, given back and backs off: that is how it waits
// (Waits tells it from one whose user has set a start).
func waits(j sctl.QueuedJob) bool {
	k, _, anywhere := tres.Booking(j.TresPerNode)
	room := WaitsForRoom(j.Reason) || !anywhere && (j.Reason == "BeginTime" || j.Reason == "Prolog")
	return k > 0 && j.State == "PENDING" && room && j.Features == "" && j.Reservation == ""
}

// large tells whether any other job can pass the request: it wants several GPUs
// at once, or a whole one.
func (in *Input) large(j sctl.QueuedJob) bool {
	k, mib, _ := tres.Booking(j.TresPerNode)
	return k > 1 || in.FullMiB[j.Partition] > 0 && mib >= in.FullMiB[j.Partition]
}

// passed tells whether a job that comes after the request has started while it
// waited: one of lower priority, or of the same and submitted later. All have the
// same under priority/multifactor without weights, the default from 23.11 on
// (read_config.h). Requests that are as small as the others are not passed; to keep
// GPUs for them would help nobody.
func (in *Input) passed(j sctl.QueuedJob) bool {
	return slices.ContainsFunc(in.Queue, func(r sctl.QueuedJob) bool {
		k, _, _ := tres.Booking(r.TresPerNode)
		after := r.Priority < j.Priority || r.Priority == j.Priority && r.ID > j.ID
		return after && r.State == "RUNNING" && k > 0 && r.Partition == j.Partition && r.Start.After(j.Eligible)
	})
}

// Rebooking is a waiting job and the GRES that it is to ask for instead.
type Rebooking struct {
	sctl.QueuedJob
	Books string
}

// Misbooked returns the waiting jobs that name their nodes and yet book memory of
// any node, with what they are to book instead. They have come to their nodes by
// an update, which tells no plugin what the job has booked; and slurmctld gives
// such a job up when these nodes offer less (tres.AnyMiB).
func Misbooked(queue []sctl.QueuedJob) []Rebooking {
	var list []Rebooking
	seen := map[uint32]bool{}
	for _, j := range queue {
		_, _, anywhere := tres.Booking(j.TresPerNode)
		if j.State != "PENDING" || !anywhere || seen[j.ID] || j.ReqNodes == "" && j.Reservation == "" {
			continue
		}
		seen[j.ID] = true // all waiting tasks of an array
		list = append(list, Rebooking{j, tres.Rebook(j.TresPerNode, tres.AnyMiB, tres.Reserve(j.TresPerNode))})
	}
	return list
}

// Anchor is the node that is never up. It keeps requests pending that no other
// node could take at the moment.
const Anchor = "carma-anchor"

// WaitsForRoom tells whether slurmctld's reason says no more than that there is
// no room. Where only the anchor could take the job now, it names that as a node
// that is not available (22.05.8, 25.11.7), with all others of the partition that are
// drained or down, or says nothing (23.11.11). For a job that names its nodes it lists
// only these.
func WaitsForRoom(reason string) bool {
	if reason == "Resources" || reason == "Priority" || reason == "None" {
		return true
	}
	// Its name has no number to be folded with others'. This is asked for each job of
	// the queue, and there the list may be long.
	_, unavailable, _ := strings.Cut(reason, "UnavailableNodes:")
	return strings.HasPrefix(reason, "ReqNodeNotAvail") && strings.Contains(","+unavailable+",", ","+Anchor+",")
}

// soonest returns the node that will be free for the job first, judged by the
// fewest running jobs, then by the earliest end of the last of them. squeue
// (22.05) does not tell which nodes a job excludes: such a hold ends by its
// time-out.
func (in *Input) soonest(j sctl.QueuedJob, k int) string {
	best, bestJobs, bestEnd := "", 0, time.Time{}
	for _, n := range in.Nodes {
		if !n.Up || n.GPUs < k || !slices.Contains(n.Partitions, j.Partition) {
			continue
		}
		if _, taken := ParseComment(n.Comment); taken {
			continue
		}
		if j.ReqNodes != "" && !hostlist.Contains(j.ReqNodes, n.Name) {
			continue
		}
		jobs, end := in.running(n.Name)
		if best == "" || jobs < bestJobs || jobs == bestJobs && end.Before(bestEnd) {
			best, bestJobs, bestEnd = n.Name, jobs, end
		}
	}
	return best
}

func (in *Input) running(node string) (jobs int, end time.Time) {
	for _, j := range in.Queue {
		if j.State == "RUNNING" && hostlist.Contains(j.Nodes, node) {
			jobs++
			if j.End.After(end) {
				end = j.End
			}
		}
	}
	return jobs, end
}
