// SPDX-License-Identifier: Apache-2.0

// Package replay plays a trace on a simulated cluster: the machine (GPUs,
// memory, interference, power) by package model, the decisions by the
// project's own code (choose, annotate), in the project's way through Slurm or
// in the ways of the reference system.
package replay

import (
	"fmt"
	"slices"
	"strings"

	"carma/cmd/carma-sim/internal/model"
	"carma/gres/choose"
	"carma/gres/steward"
	"carma/slurmbridge/config"
	"carma/slurmbridge/policy"
)

// Mode is whose way of working is played.
type Mode string

// The modes.
const (
	Slurm   Mode = "slurm"    // this project's, on Slurm
	PaperV1 Mode = "paper-v1" // the reference system of the thesis and the paper's first version
	PaperV2 Mode = "paper-v2" // of the paper's second version
)

// Estimator says where estimates come from.
type Estimator string

// The estimators.
const (
	Oracle     Estimator = "oracle" // the truth
	Analytic   Estimator = "analytic"
	GPUMemNet  Estimator = "gpumemnet"
	Horus      Estimator = "horus"
	FakeTensor Estimator = "faketensor"
	History    Estimator = "history" // earlier runs of the same job
	None       Estimator = "none"
)

// Queue is how waiting jobs are started.
type Queue string

// The queues.
const (
	FIFO     Queue = "fifo"     // the first waiting job, or none
	Backfill Queue = "backfill" // any that fits, in order, with GPUs held for old ones
	Shortest Queue = "shortest" // the same, in the order of their run times
	Longest  Queue = "longest"  // the other way round
)

// Recovery is what happens to a job that died of GPU memory.
type Recovery string

// The recoveries.
const (
	RecoverExclusive Recovery = "exclusive" // alone on its GPUs, once
	RecoverLadder    Recovery = "ladder"    // shared with more booked, alone at last
)

// Setup is one configuration of a simulation.
type Setup struct {
	Mode      Mode
	Nodes     int
	GPUs      int // of one node
	GPUMemMiB int64

	Policy    choose.Policy
	Estimator Estimator
	Queue     Queue
	Recovery  Recovery
	Streams   bool // no MPS
	Known     bool // history knows every job from the start

	Thresholds choose.Thresholds
	MinFreeMiB int64   // free memory for a job without an estimate; paper modes
	WindowS    float64 // of SM activity

	HoldAfterS   float64 // a large request that has waited so long has GPUs kept for it; 0: never
	HoldTimeoutS float64 // and so long
	PrologWaitS  float64 // how long a Prolog waits for GPUs before it returns the job to the queue
	Vetoes       int     // a job returned to the queue so often asks for whole GPUs; 0: never

	Model  model.Model
	Seed   uint64
	Record bool // keep curves of memory, activity and power

	ideal bool      // the ledger holds what is truly used
	ranks []float64 // by submission: the order of the queue, where 0 would mean by arrival; nil: Queue's
}

// Default returns the setup of an empty command line: the project's own values
// on the DGX A100 of the paper.
func Default() Setup {
	return FromConfig(config.Default(), model.Default())
}

// FromConfig takes the thresholds of a carma.toml.
func FromConfig(c config.Config, m model.Model) Setup {
	thresholds := choose.FromConfig(c)
	thresholds.Streams = false // Setup.Streams
	return Setup{
		Mode: Slurm, Nodes: 1, GPUs: 4, GPUMemMiB: 40536,
		Policy: choose.Policy(c.Placement.Policy), Estimator: Analytic, Queue: Backfill, Recovery: RecoverExclusive,
		Thresholds: thresholds,
		MinFreeMiB: c.Placement.MinFreeMiB, WindowS: c.SMAct.Window.D().Seconds(),
		HoldAfterS: c.Hold.After.D().Seconds(), HoldTimeoutS: steward.HoldTimeout.Seconds(),
		PrologWaitS: c.Hooks.Wait.D().Seconds(), Vetoes: c.Hooks.Vetoes,
		Model: m, Seed: 1,
	}
}

