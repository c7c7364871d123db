// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"carma/cmd/carma-sim/internal/model"
	"carma/cmd/carma-sim/internal/replay"
	"carma/cmd/carma-sim/internal/workload"
	"carma/db"
)

// ErrNothing means that the records hold nothing to replay.
var ErrNothing = errors.New("nothing to forecast")

// Plan is a cluster with its jobs, as records show both.
type Plan struct {
	From, To    time.Time // first submission, last end
	Pools       []*Pool   // the one with most GPU time first
	Jobs        int
	Scripts     int // with a first run: not known from before
	Booked      Booked
	Recorded    Recorded
	Unknown     Unknown
	PowerFactor float64 // measured energy against the model's power; 0: none was measured
}

// Kind is the like nodes of a pool. A job that ran on some of them is replayed on them.
type Kind struct {
	Size
	Work workload.Workload // times are since the plan's first submission
	runs []*run
}

// Booked counts the sharing jobs by the source of the booking.
type Booked struct {
	Estimates int `json:"estimates"` // of their records, with the reserve
	History   int `json:"history"`   // earlier runs in the records
}

// Recorded is how the records have the same jobs. The slowdown of a job is 1 unless the job
// shared and its slowdown is known.
type Recorded struct {
	GPUHours    float64 `json:"gpu_hours"`
	MakespanS   float64 `json:"makespan_s"`
	WaitS       float64 `json:"wait_s"`
	P95WaitS    float64 `json:"p95_wait_s"`
	P50Slowdown float64 `json:"p50_slowdown"`
	P95Slowdown float64 `json:"p95_slowdown"`
	OOM         int     `json:"oom"`
}

// Plan makes a plan of the added jobs. meters are the known GPUs of nodes; m fills gaps.
func (r *Records) Plan(meters []db.Meter, size Size, m model.Model) (*Plan, error) {
	if len(r.clusters) > 1 {
		return nil, errors.New("the records are of several clusters; choose one with --clusters")
	}
	if len(r.runs) == 0 {
		return nil, fmt.Errorf("%w: no job with GPUs has a record in this time; see --starttime", ErrNothing)
	}
	nodes, err := r.nodes(meters, size)
	if err != nil {
		return nil, err
	}
	p := &Plan{Unknown: r.Unknown}
	pools, err := r.kinds(nodes, size, &p.Unknown)
	if err != nil {
		return nil, err
	}
	mean, err := meanSMAct(r.runs)
	if err != nil {
		return nil, err
	}
	p.PowerFactor = powerFactor(r.runs, m.GPU)
	var all []*run
	for _, pool := range pools {
		pool.Kinds = slices.DeleteFunc(pool.Kinds, func(k *Kind) bool {
			if len(k.runs) == 0 {
				p.Unknown.IdleNodes += k.Nodes
			}
			return len(k.runs) == 0
		})
		for _, k := range pool.Kinds {
			all = append(all, k.runs...)
			for _, o := range k.runs {
				pool.gpuS += o.heldS
			}
		}
		if slices.Sort(pool.Partitions); len(pool.Kinds) > 0 {
			p.Pools = append(p.Pools, pool)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: no job fits on nodes of this size; see --gpus and --gpu-mem", ErrNothing)
	}
	slices.SortFunc(p.Pools, func(a, b *Pool) int {
		return cmp.Or(cmp.Compare(b.gpuS, a.gpuS), cmp.Compare(a.Name(), b.Name()))
	})
	slices.SortFunc(all, func(a, b *run) int { // sums are the same in each run
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.node, b.node))
	})
	p.summarise(all, r.past)
	users := map[uint32]uint32{}
	for _, pool := range p.Pools {
		for _, k := range pool.Kinds {
			k.fill(p.From, mean, users, r.past, m)
		}
	}
	return p, nil
}

// Model is m for a replay of the plan. Launch and start-up are in a record's run time, and the
// start-up is in the mean of its SM activity.
func (p *Plan) Model(m model.Model) model.Model {
	m.Job.StartupS, m.Slurm.LaunchS = model.Range{}, 0
	if p.PowerFactor > 0 {
		m.GPU.PowerWatts = slices.Clone(m.GPU.PowerWatts)
		for i := range m.GPU.PowerWatts {
			m.GPU.PowerWatts[i] *= p.PowerFactor
		}
	}
	return m
}

