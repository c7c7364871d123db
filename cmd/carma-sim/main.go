// SPDX-License-Identifier: Apache-2.0

// Command carma-sim replays traces of jobs on simulated GPUs, with the
// project's own placement, booking and recovery.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"carma/cmd/internal/cli"
	"carma/contrib/sim/run"
	"carma/slurmbridge/version"
)

const usage = `usage: carma-sim COMMAND [OPTIONS]

  run      replay a trace under one configuration
  compare  replay it under several, side by side; also as HTML
  import   make a trace of sacct output, of the Philly job log or of CSV
  synth    make a synthetic trace and its job table
  submit   submit a trace to a development cluster, and compare

carma-sim COMMAND --help lists the options. What is simulated, and how well:
docs/sim.md.
`

func main() {
	cli.Exit("carma-sim", execute(os.Args[1:], os.Stdout))
}

func execute(args []string, out io.Writer) error {
	commands := map[string]func([]string, io.Writer) error{
		"run": runRun, "compare": runCompare, "import": runImport, "synth": runSynth, "submit": runSubmit,
	}
	if len(args) == 0 {
		return cli.Fail(cli.ExitUsage, "which command? run, compare, import, synth or submit; see carma-sim --help")
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

func noteSkipped(n int) {
	if n > 0 {
		fmt.Fprintf(os.Stderr, "carma-sim: %d bad lines left out\n", n)
	}
}

func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// writeFile writes a whole file or none.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".carma-sim-*")
	if err != nil {
		return status(err)
	}
	defer os.Remove(f.Name())
	err = write(f)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
