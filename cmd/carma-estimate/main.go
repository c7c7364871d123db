// SPDX-License-Identifier: Apache-2.0

// Command carma-estimate tells how much GPU memory a training job takes, and
// the booking that slurmctld will make for a batch script.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"carma/cmd/carma-estimate/internal/answer"
	"carma/cmd/carma-estimate/internal/script"
	"carma/cmd/internal/cli"
	"carma/db/texttable"
	"carma/estimator"
	"carma/slurmbridge/annotate"
)

func main() {
	p := program{in: os.Stdin, out: os.Stdout, errs: os.Stderr, estimate: estimator.ByMethod}
	p.style = cli.StyleOf(os.Stdout, false)
	cli.Exit("carma-estimate", p.run(os.Args[1:]))
}

// program is the command with its edges.
type program struct {
	in        io.Reader
	out, errs io.Writer
	style     texttable.Style
	estimate  annotate.EstimateFunc
}

func (p *program) run(args []string) error {
	o, err := p.options(args)
	if err != nil {
		return err
	}
	if o.cases != "" {
		return status(p.runCases(o.cases))
	}
	if o.Summary != "" {
		if o.Text, err = p.readSummary(o.Summary); err != nil {
			return status(err)
		}
	}
	if o.trace {
		if o.Text, err = p.traced(o.Script, o.args); err != nil {
			return err
		}
		o.Summary = "the trace of " + o.Script
	}
	if o.Script != "" {
		r, err := answer.OfScript(o.Input, p.estimate)
		if err != nil {
			return status(err)
		}
		return p.tell(r, o)
	}
	r, err := answer.OfSummary(o.Input, p.estimate)
	if err != nil {
		return status(err)
	}
	return p.print(r, o.json)
}

// tell prints the answer for a script; a job to be refused is an error.
func (p *program) tell(r answer.Report, o options) error {
	if r.Submission.Site.Path == "" {
		fmt.Fprintf(p.errs, "carma-estimate: there is no %s; assuming nodes with %d A100-40GB as an example\n",
			o.Config, r.Submission.Part.GPUsPerNode)
	}
	refused := r.Submission.Refused
	if refused == nil || o.json || r.Estimate != nil || r.Submission.Written != nil {
		if err := p.print(r, o.json); err != nil {
			return err
		}
	}
	if refused != nil {
		return cli.Fail(cli.ExitUsage, "%s: sbatch would fail: %w", o.Script, refused)
	}
	return nil
}

func (p *program) print(r answer.Report, asJSON bool) error {
	if asJSON {
		return r.PrintJSON(p.out)
	}
	return r.Print(p.out, p.style)
}

// status gives an error about a file of the user's its exit status.
func status(err error) error {
	var unread *script.Unreadable
	var mistake answer.Mistake
	switch {
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return cli.Fail(cli.ExitPermission, "%w", err)
	case errors.As(err, &unread), errors.As(err, &mistake):
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	return err
}
