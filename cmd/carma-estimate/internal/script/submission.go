// SPDX-License-Identifier: Apache-2.0

package script

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/estimator/history"
	"carma/estimator/method"
	"carma/slurmbridge/annotate"
	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
	"carma/slurmbridge/frameworks"
	"carma/slurmbridge/jobenv"
)

// Site is the cluster that a script is judged for.
type Site struct {
	annotate.Site
	Path      string // of carma.toml; empty: there is none, the partition is an example
	Placement config.Placement
	Mode      string // of carma.toml
	unread    string // why history.file could not be read; empty: it could, or there is none
}

// ExamplePartition stands in where there is no carma.toml: a node of the CARMA
// paper, four A100-40GB. It has time slots, as a site may.
var ExamplePartition = config.Partition{Default: true, GPUsPerNode: 4, GPUMemMiB: 40536, Share: true,
	TimeSlot: config.Duration(24 * time.Hour)}

// Submission is what becomes of a script.
type Submission struct {
	Script    string
	Site      Site
	Request   Request
	Partition string
	Part      config.Partition // of several, the bounds of all
	managed   bool             // Part is CARMA's
	Written   []string         // words put into the script

	Refused error          // why sbatch fails; nil: it does not
	Seen    *history.Value // what earlier runs used; nil: no runs, or unknown
	annotate.Annotation
	Why string // in words: why the job is left alone, or not shared

	Launches []frameworks.Finding // frameworks and launchers that the script shows
}

// Ask is what the command line says of a script and of its estimate.
type Ask struct {
	Script    string // its path
	Args      string // as annotate.Job has them
	Carma     string // like sbatch --carma
	CarmaEnv  string // CARMA of the environment
	Partition string // this and the next two win over #SBATCH lines
	GRES      string
	GPUs      int    // 0: not given
	BaseMiB   int64  // 0: not given
	Method    string // empty: not given
}

// LoadSite reads carma.toml, if there is one; mustLoad: there has to be.
func LoadSite(path string, mustLoad bool, a Ask, estimate annotate.EstimateFunc) (Site, error) {
	c, err := config.Load(path, os.ReadFile)
	switch {
	case err == nil:
	case !mustLoad && errors.Is(err, fs.ErrNotExist):
		path = ""
		c = config.Default()
	default:
		return Site{}, fmt.Errorf("judge a script: %w", err)
	}
	s := Site{Site: annotate.NewSite(c, ""), Path: path, Placement: c.Placement, Mode: c.Mode}
	s.Estimate = estimate
	s.Estimator = cmp.Or(a.Method, s.Estimator)
	s.readHistory(c.History.File)
	s.History = s.History.For(uint32(os.Getuid()))
	if a.BaseMiB > 0 {
		s.History = s.History.WithoutShifts() // the base is given by the user
	}
	return s, nil
}

// Judge does what slurmctld's job_submit plugin does with a script; a refusal is no
// error. d is the directive of the #CARMA lines; bad: the error in reading the lines.
func Judge(a Ask, where Site, text []byte) (s *Submission, d directive.Directive, bad error) {
	s = &Submission{Script: a.Script, Site: where}
	s.Request, s.Refused = readRequest(text)
	s.Request.args, s.Request.option, s.Request.variable = a.Args, cmp.Or(a.Carma, s.Request.option), a.CarmaEnv
	s.override(a)
	s.choosePartition(a.BaseMiB)
	job := s.Request.job(text)
	d, bad = job.Directive(s.Part.Directive)
	for _, name := range d.Vars { // as the shim has them of sbatch
		job.Values += name + "=" + os.Getenv(name) + annotate.ArgEnd
	}
	if s.Refused == nil {
		annotation, err := s.Site.Annotate(job)
		if s.Site.Path == "" && errors.Is(err, annotate.ErrNodeHasFewer) {
			annotation, err = s.larger(job)
		}
		s.Annotation = annotation
		if err != nil {
			s.Refused = fmt.Errorf("carma: %w", err) // as libcarma says it
		}
		if v, ok := s.Site.History.Find(annotation.Key); ok && annotation.GPUs > 0 {
			s.Seen = &v
		}
	}
	s.explain(d, bad)
	if s.GPUs > 0 {
		gpus := frameworks.Job{GPUs: s.GPUs, Nodes: int(s.Request.nodes), ReserveMiB: s.ReserveMiB, FullMiB: s.FullMiB}
		s.Launches = frameworks.Look(a.Script, text, gpus, readBeside)
	}
	return s, d, bad
}

