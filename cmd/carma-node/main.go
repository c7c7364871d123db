// SPDX-License-Identifier: Apache-2.0

// Command carma-node is CARMA on a GPU node: the agent and Slurm's hooks.
package main

import (
	"context"
	"os"

	"github.com/spf13/pflag"

	"carma/cmd/internal/cli"
	"carma/prolog/hook"
	"carma/prolog/userfile"
)

const usage = `usage: carma-node [--config FILE] [--node NAME] COMMAND

Commands:
  agent        sample GPUs, run MPS daemons, publish capacity (a service)
  status       show the GPUs of this node and their jobs
  readmit      end the quarantine of a GPU
  gpus         show the GPUs of a job on this node
  prolog       Slurm's Prolog
  task-prolog  Slurm's TaskProlog
  epilog       Slurm's Epilog
  sample       read the GPUs once and print JSON
  check        read the configuration and report mistakes
  db           check, back up or prune the accounting database
  doctor       check the whole installation and say what to fix
  setup        print the configuration lines for nodes like this one
  unbook       make pending jobs Slurm's own again, before CARMA is removed

In slurm.conf, name the hooks by the links carma-prolog, carma-task-prolog and
carma-epilog to this program, without arguments.
`

var commands = map[string]func(context.Context, env, []string) error{
	"agent":       runAgent,
	"status":      runStatus,
	"readmit":     runReadmit,
	"prolog":      slurmHook("prolog", hook.Prolog),
	"task-prolog": slurmHook("task-prolog", hook.TaskProlog),
	"epilog":      slurmHook("epilog", hook.Epilog),
	"sample":      runSample,
	"check":       runCheck,
	"db":          runDB,
	"doctor":      runDoctor,
	"setup":       runSetup,
	"gpus":        runGPUs,
	"unbook":      runUnbook,
}

// env is what every command starts with.
type env struct {
	config string // path of carma.toml
	node   string // Slurm's name of the node
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == userfile.Command {
		hook.OneThread()
		userfile.Child()
		return
	}
	args := os.Args[1:]
	if command := commandOf(os.Args[0]); command != "" {
		args = []string{command}
	}
	cli.Exit("carma-node", run(context.Background(), args))
}

// flags is the table of the flags before the command.
func flags(e *env) *pflag.FlagSet {
	f := cli.Flags("carma-node", usage, os.Stdout)
	f.SetInterspersed(false)
	f.StringVar(&e.config, "config", cli.ConfigPath(), "`FILE` to read the configuration from")
	f.StringVar(&e.node, "node", "", "Slurm's `NAME` of this node (default: the host name up to the first dot)")
	return f
}

func run(ctx context.Context, args []string) error {
	var e env
	f := flags(&e)
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() == 0 {
		f.SetOutput(os.Stderr)
		f.Usage()
		return cli.Fail(cli.ExitUsage, "no command given")
	}
	command, ok := commands[f.Arg(0)]
	if !ok {
		command, ok = hidden[f.Arg(0)]
	}
	if !ok {
		return cli.Fail(cli.ExitUsage, "no command %q; see carma-node --help", f.Arg(0))
	}
	return command(ctx, e, f.Args()[1:])
}
