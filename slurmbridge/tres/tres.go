// SPDX-License-Identifier: Apache-2.0

// Package tres reads and writes the GRES lists of Slurm job requests and
// nodes: "gres:gpu:a100:2,gres:carma:12288", "gres/gpu=1", "gpu:16(S:0-1)".
package tres

import (
	"iter"
	"strconv"
	"strings"
)

// Names of the resources that CARMA books. gpu counts slots. carmau0 to carmau7
// say how many MiB one GPU of a node can still take of a job of some users, carma2
// how many MiB each of two GPUs can take at once, and so on; jobs do not consume
// these. They consume carmatotal, the MiB of all GPUs of the node (docs/adr/0003).
const (
	GPU   = "gpu"
	carma = "carma"
	user  = "u"
	Total = "carmatotal"
	Shard = "shard" // Slurm's own part of a GPU; 1 GiB under placement.mode "slurm"
)

// AnyMiB is what every node offers of each carmaK at any time, and more than that
// is asked by every job but those that name their nodes: slurmctld refuses such a
// job, or gives it up for good (BadConstraints), as soon as these nodes offer less
// than it asks for. What it needs stands in its carmatotal, and its Prolog waits.
const AnyMiB = 1

// SentMiB is what a job books instead that was sent to a node to preempt others there
// (docs/adr/0014): every node offers it, too. So it is told from one whose user names its
// nodes, and let go again.
const SentMiB = 2

// WholeMiB is what a job books that takes all GPUs of its nodes, and what a node offers of carmaK,
// K being all its GPUs, as long as jobs that have booked are all that keeps it from giving them
// (docs/adr/0126). How much these have left is in carmatotal, which they consume: so slurmctld
// plans when such a job starts, as it plans for jobs without CARMA. Every other job asks for more.
const WholeMiB = 3

// NoConsume is the type of a GRES that jobs need and do not consume (gres.html).
const NoConsume = "no_consume"

// Users is in how many parts users are counted. A GPU with jobs has room for their
// user only, and slurmctld knows no users: it would send everybody's jobs there. With
// eight parts it does so for one user of eight (docs/bench/sim.md).
const Users = 8

// Part returns in which part a user is counted.
func Part(uid uint32) int { return int(uid % Users) }

// Index returns the place in Names of what a user's job on k GPUs books.
func Index(k int, uid uint32) int {
	if k == 1 {
		return Part(uid)
	}
	return Users + k - 2
}

// Name returns the GRES that books memory on k GPUs of a node at once for a user.
func Name(k int, uid uint32) string { return nameAt(Index(k, uid)) }

func nameAt(i int) string {
	if i < Users {
		return carma + user + strconv.Itoa(i)
	}
	return carma + strconv.Itoa(i-Users+2)
}

// Names returns all of them for a node with so many GPUs.
func Names(gpus int) []string {
	names := make([]string, Users+gpus-1)
	for i := range names {
		names[i] = nameAt(i)
	}
	return names
}

// IndexOf returns the place in Names of a GRES; -1: it is none of them.
func IndexOf(name string) int {
	s, ok := strings.CutPrefix(name, carma)
	if !ok {
		return -1
	}
	part, isUser := strings.CutPrefix(s, user)
	n, err := strconv.Atoi(part)
	switch {
	case err != nil || part != strconv.Itoa(n):
		return -1
	case isUser && n >= 0 && n < Users:
		return n
	case !isUser && n >= 2:
		return Users + n - 2
	}
	return -1
}

// K returns on how many GPUs a GRES books memory; 0: it books none.
func K(name string) int {
	switch i := IndexOf(name); {
	case i < 0:
		return 0
	case i < Users:
		return 1
	default:
		return i - Users + 2
	}
}

// Entry is one word of a list.
type Entry struct {
	Name  string
	Type  string // of a typed GRES, else empty
	Count int64  // 1 where the text gives none
	text  string // as written
}

// String returns the entry as it was written.
func (e Entry) String() string { return e.text }

