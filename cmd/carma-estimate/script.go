// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"carma/cmd/internal/cli"
	"carma/estimator"
	"carma/estimator/method"
	"carma/slurmbridge/script"
)

// runScript says what slurmctld will make of a script and puts the keys and
// the summary into it where that is asked for.
func (p *program) runScript(o options) error {
	s, err := script.Read(o.script)
	if err != nil {
		return err
	}
	where, err := script.LoadSite(o.config, o.mustLoad, o.ask(), p.estimate)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	e, err := p.editOf(o)
	if err != nil {
		return err
	}
	if o.write == writeAll && e.Empty() {
		return cli.Fail(cli.ExitUsage, "nothing to write: give --summary, keys such as --batch, or --write=mem")
	}
	text, err := e.Apply(s.Text)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%s: %w", o.script, err)
	}
	r, err := p.judge(o, where, text)
	if err != nil {
		return err
	}
	if o.write == writeMem {
		if e, err = memOnly(o.script, r); err != nil {
			return err
		}
		if text, err = e.Apply(s.Text); err != nil {
			return cli.Fail(cli.ExitUsage, "%s: %w", o.script, err)
		}
		if r, err = p.judge(o, where, text); err != nil {
			return err
		}
	}
	if o.write != "" {
		if err := s.Replace(text); err != nil {
			return err
		}
		r.Submission.Written = e.Words()
	}
	return p.tell(r, o)
}

// tell prints the report; a job that would be refused is an error.
func (p *program) tell(r report, o options) error {
	if r.Submission.Site.Path == "" {
		fmt.Fprintf(p.errs, "carma-estimate: there is no %s: judged for nodes of %d A100-40GB as an example\n",
			o.config, script.ExamplePartition.GPUsPerNode)
	}
	refused := r.Submission.Refused
	if refused == nil || o.json || r.Estimate != nil || r.Submission.Written != nil {
		if err := p.print(r, o.json); err != nil {
			return err
		}
	}
	if refused != nil {
		return cli.Fail(cli.ExitUsage, "%s: sbatch would fail: %w", o.script, refused)
	}
	return nil
}

// editOf is what the command line wants to stand in the script.
func (p *program) editOf(o options) (script.Edit, error) {
	if o.summary == "" {
		return script.Edit{Keys: o.keys}, nil
	}
	text, err := p.readSummary(o.summary)
	if err != nil {
		return script.Edit{}, err
	}
	words, text := script.Unwrap(text)
	if len(text) == 0 {
		return script.Edit{}, cli.Fail(cli.ExitUsage, "%s: it holds no model summary", o.summary)
	}
	return script.Edit{Keys: append(script.Without(words, o.keys), o.keys...), Summary: text}, nil
}

// memOnly is the edit of --write=mem.
func memOnly(path string, r report) (script.Edit, error) {
	switch {
	case r.Estimate == nil && r.Submission.Note != "":
		return script.Edit{}, cli.Fail(cli.ExitUsage, "%s: no mem= to write: %s", path, r.Submission.Note)
	case r.Estimate == nil:
		return script.Edit{},
			cli.Fail(cli.ExitUsage, "%s: no mem= to write: there is no model summary; give --summary", path)
	case r.Estimate.Confidence == estimator.Bound:
		return script.Edit{}, cli.Fail(cli.ExitUsage, "%s: no mem= to write: %d MiB is a lower bound only (%s); "+
			"the job gets a whole GPU with #CARMA on",
			path, r.Estimate.MiB, strings.Join(r.Estimate.Reasons, "; "))
	}
	return script.Edit{Keys: []string{"mem=" + strconv.FormatInt(r.Estimate.ReserveMiB, 10) + "M"}}, nil
}

// ask is what the options say of a script.
func (o options) ask() script.Ask {
	return script.Ask{
		Script: o.script, Args: o.args, Partition: o.partition, GRES: o.gres, GPUs: o.gpus, BaseMiB: o.baseMiB,
		Method: o.method,
	}
}

// judge says what slurmctld's plugin does with a script, and what it is estimated at. An
// error is one of the estimate; a script that would be refused is none.
func (p *program) judge(o options, where script.Site, text []byte) (report, error) {
	s, d, err := script.Judge(o.ask(), where, text)
	r := report{Submission: s, MaxJobs: where.Placement.MaxJobs}
	if err != nil || len(d.Summary) == 0 {
		return r, nil
	}
	r.Method = s.Site.Estimator
	if r.Method == method.None {
		r.Method = method.Default
	}
	e, err := p.breakdown(r.Method, s.Site.SpecOf(d, cmp.Or(s.GPUs, o.gpus, 1), s.Part))
	if err != nil {
		s.Note = cmp.Or(s.Note, err.Error())
		if o.summary != "" {
			return r, cli.Fail(cli.ExitUsage, "%s: %w", o.summary, err)
		}
		return r, nil
	}
	gpus := gpuModels
	if where.Path != "" && s.Part.Share {
		gpus = append([]gpuModel{{"partition " + s.Partition, s.Part.GPUMemMiB}}, gpus...)
	}
	r.Estimate, r.Fit = &e, fits(e, where.Placement.MarginOf(r.Method), gpus)
	return r, nil
}
