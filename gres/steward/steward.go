// SPDX-License-Identifier: Apache-2.0

// Package steward keeps requests from waiting for ever. slurmctld cannot plan the start of a
// request whose constraint no node satisfies at the moment, so smaller jobs pass the request
// again and again. The steward finds such a request and the node that will be free for it
// soonest; this node then keeps GPUs for the job. One agent of the cluster is the steward.
// Its decision travels in the node's Extra (package extra): Slurm stays the only bus between
// nodes.
package steward

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/slurmbridge/extra"
	"carma/slurmbridge/schedule"
)

// Hold is a job that a node is to keep GPUs for. Everybody can read a node's Extra: whose the job is,
// slurmctld tells only those who may know.
type Hold struct {
	JobID uint32
	GPUs  int       // of one node
	MiB   int64     // MiB of each GPU that the job needs; 0: all of each
	Since time.Time // when the steward decided

	// Preempts is the tag (extra.Tags) of the user of a job sent to the node, where the job may preempt
	// others: the node keeps nothing for the job, and Extra has a count of MiB for GPUs of the user
	// (preemptKey).
	Preempts string
}

// HoldTimeout is how long a hold lasts at most.
const HoldTimeout = 30 * time.Minute

// preempts stands in the word of a hold before the tag.
const preempts = "preempt"

// String is the word extra.Hold of a node's Extra.
func (h Hold) String() string {
	word := fmt.Sprintf("%d:%d:%d:%d", h.JobID, h.GPUs, h.MiB, h.Since.Unix())
	if h.Preempts != "" {
		word += ":" + preempts + ":" + h.Preempts
	}
	return word
}

// HoldIn finds the hold in a node's Extra.
func HoldIn(text string) (h Hold, ok bool) {
	f := strings.Split(extra.Word(text, extra.Hold), ":")
	sent := len(f) == 6 && f[4] == preempts && isTag(f[5])
	if len(f) != 4 && !sent {
		return Hold{}, false
	}
	id, err1 := strconv.ParseUint(f[0], 10, 32)
	k, err2 := strconv.ParseUint(f[1], 10, 16)
	mib, err3 := strconv.ParseUint(f[2], 10, 32)
	since, err4 := strconv.ParseInt(f[3], 10, 64)
	if err := cmp.Or(err1, err2, err3, err4); err != nil || id == 0 || k == 0 {
		return Hold{}, false
	}
	h = Hold{JobID: uint32(id), GPUs: int(k), MiB: int64(mib), Since: time.Unix(since, 0)}
	if sent {
		h.Preempts = f[5]
	}
	return h, true
}

// isTag tells whether a text can be a tag: it becomes a part of a key.
func isTag(s string) bool {
	return s != "" && len(s) <= 64 && strings.IndexFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z')
	}) < 0
}

// preemptKey is the key of the count in Extra while a job is sent to the node to preempt others; empty:
// there is none.
func (h Hold) preemptKey() string {
	if h.Preempts == "" {
		return ""
	}
	return extra.UserKey(h.GPUs, h.Preempts)
}

// SetWords puts words into a node's Extra, by their keys, or takes them out (empty). With a hold comes, or goes,
// the count that sends its job there if the job may preempt others. A node that has such a count of its own puts
// that back.
func SetWords(text string, words map[string]string) (_ string, err error) {
	before, _ := HoldIn(text)
	for key, word := range words {
		if text, err = extra.SetWord(text, key, word); err != nil {
			return "", err
		}
	}
	after, _ := HoldIn(text)
	if before.preemptKey() == after.preemptKey() && before.MiB == after.MiB {
		return text, nil
	}
	counts, err := extra.Counts(text)
	if err != nil {
		return "", err
	}
	delete(counts, before.preemptKey())
	return extra.SetCounts(text, after.With(counts))
}

// With adds the count of a job sent to preempt others.
func (h Hold) With(counts map[string]int64) map[string]int64 {
	if key := h.preemptKey(); key != "" {
		counts = maps.Clone(counts)
		counts[key] = max(counts[key], h.MiB)
	}
	return counts
}

// Sizes are the sizes of GPUs and nodes in carma.toml, by partition.
type Sizes struct {
	FullMiB map[string]int64 // memory of a GPU
	GPUs    map[string]int   // of a node
}

// takesAll tells whether a job takes all GPUs of its nodes. slurmctld plans the job's start by the consumed
// memory, and the job's constraint asks only that all GPUs are well.
func (s Sizes) takesAll(j *schedule.Job) bool {
	full := smallest(s.FullMiB, j.Partition)
	if full == 0 || j.MiB < full {
		return false
	}
	for p := range strings.SplitSeq(j.Partition, ",") {
		if n, ours := s.GPUs[p]; ours && (n != j.GPUs || s.FullMiB[p] != full) {
			return false
		}
	}
	return true
}

// Input is the cluster as slurmctld describes it.
type Input struct {
	Sizes
	Queue []schedule.Job // pending and running jobs of our partitions
	Nodes []schedule.Node
	After time.Duration // a request must have waited so long
	Now   time.Time
	Vains Vains // whose jobs get no hold for a while, or none on some nodes
}

// Decision is which node is to keep GPUs, and for which job: the hold has its id,
// which a task of an array may have to be given first.
type Decision struct {
	Node string
	Job  schedule.Job
	Hold Hold
}

// Decide returns the next decision. ok is false when nobody has waited too long, or no
// node can. GPUs are kept for one job of a user at a time: else a user who submits a
// hundred large jobs would have GPUs kept on a hundred nodes.
func Decide(in Input) (d Decision, ok bool) {
	d, ok, _ = decide(in)
	return d, ok
}

func decide(in Input) (d Decision, ok bool, looks int) {
	x := newIndex(in)
	served := map[uint32]bool{} // users
	for i := range in.Queue {
		x.looks++
		if x.held[in.Queue[i].ID] {
			served[in.Queue[i].UID] = true
		}
	}
	var waiting []*schedule.Job
	vains := in.Vains.ofUsers()
	for i := range in.Queue {
		j := &in.Queue[i]
		x.looks++
		if !served[j.UID] && in.Now.Sub(j.Eligible) >= in.After && x.waits(j) && (x.large(j) || x.passed(j)) &&
			!in.Vains.restsFor(j, vains[j.UID], in.Now) {
			if all, _ := in.Vains.rests(j, in.Now); !all {
				waiting = append(waiting, j)
			}
		}
	}
	slices.SortStableFunc(waiting, func(a, b *schedule.Job) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Eligible.Compare(b.Eligible))
	})
	for _, j := range x.turns(waiting) {
		if node := x.soonest(j); node != "" {
			h := Hold{JobID: j.ID, GPUs: j.GPUs, MiB: j.MiB, Since: in.Now}
			if h.MiB >= smallest(in.FullMiB, j.Partition) {
				h.MiB = 0
			}
			return Decision{node, *j, h}, true, x.looks
		}
	}
	return Decision{}, false, x.looks
}
