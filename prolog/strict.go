// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"

	"carma/gres/lease"
)

// ErrNode is a fault of the node itself for somebody to mend, for which a strict
// site lets its Prolog fail: a GPU is lost, or the ledger is damaged.
var ErrNode = errors.New("fault of this node")

// lost is how NVML names a GPU fallen off the bus or in need of a reset
// (nvmlErrorString of NVML_ERROR_GPU_IS_LOST, _RESET_REQUIRED).
var lost = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)gpu[ _]is[ _]lost|gpu requires reset|reset_required`)
})

// checkNode tells whether a strict site wants jobs on this node.
func (n *Node) checkNode(ctx context.Context, ledger Readings) error {
	ctx, cancel := n.part(ctx)
	defer cancel()
	if err := n.refresh(ctx, ledger); err != nil {
		n.Log.Warn("read GPUs; using the last readings", "error", err)
	}
	s, err := ledger.Snapshot(ctx)
	if lease.Damaged(err) {
		return fmt.Errorf("%w: %w", ErrNode, err)
	} else if err != nil { // a lock or a full disk ends some time
		n.Log.Warn("check for lost GPUs", "error", err)
		return nil
	}
	for _, r := range s.Readings {
		if lost().MatchString(r.Unreadable) {
			return fmt.Errorf("%w: GPU %s: %s", ErrNode, r.UUID, r.Unreadable)
		}
	}
	return nil
}
