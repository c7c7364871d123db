// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"errors"
	"fmt"
	"math"

	"carma/cmd/carma-sim/internal/workload"
)

// maxTime ends a simulation that cannot end by itself, s.
const maxTime = 1e11

// Run plays a workload. The same setup and workload give the same result.
func Run(set Setup, w *workload.Workload) (Result, error) {
	if err := set.Check(); err != nil {
		return Result{}, err
	}
	if len(w.Trace) == 0 {
		return Result{}, errors.New("the trace has no submissions")
	}
	for i := range w.Trace {
		if j := &w.Jobs[w.Trace[i].Job]; j.GPUs > set.GPUs {
			return Result{}, fmt.Errorf("job %s requests %d GPUs, but a node has %d", j.Name, j.GPUs, set.GPUs)
		}
	}
	m := newMachine(&set, w)
	if set.Mode == Slurm {
		m.sched = newSlurm(m, w)
	} else {
		m.sched = newPaper(m)
	}
	if err := m.play(); err != nil {
		return Result{}, err
	}
	return m.result(), nil
}

// play runs until all tasks have ended. Everything that happens at one moment
// happens before a decision.
func (m *machine) play() error {
	next := 0 // submission
	for m.done < len(m.tasks) {
		_, at := m.agenda.next()
		if next < len(m.tasks) {
			at = min(at, m.tasks[next].arrival)
		}
		if math.IsInf(at, 1) || at > maxTime {
			return fmt.Errorf("%d of %d jobs can never start on this cluster", len(m.tasks)-m.done, len(m.tasks))
		}
		m.now = at
		for next < len(m.tasks) && m.tasks[next].arrival <= at {
			m.sched.happened(submitted, int32(next))
			next++
		}
		for {
			e, t := m.agenda.next()
			if t > at {
				break
			}
			m.plan(e, math.Inf(1))
			m.dispatch(e)
		}
		if err := m.sched.decide(); err != nil {
			return err
		}
	}
	return nil
}

// dispatch passes an event on to the one whose it is.
func (m *machine) dispatch(e int32) {
	switch n := int32(len(m.tasks)); {
	case e < n:
		m.fire(e)
	case e < n+int32(len(m.gpus)):
		m.sched.happened(timer, e-n)
	default:
		m.sched.happened(alarm, e-n-int32(len(m.gpus)))
	}
}
