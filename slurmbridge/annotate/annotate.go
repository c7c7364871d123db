// SPDX-License-Identifier: Apache-2.0

// Package annotate decides what slurmctld adds to a job at submission: how much
// GPU memory is booked, and what the hooks on the node are told. The package is
// pure and runs inside slurmctld (on libcarma's worker thread).
package annotate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"carma/estimator"
	"carma/estimator/history"
	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/tres"
	"carma/slurmbridge/usertext"
)

// NoVal is Slurm's NO_VAL (slurm.h): the user did not say.
const NoVal = 0xfffffffe

// ArgEnd ends an argument (CARMA_ARG_END of libcarma/carma.h).
const ArgEnd = "\x1f"

// noValues stands for the values of variables where a job comes without an environment, as of srun and salloc
// (CARMA_NO_VALUES).
const noValues = "-"

// Job is a request as slurmctld holds it before scheduling (job_desc_msg_t).
type Job struct {
	UID       uint32
	Args      string // of the script, each ended by ArgEnd
	Script    []byte // nil for salloc, srun and all but the first het component
	Option    string // --carma, which wins over the script
	Variable  string // CARMA in the environment, which --carma wins over
	Values    string // of the variables of vars=, as NAME=VALUE, each ended by ArgEnd; empty: not asked for; or noValues
	Partition string // as asked, several with commas; empty: the cluster's default
	TRES      TRES
	MinNodes  uint32
	MaxNodes  uint32
	Tasks     uint32
	// TasksPerNode and SocketsPerNode are 16 bit in Slurm; NoVal here if unset.
	TasksPerNode   uint32
	SocketsPerNode uint32
	TaskGPUs       uint32 // made of Tasks and --ntasks-per-gpu by slurmctld, where TRES names no GPUs; 0: none
	TimeLimit      uint32 // minutes; NoVal or 0: none of its own
	Extra          string // --extra
	Constrains     bool   // slurmctld compares Extra with the nodes' Extra, for jobs of srun too
}

// TRES are the four GRES lists of a request.
type TRES struct {
	PerNode   string // --gres, --gpus-per-node
	PerJob    string // --gpus
	PerSocket string // --gpus-per-socket
	PerTask   string // --gpus-per-task
}

// Annotation is what is added to a job.
type Annotation struct {
	Managed bool   // false: leave the job unchanged
	TRES    TRES   // the four lists with the booking in PerNode
	Extra   string // the constraint by which slurmctld looks for a node, with the user's own

	jobenv.Carma        // what the node's hooks are told; no GPUs: nothing
	Note         string // why an estimate was not used; for people

	Signal       directive.Signal // before the time limit
	TimeLimitMin uint32           // to be set; 0: unchanged
	Advice       string           // for the user; empty: none
	Wants        []string         // variables whose values decide: nothing else is, until Job.Values has them
	Unread       string           // which line was meant for CARMA and is not read; empty: none
}

// EstimateFunc estimates from a summary by a method.
type EstimateFunc func(method string, s estimator.Spec) (estimator.Estimate, error)

// Site is the part of carma.toml that annotating needs.
type Site struct {
	Partitions       map[string]config.Partition
	DefaultPartition string
	MarginMiB        int64
	MinFreeMiB       int64  // booked by policy=shared without an estimate
	IgnoreBad        bool   // a wrong #CARMA line counts as none
	GresPrefix       string // "gres:" up to Slurm 23.02, "gres/" from 23.11
	Estimator        string // submit.estimator
	AllowPolicies    []string
	MaxSlowdown      float64
	Tags             extra.Tags
	// Estimate is estimator.ByMethod, or a function that remembers its answers.
	Estimate EstimateFunc
	History  history.Snapshot
}

// NewSite picks the part that annotating needs.
func NewSite(c config.Config, gresPrefix string) Site {
	return Site{
		Partitions:       c.Partition,
		DefaultPartition: c.DefaultPartition(),
		MarginMiB:        c.Placement.MarginMiB,
		MinFreeMiB:       c.Placement.MinFreeMiB,
		IgnoreBad:        c.Submit.OnBadDirective == "ignore",
		GresPrefix:       gresPrefix,
		Estimator:        c.Submit.Estimator,
		AllowPolicies:    c.Placement.AllowPolicies,
		MaxSlowdown:      c.Placement.MaxSlowdown,
		Estimate:         estimator.ByMethod,
	}
}

