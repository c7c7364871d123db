// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
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
an MPS server ends by itself when the server's clients have gone, and one because
of what NVML reports when NVML no longer reports it.
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
		if err != nil {
			return cli.Fail(cli.ExitUnavailable, "%w", err)
		}
		now, err := book.Snapshot(ctx)
		if err != nil {
			return cli.Fail(cli.ExitUnavailable, "%w", err)
		}
		fmt.Printf("GPU %d (%s) %s\n", r.Index, r.UUID, readmitted(r, now.Readings, ended))
	}
	if !found {
		return cli.Fail(cli.ExitUsage, "there is no GPU %q here; see carma-node status", f.Arg(0))
	}
	agent.Poke(runDir)
	return nil
}

// readmitted says what has become of a GPU; before is its reading, ended whether a fault was
// ended.
func readmitted(before gres.Reading, now []gres.Reading, ended bool) string {
	i := slices.IndexFunc(now, func(r gres.Reading) bool { return r.UUID == before.UUID })
	if i < 0 { // the agent reads the GPU no more
		i, now = 0, []gres.Reading{{}}
	}
	switch still := now[i]; {
	case still.Cause == gres.CauseMPS:
		return fmt.Sprintf("stays in quarantine: %s; it takes jobs again when the server's clients have gone",
			still.Quarantined)
	case still.Quarantined != "":
		return fmt.Sprintf("stays in quarantine: %s; it takes jobs again when NVML no longer reports that",
			still.Quarantined)
	case ended:
		return "takes jobs again: " + before.Quarantined
	}
	return "was not in quarantine"
}
