// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"

	"carma/gres/lease"
	"carma/prolog"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// SettleCommand is the command of carma-node to go on where a Prolog could not decide;
// only Prologs start it.
const SettleCommand = "settle"

// Settle goes on where a Prolog could not decide.
func Settle(ctx context.Context, path string) error {
	return run(ctx, path, SettleCommand, func(ctx context.Context, n *prolog.Node, h jobenv.Hook, book *lease.Ledger,
		slurm sctl.Client) error {
		return n.Settle(ctx, h, book, slurm)
	})
}

// settleLater starts a process that outlives the Prolog: slurmd waits until nobody has
// its output open any more, and ends the rest of the Prolog's process group.
func settleLater(path string) error {
	cmd := exec.Command("/proc/self/exe", "--config", path, SettleCommand)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the process that continues for the Prolog: %w", err)
	}
	return cmd.Process.Release()
}

// ended says what the error of a hook means for slurmd: nothing, but for a fault of the
// node at a strict site.
func ended(n *prolog.Node, path string, h jobenv.Hook, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, prolog.ErrUndecided):
		n.Log.Warn("undecided; its tasks wait", "job", h.JobKey, "error", err)
		if err := settleLater(path); err != nil {
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
func ledgerFor(ctx context.Context, name string, n *prolog.Node, h jobenv.Hook, slurm sctl.Client) (*lease.Ledger,
	error) {
	if name == "epilog" {
		book, err := prolog.OpenBook(n.Config, h.Node)
		if err != nil {
			n.Log.Error("cannot work", "job", h.JobKey, "error", err)
		}
		return book, nil
	}
	return n.OpenLedger(ctx, h, slurm)
}

// withoutGPUs is the hooks' work for a job without GPUs. An Epilog's is done by
// prolog.Node.Left.
func withoutGPUs(ctx context.Context, name string, n *prolog.Node, h jobenv.Hook, slurm sctl.Client) error {
	switch name {
	case "prolog":
		// slurmctld may have forgotten them: the agent is to know then.
		if h.OneNode && h.Carma.Annotated && h.Carma.GPUs > 0 {
			book, err := prolog.OpenBook(n.Config, h.Node)
			if err == nil {
				defer book.Close()
				return n.Prolog(ctx, h, book, slurm)
			}
			n.Log.Warn("the agent cannot set its start time", "job", h.JobKey, "error", err)
		}
		return n.Prolog(ctx, h, nil, slurm)
	case SettleCommand:
		return n.Settle(ctx, h, nil, slurm)
	}
	return nil
}
