// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"
	"time"

	"carma/gres/lease"
)

// An update of a node costs slurmctld about 1 ms under load (docs/admin.md). So many a second that
// raise counts come from all nodes together in the long run, or one from each in raiseAtLeast: a user whose
// short jobs use up a node's part delays others there no longer. A node that has made none for a while
// may make some at once, and keeps the last of these for what is worth most: a count of which
// there was nothing. A lower count is never put off, as jobs are sent to the node until it is
// told. What bounds updates that only lower is that a count must have been raised to be lowered again.
const (
	raisesPerSecond = 50
	raisesAtOnce    = 10
	raisesKept      = 5
	raiseAtLeast    = 30 * time.Second
)

// bounded returns the counts that slurmctld may be told now, which was told others: where the node
// has used its part, none is higher than it was. It counts an update that raises.
func (p *Publisher) bounded(ctx context.Context, told, counts map[string]int64) (map[string]int64, error) {
	raises, opens := false, false
	for key := range counts {
		n, was := of(counts, key), of(told, key)
		raises = raises || n > was
		opens = opens || n > was && was == 0
	}
	if !raises {
		return counts, nil
	}
	ok, err := p.mayRaise(ctx, opens)
	if err != nil || ok {
		return counts, err
	}
	return lower(told, counts), nil
}

// lower is what of counts is lower than told.
func lower(told, counts map[string]int64) map[string]int64 {
	list := map[string]int64{}
	for _, some := range []map[string]int64{told, counts} { // a user of either may have less or no key in the other
		for key := range some {
			list[key] = min(of(counts, key), of(told, key))
		}
	}
	return without(list)
}

// mayRaise tells whether the node may make an update that raises counts, and counts it. opens: one of
// them is of something of which there was nothing.
func (p *Publisher) mayRaise(ctx context.Context, opens bool) (bool, error) {
	nodes, paid, err := p.Book.Raised(ctx)
	if err != nil || nodes == 0 {
		return err == nil, err
	}
	now := lease.Now()
	each := min(time.Duration(nodes)*time.Second/raisesPerSecond, raiseAtLeast)
	left := time.Duration(raisesAtOnce)
	if !opens {
		left -= raisesKept
	}
	paid = max(paid, now) + each
	if paid > now+left*each {
		return false, nil
	}
	return true, p.Book.SetRaised(ctx, paid)
}
