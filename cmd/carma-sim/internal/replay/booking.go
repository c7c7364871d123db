// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"fmt"
	"math/rand/v2"

	"carma/cmd/carma-sim/internal/model"
	"carma/cmd/carma-sim/internal/workload"
	"carma/estimator"
	"carma/slurmbridge/annotate"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/policy"
)

// booking holds the values that slurmctld adds to a job at submission.
type booking struct {
	exclusive  bool
	reserveMiB int64   // per GPU
	estMiB     int64   // 0: none
	smactPct   float64 // expected; 0: not known
}

// partition is the name of the only partition in a simulation.
const partition = "gpu"

// booker books as libcarma does: through annotate, with a script as a user
// would write.
type booker struct {
	set   *Setup
	site  annotate.Site
	given *estimator.Estimate // the next answer of the site's estimator
	fixed []booking           // by job, where the booking does not depend on earlier runs
	known []bool              // fixed holds the job's booking
	kinds []int32             // by job: the first job of its key
	peaks []workload.Past     // by kind
}

func newBooker(s *Setup, w *workload.Workload) *booker {
	b := &booker{
		set: s, fixed: make([]booking, len(w.Jobs)), known: make([]bool, len(w.Jobs)),
		kinds: kindsOf(w.Jobs), peaks: make([]workload.Past, len(w.Jobs)),
	}
	c := config.Default()
	c.Partition = map[string]config.Partition{partition: {
		Default: true, GPUsPerNode: s.GPUs, GPUMemMiB: s.GPUMemMiB, Share: s.Policy != policy.Exclusive,
	}}
	c.Placement.Policy = string(s.Policy)
	c.Placement.MarginMiB, c.Placement.MinFreeMiB = s.Thresholds.MarginMiB, s.MinFreeMiB
	b.site = annotate.NewSite(c, "gres:")
	b.site.Estimate = func(string, estimator.Spec) (estimator.Estimate, error) { return *b.given, nil }
	for i := range w.Jobs {
		j := &w.Jobs[i]
		if j.Past.Runs > 0 {
			b.peaks[b.kinds[i]] = j.Past
		}
		if s.Known {
			b.peaks[b.kinds[i]] = workload.Past{Runs: len(s.Model.History.MarginPct), PeakMiB: j.PeakMiB, SMActPct: j.SMActPct}
		}
	}
	return b
}

// kindsOf returns, for each job, the first job of the same key.
func kindsOf(jobs []workload.Job) []int32 {
	kinds, first := make([]int32, len(jobs)), map[string]int32{}
	for i := range jobs {
		kinds[i] = int32(i)
		if key := jobs[i].Key; key != "" {
			if k, ok := first[key]; ok {
				kinds[i] = k
			} else {
				first[key] = int32(i)
			}
		}
	}
	return kinds
}

// learn takes note of a run that ended well.
func (b *booker) learn(job int32, peakMiB int64, smactPct float64) {
	p := &b.peaks[b.kinds[job]]
	p.Runs++
	p.PeakMiB = max(p.PeakMiB, peakMiB)
	p.SMActPct = smactPct
}

// book returns the booking for a submission of a job.
func (b *booker) book(id int32, j *workload.Job) (booking, error) {
	if j.Alone {
		return b.annotate(j, "policy=exclusive", nil, 0)
	}
	if b.set.Estimator == History {
		p := b.peaks[b.kinds[id]]
		if j.BookMiB > 0 {
			return b.annotate(j, b.mem(j.BookMiB), nil, p.SMActPct)
		}
		if p.Runs == 0 {
			return b.annotate(j, "on", nil, 0)
		}
		margins := b.set.Model.History.MarginPct
		pct := margins[min(p.Runs, len(margins))-1]
		return b.annotate(j, b.mem(p.PeakMiB+(p.PeakMiB*pct+99)/100), nil, p.SMActPct)
	}
	if b.known[id] {
		return b.fixed[id], nil
	}
	got, err := b.bookFixed(j)
	if err != nil {
		return booking{}, err
	}
	b.fixed[id], b.known[id] = got, true
	return got, nil
}

