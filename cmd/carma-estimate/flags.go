// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"

	"github.com/spf13/pflag"

	"carma/cmd/carma-estimate/internal/answer"
	"carma/cmd/carma-estimate/internal/script"
	"carma/cmd/internal/cli"
	"carma/estimator/method"
	"carma/slurmbridge/annotate"
	"carma/slurmbridge/directive"
)

const usage = `usage: carma-estimate --summary FILE --batch N [KEYS]
       carma-estimate SCRIPT [--trace | --summary FILE] [KEYS] [--write[=mem]] [-- ARGS]
       carma-estimate --cases FILE

Shows how much GPU memory a training job needs, from a summary of its model or a trace;
or what slurmctld will book for a batch script that is submitted with these ARGS; or
puts the summary or trace into the script.
`

// options are the command line.
type options struct {
	answer.Input
	cases string
	json  bool
	trace bool
	args  []string // of the script
}

// keyFlags are the options that stand for a key of a #CARMA line. Their values
// are read by the directive's own parser.
var keyFlags = []struct{ flag, kind, alone, usage string }{
	{"batch", "N", "", "samples per step and GPU"},
	{"seq", "N", "", "tokens per sample"},
	{"input", "CxHxW", "", "size of a sample"},
	{"optim", "WORD", "", strings.Join(directive.Optimizers, ", ")},
	{"foreach", "0|1", "", "torch's foreach optimizers are used"},
	{"precision", "WORD", "", strings.Join(directive.Precisions, ", ")},
	{"parallel", "WORD", "", strings.Join(directive.Parallels, ", ")},
	{"attn", "WORD", "", strings.Join(directive.Attentions, ", ")},
	{"grad-ckpt", "0|1", "1", "gradient checkpointing"},
	{"dropout", "0|1", "", "dropout layers are active"},
	{"dynamic-shapes", "0|1", "1", "lengths or sizes vary between steps"},
	{"params", "N", "", "unique trainable parameters: 110M, 7B"},
}

// text is the value of an option; kind is what the help calls it.
type text struct {
	kind  string
	value *string
}

func (t text) String() string     { return *t.value }
func (t text) Set(s string) error { *t.value = s; return nil }
func (t text) Type() string       { return t.kind }

// flags is the table of flags, with what they set.
func (p *program) flags(o *options, values []string, ascii *bool) *pflag.FlagSet {
	f := cli.Flags("carma-estimate", usage, p.out)
	add := func(to *string, name, short, kind, usage string) {
		f.VarP(text{kind, to}, name, short, usage)
	}
	add(&o.Summary, "summary", "", "FILE", "model summary or trace; - for stdin")
	f.BoolVar(&o.trace, "trace", false, "trace the PyTorch command of the script; needs PyTorch 2 and no GPU")
	for i, k := range keyFlags {
		add(&values[i], k.flag, "", k.kind, k.usage)
		f.Lookup(k.flag).NoOptDefVal = k.alone
	}
	f.IntVarP(&o.GPUs, "gpus", "G", 0, "`N` GPUs on one node; with a script, like sbatch --gpus")
	f.Int64Var(&o.BaseMiB, "base", 0, "`MIB` that a process holds before it allocates (default: measured on an A100)")
	add(&o.Method, "method", "", "WORD", strings.Join(method.Names(), ", ")+" (default "+method.Default+")")
	add((*string)(&o.Write), "write", "", "all|mem", "put the summary and the keys into the script, or only mem=")
	f.Lookup("write").NoOptDefVal = string(answer.WriteAll)
	add(&o.Partition, "partition", "p", "NAME", "like sbatch --partition")
	add(&o.GRES, "gres", "", "LIST", "like sbatch --gres")
	add(&o.Carma, "carma", "", "KEYS", "like sbatch --carma (default: CARMA of the environment)")
	f.StringVar(&o.Config, "config", cli.ConfigPath(), "`FILE` to read the configuration from")
	add(&o.cases, "cases", "", "FILE", "one case per line, as JSON; - for stdin")
	f.BoolVar(&o.json, "json", false, "print JSON (docs/json.md)")
	f.BoolVar(ascii, "ascii", false, "draw with ASCII characters only")
	return f
}

// options reads the command line.
func (p *program) options(args []string) (options, error) {
	var o options
	var ascii bool
	values := make([]string, len(keyFlags))
	f := p.flags(&o, values, &ascii)
	if err := cli.Parse(f, args); err != nil {
		return o, err
	}
	p.style.ASCII = p.style.ASCII || ascii
	for i, k := range keyFlags {
		if !f.Changed(k.flag) {
			continue
		}
		w, err := script.Word(strings.ReplaceAll(k.flag, "-", "_"), values[i])
		if err != nil {
			return o, cli.Fail(cli.ExitUsage, "--%s: %w", k.flag, err)
		}
		o.Keys = append(o.Keys, w)
	}
	o.CarmaEnv = os.Getenv("CARMA")
	o.MustLoad = f.Changed("config")
	return o, o.check(f)
}

// check refuses flags in contradiction.
func (o *options) check(f *pflag.FlagSet) error {
	o.Script = f.Arg(0)
	if f.NArg() > 1 {
		if f.ArgsLenAtDash() != 1 {
			return cli.Fail(cli.ExitUsage, "unexpected argument %q; arguments of the script go after --", f.Arg(1))
		}
		o.args = f.Args()[1:]
		o.Args = strings.Join(o.args, annotate.ArgEnd) + annotate.ArgEnd
	}
	only := func(where string, fits bool, flags ...string) error {
		for _, name := range flags {
			if f.Changed(name) && !fits {
				return cli.Fail(cli.ExitUsage, "--%s works only with %s", name, where)
			}
		}
		return nil
	}
	if err := only("a script", o.Script != "", "write", "partition", "gres", "carma", "config", "trace"); err != nil {
		return err
	}
	if o.cases != "" {
		var other string
		f.Visit(func(g *pflag.Flag) {
			if g.Name != "cases" && g.Name != "json" && g.Name != "ascii" {
				other = "--" + g.Name
			}
		})
		if o.Script != "" {
			other = o.Script
		}
		if other != "" {
			return cli.Fail(cli.ExitUsage, "%s cannot be combined with --cases; give it in each case", other)
		}
		return nil
	}
	switch {
	case o.trace && o.Summary != "":
		return cli.Fail(cli.ExitUsage, "--trace makes the trace that --summary names: give one of them")
	case o.Script == "" && o.Summary == "":
		return cli.Fail(cli.ExitUsage,
			"nothing to estimate: give --summary, a script or --cases; see carma-estimate --help")
	case f.Changed("gpus") && o.GPUs < 1:
		return cli.Fail(cli.ExitUsage, "--gpus=%d: must be at least 1", o.GPUs)
	case f.Changed("base") && o.BaseMiB < 1:
		return cli.Fail(cli.ExitUsage, "--base=%d: must be at least 1", o.BaseMiB)
	case f.Changed("write") && o.Write != answer.WriteAll && o.Write != answer.WriteMem:
		return cli.Fail(cli.ExitUsage, "--write=%s: write --write or --write=mem", o.Write)
	}
	if f.Changed("method") {
		if err := script.KnownMethod(o.Method); err != nil {
			return cli.Fail(cli.ExitUsage, "--method=%s: %w", o.Method, err)
		}
	}
	return nil
}