// summarise adds up the records of all jobs.
func (p *Plan) summarise(all []*run, past map[string]workload.Past) {
	ids, scripts := map[uint32]bool{}, map[string]bool{}
	p.From, p.To = all[0].arrival, all[0].end
	var waits, slowdowns []float64
	ooms := map[uint32]bool{}
	for _, o := range all {
		ids[o.id] = true
		if p.From.After(o.arrival) {
			p.From = o.arrival
		}
		if o.end.After(p.To) {
			p.To = o.end
		}
		p.count(o, past, scripts)
		p.Recorded.GPUHours += o.heldS / 3600
		wait := max(o.start.Sub(o.arrival).Seconds(), 0)
		p.Recorded.WaitS += wait / float64(len(all))
		waits, slowdowns = append(waits, wait), append(slowdowns, o.slowdown)
		if o.oom {
			ooms[o.id] = true
		}
	}
	p.Jobs = len(ids)
	p.Recorded.MakespanS = p.To.Sub(p.From).Seconds()
	p.Recorded.P95WaitS = replay.Quantile(waits, 0.95)
	p.Recorded.P50Slowdown, p.Recorded.P95Slowdown = replay.Quantile(slowdowns, 0.5), replay.Quantile(slowdowns, 0.95)
	p.Recorded.OOM = len(ooms)
}

// count notes the source of a job's booking. scripts are the scripts of the jobs before.
func (p *Plan) count(o *run, past map[string]workload.Past, scripts map[string]bool) {
	if o.alone {
		return
	}
	known := past[o.key].Runs > 0 || o.key != "" && scripts[o.key]
	scripts[o.key] = true
	if o.bookMiB > 0 {
		p.Booked.Estimates++
		return
	}
	p.Booked.History++
	if !known {
		p.Scripts++
	}
}

// fill makes the workload. Jobs of unknown activity have the mean of the others: only their
// power depends on the mean, which is the same in each replay.
func (k *Kind) fill(from time.Time, meanSMActPct float64, users map[uint32]uint32, past map[string]workload.Past,
	m model.Model) {
	slices.SortStableFunc(k.runs, func(a, b *run) int {
		return cmp.Or(a.arrival.Compare(b.arrival), cmp.Compare(a.id, b.id))
	})
	most := max(k.GPUMemMiB-m.GPU.BaseMiB, 1)
	for i, o := range k.runs {
		j := workload.Job{Name: fmt.Sprint(o.id), GPUs: o.gpus, DurationS: max(o.runS/o.slowdown, leastRunS),
			SMActPct: o.smactPct, PeakMiB: min(max(o.peakMiB, 1), most), Key: o.key, Past: past[o.key],
			Alone: o.alone, BookMiB: o.bookMiB}
		if j.SMActPct == 0 {
			j.SMActPct = meanSMActPct
		}
		j.SteadyMiB = o.meanMiB
		if j.SteadyMiB <= 0 {
			j.SteadyMiB = int64(math.Round(m.Job.SteadyShare * float64(j.PeakMiB)))
		}
		j.SteadyMiB = min(j.SteadyMiB, j.PeakMiB)
		if _, ok := users[o.uid]; !ok {
			users[o.uid] = uint32(1000 + len(users))
		}
		k.Work.Jobs = append(k.Work.Jobs, j)
		k.Work.Trace = append(k.Work.Trace, workload.Submission{ArrivalS: o.arrival.Sub(from).Seconds(), Job: int32(i),
			User: users[o.uid]})
	}
}

// meanSMAct is the mean of the known SM activities of jobs, by their GPU time.
func meanSMAct(runs []run) (float64, error) {
	var sum, gpuS float64
	for i := range runs {
		if o := &runs[i]; o.smactPct > 0 {
			sum, gpuS = sum+o.smactPct*o.runS*float64(o.gpus), gpuS+o.runS*float64(o.gpus)
		}
	}
	if gpuS == 0 {
		return 0, fmt.Errorf("%w: memory and SM activity were measured of none of the jobs; does carma-node status show "+
			"SM activity?", ErrNothing)
	}
	return sum / gpuS, nil
}

// powerFactor is the measured energy of jobs alone on their GPUs, divided by their energy in
// the model, whose power is that of an A100.
func powerFactor(runs []run, gpu model.GPU) float64 {
	var measuredJ, modelJ float64
	for i := range runs {
		if o := &runs[i]; o.energyJ > 0 && o.energyS > 0 {
			measuredJ, modelJ = measuredJ+o.energyJ, modelJ+gpu.Watts(o.smactPct/100)*o.energyS
		}
	}
	if modelJ <= 0 {
		return 0
	}
	return min(max(measuredJ/modelJ, 0.1), 10)
}
