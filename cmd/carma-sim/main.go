// SPDX-License-Identifier: Apache-2.0

// Command carma-sim replays traces of jobs on simulated GPUs, with the
// project's own placement, booking and recovery.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/pflag"

	"carma/cmd/carma-sim/internal/run"
	"carma/cmd/internal/cli"
	"carma/slurmbridge/version"
)

const usage = `usage: carma-sim COMMAND [OPTIONS]

  run       replay a trace under one configuration
  compare   replay a trace under several configurations, side by side; also as HTML
  import    convert sacct output, the Philly job log or a CSV file into a trace
  synth     make a synthetic trace and its job table
  forecast  say what sharing would have brought to this cluster, from its records
  submit    submit a trace to a development cluster, and compare

carma-sim COMMAND --help lists the options. docs/sim.md says what is simulated.
`

func main() {
	cli.Exit("carma-sim", execute(os.Args[1:], os.Stdout))
}

func execute(args []string, out io.Writer) error {
	commands := map[string]func([]string, io.Writer) error{
		"run": runRun, "compare": runCompare, "forecast": runForecast, "import": runImport, "synth": runSynth,
		"submit": runSubmit,
	}
	if len(args) == 0 {
		return cli.Fail(cli.ExitUsage, "which command? run, compare, forecast, import, synth or submit; see carma-sim --help")
	}
	if args[0] == "--help" || args[0] == "-h" || args[0] == "help" {
		_, err := io.WriteString(out, usage)
		return err
	}
	if args[0] == "--version" {
		_, err := fmt.Fprintln(out, "carma-sim", version.String())
		return err
	}
	command, ok := commands[args[0]]
	if !ok {
		return cli.Fail(cli.ExitUsage, "no command %q; see carma-sim --help", args[0])
	}
	return command(args[1:], out)
}

// parse parses the flags of a command that takes no arguments.
func parse(f *pflag.FlagSet, args []string) error {
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Fail(cli.ExitUsage, "unexpected argument %q; see %s --help", f.Arg(0), f.Name())
	}
	return nil
}

// status gives an error of what was asked for its exit status.
func status(err error) error {
	var away run.Unavailable
	switch {
	case errors.As(err, &away):
		return cli.Fail(cli.ExitUnavailable, "%w", err)
	case errors.Is(err, fs.ErrNotExist):
		return cli.Fail(cli.ExitNotFound, "%w", err)
	case errors.Is(err, fs.ErrPermission):
		return cli.Fail(cli.ExitPermission, "%w", err)
	}
	return cli.Fail(cli.ExitUsage, "%w", err)
}
