// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/cmd/internal/cli"
	"carma/estimator"
	"carma/estimator/history"
	"carma/slurmbridge/annotate"
	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
	"carma/slurmbridge/launch"
)

// site is the cluster that a script is judged for.
type site struct {
	annotate.Site
	path      string // of carma.toml; empty: there is none, the partition is an example
	placement config.Placement
	unread    string // why history.file could not be read; empty: it could, or there is none
}

// examplePartition stands in where there is no carma.toml: a node of the CARMA
// paper, four A100-40GB. It has time slots, as a site may.
var examplePartition = config.Partition{Default: true, GPUsPerNode: 4, GPUMemMiB: 40536, Share: true, TimeSlot: config.Duration(24 * time.Hour)}

// submission is what becomes of a script.
type submission struct {
	script    string
	site      site
	request   request
	partition string
	part      config.Partition
	written   []string // what was put into the script

	refused error          // why sbatch fails; nil: it does not
	seen    *history.Value // what earlier runs did; nil: there are none, or it is not known
	annotate.Annotation
	why string // in words: why the job is left alone, or not shared

	launches []launch.Finding // frameworks and launchers that the script shows
}

// runScript says what slurmctld will make of a script and puts the keys and
// the summary into it where that is asked for.
func (p *program) runScript(o options) error {
	s, err := readScript(o.script)
	if err != nil {
		return err
	}
	where, err := p.loadSite(o)
	if err != nil {
		return err
	}
	e, err := p.editOf(o)
	if err != nil {
		return err
	}
	if o.write == writeAll && e.empty() {
		return cli.Fail(cli.ExitUsage, "nothing to write: give --summary, keys such as --batch, or --write=mem")
	}
	text, err := e.apply(s.text)
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
		if text, err = e.apply(s.text); err != nil {
			return cli.Fail(cli.ExitUsage, "%s: %w", o.script, err)
		}
		if r, err = p.judge(o, where, text); err != nil {
			return err
		}
	}
	if o.write != "" {
		if err := s.replace(text); err != nil {
			return err
		}
		r.Submission.written = e.words()
	}
	return p.tell(r, o)
}

// tell prints the report; a job that would be refused is an error.
func (p *program) tell(r report, o options) error {
	if r.Submission.site.path == "" {
		fmt.Fprintf(p.errs, "carma-estimate: there is no %s: judged for nodes of %d A100-40GB as an example\n", o.config, examplePartition.GPUsPerNode)
	}
	refused := r.Submission.refused
	if refused == nil || o.json || r.Estimate != nil || r.Submission.written != nil {
		if err := p.print(r, o.json); err != nil {
			return err
		}
	}
	if refused != nil {
		return cli.Fail(cli.ExitUsage, "%s: sbatch would fail: %w", o.script, refused)
	}
	return nil
}

// loadSite reads carma.toml, if there is one.
func (p *program) loadSite(o options) (site, error) {
	c, err := config.Load(o.config)
	path := o.config
	switch {
	case err == nil:
	case !o.mustLoad && errors.Is(err, fs.ErrNotExist):
		path = ""
		c = config.Default()
	default:
		return site{}, cli.Fail(cli.ExitUsage, "judge a script: %w", err)
	}
	s := site{Site: annotate.NewSite(c, ""), path: path, placement: c.Placement}
	s.Estimate = p.estimate
	s.Estimator = cmp.Or(o.method, s.Estimator)
	s.readHistory(c.History.File)
	if o.baseMiB > 0 {
		s.History = s.History.WithoutShifts() // the base is what the user says
	}
	return s, nil
}

// editOf is what the command line wants to stand in the script.
func (p *program) editOf(o options) (edit, error) {
	if o.summary == "" {
		return edit{keys: o.keys}, nil
	}
	text, err := p.readSummary(o.summary)
	if err != nil {
		return edit{}, err
	}
	words, text := unwrap(text)
	if len(text) == 0 {
		return edit{}, cli.Fail(cli.ExitUsage, "%s: it holds no model summary", o.summary)
	}
	return edit{keys: append(without(words, o.keys), o.keys...), summary: text}, nil
}

// memOnly is the edit of --write=mem.
func memOnly(script string, r report) (edit, error) {
	switch {
	case r.Estimate == nil && r.Submission.Note != "":
		return edit{}, cli.Fail(cli.ExitUsage, "%s: no mem= to write: %s", script, r.Submission.Note)
	case r.Estimate == nil:
		return edit{}, cli.Fail(cli.ExitUsage, "%s: no mem= to write: there is no model summary; give --summary", script)
	case r.Estimate.Confidence == estimator.Bound:
		return edit{}, cli.Fail(cli.ExitUsage, "%s: no mem= to write: %d MiB is a lower bound only (%s); the job gets a whole GPU with #CARMA on",
			script, r.Estimate.MiB, strings.Join(r.Estimate.Reasons, "; "))
	}
	return edit{keys: []string{"mem=" + strconv.FormatInt(r.Estimate.ReserveMiB, 10) + "M"}}, nil
}

