// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
)

// VainAfter is how long the GPUs of a hold are offered to the job until the hold ends, in vain: the
// job cannot start there for a reason that CARMA does not see (cores or memory in use, say).
// slurmctld looks at all jobs several times in VainAfter. The hold of a job on several nodes, which
// waits for the others, lasts for longer where slurmctld plans the job's start within HoldTimeout.
const VainAfter = 5 * time.Minute

// longestRest is the longest time without a hold for a job whose holds were in vain.
const longestRest = 24 * time.Hour

// Vains are the jobs, or arrays, whose holds were in vain. Such a job gets no other hold on the
// same node for as long as the hold lasted, then for twice as long, and so on; else the node
// would be kept empty for the job for ever. Another node, which the job does not exclude say, may
// have a hold at once, until holdsAtOnce were in vain: then the job gets none at all for the same
// time. A node that could not keep the hold is skipped too, but says nothing of the job.
// From the second hold in vain on, the user's other jobs get none for as long either, whatever becomes of the jobs
// whose holds were in vain: else a user's many such jobs, or a job that is submitted again and again, would have
// a node kept empty all the time.
type Vains map[uint32]vain

type vain struct {
	uid     uint32 // 0: not told yet, by another steward
	holds   int    // in vain
	since   int64  // Unix time of the last hold's decision
	request uint32 // the job's request
	nodes   []uint16
	seen    int64
}

const (
	holdsAtOnce = 8
	mostNodes   = 64 // remembered for a job
	nodesTold   = 8  // of these, to the next steward
)

// hashOf stands for a node's name. Where two nodes have the same, both are skipped.
func hashOf(node string) uint16 {
	h := fnv.New32a()
	io.WriteString(h, node)
	sum := h.Sum32()
	return uint16(sum ^ sum>>16)
}

// VainWord is the word extra.Vain, in which a node says that a hold was in vain, or cannot be
// kept.
func VainWord(h Hold) string { return fmt.Sprintf("%d:%d", h.JobID, h.Since.Unix()) }

// numbersOf are the numbers in the word of VainWord, and in each entry of the word of
// Vains.
func numbersOf(word string) (list [][]int64) {
	for entry := range strings.SplitSeq(word, ",") {
		var numbers []int64
		for f := range strings.SplitSeq(entry, ":") {
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil || n < 0 {
				numbers = nil
				break
			}
			numbers = append(numbers, n)
		}
		list = append(list, numbers)
	}
	return list
}

// Learn takes over the word that another steward has left.
func (v Vains) Learn(word string, now time.Time) {
	for _, n := range numbersOf(word) {
		if len(n) >= 4 && v[uint32(n[0])].since < n[2] {
			known := vain{holds: int(min(n[1], 64)), since: n[2], request: uint32(n[3]), seen: now.Unix()}
			for _, node := range n[4:min(len(n), 4+nodesTold)] {
				known.nodes = append(known.nodes, uint16(node))
			}
			v[uint32(n[0])] = known
		}
	}
}

// Said is what a node says of a hold.
type Said struct {
	Job   uint32
	Node  string
	since int64
}

// Look takes over what nodes say, and forgets jobs that have started since, or that went a day ago.
// Look returns the holds in vain that were not known before.
func (v Vains) Look(queue []schedule.Job, nodes []schedule.Node, now time.Time, every time.Duration) (list []Said) {
	said := map[uint32][]Said{}
	for i := range nodes {
		for _, n := range numbersOf(extra.Word(nodes[i].Extra, extra.Vain)) {
			if len(n) == 2 {
				said[uint32(n[0])] = append(said[uint32(n[0])], Said{uint32(n[0]), nodes[i].Name, n[1]})
			}
		}
	}
	if len(said) == 0 && len(v) == 0 {
		return nil
	}
	for i := range queue {
		j := &queue[i]
		id := cmp.Or(j.ArrayJobID, j.ID)
		known, ok := v[id]
		if j.State == jobstate.Pending {
			words := said[j.ID]
			slices.SortFunc(words, func(a, b Said) int { return cmp.Compare(a.since, b.since) })
			for _, s := range words {
				if s.since > known.since {
					known, ok = known.after(s, j, now), true
					list = append(list, s)
				}
			}
			if known.seen, known.uid = now.Unix(), j.UID; ok {
				v[id] = known
			}
		} else if ok && j.State == jobstate.Running && j.Start.Unix() > known.since && now.Sub(j.Start) > prologs {
			delete(v, id)
		}
	}
	for id, known := range v {
		old := known.holds == 0 || now.Unix()-known.since > int64(longestRest.Seconds())
		if old && now.Unix()-known.seen > int64(max(3*every, 15*time.Minute).Seconds()) {
			delete(v, id)
		}
	}
	return list
}

