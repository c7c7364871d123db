// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"carma/cmd/internal/cli"
	"carma/gres/doctor"
	"carma/slurmbridge/version"
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
	controller := f.Bool("controller", false, "look at what slurmctld loads on this machine")
	node := f.Bool("node", false, "look at this machine as a GPU node")
	asJSON := f.Bool("json", false, "print JSON (docs/json.md)")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Fail(cli.ExitUsage, "doctor takes no argument %q", f.Arg(0))
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	findings := doctor.Diagnose(gather(ctx, e, *controller, *node))
	if *asJSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(map[string]any{"schema": "carma.doctor/1", "version": version.String(),
			"worst": doctor.Worst(findings), "findings": findings}); err != nil {
			return err
		}
	} else if err := printFindings(os.Stdout, findings, colours(os.Stdout)); err != nil {
		return err
	}
	if doctor.Worst(findings) == doctor.Fail {
		n := 0
		for _, f := range findings {
			if f.Level == doctor.Fail {
				n++
			}
		}
		return cli.Fail(cli.ExitUnfit, "%d to mend", n)
	}
	return nil
}

// colours tells whether out is a terminal whose user wants colours.
func colours(out *os.File) bool {
	st, err := out.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
}

// printFindings prints a line for each finding, and what to do below it.
func printFindings(w io.Writer, findings []doctor.Finding, colour bool) error {
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Part))
	}
	paint := map[doctor.Level]string{doctor.Pass: "32", doctor.Warn: "33", doctor.Fail: "31"}
	var b strings.Builder
	for _, f := range findings {
		level := string(f.Level)
		if colour {
			level = "\x1b[" + paint[f.Level] + "m" + level + "\x1b[0m"
		}
		fmt.Fprintf(&b, "%s  %-*s  %s\n", level, width, f.Part, f.What)
		if f.Do != "" {
			fmt.Fprintf(&b, "      %-*s  -> %s\n", width, "", f.Do)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// isHost tells whether a SlurmctldHost value, "head(10.0.0.1)", names this
// machine.
func isHost(value string) bool {
	name, _, _ := strings.Cut(value, "(")
	host, err := os.Hostname()
	if err != nil {
		return false
	}
	short, _, _ := strings.Cut(host, ".")
	return slices.Contains([]string{host, short, "localhost"}, name)
}
