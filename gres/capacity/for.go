// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"
	"time"

	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/config"
)

// For returns what tells slurmctld what the node can take, as carma.toml says. A slurmctld
// that picks GPUs itself counts shards and need not be told.
func For(c config.Config, node string, book *lease.Ledger, slurm Slurm) interface {
	Publish(ctx context.Context) error
	PublishIf(ctx context.Context, s lease.Snapshot) error
	Compare(ctx context.Context) error
	CompareIf(ctx context.Context, s lease.Snapshot, pause time.Duration, nodes int) (comment string, asked bool,
		err error)
} {
	if c.Placement.BySlurm() {
		return NoPublisher{}
	}
	p := &Publisher{
		Node: node, RunDir: c.RunDir(node), Slurm: slurm, Book: book,
		Policy: choose.Policy(c.Placement.Policy), IdleOnly: c.Placement.IdleOnly(), Thresholds: choose.FromConfig(c),
		Floor: !c.Capacity.Anchor,
	}
	for _, name := range c.PartitionNames() {
		p.FullMiB = append(p.FullMiB, c.Partition[name].GPUMemMiB)
		p.GPUs = append(p.GPUs, c.Partition[name].GPUsPerNode)
	}
	return p
}