func (b *booker) bookFixed(j *workload.Job) (booking, error) {
	number := func(column string, mib int64) (booking, error) {
		if mib <= 0 {
			return booking{}, fmt.Errorf("estimator %s: job %s has no number of it; the job table needs a column %s",
				b.set.Estimator, j.Name, column)
		}
		return b.annotate(j, b.mem(mib), nil, 0)
	}
	switch b.set.Estimator {
	case Oracle:
		return b.annotate(j, b.mem(j.PeakMiB), nil, j.SMActPct)
	case GPUMemNet:
		return number("gpumemnet_mib", j.GPUMemNetMiB)
	case Horus:
		return number("horus_mib", j.HorusMiB)
	case FakeTensor:
		return number("faketensor_mib", j.FakeTensorMiB)
	case Analytic:
		e, err := analytic(j, &b.set.Model.Analytic, b.set.Seed)
		if err != nil {
			return booking{}, fmt.Errorf("estimator analytic: job %s: %w", j.Name, err)
		}
		return b.annotate(j, "on", &e, 0)
	}
	return b.annotate(j, "on", nil, 0)
}

func (b *booker) mem(mib int64) string { return fmt.Sprintf("mem=%dM", min(mib, b.set.GPUMemMiB)) }

// annotate asks the code that runs inside slurmctld. given is its estimator's
// result for the script's summary; nil: the script has none.
func (b *booker) annotate(j *workload.Job, line string, given *estimator.Estimate, smactPct float64) (booking, error) {
	script := "#!/bin/bash\n#CARMA " + line + "\n"
	if given != nil {
		b.given = given
		script += "#CARMA| summary\n"
	}
	a, err := b.site.Annotate(annotate.Job{
		Script: []byte(script), Partition: partition, TRES: annotate.TRES{PerNode: fmt.Sprintf("gres:gpu:%d", j.GPUs)},
		MinNodes: 1, Tasks: annotate.NoVal, TasksPerNode: annotate.NoVal, SocketsPerNode: annotate.NoVal,
	})
	if err != nil {
		return booking{}, fmt.Errorf("book job %s: %w", j.Name, err)
	}
	return booking{exclusive: a.Mode != jobenv.ModeShared, reserveMiB: a.ReserveMiB, estMiB: a.EstMiB,
		smactPct: smactPct}, nil
}

// raise books more for a job that died of GPU memory (recovery "ladder").
func (b *booker) raise(j *workload.Job, was booking, peakMiB int64) (booking, error) {
	const stepMiB = 5 * 1024 // as prolog/recover.go
	return b.annotate(j, b.mem(max(was.reserveMiB, peakMiB)+stepMiB), nil, was.smactPct)
}

// analytic estimates from the job's summary, or draws an estimate as far off
// the truth as the estimator is elsewhere.
func analytic(j *workload.Job, a *model.Analytic, seed uint64) (estimator.Estimate, error) {
	if j.Spec != nil {
		return estimator.Analytic(*j.Spec)
	}
	name := uint64(14695981039346656037) // FNV-1a: a job keeps its error whatever else is in the table
	for i := range len(j.Name) {
		name = (name ^ uint64(j.Name[i])) * 1099511628211
	}
	r := rand.New(rand.NewPCG(seed, name))
	sort, at := 100*r.Float64(), 100*r.Float64()
	e := estimator.Estimate{Confidence: estimator.Bound}
	ratio := a.UnsureRatio
	switch {
	case sort < a.SurePct:
		e.Confidence, ratio = estimator.Sure, a.SureRatio
	case sort < a.SurePct+a.UnsurePct:
		e.Confidence = estimator.Unsure
	}
	e.MiB = max(int64(model.Interpolate(a.QuantilePct, ratio, at)*float64(j.PeakMiB)), 1)
	e.FloorMiB = e.MiB
	e.ReserveMiB = e.Confidence.Reserve(e.MiB)
	return e, nil
}
