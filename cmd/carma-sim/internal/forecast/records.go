// SPDX-License-Identifier: Apache-2.0

// Package forecast makes a workload of the records of a cluster's jobs, and figures of
// replays of the workload. The package knows no clock and no file.
package forecast

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"carma/cmd/carma-sim/internal/workload"
	"carma/db"
	"carma/db/figure"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
)

// Bounds of a meaningful record; the replay's loops stay short within them.
const (
	maxRunS     = 1e8 // three years
	leastSMAct  = 0.1 // percent; a job's progress is measured by its activity
	leastRunS   = 1
	leastFactor = 0.05 // speed beside neighbours, against the speed alone
)

// Count is a number of jobs and their GPU time.
type Count struct {
	Jobs     int     `json:"jobs"`
	GPUHours float64 `json:"gpu_hours"`
}

func (c *Count) add(gpuS float64) { c.Jobs, c.GPUHours = c.Jobs+1, c.GPUHours+gpuS/3600 }

// Unknown counts the gaps of the records. The first three are replayed none the less.
type Unknown struct {
	NoSamples    Count `json:"no_samples"`    // memory or SM activity not measured: alone on their GPUs
	SeveralNodes Count `json:"several_nodes"` // alone, each node's part by itself
	NoSubmit     Count `json:"no_submit"`     // submitted when they started
	NoTimes      int   `json:"no_times"`      // left out: no run time, or one that cannot be
	NoGPUs       int   `json:"no_gpus"`       // left out: no GPU in the record
	TooLarge     Count `json:"too_large"`     // left out: more GPUs or memory than the nodes have
	Earlier      int   `json:"earlier"`       // earlier attempts of requeued jobs, left out
	IdleNodes    int   `json:"idle_nodes"`    // left out: nodes without a job, so that nothing is known of their partition
}

// run is a job on a node, as a record has both.
type run struct {
	id              uint32
	partition, node string
	key             string // of the history
	uid             uint32
	gpus            int
	uuids           []string
	arrival, start  time.Time
	end             time.Time
	runS            float64
	slowdown        float64 // run time against the run time alone
	heldS           float64 // GPU seconds, each divided by the holders
	smactPct        float64 // alone
	peakMiB         int64
	meanMiB         int64
	fullMiB         int64
	alone           bool
	bookMiB         int64 // as the record says; 0: the history tells
	oom             bool
	energyJ         float64 // of a job that was alone on its GPUs; 0: not known
	energyS         float64 // GPU seconds that the energy is of
}

// Records gathers the runs of a period.
type Records struct {
	From, To time.Time // zero: all. Jobs that ran in this time count
	Unknown  Unknown
	clusters map[string]bool
	runs     []run
	past     map[string]workload.Past // by key: runs before the period
	words    map[string]string
}

// word is a text of a record, to be kept: records are parts of long texts.
func (r *Records) word(text string) string {
	w, ok := r.words[text]
	if !ok {
		if r.words == nil {
			r.words = map[string]string{}
		}
		w = strings.Clone(text)
		r.words[w] = w
	}
	return w
}

// Add takes all attempts of a job, in order of restart and node, and keeps none of them. A
// job before the period only teaches the history.
func (r *Records) Add(attempts []db.Attempt) {
	last := attempts[len(attempts)-1].Restart
	at := slices.IndexFunc(attempts, func(a db.Attempt) bool { return a.Restart == last })
	parts := attempts[at:]
	ends := slices.MaxFunc(parts, func(a, b db.Attempt) int { return a.End.Compare(b.End) }).End
	switch {
	case !r.From.IsZero() && ends.Before(r.From):
		r.learn(parts)
		return
	case !r.To.IsZero() && attempts[0].Start.After(r.To):
		return
	}
	if at > 0 {
		r.Unknown.Earlier++
	}
	if r.clusters == nil {
		r.clusters = map[string]bool{}
	}
	r.clusters[r.word(parts[0].Cluster)] = true
	var gpuS float64
	var unsampled, undated bool
	for i := range parts {
		a := &parts[i]
		switch s := a.End.Sub(a.Start).Seconds(); {
		case a.Start.IsZero() || a.End.IsZero() || !(s > 0 && s <= maxRunS):
			r.Unknown.NoTimes++
			return
		case len(a.Total.UUIDs) == 0:
			r.Unknown.NoGPUs++
			return
		}
	}
	for i := range parts {
		one := r.runOf(&parts[i])
		unsampled, undated = unsampled || one.alone, undated || parts[i].Submit.IsZero()
		one.alone = one.alone || len(parts) > 1
		gpuS += one.runS * float64(one.gpus)
		r.runs = append(r.runs, one)
	}
	if undated {
		r.Unknown.NoSubmit.add(gpuS)
	}
	switch {
	case len(parts) > 1:
		r.Unknown.SeveralNodes.add(gpuS)
	case unsampled:
		r.Unknown.NoSamples.add(gpuS)
	}
}

