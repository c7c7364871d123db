// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"carma/cmd/internal/cli"
	"carma/prolog/hook"
	"carma/slurmbridge/sctl"
)

// hidden are the commands that programs start: Prologs, and packages when they are
// removed.
var hidden = map[string]func(context.Context, env, []string) error{
	hook.SettleCommand: slurmHook(hook.SettleCommand, hook.Settle),
	hook.UnconfineCommand: func(_ context.Context, e env, args []string) error {
		if err := plain(hook.UnconfineCommand, "Removes everything that confines jobs on this node: BPF programs, access\n"+
			"lists and cgroups. Run it as root when CARMA is being removed", args); err != nil {
			return err
		}
		c, err := cli.Config(e.config)
		if err != nil {
			return err
		}
		return hook.Unconfine(c, sctl.NodeName(e.node))
	},
}

// slurmHook is a command without arguments, whatever slurmd adds.
func slurmHook(name string, do func(ctx context.Context, config string) error) func(context.Context, env,
	[]string) error {
	return func(ctx context.Context, e env, args []string) error {
		if slices.Equal(args, []string{"--help"}) {
			return plain(name, "Is started by Slurm, in the environment of a job", args)
		}
		return do(ctx, e.config)
	}
}

// commandOf is the command that the program is by its name, whatever its arguments: the Prolog as carma-prolog, and as
// 90-carma-prolog or carma-prolog.sh in a directory of hooks. Empty: none.
func commandOf(path string) string {
	_, command, _ := strings.Cut(filepath.Base(path), "carma-")
	if command = strings.TrimSuffix(command, ".sh"); commands[command] == nil {
		return ""
	}
	return command
}
