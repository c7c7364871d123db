// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"carma/cmd/internal/cli"
	"carma/gres"
	"carma/gres/agent"
	"carma/gres/lease"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
)

const readmitUsage = `usage: carma-node readmit GPU

Ends the quarantine of a GPU, which is named by index or UUID. Run it as root when
the fault that carma-node status shows has been repaired. A quarantine because of
an MPS server ends by itself when the server's clients have gone.
`

func runReadmit(ctx context.Context, e env, args []string) error {
	f := cli.Flags("carma-node readmit", readmitUsage, os.Stdout)
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return cli.Fail(cli.ExitUsage, "one GPU is needed; see carma-node readmit --help")
	}
	c, err := config.Load(e.config, os.ReadFile)
	if err != nil {
		return err
	}
	node := sctl.NodeName(e.node)
	runDir := c.ForNode(node).RunDir(node)
	book, err := lease.Open(runDir, 5*time.Second)
	if err != nil {
		return cli.Fail(cli.ExitUnavailable, "%w; has the agent run, and are you root?", err)
	}
	defer book.Close()
	s, err := book.Snapshot(ctx)
	if err != nil {
		return cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	found := false
	for _, r := range s.Readings {
		if r.UUID != f.Arg(0) && strconv.Itoa(r.Index) != f.Arg(0) {
			continue
		}
		found = true
		ended, err := book.EndFault(ctx, r.UUID, "")
		switch {
		case err != nil:
			return cli.Fail(cli.ExitUnavailable, "%w", err)
		case ended:
			fmt.Printf("GPU %d (%s) takes jobs again: %s\n", r.Index, r.UUID, r.Quarantined)
		case r.Cause == gres.CauseMPS:
			fmt.Printf("GPU %d (%s): %s; it takes jobs again when the server's clients have gone\n", r.Index, r.UUID,
				r.Quarantined)
		default:
			fmt.Printf("GPU %d (%s) was not in quarantine\n", r.Index, r.UUID)
		}
	}
	if !found {
		return cli.Fail(cli.ExitUsage, "there is no GPU %q here; see carma-node status", f.Arg(0))
	}
	agent.Poke(runDir)
	return nil
}
