// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"carma/prolog/hook"
	"carma/slurmbridge/sctl"
)

// hidden are the commands that programs start: Prologs, and packages that are removed.
var hidden = map[string]func(context.Context, env, []string) error{
	hook.SettleCommand: slurmHook(hook.Settle),
	hook.UnconfineCommand: func(_ context.Context, e env, _ []string) error {
		return hook.Unconfine(e.config, sctl.NodeName(e.node))
	},
}