// judge does what slurmctld's job_submit plugin does with a script. An error
// is one of the estimate; a script that would be refused is none.
func (p *program) judge(o options, where site, text []byte) (report, error) {
	s := &submission{script: o.script, site: where}
	s.request, s.refused = readRequest(text)
	s.request.args = o.args
	s.override(o)
	s.choosePartition(o.baseMiB)
	if s.refused == nil {
		a, err := s.site.Annotate(s.request.job(text))
		s.Annotation = a
		if err != nil {
			s.refused = fmt.Errorf("carma: %w", err) // as libcarma says it
		}
		if v, ok := s.site.History.Find(a.Key); ok && a.GPUs > 0 {
			s.seen = &v
		}
	}
	d, err := directive.Parse(text)
	s.explain(d, err)
	if s.GPUs > 0 {
		s.launches = launch.Look(o.script, text, launch.Job{GPUs: s.GPUs, ReserveMiB: s.ReserveMiB, FullMiB: s.FullMiB}, readBeside)
	}
	r := report{Submission: s, MaxJobs: where.placement.MaxJobs}
	if err != nil || len(d.Summary) == 0 {
		return r, nil
	}
	r.Method = s.site.Estimator
	if r.Method == "none" {
		r.Method = defaultMethod
	}
	e, err := p.breakdown(r.Method, s.site.SpecOf(d, cmp.Or(s.GPUs, o.gpus, 1), s.part))
	if err != nil {
		s.Note = cmp.Or(s.Note, err.Error())
		if o.summary != "" {
			return r, cli.Fail(cli.ExitUsage, "%s: %w", o.summary, err)
		}
		return r, nil
	}
	gpus := gpuModels
	if where.path != "" && s.part.Share {
		gpus = append([]gpuModel{{"partition " + s.partition, s.part.GPUMemMiB}}, gpus...)
	}
	r.Estimate, r.Fit = &e, fits(e, where.placement.MarginOf(r.Method), gpus)
	return r, nil
}

// readBeside reads a file that a script names: from the directory that sbatch would be
// called in, and nothing but a regular file.
func readBeside(path string) ([]byte, bool) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, false
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, launch.MaxBytes))
	return text, err == nil
}

// override applies the options that win over #SBATCH lines.
func (s *submission) override(o options) {
	s.request.partition = cmp.Or(o.partition, s.request.partition)
	s.request.gres = cmp.Or(o.gres, s.request.gres)
	if o.gpus > 0 {
		s.request.gpus = strconv.Itoa(o.gpus)
	}
}

// choosePartition finds the partition and gives it the base of the command
// line. Without a carma.toml every partition is the example.
func (s *submission) choosePartition(baseMiB int64) {
	s.partition = cmp.Or(s.request.partition, s.site.DefaultPartition)
	if s.site.path == "" && !strings.Contains(s.partition, ",") {
		s.partition = cmp.Or(s.partition, "example")
		s.site.DefaultPartition = s.partition
		s.site.Partitions = map[string]config.Partition{s.partition: examplePartition}
	}
	part, ok := s.site.Partitions[s.partition]
	if !ok {
		return
	}
	if baseMiB > 0 {
		part.BaseCuBLASMiB, part.BaseCuDNNMiB = baseMiB, baseMiB
		s.site.Partitions = map[string]config.Partition{s.partition: part}
	}
	s.part = part
}

// explain says in words why a job is left alone, or why it does not share.
func (s *submission) explain(d directive.Directive, bad error) {
	switch {
	case s.refused != nil:
	case s.GPUs == 0:
		s.why = s.leftAlone()
	case bad != nil:
		s.why = bad.Error() + ": all #CARMA lines are ignored (submit.on_bad_directive)"
	case s.Mode == annotate.ModeShared && s.Method == annotate.MethodNone:
		s.why = "policy=shared without an estimate books placement.min_free_mib"
	case s.Mode == annotate.ModeShared:
	case s.Mode == annotate.ModeOff:
		s.why = fmt.Sprintf("line %d says off", d.Line("on"))
	case !s.part.Share:
		s.why = "partition " + s.partition + " does not share its GPUs"
	case d.Policy == directive.PolicyExclusive:
		s.why = fmt.Sprintf("line %d says policy=exclusive", d.Line("policy"))
	case s.Note != "":
		s.why = s.Note
	case s.Method != annotate.MethodNone:
		s.why = fmt.Sprintf("with a margin of %d MiB nobody would fit beside it", s.site.MarginMiB)
	case len(d.Summary) > 0:
		s.why = "summaries are not estimated here (submit.estimator)"
	default:
		s.why = "nothing says how much memory it takes: give a model summary or mem="
	}
}

func (s *submission) leftAlone() string {
	_, known := s.site.Partitions[s.partition]
	names := make([]string, 0, len(s.site.Partitions))
	for n := range s.site.Partitions {
		names = append(names, n)
	}
	slices.Sort(names)
	ours := "; CARMA looks after " + cmp.Or(strings.Join(names, ", "), "none")
	switch {
	case known:
		return "the job asks for no GPU"
	case s.partition == "":
		return "no partition is named" + ours
	case strings.Contains(s.partition, ","):
		return "several partitions are named" + ours
	}
	return "partition " + s.partition + " is not looked after" + ours
}
