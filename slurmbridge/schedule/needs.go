// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"slices"
	"strings"

	"carma/slurmbridge/features"
	"carma/slurmbridge/hostlist"
)

// Needs is a job's request for nodes, beside GPUs.
type Needs struct {
	Partitions      string // with commas
	Nodes           int    // at least
	Named, Excluded string // nodes
	Reserved        string // the nodes of the job's reservation; empty: any
	Features        string
	Least           Size // of each node
}

// Size is the size of a node, or the size that a job asks for. Of a node 0 CPUs and 0 MiB of memory are unknown.
type Size struct{ CPUs, MemMiB, TmpMiB int64 }

// Host is a node with the resources beside GPUs.
type Host struct {
	Name       string
	Partitions []string
	Features   string // with commas; also features that a reboot would bring
	Size
}

// Allow tells whether the job may run on a node when everybody else has gone. An unreadable list forbids nothing.
func (n Needs) Allow(h Host) bool {
	names, err := hostlist.Expand(n.Named)
	if err == nil && len(names) > 0 && len(names) >= n.Nodes && !slices.Contains(names, h.Name) ||
		hostlist.Contains(n.Excluded, h.Name) {
		return false
	}
	if names, err := hostlist.Expand(n.Reserved); err == nil && len(names) > 0 && !slices.Contains(names, h.Name) {
		return false
	}
	in := func(partition string) bool { return slices.Contains(h.Partitions, partition) }
	if len(h.Partitions) > 0 && !slices.ContainsFunc(strings.Split(n.Partitions, ","), in) {
		return false
	}
	has := strings.Split(h.Features, ",")
	wanted, err := features.Parse(n.Features)
	if err == nil && !wanted.May(func(f string) bool { return slices.Contains(has, f) }, n.Nodes) {
		return false
	}
	return enough(h.CPUs, n.Least.CPUs) && enough(h.MemMiB, n.Least.MemMiB) &&
		(n.Least.TmpMiB == 0 || h.TmpMiB > 0 && enough(h.TmpMiB, n.Least.TmpMiB)) // slurm.conf need not give a node any
}

// enough leaves a hundredth to squeue, which may round.
func enough(has, least int64) bool { return has == 0 || least <= has+has/100 }
