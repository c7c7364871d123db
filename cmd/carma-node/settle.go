// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"syscall"
	"time"

	"carma/gres/lease"
	"carma/prolog"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// settleCommand goes on where a Prolog could not decide; only Prologs start it.
const settleCommand = "settle"

func runSettle(ctx context.Context, e env, _ []string) error {
	return hook(ctx, e, settleCommand, func(ctx context.Context, n *prolog.Node, h jobenv.Hook, book *lease.Book, slurm sctl.Client) error {
		return n.Settle(ctx, h, book, slurm)
	})
}

// settleLater starts a process that outlives this Prolog: slurmd waits until nobody has
// its output open any more, and ends what is left of the Prolog's process group.
func settleLater(e env) error {
	cmd := exec.Command("/proc/self/exe", "--config", e.config, settleCommand)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a process that goes on for the Prolog: %w", err)
	}
	return cmd.Process.Release()
}

// ledgerOf opens the ledger for a Prolog. A node whose ledger cannot be opened can
// lease no GPU: the job goes back to the queue, and nil comes back. One that cannot go
// back waits until either can be done; until is when this process must end, the zero
// value never.
func ledgerOf(ctx context.Context, n *prolog.Node, h jobenv.Hook, slurm sctl.Client, until time.Time) (*lease.Book, error) {
	defer n.Heartbeat(h)()
	for {
		book, err := openBook(n.Config, h.Node)
		if err == nil {
			return book, nil
		}
		n.Log.Error("cannot work", "job", h.JobKey, "error", err)
		if n.Config.Hooks.Strict && needsRepair(err) && !until.IsZero() {
			return nil, fmt.Errorf("%w: %w", prolog.ErrNode, err)
		}
		if err = n.Return(ctx, h, slurm); err == nil {
			return nil, nil
		}
		n.Log.Warn("neither leased nor returned; retrying", "job", h.JobKey, "error", err)
		if !until.IsZero() && time.Until(until) < 2*n.Config.Hooks.Deadline.D() {
			if err := n.Undecided(h); err == nil {
				return nil, prolog.ErrUndecided
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

// ended says what the error of a hook means for slurmd: nothing, but for a fault of the
// node at a strict site.
func ended(n *prolog.Node, e env, h jobenv.Hook, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, prolog.ErrUndecided):
		n.Log.Warn("undecided; its tasks wait", "job", h.JobKey, "error", err)
		if err := settleLater(e); err != nil {
			n.Log.Error("failed", "job", h.JobKey, "error", err)
		}
		return nil
	}
	n.Log.Error("failed", "job", h.JobKey, "error", err)
	if n.Config.Hooks.Strict && errors.Is(err, prolog.ErrNode) {
		return err
	}
	return nil
}

// ledgerFor opens the ledger for a hook; nil, and no error: there is nothing to do.
func ledgerFor(ctx context.Context, name string, n *prolog.Node, h jobenv.Hook, slurm sctl.Client) (*lease.Book, error) {
	if name == "epilog" {
		book, err := openBook(n.Config, h.Node)
		if err != nil {
			n.Log.Error("cannot work", "job", h.JobKey, "error", err)
		}
		return book, nil
	}
	return ledgerOf(ctx, n, h, slurm, n.Until)
}
