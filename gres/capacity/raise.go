// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/tres"
)

// An update of a node costs slurmctld about 1 ms under load (docs/admin.md). So many a second that only
// raise counts come from all nodes together in the long run, or one from each in raiseAtLeast: a user whose
// short jobs use up a node's part delays others there no longer. A node that has made none for a while
// may make some at once, and keeps the last of these for what is worth most: a count of which
// there was nothing. An update that lowers a count is never put off, as jobs are sent to the node
// until it is made. What bounds these is that a count must have been raised to be lowered again.
const (
	raisesPerSecond = 50
	raisesAtOnce    = 10
	raisesKept      = 5
	raiseAtLeast    = 30 * time.Second
)

// mayRaise tells whether the node may tell text after last, and counts it. One that lowers a count may.
func (p *Publisher) mayRaise(ctx context.Context, last, text string) (bool, error) {
	raised, opens := onlyRaises(last, text)
	if !raised {
		return true, nil
	}
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

// onlyRaises tells whether no count of text is lower than in last, and whether one is offered of
// which there was nothing.
func onlyRaises(last, text string) (raised, opens bool) {
	before, after := countsOf(last), countsOf(text)
	for len(before) < len(after) { // countsOf leaves out the last ones that are 0
		before = append(before, 0)
	}
	if len(after) < len(before) {
		return false, false
	}
	for i := range after {
		if after[i] < before[i] {
			return false, false
		}
		opens = opens || before[i] <= tres.SentMiB && after[i] > tres.SentMiB
	}
	return true, opens
}
