// SPDX-License-Identifier: Apache-2.0

// Package workload is what carma-sim replays: jobs with what they truly need,
// and a trace of their submissions. It reads and writes both as CSV, the
// published tables of the CARMA authors included.
package workload

import (
	"fmt"

	"carma/estimator"
)

// Job is one kind of job: a training script with what it truly needs.
type Job struct {
	Name      string
	Model     string
	Class     string // light, medium, heavy
	GPUs      int
	DurationS float64 // on its GPUs, alone
	SMActPct  float64 // alone, mean over its GPUs
	PeakMiB   int64   // at start-up, of its fullest GPU
	SteadyMiB int64   // afterwards

	// Numbers of other estimators; 0: none.
	HorusMiB      int64
	FakeTensorMiB int64
	GPUMemNetMiB  int64

	// Of the published table: run time in the second version, 0: none; and whether
	// only that has the job.
	secondS float64
	second  bool

	Key   string // jobs of one key teach the history together; empty: the job alone
	Past  Past   // runs of the key before the trace
	Alone bool   // books whole GPUs always
	// BookMiB is booked, whatever earlier runs used; 0: the booking is by earlier runs.
	BookMiB int64

	// Spec is what the analytic estimator is asked; nil: there is no summary.
	Spec *estimator.Spec
}

// Past is the history's knowledge of earlier runs.
type Past struct {
	Runs     int
	PeakMiB  int64 // highest
	SMActPct float64
}

// Submission is one line of a trace.
type Submission struct {
	ArrivalS  float64
	Job       int32 // index into Jobs
	User      uint32
	DurationS float64 // instead of the job's; 0: the job's
}

// Workload is a trace with its jobs.
type Workload struct {
	Name    string
	Jobs    []Job
	Trace   []Submission // by arrival
	Skipped int          // lines left out with SkipBad
}

// Duration is how long submission s runs alone on its GPUs.
func (w *Workload) Duration(s *Submission) float64 {
	if s.DurationS > 0 {
		return s.DurationS
	}
	return w.Jobs[s.Job].DurationS
}

// GPUSeconds is the SM work of the trace: seconds of one GPU at SMACT 1.
func (w *Workload) GPUSeconds() float64 {
	var sum float64
	for i := range w.Trace {
		s := &w.Trace[i]
		j := &w.Jobs[s.Job]
		sum += w.Duration(s) * float64(j.GPUs) * j.SMActPct / 100
	}
	return sum
}

// lineError is a line of a file that cannot be used.
type lineError struct {
	File   string
	Line   int // 0: none in particular
	Reason string
	Fatal  bool // nothing after it can be read
}

func (e *lineError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Reason)
	}
	return fmt.Sprintf("%s: line %d: %s", e.File, e.Line, e.Reason)
}

// Limits are what a workload must fit.
type Limits struct {
	GPUsPerNode int
	SkipBad     bool // leave bad lines of the trace out and count them
	Submissions int  // most of a trace; 0: ten million
}