// As returns the setup with the ways of mode: those of the reference system have
// thresholds, window and queue of their own.
func (s Setup) As(mode Mode) Setup {
	s.Mode = mode
	if mode != Slurm {
		// The paper's gate. It knows no users, and no bound of jobs: four a GPU
		// and forty give the same.
		s.Thresholds.SMActMaxPct, s.Thresholds.MaxJobs, s.Thresholds.CrossUser = 80, 4, true
	}
	switch v1, v2 := &s.Model.PaperV1, &s.Model.PaperV2; mode {
	case PaperV1:
		s.Queue, s.WindowS, s.MinFreeMiB, s.Thresholds.MarginMiB = FIFO, v1.WindowS, v1.MinFreeMiB, 0
	case PaperV2:
		s.Queue, s.WindowS, s.MinFreeMiB, s.Thresholds.MarginMiB = FIFO, v2.WindowS, v2.MinFreeMiB, v2.MarginMiB
	}
	return s
}

// Names lists the values of the words in a setup, for flags and messages.
var (
	Modes      = []string{string(Slurm), string(PaperV1), string(PaperV2)}
	Estimators = []string{string(Oracle), string(Analytic), string(GPUMemNet), string(Horus), string(FakeTensor),
		string(History), string(None)}
	Queues     = []string{string(FIFO), string(Backfill), string(Shortest), string(Longest)}
	Recoveries = []string{string(RecoverExclusive), string(RecoverLadder)}
)

// maxCluster bounds the GPUs of a cluster.
const maxCluster = 1 << 20

// Check returns the first value that cannot be meant.
func (s *Setup) Check() error {
	for _, w := range []struct {
		name, v string
		values  []string
	}{
		{"mode", string(s.Mode), Modes},
		{"policy", string(s.Policy), policy.Names()},
		{"estimator", string(s.Estimator), Estimators},
		{"queue", string(s.Queue), Queues},
		{"recovery", string(s.Recovery), Recoveries},
	} {
		if !slices.Contains(w.values, w.v) {
			return fmt.Errorf("%s %q is not one of %s", w.name, w.v, strings.Join(w.values, ", "))
		}
	}
	switch {
	case s.GPUs < 1 || s.GPUs > 64:
		return fmt.Errorf("gpus %d: a node has 1 to 64", s.GPUs)
	case s.Nodes < 1 || s.Nodes*s.GPUs > maxCluster:
		return fmt.Errorf("nodes %d: a cluster has 1 to %d GPUs", s.Nodes, maxCluster)
	case s.GPUMemMiB < 1024 || s.GPUMemMiB > 1<<24:
		return fmt.Errorf("gpu-mem %d: a GPU has 1024 MiB or more", s.GPUMemMiB)
	case s.GPUMemMiB <= s.Model.GPU.BaseMiB:
		return fmt.Errorf("gpu-mem %d: the driver alone takes %d MiB", s.GPUMemMiB, s.Model.GPU.BaseMiB)
	case s.Thresholds.MarginMiB < 0 || s.MinFreeMiB < 0:
		return fmt.Errorf("margin and min-free must not be negative")
	case !(s.Thresholds.SMActMaxPct > 0):
		return fmt.Errorf("smact-cap %g: must be above 0; 100 switches it off", s.Thresholds.SMActMaxPct)
	case s.WindowS <= 0 || s.WindowS > 1e6:
		return fmt.Errorf("window %g s: must be above 0", s.WindowS)
	case s.Thresholds.MaxSlowdown != 0 && !(s.Thresholds.MaxSlowdown > 1):
		return fmt.Errorf("max-slowdown %g: must be above 1; 0 is no bound", s.Thresholds.MaxSlowdown)
	case s.Thresholds.MaxJobs < 1:
		return fmt.Errorf("max-jobs %d: must be 1 or more", s.Thresholds.MaxJobs)
	}
	if s.Mode != Slurm {
		return s.checkPaper()
	}
	return nil
}

// checkPaper: the reference system has one node, one queue and one recovery.
func (s *Setup) checkPaper() error {
	switch {
	case s.Nodes != 1:
		return fmt.Errorf("mode %s: the reference system knows one node", s.Mode)
	case s.Queue != FIFO:
		return fmt.Errorf("mode %s: the reference system knows the queue fifo only", s.Mode)
	case s.Recovery != RecoverExclusive:
		return fmt.Errorf("mode %s: the reference system knows the recovery exclusive only", s.Mode)
	case s.Estimator == History:
		return fmt.Errorf("mode %s: the reference system has no history", s.Mode)
	}
	return nil
}

// release is how long GPUs stay held after the end of a process.
func (s *Setup) release() float64 {
	if s.Mode != Slurm || s.ideal {
		return 0
	}
	return s.Model.Slurm.ReleaseS
}
