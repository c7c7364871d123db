// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"
	"time"

	"carma/cmd/carma-node/internal/doctor"
	"carma/cmd/carma-node/internal/doctor/facts"
	"carma/cmd/internal/cli"
	"carma/slurmbridge/sctl"
)

const doctorUsage = `usage: carma-node [--node NAME] doctor [--controller] [--node] [--json]

Checks an installation and says for each part whether it is correct, and what
to do if it is not. It changes nothing. Run it as root: before slurmctld
restarts with the plugin, on a new node, and after an upgrade of Slurm.

Without --controller and --node it checks the role that slurm.conf gives this
machine. It exits with status 6 if something must be fixed.
`

func runDoctor(ctx context.Context, e env, args []string) error {
	f := cli.Flags("carma-node doctor", doctorUsage, os.Stdout)
	controller := f.Bool("controller", false, "check what slurmctld loads on this machine")
	node := f.Bool("node", false, "check this machine as a GPU node (to name it, write --node NAME before doctor)")
	asJSON := f.Bool("json", false, "print JSON (docs/json.md)")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Fail(cli.ExitUsage, "doctor takes no arguments, not %q", f.Arg(0))
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	findings := doctor.Diagnose(facts.Gather(ctx, e.config, sctl.NodeName(e.node), *controller, *node))
	show := doctor.PrintJSON
	if !*asJSON {
		show = func(w io.Writer, findings []doctor.Finding) error {
			return doctor.Print(w, findings, cli.StyleOf(os.Stdout, false))
		}
	}
	if err := show(os.Stdout, findings); err != nil {
		return err
	}
	if doctor.Worst(findings) == doctor.Fail {
		n := 0
		for _, f := range findings {
			if f.Level == doctor.Fail {
				n++
			}
		}
		return cli.Fail(cli.ExitUnfit, "%d to fix", n)
	}
	return nil
}