// learn takes note of a run that ended well.
func (r *Records) learn(parts []db.Attempt) {
	if len(parts) > 1 || parts[0].State != jobstate.Completed || len(parts[0].Total.UUIDs) == 0 {
		return
	}
	o := r.runOf(&parts[0])
	if o.alone || o.key == "" {
		return
	}
	if r.past == nil {
		r.past = map[string]workload.Past{}
	}
	p := r.past[o.key]
	r.past[o.key] = workload.Past{Runs: p.Runs + 1, PeakMiB: max(p.PeakMiB, o.peakMiB), SMActPct: o.smactPct}
}

// runOf reads a record whose times and GPUs are known.
func (r *Records) runOf(a *db.Attempt) run {
	t := &a.Total
	o := run{
		id: a.JobID, partition: r.word(a.Partition), node: r.word(a.Node), uid: a.UID, gpus: len(t.UUIDs),
		arrival: r.arrival(a), start: a.Start, end: a.End, runS: max(a.End.Sub(a.Start).Seconds(), leastRunS),
		slowdown: 1, peakMiB: t.PeakMiB, meanMiB: t.MeanMiB, fullMiB: a.FullMiB, oom: a.OOM != "", key: r.word(a.Key),
	}
	for _, uuid := range t.UUIDs {
		o.uuids = append(o.uuids, r.word(uuid))
	}
	// Without a key of the history, as in records of an observing agent, a user's jobs of the
	// same name on as many GPUs are runs of the same script.
	if o.key == "" && a.Name != "" {
		o.key = r.word(fmt.Sprintf("%d %d %s", a.UID, o.gpus, a.Name))
	}
	switch { // an estimate alone is not the booking
	case a.EstMiB <= 0:
	case a.Mode == jobenv.ModeShared:
		o.bookMiB = a.ReserveMiB
	case a.AdvisedMiB > 0:
		o.bookMiB = a.AdvisedMiB
	}
	o.heldS = o.runS * float64(o.gpus)
	if t.LeaseS > 0 && t.HeldS > 0 && t.HeldS <= t.LeaseS {
		o.heldS *= t.HeldS / t.LeaseS
	}
	if t.SharedS > 0 && t.LeaseS > 0 {
		aloneS := float64(t.AloneS)
		if !usable(t.AloneS) || aloneS <= 0 {
			aloneS = t.LawS
		}
		if aloneS > 0 && aloneS < t.LeaseS {
			o.slowdown = 1 / max(aloneS/t.LeaseS, leastFactor)
		}
	}
	o.alone = t.PeakMiB <= 0 || !usable(t.SMActPct) || t.SMActPct < 0
	if !o.alone {
		o.smactPct = min(max(float64(t.SMActPct)*o.slowdown, leastSMAct), 100)
		if t.SharedS == 0 && usable(t.EnergyJ) && t.EnergyJ > 0 {
			o.energyJ, o.energyS = float64(t.EnergyJ), t.LeaseS
		}
	}
	return o
}

// arrival is when the job came to the queue. The queue before the period is not known: a job
// in the queue when the period begins is submitted at that moment.
func (r *Records) arrival(a *db.Attempt) time.Time {
	at := a.Submit
	if at.IsZero() || at.After(a.Start) {
		at = a.Start
	}
	if at.Before(r.From) {
		at = r.From
	}
	if at.After(a.Start) {
		at = a.Start
	}
	return at
}

func usable(m figure.Measured) bool { return m.Known() && !math.IsInf(float64(m), 0) }