// Annotate returns what to add to job. An error is for the user: the job is to
// be refused with its text.
func (s Site) Annotate(job Job) (Annotation, error) {
	name, part, ok := s.Partition(job.Partition)
	if !ok {
		return Annotation{}, nil
	}
	asked := job.TRES.read()
	if job.TaskGPUs > 0 && !asked.gpus() {
		job.TRES.PerJob = tres.Add(job.TRES.PerJob, fmt.Sprintf("%sgpu:%d", s.GresPrefix, job.TaskGPUs))
		asked = job.TRES.read()
	}
	a := Annotation{Managed: true, TRES: asked.without(), Extra: job.Extra}
	k, err := gpusPerNode(job, asked, part.GPUsPerNode)
	if err == nil {
		err = asked.unclear(s.GresPrefix)
	}
	if err != nil {
		return Annotation{}, fmt.Errorf("partition %s: %w", name, err)
	}
	if k == 0 {
		a.Managed = a.TRES != job.TRES // a booking without a GPU is taken away
		return a, nil
	}
	d, err := job.Directive(part.Directive)
	if err != nil {
		if !s.IgnoreBad {
			return Annotation{}, err
		}
		d = directive.Directive{}
	}
	if len(d.Vars) > 0 && job.Values == "" {
		return Annotation{Managed: true, Wants: d.Vars}, nil
	}
	if d.MemMiB > part.GPUMemMiB && !s.IgnoreBad {
		return Annotation{}, &directive.Error{Line: d.Line("mem"), Key: "mem", Reason: fmt.Sprintf(
			"%s is more than a GPU of partition %s has (%s)", usertext.GiB(d.MemMiB), name, usertext.GiB(part.GPUMemMiB))}
	}
	if p := d.Policy.Placement(); p != "" && !slices.Contains(s.AllowPolicies, p) && !s.IgnoreBad {
		return Annotation{}, &directive.Error{Line: d.Line("policy"), Key: "policy", Reason: fmt.Sprintf(
			"%s is not for jobs to choose here (%s)", p, strings.Join(append([]string{"shared, exclusive"}, s.AllowPolicies...),
				", "))}
	} else if slices.Contains(s.AllowPolicies, p) {
		a.Policy = p
	}
	a.GPUs, a.FullMiB, a.SMActPct, a.MaxSlowdown = k, part.GPUMemMiB, d.SMActPct, d.MaxSlowdown
	a.ByNodes = asked.perJob.GPUs+asked.perTask.GPUs+asked.perSocket.GPUs > 0
	a.Key = job.key(&d, k, part.GPUMemMiB)
	if err := a.slot(d, job, name, part, s.IgnoreBad); err != nil {
		return Annotation{}, err
	}
	s.History = s.History.For(job.UID)
	a.estimate(d, part, s)
	a.decide(d, part.Share, s)
	if a.Learn && a.Key == 0 {
		a.Learn, a.Note = false, cmp.Or(a.Note, job.whyUnknown(&d))
	}
	a.boundSlowdown(s.MaxSlowdown)
	if unread := directive.Unread(job.Script); unread != nil {
		a.Unread, a.UnreadLine = unread.Error(), unread.Line
	}
	a.oneNode(job)
	a.TRES.PerNode = tres.Book(a.TRES.PerNode, s.GresPrefix, int64(k)*a.ReserveMiB)
	if !job.Constrains {
		return a, nil
	}
	a.Counted, a.All = true, a.ReserveMiB == a.FullMiB && s.allGPUs(job.Partition, k, a.FullMiB)
	ours := extra.Ask(k, a.ReserveMiB, s.Tags.Of(job.UID))
	if a.All {
		ours = extra.AskAll(k)
	}
	if a.Extra, err = extra.Join(job.Extra, ours); err != nil {
		return Annotation{}, fmt.Errorf("partition %s: %w", name, err)
	}
	return a, nil
}

// Directive is what the job says: by option or variable over its script, else the directive that its partition
// has for jobs without any. The error is a *directive.Error.
func (j Job) Directive(partition string) (directive.Directive, error) {
	d, err := directive.Parse(j.Script)
	switch {
	case err != nil:
		return d, err
	case j.Option != "":
		return d.With(j.Option, directive.OfOption)
	case j.Variable != "":
		return d.With(j.Variable, directive.OfVariable)
	case !d.Present && partition != "":
		return d.With(partition, directive.OfPartition)
	}
	return d, nil
}

