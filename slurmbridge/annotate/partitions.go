// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"strings"

	"carma/slurmbridge/config"
)

// Partition returns the partition that the job is booked for, and its name for people;
// false if it names none of CARMA's. slurmctld starts a job with several partitions in
// any of them: the job is booked so that it can run in each partition of CARMA's, by
// the smallest GPUs, the fewest of a node, the shortest time slot, and shared where
// all share; a directive for jobs that say nothing counts where all have the same. In
// another partition it starts only on nodes that CARMA counts too.
func (s Site) Partition(names string) (name string, part config.Partition, ok bool) {
	if names == "" {
		names = s.DefaultPartition
	}
	for one := range strings.SplitSeq(names, ",") {
		p, managed := s.Partitions[one]
		switch {
		case !managed:
		case !ok:
			name, part, ok = one, p, true
		default:
			if p.GPUMemMiB < part.GPUMemMiB || p.GPUMemMiB == part.GPUMemMiB && p.GPUsPerNode < part.GPUsPerNode {
				name = one
			}
			part = smaller(part, p)
		}
	}
	return name, part, ok
}

// allGPUs tells whether k GPUs of a memory are all GPUs of each node of every managed partition of a list. Larger ones
// would not be taken whole: the job consumes less GRES carma there than such a node has.
func (s Site) allGPUs(names string, k int, mib int64) bool {
	if names == "" {
		names = s.DefaultPartition
	}
	for one := range strings.SplitSeq(names, ",") {
		if p, managed := s.Partitions[one]; managed && (p.GPUsPerNode != k || p.GPUMemMiB != mib) {
			return false
		}
	}
	return true
}

func smaller(a, b config.Partition) config.Partition {
	a.GPUMemMiB = min(a.GPUMemMiB, b.GPUMemMiB)
	a.GPUsPerNode = min(a.GPUsPerNode, b.GPUsPerNode)
	a.Share = a.Share && b.Share
	if a.Directive != b.Directive {
		a.Directive = ""
	}
	if a.TimeSlot == 0 || b.TimeSlot > 0 && b.TimeSlot < a.TimeSlot {
		a.TimeSlot = b.TimeSlot
	}
	base, other := baseOf(a), baseOf(b)
	if other.CuBLASMiB > base.CuBLASMiB {
		a.BaseCuBLASMiB = b.BaseCuBLASMiB
	}
	if other.CuDNNMiB > base.CuDNNMiB {
		a.BaseCuDNNMiB = b.BaseCuDNNMiB
	}
	return a
}
