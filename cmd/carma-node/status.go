// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"carma/cmd/internal/cli"
	"carma/gres"
	"carma/gres/lease"
	"carma/gres/mps"
	"carma/gres/status"
	"carma/slurmbridge/config"
)

const statusUsage = `usage: carma-node status [--json] [--watch]
       carma-node top

Shows the GPUs of this node: SM activity over the window, memory used and
leased, the jobs on each, and why a closed GPU takes no more. top is status
--watch.
`

func runStatus(ctx context.Context, e env, args []string) error {
	return showStatus(ctx, e, "status", false, args)
}

func runTop(ctx context.Context, e env, args []string) error {
	return showStatus(ctx, e, "top", true, args)
}

// otherNodes names the nodes of a machine with several slurmds that have a ledger, where
// the one that was looked for has none.
func otherNodes(c config.Config, node string) string {
	before, after, several := strings.Cut(c.Paths.RunDir, "%n")
	found, err := filepath.Glob(c.RunDir("*") + "/leases.db")
	if !several || err != nil || len(found) == 0 {
		return ""
	}
	for i, path := range found {
		found[i] = strings.TrimSuffix(strings.TrimPrefix(path, before), after+"/leases.db")
	}
	if slices.Contains(found, node) {
		return ""
	}
	return fmt.Sprintf(" This machine has the nodes %s; see --node", strings.Join(found, ", "))
}

func showStatus(ctx context.Context, e env, name string, watch bool, args []string) error {
	f := cli.Flags("carma-node "+name, statusUsage, os.Stdout)
	f.BoolVar(&watch, "watch", watch, "refresh every two seconds, until Ctrl-C")
	asJSON := f.Bool("json", false, "print JSON (docs/json.md)")
	ascii := f.Bool("ascii", false, "draw with ASCII only")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	c, err := config.Load(e.config, os.ReadFile)
	if err != nil {
		return err
	}
	node := nodeName(e)
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
		n := statusOf(c, node, s)
		if *asJSON {
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			return enc.Encode(n)
		}
		return printStatus(w, n, cli.StyleOf(os.Stdout, *ascii))
	}
	if !watch {
		return look(os.Stdout)
	}
	return watchStatus(ctx, look)
}

// watchStatus shows it again and again: on a terminal over what stood there,
// else one after the other.
func watchStatus(ctx context.Context, look func(io.Writer) error) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	terminal := cli.Terminal(os.Stdout)
	if terminal {
		fmt.Print("\x1b[2J")
	}
	for {
		var b bytes.Buffer
		if err := look(&b); err != nil {
			return err
		}
		text := b.Bytes()
		if terminal { // go home, clear the rest of each line, and what is below
			text = append([]byte("\x1b[H"), append(bytes.ReplaceAll(text, []byte("\n"), []byte("\x1b[K\n")), "\x1b[J"...)...)
		}
		if _, err := os.Stdout.Write(text); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Second):
		}
	}
}

func statusOf(c config.Config, node string, s lease.Snapshot) status.Node {
	n := status.Of(node, s, thresholds(c), c.Idle.After.D(), userName, daemonState(c, node))
	n.WindowS, n.Statistic = c.SMAct.Window.D().Seconds(), c.SMAct.Statistic
	return n
}

func daemonState(c config.Config, node string) func(uuid string) status.MPS {
	return func(uuid string) status.MPS {
		if !c.MPS.Enabled {
			return status.MPSOff
		}
		if !mps.Listens(c.RunDir(node), gres.Daemon(uuid)) {
			return status.MPSDown
		}
		return status.MPSUp
	}
}

func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}
