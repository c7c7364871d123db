// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"strings"
	"testing"

	"carma/gres/lease"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

// seen is a ledger whose jobs were seen with this peak.
type seen struct {
	EpilogLedger
	peak int64
}

func (s seen) Find(ctx context.Context, key jobenv.JobKey) (lease.Held, bool, error) {
	held, ok, err := s.EpilogLedger.Find(ctx, key)
	for i := range held.GPUs {
		held.GPUs[i].PeakMiB = s.peak
	}
	return held, ok, err
}

// What a program made do without is an OOM where NVML saw the job near its booking, and
// not if a framework takes that at its start. The hook's job books 10240 of 40536 MiB.
func TestBackOffLines(t *testing.T) {
	for peak, oom := range map[int64]bool{0: false, 5000: false, 9300: true, 9900: true, 10200: false} {
		w := newWorld(t)
		w.oom()
		w.stderr.Signature, w.stderr.Survived = "cuda", true
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carmau0:10240,gres:carmatotal:10240"
		w.prolog(t, hook(7))
		if err := w.Epilog(t.Context(), failed(hook(7)), seen{w.book, peak}, w.records, w.slurm,
			func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if a := w.records.attempts[0]; (a.OOM != "") != oom || (a.RequeuedTo != "") != oom || !oom &&
			(a.State != "FAILED" || a.OOMNote == "") {
			t.Errorf("peak %d: %+v", peak, a)
		}
	}
}

// A server that refused to start is requeued as any job, and its record says what would
// have let it start; also where it is not requeued.
func TestAdviceInTheRecord(t *testing.T) {
	const advice = "set gpu_memory_utilization to at most 0.22"
	for _, enabled := range []bool{true, false} {
		w := newWorld(t)
		w.oom()
		w.stderr.Signature = "vllm"
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carmau0:10240,gres:carmatotal:10240"
		w.prolog(t, hook(7))
		if !enabled {
			w.Config.Partition["gpu"] = config.Partition{Share: true}
		}
		w.epilog(t, failed(hook(7)))
		a := w.records.attempts[0]
		if !strings.Contains(a.OOMNote, advice) || (a.RequeuedTo != "") != enabled ||
			strings.Contains(a.OOMNote, "no recovery partition") == enabled {
			t.Errorf("recovery %v: %+v", enabled, a)
		}
	}
}
