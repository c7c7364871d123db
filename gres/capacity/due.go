// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"carma/gres/lease"
	"carma/gres/steward"
)

// A question about a node costs slurmctld 0.5 to 0.8 ms (docs/admin.md). So many a second come
// from all nodes together: from nodes that offer all they have, and from others.
const (
	idlePerSecond = 5
	busyPerSecond = 20
)

// due is when slurmctld is asked next for its counts.
type due struct {
	asked, at time.Duration // on the ledger's clock; at 0: nothing is known yet
	same      bool          // the last answer was as slurmctld was told, without a hold
	told      string        // then
}

// CompareIf compares when a comparison is due: not before the pause is over, and rarely enough to keep the
// questions of all nodes of the cluster within bounds. A node that offers less than all it has is lost to jobs,
// or draws too many, where somebody else has written its Extra at the same moment: such a node asks more often
// than a node that offers everything, had the expected answer and has told slurmctld nothing since. asked is
// false where no comparison was due; text is the node's Extra.
func (p *Publisher) CompareIf(ctx context.Context, s lease.Snapshot, pause time.Duration,
	nodes int) (text string, asked bool, err error) {
	now := lease.Now()
	told, _, _, err := p.Book.Published(ctx)
	if err != nil {
		return "", false, err
	}
	if nodes != p.nodes { // the Epilog publishes, too, and does not know their number
		if err := p.Book.SetNodes(ctx, nodes); err != nil {
			return "", false, err
		}
		p.nodes = nodes
	}
	d := &p.due
	rate := busyPerSecond
	if (d.at == 0 || d.same && d.told == told) && p.offersAll(s) {
		rate = idlePerSecond
	}
	every := interval(pause, nodes, rate)
	if d.at == 0 { // agents that start together would stay in step
		d.at, d.asked = now+time.Duration(float64(every-pause)*Phase(p.Node)), now
	} else if d.same {
		d.at = d.asked + every
	}
	if now < d.at {
		return "", false, nil
	}
	text, same, err := p.compare(ctx)
	if _, held := steward.HoldIn(text); held {
		same = false
	}
	// An eighth less, so that nodes all asked at once come apart.
	next := now + every - time.Duration(rand.Int64N(int64(every-pause)/8+1))
	*d = due{asked: next - every, at: next, same: same && err == nil}
	if err != nil {
		return "", false, err
	}
	d.told, _, _, err = p.Book.Published(ctx)
	return text, err == nil, err
}

func interval(pause time.Duration, nodes, rate int) time.Duration {
	return max(pause, time.Duration(nodes)*time.Second/time.Duration(rate))
}

// Phase is a number from 0 to 1 that a node keeps.
func Phase(node string) float64 {
	h := fnv.New32a()
	h.Write([]byte(node))
	return float64(h.Sum32()*2654435761) / (1 << 32) // names that differ only in the last digit come apart
}
