// SPDX-License-Identifier: Apache-2.0

package config

import "fmt"

// BySlurm tells whether slurmctld picks the GPU of a job, by shards of 1 GiB.
func (p Placement) BySlurm() bool { return p.Mode == "slurm" }

const mibPerShard = 1024

// ShardsFor is how many shards book mib MiB.
func ShardsFor(mib int64) int64 { return (mib + mibPerShard - 1) / mibPerShard }

// MiBOf is what so many shards book.
func MiBOf(shards int64) int64 { return shards * mibPerShard }

// ShardsOf is how many shards a GPU of gpuMiB has. The margin is left out: slurmctld
// fills a GPU up to the last shard, and the node keeps the margin free.
func ShardsOf(gpuMiB, marginMiB int64) int64 { return max(gpuMiB-marginMiB, 0) / mibPerShard }

// checkBySlurm refuses what cannot be kept when slurmctld picks the GPU: it knows
// neither policies nor users, and the node could only send jobs back for ever.
func (c *Config) checkBySlurm() *KeyError {
	if !c.Placement.BySlurm() {
		return nil
	}
	const why = "slurmctld picks the GPU under placement.mode = \"slurm\""
	def := Default().Placement
	switch {
	case c.Placement.Policy != def.Policy:
		return &KeyError{0, "placement.policy", why + "; leave the policy out"}
	case len(c.Placement.AllowPolicies) > 0:
		return &KeyError{0, "placement.allow_policies", why + "; no job can choose"}
	case c.Placement.CrossUser != "timeslice":
		return &KeyError{0, "placement.cross_user", why + " and cannot keep users apart; say \"timeslice\" if that is meant"}
	}
	for _, name := range sortedKeys(c.NodeSet) {
		if set := c.NodeSet[name]; set.Policy != "" {
			return &KeyError{0, "nodeset." + name + ".policy", why + "; leave the policy out"}
		} else if set.CrossUser != "" && set.CrossUser != "timeslice" {
			return &KeyError{0, "nodeset." + name + ".cross_user", why + " and cannot keep users apart"}
		} else if set.MaxJobs != 0 {
			return &KeyError{0, "nodeset." + name + ".max_jobs", why + "; placement.max_jobs holds for all nodes"}
		}
	}
	for _, name := range c.PartitionNames() {
		if p := c.Partition[name]; ShardsOf(p.GPUMemMiB, c.Placement.MarginMiB) < 1 {
			return &KeyError{0, "placement.margin_mib", fmt.Sprintf("leaves no GiB of a GPU of partition %s", name)}
		}
	}
	return nil
}