// key names what the job runs; 0: nothing is known of the job, nor learned.
func (j Job) key(d *directive.Directive, gpus int, fullMiB int64) history.Key {
	ask := history.Ask{UID: j.UID, Name: cmp.Or(d.Job, history.Wrapped(j.Script)), Script: j.Script, Args: j.Args,
		Keys: directive.Spaced(cmp.Or(j.Option, j.Variable)), GPUs: gpus, FullMiB: fullMiB}
	if len(d.Vars) > 0 {
		if j.Values == noValues { // small and large would be one run
			return 0
		}
		ask.Vars = j.Values
	}
	return history.KeyOf(ask)
}

// whyUnknown says why the job has no key.
func (j Job) whyUnknown(d *directive.Directive) string {
	if len(d.Vars) > 0 && j.Values == noValues {
		return "nothing is learned: vars= is for sbatch; name each run of srun and salloc with job= alone"
	}
	return "nothing is learned of a job without a script, or with a very long one: name it with job="
}

// oneNode moves the GPUs of a job that has one node from --gpus to that node: slurmctld refuses
// --cpus-per-gpu of a job with tasks where a GRES of the node, as the booking is, stands beside
// --gpus (tried: 22.05.8, 24.11.5).
func (a *Annotation) oneNode(job Job) {
	perJob := tres.Read(a.TRES.PerJob)
	one := perJob.GPUs == 1 || job.MaxNodes == 1 || job.Tasks == 1
	if perJob.GPUs == 0 || !one || tres.Read(a.TRES.PerNode).GPUs > 0 {
		return
	}
	var gpus string
	gpus, a.TRES.PerJob = perJob.Part(tres.GPU)
	a.TRES.PerNode = tres.Add(a.TRES.PerNode, gpus)
}

// decide fills in mode, estimate and reserve. Without an estimate a job runs
// alone, so that nobody is put at risk by a guess, unless its user asks for
// policy=shared: then it gets, and is held to, what the paper keeps free for a
// job without an estimate.
func (a *Annotation) decide(d directive.Directive, share bool, s Site) {
	book := a.ReserveMiB
	a.Mode, a.ReserveMiB = jobenv.ModeExclusive, a.FullMiB
	switch {
	case d.Off:
		a.Mode = jobenv.ModeOff
	case !share || d.Policy == directive.PolicyExclusive:
	case book == 0 && d.Policy == directive.PolicyShared && s.MinFreeMiB > 0:
		a.Mode, a.ReserveMiB = jobenv.ModeShared, min(s.MinFreeMiB, a.FullMiB)
	case book == 0:
	case book+s.MarginMiB > a.FullMiB: // nobody would fit beside the job
	default:
		a.Mode, a.ReserveMiB = jobenv.ModeShared, book
	}
	a.Learn = a.Mode == jobenv.ModeExclusive && d.Present && d.MemMiB == 0 && share &&
		d.Policy != directive.PolicyExclusive
}

// boundSlowdown leaves the user's bound on slowdown where it is the stricter one. A job that
// shares with nobody has none.
func (a *Annotation) boundSlowdown(site float64) {
	own := a.MaxSlowdown
	switch {
	case own == 0:
	case a.Mode != jobenv.ModeShared:
		a.MaxSlowdown = 0
	case site > 0 && own > site:
		a.MaxSlowdown = 0
		if a.Advice == "" {
			a.Advice = fmt.Sprintf("slowdown=%g is looser than this site's bound of %g, which applies", own, site)
		}
	}
}

// lists are the four GRES lists as read.
type lists struct{ perNode, perJob, perSocket, perTask tres.List }

func (t TRES) read() lists {
	return lists{tres.Read(t.PerNode), tres.Read(t.PerJob), tres.Read(t.PerSocket), tres.Read(t.PerTask)}
}

// gpus tells whether a list names GPUs, as slurmctld counts: gpu:0 is none.
func (l *lists) gpus() bool {
	return l.perNode.GPUs+l.perJob.GPUs+l.perSocket.GPUs+l.perTask.GPUs > 0
}

func (l *lists) without() TRES {
	return TRES{l.perNode.Without(), l.perJob.Without(), l.perSocket.Without(), l.perTask.Without()}
}