// prefix returns what is written before the name.
func (e Entry) prefix() string { return e.text[:max(strings.Index(e.text, e.Name), 0)] }

// Parse yields the entries of list. It takes every spelling that Slurm
// 22.05 to 26.05 uses: with "gres:" or "gres/" in front or without, ":" or "="
// before the count, a type or none, counts with a suffix K, M, G, T or P, and
// socket or index notes in parentheses. An entry without a readable count
// keeps its whole text, so that Without loses nothing.
func Parse(list string) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		// Cut at commas outside parentheses: "gpu:4(IDX:0-1,3)" is one entry.
		depth, start := 0, 0
		for i := 0; i <= len(list); i++ {
			switch {
			case i == len(list) || list[i] == ',' && depth == 0:
				if w := strings.TrimSpace(list[start:i]); w != "" && w != "(null)" && !yield(parse(w)) {
					return
				}
				start = i + 1
			case list[i] == '(':
				depth++
			case list[i] == ')' && depth > 0:
				depth--
			}
		}
	}
}

func parse(word string) Entry {
	e := Entry{text: word, Count: 1}
	s := strings.TrimPrefix(strings.TrimPrefix(word, "gres:"), "gres/")
	if i := strings.IndexByte(s, '('); i >= 0 {
		s = s[:i]
	}
	var three [3]string // as most have
	parts := three[:0]
	for part := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == ':' || r == '=' }) {
		parts = append(parts, part)
	}
	if len(parts) > 1 {
		if n, ok := count(parts[len(parts)-1]); ok {
			e.Count, parts = n, parts[:len(parts)-1]
		}
	}
	if len(parts) > 1 {
		e.Type = strings.Join(parts[1:], ":")
	}
	if len(parts) > 0 {
		e.Name = parts[0]
	}
	return e
}

