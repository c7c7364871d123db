// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"strings"

	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/slurmconf"
)

// room tells where Slurm's defaults leave no cores or memory for a second job on a GPU: then
// nothing shares, and squeue says "Resources".
func (d *diagnosis) room() {
	d.part("room", "is left for jobs that share a GPU", func(say func(Level, string, string)) {
		for _, name := range d.Config.PartitionNames() {
			p := d.Config.Partition[name]
			lines, partition, ok := d.nodesOf(name)
			if !ok || !p.Share {
				continue
			}
			for _, n := range lines {
				jobs := int64(p.GPUsPerNode * d.Config.ForNode(hostlist.First(n.Name)).Placement.MaxJobs)
				d.roomOf(n, partition, int64(p.GPUsPerNode), jobs, say)
			}
		}
	})
}

// roomOf looks at nodes of so many GPUs, which so many jobs may share.
func (d *diagnosis) roomOf(n, partition slurmconf.Record, gpus, jobs int64, say func(Level, string, string)) {
	if jobs <= gpus {
		return
	}
	of := func(key string) int64 { return number(cmp.Or(partition.Get(key), d.setting(key))) }
	cpus, memory, second := cpusOf(n), number(n.Get("RealMemory")), gpus+1
	if each := of("DefCpuPerGPU"); cpus > 0 && each*second > cpus {
		say(Warn, fmt.Sprintf("DefCpuPerGPU=%d leaves no core of the %d of %s for a job that shares one of %d GPUs",
			each, cpus, n.Name, gpus), fmt.Sprintf("DefCpuPerGPU=%d for partition %s", max(1, cpus/jobs), partition.Name))
	}
	if !countsMemory(d.setting("SelectTypeParameters")) || memory <= 1 {
		return
	}
	key, each := "DefMemPerGPU", of("DefMemPerGPU")
	if v := of("DefMemPerNode"); each == 0 && v > 0 {
		key, each = "DefMemPerNode", v
	}
	if each == 0 && of("DefMemPerCPU") == 0 {
		say(Warn, fmt.Sprintf("partition %s has no default memory: a job that asks for none gets all of %s", partition.Name,
			n.Name), fmt.Sprintf("DefMemPerCPU=%d for partition %[2]s", memory/max(cpus, 1), partition.Name))
	} else if each*second > memory {
		say(Warn, fmt.Sprintf("%s=%d leaves no memory of the %d MiB of %s for a job that shares one of %d GPUs", key, each,
			memory, n.Name, gpus), fmt.Sprintf("%s=%d for partition %s", key, memory/jobs, partition.Name))
	}
}

// countsMemory tells whether slurmctld counts the memory of jobs, by SelectTypeParameters; unset, it does
// from 23.02 on.
func countsMemory(parameters string) bool {
	return strings.Contains(strings.ToUpper(parameters), "MEMORY")
}

// cpusOf is how many CPUs slurmctld counts by a node's line; 0: the line does not say.
func cpusOf(n slurmconf.Record) int64 {
	if v := number(n.Get("CPUs")); v > 0 {
		return v
	}
	or1 := func(key string) int64 { return max(1, number(n.Get(key))) }
	sockets := number(n.Get("Sockets"))
	if sockets == 0 {
		sockets = or1("Boards") * number(n.Get("SocketsPerBoard"))
	}
	return sockets * or1("CoresPerSocket") * or1("ThreadsPerCore")
}
