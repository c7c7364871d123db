// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"errors"
	"slices"
	"testing"

	"carma/gres/lease"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// A job that names its node takes no GPU that a job ahead of it could have, and has none
// kept for it while others wait that are ahead; nobody but those is before it.
func TestNamedNodeWaitsItsTurn(t *testing.T) {
	const whole, named, anywhere = "gres:gpu:1,gres:carmau0:40536,gres:carmatotal:40536",
		"gres:gpu:1,gres:carmau0:1,gres:carmatotal:40536", "gres:gpu:1,gres:carmau0:40536,gres:carmatotal:40536"
	own := schedule.Job{ID: 7, State: "RUNNING", Partition: "gpu", Reason: "Prolog", Priority: 100, ReqNodes: "n1",
		Nodes: "n1", TresPerNode: named}
	older := schedule.Job{ID: 5, State: "PENDING", Partition: "gpu", Reason: "Resources", Priority: 100, UID: 2000,
		TresPerNode: whole}
	large, held, free := older, older, own
	large.TresPerNode = "gres:gpu:2,gres:carma2:40536,gres:carmatotal:81072"
	held.Reason = "JobHeldUser"
	free.TresPerNode = anywhere
	for name, c := range map[string]struct {
		flag   bool // what the job was submitted with
		queue  []schedule.Job
		busy   uint32 // GPUs in use, of two
		leased bool
		kept   bool
		asked  bool
	}{
		"nobody waits":               {true, []schedule.Job{own}, 1, true, false, true},
		"one is ahead":               {true, []schedule.Job{own, older}, 1, false, false, true},
		"one is ahead, two are free": {true, []schedule.Job{own, older}, 0, true, false, true},
		"one that needs more":        {true, []schedule.Job{own, large}, 1, true, false, true},
		"one that is held":           {true, []schedule.Job{own, held}, 1, true, false, true},
		"none is free":               {true, []schedule.Job{own, held}, 2, false, true, true},
		"none is free, one is ahead": {true, []schedule.Job{own, older}, 2, false, false, true},
		"nodes by an update":         {false, []schedule.Job{own, older}, 2, false, false, true},
		"of any node":                {false, []schedule.Job{free, older}, 1, true, false, false},
		"of any node, none is free":  {false, []schedule.Job{free, older}, 2, false, true, true},
	} {
		w := newWorld(t)
		w.Thresholds.Settle = 0
		for id := range c.busy {
			h := hook(id + 1)
			h.Carma.Mode = "exclusive"
			w.prolog(t, h)
		}
		w.slurm.calls, w.slurm.queue = nil, c.queue
		w.slurm.fail["incomplete"] = sctl.ErrBatchOnly
		h := hook(7)
		h.Carma.Mode, h.Carma.NamesNodes = "exclusive", c.flag
		if err := w.Prolog(t.Context(), h, w.book, w.slurm); (err == nil) != c.leased {
			t.Errorf("%s: %v", name, err)
		}
		s, err := w.book.Snapshot(t.Context())
		kept := slices.ContainsFunc(s.Holds, func(h lease.Hold) bool { return h.JobID == 7 })
		if err != nil || len(s.Leases) != int(c.busy)+map[bool]int{true: 1}[c.leased] || kept != c.kept {
			t.Errorf("%s: leases %+v, holds %+v, %v", name, s.Leases, s.Holds, err)
		}
		if asked := slices.Contains(w.slurm.calls, "queue gpu,gpu-ex"); asked != c.asked {
			t.Errorf("%s: calls %v", name, w.slurm.calls)
		}
	}
}

// A slurmctld that is away keeps no job from a GPU that is free, and nothing is kept on its
// silence.
func TestNamedNodeWithoutAnswer(t *testing.T) {
	for busy, leased := range map[uint32]bool{1: true, 2: false} {
		w := newWorld(t)
		for id := range busy {
			h := hook(id + 1)
			h.Carma.Mode = "exclusive"
			w.prolog(t, h)
		}
		w.slurm.fail["queue"], w.slurm.fail["incomplete"] = errors.New("away"), sctl.ErrBatchOnly
		h := hook(7)
		h.Carma.NamesNodes = true
		if err := w.Prolog(t.Context(), h, w.book, w.slurm); (err == nil) != leased {
			t.Errorf("%d GPUs in use: %v", busy, err)
		}
		if s, err := w.book.Snapshot(t.Context()); err != nil || len(s.Holds) > 0 {
			t.Errorf("%d GPUs in use: holds %+v, %v", busy, s.Holds, err)
		}
	}
}
