// SPDX-License-Identifier: Apache-2.0

// Package tres reads and writes the GRES lists of Slurm job requests and
// nodes: "gres:gpu:a100:2,gres:carma:12288", "gres/gpu=1", "gpu:16(S:0-1)".
package tres

import (
	"fmt"
	"strconv"
	"strings"
)

// Names of the resources that CARMA books. gpu counts slots. carma says how many
// MiB one GPU of a node can still take, carma2 how many MiB each of two GPUs can
// take at once, and so on; jobs do not consume these. They consume carmatotal,
// the MiB of all GPUs of the node (docs/adr/0003).
const (
	GPU   = "gpu"
	Carma = "carma"
	Total = "carmatotal"
	Shard = "shard" // Slurm's own part of a GPU; 1 GiB under placement.mode "slurm"
)

// AnyMiB is what every node offers of each carmaK at any time, and more than that
// is asked by every job but those that name their nodes: slurmctld refuses such a
// job, or gives it up for good (BadConstraints), as soon as these nodes offer less
// than it asks for. What it needs stands in its carmatotal, and its Prolog waits.
const AnyMiB = 1

// NoConsume is the type of a GRES that jobs need and do not consume (gres.html).
const NoConsume = "no_consume"

// Name returns the GRES that books memory on k GPUs of a node at once.
func Name(k int) string {
	if k == 1 {
		return Carma
	}
	return Carma + strconv.Itoa(k)
}

// K is the inverse of Name: 1 for carma, 2 for carma2, 0 for anything else.
func K(name string) int {
	s, ok := strings.CutPrefix(name, Carma)
	if !ok {
		return 0
	}
	if s == "" {
		return 1
	}
	k, err := strconv.Atoi(s)
	if err != nil || k < 2 || s != strconv.Itoa(k) {
		return 0
	}
	return k
}

// Entry is one word of a list.
type Entry struct {
	Name  string
	Type  string // of a typed GRES, else empty
	Count int64  // 1 where the text gives none
	text  string // as written
}

// Parse splits list into its entries. It takes every spelling that Slurm
// 22.05 to 26.05 uses: with "gres:" or "gres/" in front or without, ":" or "="
// before the count, a type or none, counts with a suffix K, M, G, T or P, and
// socket or index notes in parentheses. An entry without a readable count
// keeps its whole text as Name, so that nothing is lost by String.
func Parse(list string) []Entry {
	var entries []Entry
	for _, word := range split(list) {
		e := Entry{text: word, Count: 1}
		s := strings.TrimPrefix(strings.TrimPrefix(word, "gres:"), "gres/")
		if i := strings.IndexByte(s, '('); i >= 0 {
			s = s[:i]
		}
		parts := strings.FieldsFunc(s, func(r rune) bool { return r == ':' || r == '=' })
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
		entries = append(entries, e)
	}
	return entries
}

// split cuts at commas outside parentheses: "gpu:4(IDX:0-1,3)" is one word.
func split(list string) []string {
	var words []string
	depth, start := 0, 0
	for i := 0; i <= len(list); i++ {
		switch {
		case i == len(list) || list[i] == ',' && depth == 0:
			if w := strings.TrimSpace(list[start:i]); w != "" && w != "(null)" {
				words = append(words, w)
			}
			start = i + 1
		case list[i] == '(':
			depth++
		case list[i] == ')' && depth > 0:
			depth--
		}
	}
	return words
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

// Without returns list as written, less the entries that book CARMA memory,
// and whether there were any.
func Without(list string) (rest string, had bool) {
	var kept []string
	for _, e := range Parse(list) {
		if K(e.Name) > 0 || e.Name == Total {
			had = true
			continue
		}
		kept = append(kept, e.text)
	}
	if !had {
		return list, false
	}
	return strings.Join(kept, ","), true
}

// GPUs sums the gpu entries of list.
func GPUs(list string) int64 {
	var n int64
	for _, e := range Parse(list) {
		if e.Name == GPU {
			n = min(n+e.Count, 1<<40)
		}
	}
	return n
}

// Shards sums the shard entries of list.
func Shards(list string) int64 {
	var n int64
	for _, e := range Parse(list) {
		if e.Name == Shard {
			n = min(n+e.Count, 1<<40)
		}
	}
	return n
}

// WithoutGPUs returns list less its gpu and shard entries, and their type; empty
// if they have none.
func WithoutGPUs(list string) (rest, gpuType string) {
	var kept []string
	for _, e := range Parse(list) {
		if e.Name == GPU || e.Name == Shard {
			gpuType = e.Type
			continue
		}
		kept = append(kept, e.text)
	}
	return strings.Join(kept, ","), gpuType
}

// Request is an entry of list that asks for count of a GRES, of a type unless that
// is empty. prefix is that of the running Slurm: "gres:" or "gres/".
func Request(prefix, name, gresType string, count int64) string {
	if gresType != "" {
		name += ":" + gresType
	}
	return fmt.Sprintf("%s%s:%d", prefix, name, count)
}

// Booking returns what list books: MiB on each of k GPUs of a node; zeros if
// nothing. anywhere is false if the booking is for nodes that the job names.
func Booking(list string) (k int, mib int64, anywhere bool) {
	total := int64(0)
	for _, e := range Parse(list) {
		if n := K(e.Name); n > 0 && k == 0 {
			k, mib = n, e.Count
		} else if e.Name == Total {
			total = e.Count
		}
	}
	if k == 0 {
		return 0, 0, false
	}
	if mib <= AnyMiB {
		return k, max(total/int64(k), mib), false
	}
	return k, mib, true
}

// Book adds to list what books mib MiB on each of k GPUs of a node: of any node,
// or of those that the job names. prefix is that of the running Slurm: "gres:" or
// "gres/".
func Book(list, prefix string, k int, mib int64, anywhere bool) string {
	free := mib
	if !anywhere {
		free = AnyMiB
	}
	return Add(list, fmt.Sprintf("%s%s:%d,%s%s:%d", prefix, Name(k), free, prefix, Total, int64(k)*mib))
}

// Rebook returns list with another booking in place of its own; a list without
// one stays as it is.
func Rebook(list string, mib int64, anywhere bool) string {
	k, _, _ := Booking(list)
	if k == 0 {
		return list
	}
	rest, _ := Without(list)
	prefix := "gres:"
	if strings.Contains(list, "gres/") {
		prefix = "gres/"
	}
	return Book(rest, prefix, k, mib, anywhere)
}

// Reserve returns the MiB that list books on each of k GPUs of a node by their sum;
// that is less than what Booking returns for a job that waits for idle GPUs.
func Reserve(list string) int64 {
	k, mib, _ := Booking(list)
	for _, e := range Parse(list) {
		if e.Name == Total && k > 0 {
			return e.Count / int64(k)
		}
	}
	return mib
}

// AwaitIdle returns list with fullMiB, all of a GPU, as the count of what must be
// free, and with the same sum as before: the job starts where GPUs are idle, and
// takes no more of them than it did.
func AwaitIdle(list string, fullMiB int64) string {
	k, _, _ := Booking(list)
	if k == 0 {
		return list
	}
	reserve := Reserve(list)
	rest, _ := Without(list)
	prefix := "gres:"
	if strings.Contains(list, "gres/") {
		prefix = "gres/"
	}
	return Add(rest, fmt.Sprintf("%s%s:%d,%s%s:%d", prefix, Name(k), fullMiB, prefix, Total, int64(k)*reserve))
}

// Add appends entry to list.
func Add(list, entry string) string {
	if list == "" {
		return entry
	}
	return list + "," + entry
}
