// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"carma/cmd/carma-node/internal/unbook"
	"carma/cmd/internal/cli"
	"carma/slurmbridge/sctl"
)

const unbookUsage = `usage: carma-node unbook

Makes the pending jobs that CARMA has booked Slurm's own again: removes the GRES
carma from their requests, and CARMA's part from an --extra that their users wrote.
(slurmctld empties no --extra: where it is CARMA's alone, it stays until
extra_constraints leaves slurm.conf.) Then CARMA can be removed while they wait
(docs/pilot.md). Run it as root or SlurmUser, once carma.disable keeps new jobs
from being booked. It changes at most 20 jobs a second, can be run again, and
exits with status 6 if jobs are left.
`

// unbookPause bounds the updates to slurmctld: each takes slurmctld a few milliseconds.
const unbookPause = 50 * time.Millisecond

func runUnbook(ctx context.Context, e env, args []string) error {
	f := cli.Flags("carma-node unbook", unbookUsage, os.Stdout)
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Fail(cli.ExitUsage, "unbook takes no arguments, not %q", f.Arg(0))
	}
	c, err := loadOrDefault(e.config)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	slurm := sctl.For(c.Slurm, os.Getenv("SLURM_CONF"))
	v, err := slurm.Version(ctx)
	if err != nil {
		return cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	done, left, err := unbook.All(ctx, slurm, v, unbookPause)
	if err != nil {
		return cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	fmt.Printf("%d pending jobs and arrays are Slurm's own again, %d still book GPU memory\n", done, len(left))
	for _, l := range left {
		fmt.Fprintf(os.Stderr, "carma-node: job %s: %v\n", l.Job, l.Err)
	}
	if len(left) > 0 {
		return cli.Fail(cli.ExitUnfit, "%d jobs left", len(left))
	}
	return nil
}
