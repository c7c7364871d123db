// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"

	"carma/cmd/internal/cli"
	"carma/estimator"
	"carma/estimator/method"
	"carma/slurmbridge/annotate"
	"carma/slurmbridge/config"
	"carma/slurmbridge/script"
)

// report is what is printed, as text or as JSON.
type report struct {
	Estimate   *estimator.Estimate // nil: no summary, or none that says anything
	Method     string              // of Estimate
	Fit        []fit
	MaxJobs    int                // that may share a GPU whatever their memory
	Submission *script.Submission // nil: no script was given
}

// runSummary estimates from a summary alone.
func (p *program) runSummary(o options) error {
	text, err := p.readSummary(o.summary)
	if err != nil {
		return err
	}
	words, text := script.Unwrap(text)
	d, err := script.DirectiveOf(append(script.Without(words, o.keys), o.keys...), text)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	part := config.Partition{BaseCuBLASMiB: o.baseMiB, BaseCuDNNMiB: o.baseMiB}
	name := cmp.Or(o.method, method.Default)
	e, err := p.breakdown(name, annotate.SpecOf(d, max(o.gpus, 1), part))
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%s: %w", o.summary, err)
	}
	place := config.Default().Placement
	return p.print(report{Estimate: &e, Method: name, Fit: fits(e, place.MarginOf(name), gpuModels), MaxJobs: place.MaxJobs}, o.json)
}

// breakdown estimates and puts the parts into the order in which they are
// printed: what the training itself takes first.
func (p *program) breakdown(method string, s estimator.Spec) (estimator.Estimate, error) {
	e, err := p.estimate(method, s)
	if err != nil {
		return e, err
	}
	e.Parts = slices.Clone(e.Parts)
	slices.SortStableFunc(e.Parts, func(a, b estimator.Part) int { return last(a) - last(b) })
	if s.Parallel != estimator.None && s.GPUs <= 1 {
		e.Assumed = append(slices.Clone(e.Assumed), fmt.Sprintf("one GPU, on which parallel=%s changes nothing", s.Parallel))
	}
	return e, nil
}

func last(p estimator.Part) int {
	if p.Name == "base" {
		return 1
	}
	return 0
}