// after is what is known after one more hold. A hold that no node could keep is over long
// before its time.
func (k vain) after(s Said, j *schedule.Job, now time.Time) vain {
	decided := time.Unix(s.since, 0)
	switch request := requestOf(j); {
	case k.request != request:
		k = vain{request: request, holds: k.holds}
	case !decided.Before(k.until()): // all nodes could have had it
		k.nodes = nil
	}
	k.since = s.since
	if now.Sub(decided) >= VainAfter {
		k.holds++
	}
	k.nodes = append(slices.Clone(k.nodes[max(0, len(k.nodes)+1-mostNodes):]), hashOf(s.Node))
	return k
}

// requestOf tells one request of a job from another.
func requestOf(j *schedule.Job) uint32 {
	h := fnv.New32a()
	fmt.Fprint(h, j.GPUs, " ", j.MiB, " ", j.NodeCount, " ", j.Partition, " ",
		j.ReqNodes, " ", j.Features)
	return h.Sum32()
}

// ofUsers adds up the holds in vain of each user's jobs.
func (v Vains) ofUsers() map[uint32]vain {
	users := map[uint32]vain{}
	for _, known := range v {
		u := users[known.uid]
		u.holds, u.since = u.holds+known.holds, max(u.since, known.since)
		users[known.uid] = u
	}
	return users
}

// restsFor tells whether a job is to get no hold yet because of other jobs of the user, or of an earlier request of the
// job; of sums up the user's holds in vain.
func (v Vains) restsFor(j *schedule.Job, of vain, now time.Time) bool {
	if known := v[cmp.Or(j.ArrayJobID, j.ID)]; known.request == requestOf(j) {
		of.holds -= known.holds
	}
	of.holds-- // the first says little
	return of.holds > 0 && now.Before(of.until())
}

// rests tells whether a job is to get no hold yet at all, or else on which nodes.
func (v Vains) rests(j *schedule.Job, now time.Time) (all bool, nodes []uint16) {
	known, ok := v[cmp.Or(j.ArrayJobID, j.ID)]
	if !ok || known.request != requestOf(j) || !now.Before(known.until()) {
		return false, nil
	}
	return known.holds >= holdsAtOnce, known.nodes
}

func (k vain) until() time.Time {
	if k.holds == 0 { // no node could keep a hold, and the reason may be over soon: a GPU that was not read, an MPS fault
		return time.Unix(k.since, 0).Add(VainAfter)
	}
	rest := HoldTimeout
	for range k.holds - 1 {
		rest = min(2*rest, longestRest)
	}
	return time.Unix(k.since, 0).Add(HoldTimeout + rest)
}

// Word is the word extra.Vains, in which a steward leaves to the next one what it knows of the latest
// holds.
func (v Vains) Word() string {
	ids := slices.Collect(maps.Keys(v))
	slices.SortFunc(ids, func(a, b uint32) int { return cmp.Or(cmp.Compare(v[b].since, v[a].since), cmp.Compare(a, b)) })
	var entries []string
	for _, id := range ids[:min(len(ids), most)] {
		entry := fmt.Sprintf("%d:%d:%d:%d", id, v[id].holds, v[id].since, v[id].request)
		for _, node := range v[id].nodes[max(0, len(v[id].nodes)-nodesTold):] {
			entry += fmt.Sprintf(":%d", node)
		}
		entries = append(entries, entry)
	}
	return strings.Join(entries, ",")
}
