// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bufio"
	"fmt"
	"io"
	"slices"
)

// Result is one run. Means of waiting and so on are over the jobs; waiting is
// all time in which a job did not run, execution all time in which it did, lost
// attempts included.
type Result struct {
	MakespanS   float64 // from the first submission to the last end
	WaitS       float64
	ExecS       float64
	JCTS        float64 // job completion time: submission to end
	P95Slowdown float64 // of the last attempt's execution against the job alone
	OOM         int     // attempts ended by lack of GPU memory
	Failed      int     // failed jobs
	GivenBack   int     // times that a Prolog returned a job to the queue
	EnergyJ     float64 // of all GPUs over the makespan
	SMActPct    float64 // mean over GPUs and makespan
	MemMiB      float64 // used, mean over GPUs and makespan
	HeldS       float64 // GPU seconds in which jobs held a GPU, however many

	// Only of a recorded run.
	Jobs   []JobResult
	Curves *Curves
}

// JobResult is the result of one submission. Times are since the first
// submission.
type JobResult struct {
	Job      string
	ArrivalS float64
	StartS   float64 // of the last attempt
	EndS     float64
	ExecS    float64 // of all attempts
	Slowdown float64
	Attempts int
	Failed   bool
}

func (m *machine) result() Result {
	var r Result
	n := float64(len(m.tasks))
	slowdowns := make([]float64, 0, len(m.tasks))
	for i := range m.tasks {
		t := &m.tasks[i]
		r.MakespanS = max(r.MakespanS, t.end)
		r.ExecS += t.exec / n
		r.JCTS += (t.end - t.arrival) / n
		if t.failed {
			r.Failed++
			continue
		}
		slowdowns = append(slowdowns, t.slowdown())
	}
	r.WaitS = r.JCTS - r.ExecS
	r.OOM, r.GivenBack = m.ooms, m.givenBack
	r.P95Slowdown = Quantile(slowdowns, 0.95)
	m.now = r.MakespanS
	for g := range m.gpus {
		m.account(int32(g))
		r.EnergyJ += m.gpus[g].energyJ
		r.SMActPct += 100 * m.gpus[g].utilS
		r.MemMiB += m.gpus[g].memMiBS
		r.HeldS += m.gpus[g].heldS
	}
	if gpuS := float64(len(m.gpus)) * r.MakespanS; gpuS > 0 {
		r.SMActPct /= gpuS
		r.MemMiB /= gpuS
	}
	if m.record == nil {
		return r
	}
	r.Curves = m.record.curves(r.MakespanS)
	for i := range m.tasks {
		t := &m.tasks[i]
		r.Jobs = append(r.Jobs, JobResult{t.job.Name, t.arrival, t.begun, t.end, t.exec, t.slowdown(), int(t.tries),
			t.failed})
	}
	return r
}

// slowdown is the last attempt's execution against the job alone.
func (t *task) slowdown() float64 { return t.lastExec / (t.startup + t.alone) }

// Quantile of values, by the nearest rank; values are sorted in place.
func Quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	i := int(q*float64(len(v))+0.9999999) - 1
	return v[min(max(i, 0), len(v)-1)]
}

// WriteJobs writes what became of each job as CSV.
func WriteJobs(out io.Writer, jobs []JobResult) error {
	b := bufio.NewWriter(out)
	fmt.Fprintln(b, "job,arrival_s,start_s,end_s,exec_s,slowdown,attempts,failed")
	for _, j := range jobs {
		fmt.Fprintf(b, "%s,%.1f,%.1f,%.1f,%.1f,%.3f,%d,%t\n", j.Job, j.ArrivalS, j.StartS, j.EndS, j.ExecS, j.Slowdown,
			j.Attempts, j.Failed)
	}
	return b.Flush()
}
