// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/tres"
)

// VainAfter is how long the GPUs of a hold must have been offered to its job, when its time is
// over, for the hold to have been in vain: the job cannot start there for a reason that is not
// seen here (licenses, memory, cores). slurmctld looks at all jobs several times in that time.
const VainAfter = 5 * time.Minute

// longestRest is the longest time without a hold for a job whose holds were in vain.
const longestRest = 24 * time.Hour

// Vains are the jobs, or arrays, whose holds were in vain. Such a job gets no hold for as long as
// the hold lasted, then for twice as long, and so on; else a node would be kept empty for it for
// ever.
type Vains map[uint32]vain

type vain struct {
	holds   int
	since   int64  // Unix time of the last one's decision
	request uint32 // what the job asked for
	seen    int64
}

// vainPrefix begins the word in which a node says that a hold was in vain, of a job id and the
// time of its decision, and that of the anchor's Comment which leaves to the next steward what
// this one knows.
const vainPrefix = "carma-vain="

// VainComment takes a hold that was in vain out of its node's Comment, and says so there.
func VainComment(comment string, h Hold) string {
	comment, _ = WithoutVain(comment)
	return strings.Join(append(without(comment, prefix), fmt.Sprintf("%s%d:%d", vainPrefix, h.JobID, h.Since.Unix())), " ")
}

// WithoutVain takes that out again; said tells whether it was there.
func WithoutVain(comment string) (rest string, said bool) {
	return strings.Join(without(comment, vainPrefix), " "), strings.Contains(comment, vainPrefix)
}

// vainWords are the numbers in such words.
func vainWords(comment string) (list [][]int64) {
	for word := range strings.FieldsSeq(comment) {
		text, ok := strings.CutPrefix(word, vainPrefix)
		if !ok {
			continue
		}
		for entry := range strings.SplitSeq(text, ",") {
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
	}
	return list
}

// Learn takes over what another steward has left in the anchor's Comment.
func (v Vains) Learn(comment string, now time.Time) {
	for _, n := range vainWords(comment) {
		if len(n) == 4 && v[uint32(n[0])].since < n[2] {
			v[uint32(n[0])] = vain{holds: int(min(n[1], 64)), since: n[2], request: uint32(n[3]), seen: now.Unix()}
		}
	}
}

// Look takes over what nodes say, and forgets jobs that have started since or have gone. It
// returns those whose hold was in vain that was not known.
func (v Vains) Look(queue []schedule.Job, nodes []schedule.Node, now time.Time, every time.Duration) (list []uint32) {
	said := map[uint32]int64{}
	for i := range nodes {
		for _, n := range vainWords(nodes[i].Comment) {
			if len(n) == 2 {
				said[uint32(n[0])] = max(said[uint32(n[0])], n[1])
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
			if since := said[j.ID]; since > known.since {
				known, ok = vain{holds: 1 + known.of(j), since: since, request: requestOf(j)}, true
				list = append(list, j.ID)
			}
			if known.seen = now.Unix(); ok {
				v[id] = known
			}
		} else if ok && j.State == jobstate.Running && j.Start.Unix() > known.since && now.Sub(j.Start) > prologs {
			delete(v, id)
		}
	}
	for id, known := range v {
		if now.Unix()-known.seen > int64(max(3*every, 15*time.Minute).Seconds()) {
			delete(v, id)
		}
	}
	return list
}

// of is how many holds were in vain for what the job asks for now.
func (k vain) of(j *schedule.Job) int {
	if k.request != requestOf(j) {
		return 0
	}
	return k.holds
}

// requestOf tells one request of a job from another.
func requestOf(j *schedule.Job) uint32 {
	books := tres.Read(j.TresPerNode)
	h := fnv.New32a()
	fmt.Fprint(h, books.K, " ", books.FreeMiB(), " ", books.ReserveMiB(), " ", j.NodeCount, " ", j.Partition, " ",
		j.ReqNodes, " ", j.Features)
	return h.Sum32()
}

// Rests tells whether a job is to get no hold yet.
func (v Vains) Rests(j *schedule.Job, now time.Time) bool {
	known, ok := v[cmp.Or(j.ArrayJobID, j.ID)]
	return ok && known.request == requestOf(j) && now.Before(known.until())
}

func (k vain) until() time.Time {
	rest := HoldTimeout
	for range k.holds - 1 {
		rest = min(2*rest, longestRest)
	}
	return time.Unix(k.since, 0).Add(HoldTimeout + rest)
}

// Comment leaves to the next steward what this one knows, of the latest holds, and keeps what
// others wrote there.
func (v Vains) Comment(comment string) string {
	var ids []uint32
	for id := range v {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b uint32) int { return cmp.Or(cmp.Compare(v[b].since, v[a].since), cmp.Compare(a, b)) })
	words := without(comment, vainPrefix)
	if ids = ids[:min(len(ids), most)]; len(ids) > 0 {
		var entries []string
		for _, id := range ids {
			entries = append(entries, fmt.Sprintf("%d:%d:%d:%d", id, v[id].holds, v[id].since, v[id].request))
		}
		words = append(words, vainPrefix+strings.Join(entries, ","))
	}
	return strings.Join(words, " ")
}
