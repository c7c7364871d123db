// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/config"
)

// For returns the publisher of the node's capacity, as carma.toml says.
func For(c config.Config, node string, book *lease.Ledger, slurm Slurm) *Publisher {
	p := &Publisher{
		Node: node, RunDir: c.RunDir(node), Slurm: slurm, Book: book,
		Policy: choose.Policy(c.Placement.Policy), IdleOnly: c.Placement.IdleOnly(), Thresholds: choose.FromConfig(c),
		StaleAfter: choose.StaleAfter(c), UserKey: c.Slurm.UserKey,
	}
	for _, name := range c.PartitionNames() {
		p.FullMiB = append(p.FullMiB, c.Partition[name].GPUMemMiB)
		p.GPUs = append(p.GPUs, c.Partition[name].GPUsPerNode)
	}
	return p
}
