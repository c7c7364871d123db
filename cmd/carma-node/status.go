// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"time"

	"carma/cmd/internal/cli"
	"carma/gres/lease"
	"carma/slurmbridge/sctl"
)

const statusUsage = `usage: carma-node status [--json] [--watch]

Shows the GPUs of this node: SM activity over the window, memory used and
leased, the jobs on each, and why a closed GPU takes no further job.
`

func runStatus(ctx context.Context, e env, args []string) error {
	f := cli.Flags("carma-node status", statusUsage, os.Stdout)
	watch := f.Bool("watch", false, "refresh every two seconds, until Ctrl-C")
	asJSON := f.Bool("json", false, "print JSON (docs/json.md)")
	ascii := f.Bool("ascii", false, "draw with ASCII only")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	c, err := cli.Config(e.config)
	if err != nil {
		return err
	}
	node := sctl.NodeName(e.node)
	c = c.ForNode(node)
	book, err := lease.Open(c.RunDir(node), 2*time.Second)
	if err != nil {
		return cli.Fail(cli.ExitUnavailable, "%w; has the agent run, and are you root?%s", err, otherNodes(c, node))
	}
	defer book.Close()
	look := func(w io.Writer) error {
		s, err := book.Snapshot(ctx)
		if err != nil {
			return cli.Fail(cli.ExitUnavailable, "%w", err)
		}
		n := statusOf(c, node, s, userName)
		if *asJSON {
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			return enc.Encode(n)
		}
		return n.Print(w, cli.StyleOf(os.Stdout, *ascii))
	}
	if !*watch {
		return look(os.Stdout)
	}
	return watchStatus(ctx, look)
}
