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

	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
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

// HoldTimeout is how long a hold lasts at most.
const HoldTimeout = 30 * time.Minute

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
	words := without(comment, prefix)
	if h != nil {
		words = append(words, h.String())
	}
	return strings.Join(words, " ")
}

// without are the words of a comment that do not begin so.
func without(comment, prefix string) []string {
	var words []string
	for word := range strings.FieldsSeq(comment) {
		if !strings.HasPrefix(word, prefix) && word != "(null)" {
			words = append(words, word)
		}
	}
	return words
}

// Input is the cluster as slurmctld tells it.
type Input struct {
	Queue   []schedule.Job // pending and running jobs of our partitions
	Nodes   []schedule.Node
	FullMiB map[string]int64 // memory of a GPU, by partition
	After   time.Duration    // a request must have waited so long
	Now     time.Time
	Vains   Vains // whose jobs get no hold for a while, or none on some nodes
}

// Decision is which node is to keep GPUs, and for which job: the hold has its id,
// which a task of an array may have to be given first.
type Decision struct {
	Node string
	Job  schedule.Job
	Hold Hold
}

// Decide returns the next decision. ok is false when nobody has waited too long,
// or no node can. GPUs are kept for one job of a user at a time: else who submits a
// hundred large jobs has them kept on a hundred nodes.
func Decide(in Input) (d Decision, ok bool) {
	d, ok, _ = decide(in)
	return d, ok
}

func decide(in Input) (d Decision, ok bool, looks int) {
	x := newIndex(in)
	served := map[uint32]bool{} // users
	for _, n := range in.Nodes {
		if h, ok := ParseComment(n.Comment); ok && n.Up {
			served[h.UID] = true
		}
	}
	var waiting []*schedule.Job
	for i := range in.Queue {
		j := &in.Queue[i]
		x.looks++
		if !served[j.UID] && in.Now.Sub(j.Eligible) >= in.After && x.waits(j) && (x.large(j) || x.passed(j)) {
			if all, _ := in.Vains.Rests(j, in.Now); !all {
				waiting = append(waiting, j)
			}
		}
	}
	slices.SortStableFunc(waiting, func(a, b *schedule.Job) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Eligible.Compare(b.Eligible))
	})
	for _, j := range x.turns(waiting) {
		if node := x.soonest(j); node != "" {
			b := x.booking(j)
			if b.mib >= smallest(in.FullMiB, j.Partition) {
				b.mib = 0
			}
			return Decision{node, *j, Hold{j.ID, j.UID, b.gpus, b.mib, in.Now}}, true, x.looks
		}
	}
	return Decision{}, false, x.looks
}

// allGPUs tells whether k are all GPUs of each node of the partitions.
func allGPUs(gpus map[string]int, partitions string, k int) bool {
	for p := range strings.SplitSeq(partitions, ",") {
		if n, ours := gpus[p]; ours && n != k {
			return false
		}
	}
	return true
}

// Rebooking is a waiting job and the GRES that it is to ask for instead.
type Rebooking struct {
	schedule.Job
	Books string
}

// NeedsRebooking returns the waiting jobs whose booking an update has made wrong, which tells no
// plugin what the job has booked, with what they are to book instead: those that name
// their nodes and yet book memory of any node, as slurmctld gives such a job up when these
// offer less (tres.AnyMiB); those that book more than a GPU of their partition has, for
// they would wait for ever: they book a whole one; and those that book all GPUs of their nodes
// (tres.WholeMiB) where nodes have more by now. gpus is how many a node has, by partition.
func NeedsRebooking(queue []schedule.Job, fullMiB map[string]int64, gpus map[string]int) []Rebooking {
	var list []Rebooking
	seen := map[uint32]bool{}
	for i := range queue {
		j := &queue[i]
		if j.State != jobstate.Pending || seen[j.ID] {
			continue
		}
		seen[j.ID] = true // all waiting tasks of an array
		books := tres.Read(j.TresPerNode)
		mib, each, full := books.FreeMiB(), books.ReserveMiB(), smallest(fullMiB, j.Partition)
		tooMuch, named := full > 0 && mib > full, j.ReqNodes != "" || j.Reservation != ""
		inPart := books.Whole() && !allGPUs(gpus, j.Partition, books.K)
		if books.K == 0 || !tooMuch && !inPart && !(books.Anywhere() && named) {
			continue
		}
		free := mib
		if tooMuch {
			free, each = full, min(each, full)
		}
		switch {
		case books.Sent():
			free = tres.SentMiB
		case named || !books.Anywhere():
			free = tres.AnyMiB
		}
		list = append(list, Rebooking{*j, books.Rebook(free, each)})
	}
	return list
}
