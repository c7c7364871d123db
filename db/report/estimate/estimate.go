// SPDX-License-Identifier: Apache-2.0

// Package estimate says what a training job is estimated at and what slurmctld will
// make of its script, and puts the lines that this takes into the script.
package estimate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"carma/estimator"
	"carma/estimator/method"
	"carma/slurmbridge/annotate"
	"carma/slurmbridge/config"
	"carma/slurmbridge/script"
)

// Write says what goes into a script.
type Write string

// What goes into a script; empty: nothing.
const (
	WriteAll Write = "all" // the summary and the keys
	WriteMem Write = "mem" // mem= alone
)

// Input is the question and its subject.
type Input struct {
	script.Ask          // without a Script: about the summary alone
	Config     string   // path of carma.toml
	MustLoad   bool     // carma.toml has to exist
	Summary    string   // the name of its file; empty: none
	Text       []byte   // of the summary
	Keys       []string // key=value words for a #CARMA line
	Write      Write
}

// Report is carma-estimate's answer.
type Report struct {
	Estimate   *estimator.Estimate // nil: no summary, or none that says anything
	Method     string              // of Estimate
	Fit        []Fit
	MaxJobs    int                // that may share a GPU whatever their memory
	Submission *script.Submission // nil: no script was given
}

// Mistake is an error of the user.
type Mistake struct{ error }

func (m Mistake) Unwrap() error { return m.error }

func mistake(format string, args ...any) error { return Mistake{fmt.Errorf(format, args...)} }

// OfSummary estimates from a summary alone.
func OfSummary(in Input, do annotate.EstimateFunc) (Report, error) {
	words, text := script.Unwrap(in.Text)
	d, err := script.DirectiveOf(append(script.Without(words, in.Keys), in.Keys...), text)
	if err != nil {
		return Report{}, mistake("%w", err)
	}
	part := config.Partition{BaseCuBLASMiB: in.BaseMiB, BaseCuDNNMiB: in.BaseMiB}
	name := cmp.Or(in.Method, method.Default)
	e, err := breakdown(do, name, annotate.SpecOf(d, max(in.GPUs, 1), part))
	if err != nil {
		return Report{}, mistake("%s: %w", in.Summary, err)
	}
	place := config.Default().Placement
	return Report{Estimate: &e, Method: name, Fit: fits(e, place.MarginMiB, models), MaxJobs: place.MaxJobs}, nil
}

// OfScript says what slurmctld will make of a script, and puts the keys and the
// summary into the script if asked to.
func OfScript(in Input, do annotate.EstimateFunc) (Report, error) {
	s, err := script.Read(in.Script)
	if err != nil {
		return Report{}, err
	}
	where, err := script.LoadSite(in.Config, in.MustLoad, in.Ask, do)
	if err != nil {
		return Report{}, mistake("%w", err)
	}
	e, err := in.edit()
	if err != nil {
		return Report{}, err
	}
	if in.Write == WriteAll && e.Empty() {
		return Report{}, mistake("nothing to write: give --summary, keys such as --batch, or --write=mem")
	}
	text, err := e.Apply(s.Text)
	if err != nil {
		return Report{}, mistake("%s: %w", in.Script, err)
	}
	r, err := judge(in, where, text, do)
	if err != nil {
		return r, err
	}
	if in.Write == WriteMem {
		if e, err = memOnly(in.Script, r); err != nil {
			return r, err
		}
		if text, err = e.Apply(s.Text); err != nil {
			return r, mistake("%s: %w", in.Script, err)
		}
		if r, err = judge(in, where, text, do); err != nil {
			return r, err
		}
	}
	if in.Write != "" {
		if err := s.Replace(text); err != nil {
			return r, err
		}
		r.Submission.Written = e.Words()
	}
	return r, nil
}

// edit is the text that is to stand in the script.
func (in Input) edit() (script.Edit, error) {
	if in.Summary == "" {
		return script.Edit{Keys: in.Keys}, nil
	}
	words, text := script.Unwrap(in.Text)
	if len(text) == 0 {
		return script.Edit{}, mistake("%s: it holds no model summary", in.Summary)
	}
	return script.Edit{Keys: append(script.Without(words, in.Keys), in.Keys...), Summary: text}, nil
}

// memOnly is the edit of --write=mem.
func memOnly(path string, r Report) (script.Edit, error) {
	switch {
	case r.Estimate == nil && r.Submission.Note != "":
		return script.Edit{}, mistake("%s: no mem= to write: %s", path, r.Submission.Note)
	case r.Estimate == nil:
		return script.Edit{},
			mistake("%s: no mem= to write: there is no model summary; give --summary", path)
	case r.Estimate.Confidence == estimator.Bound:
		return script.Edit{}, mistake("%s: no mem= to write: %d MiB is a lower bound only (%s); "+
			"the job gets a whole GPU with #CARMA on",
			path, r.Estimate.MiB, strings.Join(r.Estimate.Reasons, "; "))
	}
	return script.Edit{Keys: []string{"mem=" + strconv.FormatInt(r.Estimate.ReserveMiB, 10) + "M"}}, nil
}

// judge says what slurmctld's plugin does with a script, and what it is estimated at.
// An error is one of the estimate; the refusal of a script is no error.
func judge(in Input, where script.Site, text []byte, do annotate.EstimateFunc) (Report, error) {
	s, d, err := script.Judge(in.Ask, where, text)
	r := Report{Submission: s, MaxJobs: where.Placement.MaxJobs}
	if err != nil || len(d.Summary) == 0 {
		return r, nil
	}
	r.Method = s.Site.Estimator
	if r.Method == method.None {
		r.Method = method.Default
	}
	e, err := breakdown(do, r.Method, s.Site.SpecOf(d, cmp.Or(s.GPUs, in.GPUs, 1), s.Part))
	if err != nil {
		s.Note = cmp.Or(s.Note, err.Error())
		if in.Summary != "" {
			return r, mistake("%s: %w", in.Summary, err)
		}
		return r, nil
	}
	gpus := models
	if where.Path != "" && s.Part.Share {
		gpus = append([]model{{"partition " + s.Partition, s.Part.GPUMemMiB}}, gpus...)
	}
	r.Estimate, r.Fit = &e, fits(e, where.Placement.MarginMiB, gpus)
	return r, nil
}

// breakdown estimates and puts the parts into their printed order: first what the
// training itself takes.
func breakdown(do annotate.EstimateFunc, method string, s estimator.Spec) (estimator.Estimate, error) {
	e, err := do(method, s)
	if err != nil {
		return e, err
	}
	e.Parts = slices.Clone(e.Parts)
	slices.SortStableFunc(e.Parts, func(a, b estimator.Part) int { return last(a) - last(b) })
	if s.Parallel != estimator.None && s.GPUs <= 1 {
		e.Assumed = append(slices.Clone(e.Assumed), fmt.Sprintf("one GPU, on which parallel=%s changes nothing",
			s.Parallel))
	}
	return e, nil
}

func last(p estimator.Part) int {
	if p.Name == "base" {
		return 1
	}
	return 0
}