// larger annotates a job that wants more GPUs of a node than the example has for example nodes of more GPUs, as other
// sites have.
func (s *Submission) larger(job annotate.Job) (a annotate.Annotation, err error) {
	for _, gpus := range []int{8, 16} {
		s.Site.Partitions = maps.Clone(s.Site.Partitions)
		for name, part := range s.Site.Partitions {
			part.GPUsPerNode = gpus
			s.Site.Partitions[name] = part
		}
		_, s.Part, s.managed = s.Site.Partition(s.Partition)
		if a, err = s.Site.Annotate(job); !errors.Is(err, annotate.ErrNodeHasFewer) {
			break
		}
	}
	return a, err
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
	text, err := io.ReadAll(io.LimitReader(f, frameworks.MaxBytes))
	return text, err == nil
}

// override applies the options that win over #SBATCH lines.
func (s *Submission) override(a Ask) {
	s.Request.partition = cmp.Or(a.Partition, s.Request.partition)
	s.Request.gres = cmp.Or(a.GRES, s.Request.gres)
	if a.GPUs > 0 {
		s.Request.gpus = strconv.Itoa(a.GPUs)
	}
}

// choosePartition finds the partition and gives it the base of the command
// line. Without a carma.toml every partition is the example.
func (s *Submission) choosePartition(baseMiB int64) {
	s.Partition = cmp.Or(s.Request.partition, s.Site.DefaultPartition)
	if s.Site.Path == "" {
		s.Partition = cmp.Or(s.Partition, "example")
		s.Site.DefaultPartition = s.Partition
		s.Site.Partitions = map[string]config.Partition{}
		for name := range strings.SplitSeq(s.Partition, ",") {
			s.Site.Partitions[name] = ExamplePartition
		}
	}
	if baseMiB > 0 {
		s.Site.Partitions = maps.Clone(s.Site.Partitions)
		for name, part := range s.Site.Partitions {
			part.BaseCuBLASMiB, part.BaseCuDNNMiB = baseMiB, baseMiB
			s.Site.Partitions[name] = part
		}
	}
	_, s.Part, s.managed = s.Site.Site.Partition(s.Partition)
}

// explain says in words why a job is left alone, or why it does not share.
func (s *Submission) explain(d directive.Directive, bad error) {
	switch {
	case s.Refused != nil:
	case s.GPUs == 0:
		s.Why = s.leftAlone()
	case bad != nil:
		s.Why = bad.Error() + ": all #CARMA lines are ignored (submit.on_bad_directive)"
	case s.Mode == jobenv.ModeShared && s.Method == method.None:
		s.Why = "policy=shared without an estimate books placement.min_free_mib"
	case s.Mode == jobenv.ModeShared:
	case s.Mode == jobenv.ModeOff:
		s.Why = d.Where("on") + " says off"
	case !s.Part.Share:
		s.Why = "partition " + s.Partition + " does not share its GPUs"
		if strings.Contains(s.Partition, ",") {
			s.Why = "not all of the partitions " + s.Partition + " share their GPUs"
		}
	case d.Policy == directive.PolicyExclusive:
		s.Why = d.Where("policy") + " says policy=exclusive"
	case s.Note != "":
		s.Why = s.Note
	case s.Method != method.None:
		s.Why = fmt.Sprintf("with a margin of %d MiB no other job would fit", s.Site.MarginMiB)
	case len(d.Summary) > 0:
		s.Why = "summaries are not estimated here (submit.estimator)"
	default:
		s.Why = "nothing says how much memory it takes: carma-estimate " + s.Script +
			" --trace tells it of a PyTorch script, without a GPU; or give a model summary or mem="
	}
}

func (s *Submission) leftAlone() string {
	names := make([]string, 0, len(s.Site.Partitions))
	for n := range s.Site.Partitions {
		names = append(names, n)
	}
	slices.Sort(names)
	ours := "; CARMA manages " + cmp.Or(strings.Join(names, ", "), "none")
	switch {
	case s.managed:
		return "the job asks for no GPU"
	case s.Partition == "":
		return "no partition is named" + ours
	case strings.Contains(s.Partition, ","):
		return "none of the partitions " + s.Partition + " is in carma.toml" + ours
	}
	return "partition " + s.Partition + " is not in carma.toml" + ours
}
