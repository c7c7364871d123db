// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/config"
)

// For returns what tells slurmctld what the node can take, as carma.toml says; nil for a
// slurmctld that picks GPUs itself, counts shards and need not be told.
func For(c config.Config, node string, book *lease.Ledger, slurm Slurm) *Publisher {
	if c.Placement.BySlurm() {
		return nil
	}
	p := &Publisher{
		Node: node, RunDir: c.RunDir(node), Slurm: slurm, Book: book,
		Policy: choose.Policy(c.Placement.Policy), IdleOnly: c.Placement.IdleOnly(), Thresholds: choose.FromConfig(c),
		Floor: !c.Capacity.Anchor, StaleAfter: choose.StaleAfter(c),
	}
	for _, name := range c.PartitionNames() {
		p.FullMiB = append(p.FullMiB, c.Partition[name].GPUMemMiB)
		p.GPUs = append(p.GPUs, c.Partition[name].GPUsPerNode)
	}
	return p
}
