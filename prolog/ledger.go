// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// Prepare makes the run directory. Root alone writes there; TaskProlog and MPS
// clients of every user must get in.
func Prepare(runDir string) error {
	old := syscall.Umask(0o022)
	defer syscall.Umask(old)
	if err := os.MkdirAll(filepath.Join(runDir, "jobs"), 0o755); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	return nil
}

// OpenBook opens the node's ledger, making its directory if need be.
func OpenBook(c config.Config, node string) (*lease.Ledger, error) {
	runDir := c.RunDir(node)
	if err := Prepare(runDir); err != nil {
		return nil, err
	}
	return lease.Open(runDir, c.Hooks.Deadline.D())
}

// OpenLedger opens the ledger for a Prolog. A node whose ledger cannot be opened can
// lease no GPU: the job returns to the queue, and the ledger is nil. A job that
// cannot return waits until either can be done; Node.Until is when this process must
// end, the zero value never.
func (n *Node) OpenLedger(ctx context.Context, h jobenv.Hook, slurm Slurm) (*lease.Ledger, error) {
	until, told := n.Until, false
	defer n.heartbeat(h)()
	for {
		book, err := OpenBook(n.Config, h.Node)
		if err == nil {
			return book, nil
		}
		n.Log.Error("cannot work", "job", h.JobKey, "error", err)
		if n.Config.Hooks.Strict && needsRepair(err) && !until.IsZero() {
			return nil, fmt.Errorf("%w: %w", ErrNode, err)
		}
		if err = n.returnJob(ctx, h, slurm); err == nil {
			return nil, nil
		}
		n.Log.Warn("neither leased nor returned; retrying", "job", h.JobKey, "error", err)
		if errors.Is(err, sctl.ErrBatchOnly) && !told && !until.IsZero() { // a Settle's job has read so
			told = true
			notify(ctx, n, h, slurm, waitsForNode(h, "lease it a GPU"))
		}
		if !until.IsZero() && time.Until(until) < 2*n.Config.Hooks.Deadline.D() {
			if err := n.markUndecided(h, told); err == nil {
				return nil, ErrUndecided
			}
		}
		time.Sleep(time.Second)
	}
}

// needsRepair tells whether somebody has to mend the node. A lock, a full disk or a
// time-out is over some time.
func needsRepair(err error) bool {
	return lease.Damaged(err) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) ||
		errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EROFS)
}
