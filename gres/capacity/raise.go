// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"
	"slices"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/tres"
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

// bounded returns the counts that slurmctld may be told now, which was last told the text: where the node
// has used its part, none is higher than it was. It counts an update that raises.
func (p *Publisher) bounded(ctx context.Context, last string, counts []int64) ([]int64, error) {
	told := countsOf(last)
	told = append(told, make([]int64, max(len(counts)-len(told), 0))...) // countsOf leaves out the last that are 0
	raises, opens := false, false
	for i, n := range counts {
		raises = raises || n > max(told[i], tres.SentMiB)
		opens = opens || n > tres.SentMiB && told[i] <= tres.SentMiB
	}
	if !raises {
		return counts, nil
	}
	ok, err := p.mayRaise(ctx, opens)
	if err != nil || ok {
		return counts, err
	}
	lower := slices.Clone(counts)
	for i := range lower {
		lower[i] = min(lower[i], told[i])
	}
	return lower, nil
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