// count reads a GRES count; suffixes are powers of 1024 (gres.html).
func count(s string) (int64, bool) {
	shift := 0
	if s != "" {
		if i := strings.IndexByte("kmgtp", s[len(s)-1]|0x20); i >= 0 {
			shift, s = 10*(i+1), s[:len(s)-1]
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 1<<62>>shift {
		return 0, false
	}
	return n << shift, true
}

// List is what a GRES list says, as Read found it.
type List struct {
	Text   string
	GPUs   int64 // sum of its gpu entries
	Shards int64
	// K is on how many GPUs of a node it books memory; 0: it books none.
	K       int
	booking string // GRES of that
	freeMiB int64  // its count
	total   int64  // count of carmatotal; -1: it is not there
}

// Read reads a list once for all that is asked of it.
func Read(text string) List {
	l := List{Text: text, total: -1}
	var gpus, shards byType
	for e := range Parse(text) {
		switch k := K(e.Name); {
		case e.Name == GPU:
			l.GPUs = gpus.with(e)
		case e.Name == Shard:
			l.Shards = shards.with(e)
		case e.Name == Total:
			l.total = e.Count
		case k > 0 && l.K == 0:
			l.K, l.booking, l.freeMiB = k, e.Name, e.Count
		}
	}
	return l
}

// byType adds up the counts of one GRES. Of several entries of one type slurmctld takes the last:
// --gres=gpu:4 --gpus-per-node=4 asks for four (src/common/gres.c, _get_next_job_gres(), 22.05.8).
// It skips one whose count is 0, and reads only one of the spellings "gres:gpu", "gres/gpu" and
// "gpu": so of a list with several of them, no count is lost.
type byType struct {
	last  [8]Entry // more types are counted as often as they are named
	types int
	sum   int64
}

func (b *byType) with(e Entry) (sum int64) {
	if e.Count == 0 {
		return min(b.sum, 1<<40)
	}
	i := 0
	for i < b.types && (b.last[i].Type != e.Type || b.last[i].prefix() != e.prefix()) {
		i++
	}
	if i < b.types {
		b.sum -= b.last[i].Count
	} else if i < len(b.last) {
		b.types++
	}
	e.Count = min(e.Count, 1<<40)
	if i < len(b.last) {
		b.last[i] = e
	}
	b.sum = min(b.sum+e.Count, 1<<50)
	return min(b.sum, 1<<40)
}

// FreeMiB is what must be free of each of K GPUs, or, of a booking that any node meets,
// what it takes of them.
func (l List) FreeMiB() int64 {
	if l.K > 0 && l.freeMiB <= WholeMiB {
		return max(l.total/int64(l.K), l.freeMiB)
	}
	return l.freeMiB
}

// ReserveMiB is what the list books on each of K GPUs by their sum; that is less than
// FreeMiB for a job that waits for idle GPUs.
func (l List) ReserveMiB() int64 {
	if l.K > 0 && l.total >= 0 {
		return l.total / int64(l.K)
	}
	return l.FreeMiB()
}

// Anywhere tells whether slurmctld looks for a node that has the memory free; not, if the
// booking is for nodes that the job names, or was sent to.
func (l List) Anywhere() bool { return l.K > 0 && l.freeMiB > SentMiB }

// Sent tells whether the list books what a job does that was sent to its node.
func (l List) Sent() bool { return l.K > 0 && l.freeMiB == SentMiB }

// Whole tells whether the list books all GPUs of its nodes, so that slurmctld plans their start.
func (l List) Whole() bool { return l.K > 0 && l.freeMiB == WholeMiB }

// Without returns the list as written, less the entries that book CARMA memory.
func (l List) Without() string {
	if l.K == 0 && l.total < 0 { // as of all but jobs that are requeued
		return l.Text
	}
	var kept []string
	for e := range Parse(l.Text) {
		if K(e.Name) == 0 && e.Name != Total {
			kept = append(kept, e.text)
		}
	}
	return strings.Join(kept, ",")
}

// WithoutGPUs returns the list less its gpu and shard entries, and their type; empty
// if they have none.
func (l List) WithoutGPUs() (rest, gpuType string) {
	var kept []string
	for e := range Parse(l.Text) {
		if e.Name == GPU || e.Name == Shard {
			if e.Count > 0 {
				gpuType = e.Type
			}
			continue
		}
		kept = append(kept, e.text)
	}
	return strings.Join(kept, ","), gpuType
}

// Rebook returns the list with other numbers in its booking, as in Book; one without a
// booking stays as it is.
func (l List) Rebook(free, each int64) string {
	if l.K == 0 {
		return l.Text
	}
	prefix := "gres:"
	if strings.Contains(l.Text, "gres/") {
		prefix = "gres/"
	}
	return book(l.Without(), prefix, l.booking, free, int64(l.K)*each)
}

// AwaitIdle returns the list with fullMiB, all of a GPU, as the count of what must be
// free, and with the same sum as before: the job starts where GPUs are idle, and
// takes no more of them than it did.
func (l List) AwaitIdle(fullMiB int64) string { return l.Rebook(fullMiB, l.ReserveMiB()) }

// Request is an entry of list that asks for count of a GRES, of a type unless that
// is empty. prefix is that of the running Slurm: "gres:" or "gres/".
func Request(prefix, name, gresType string, count int64) string {
	if gresType != "" {
		name += ":" + gresType
	}
	return prefix + name + ":" + strconv.FormatInt(count, 10)
}

// Book adds to list what books mib MiB on each of k GPUs of a node for a user, where
// free MiB must be free of each: mib and more, AnyMiB for a job that names its nodes, or WholeMiB
// for one that takes all GPUs of its nodes.
// prefix is that of the running Slurm: "gres:" or "gres/".
func Book(list, prefix string, k int, uid uint32, free, mib int64) string {
	return book(list, prefix, Name(k, uid), free, int64(k)*mib)
}

func book(list, prefix, name string, free, total int64) string {
	return Add(Add(list, Request(prefix, name, "", free)), Request(prefix, Total, "", total))
}

// Add appends entry to list.
func Add(list, entry string) string {
	if list == "" {
		return entry
	}
	return list + "," + entry
}
