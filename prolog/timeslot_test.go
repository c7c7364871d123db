// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// slotted is a job that is requeued when its time slot is over.
func slotted(restart uint32) jobenv.Hook {
	h := hook(7)
	h.Restart, h.Carma.Requeue = restart, jobenv.RequeueTimeout
	return h
}

// It is requeued as it was, and AdminComment does not grow with each slot.
func TestTimeSlotIsOver(t *testing.T) {
	w := newWorld(t)
	w.slurm.job = sctl.Job{ID: 7, State: "COMPLETING", Reason: "TimeLimit"}
	w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
	w.slurm.words.AdminComment = "of an earlier plugin"
	for restart := range uint32(3) {
		w.prolog(t, slotted(restart))
		if restart > 0 {
			if got := w.task(t, "SLURM_JOB_ID=7", "SLURM_RESTART_COUNT="+string(rune('0'+restart)), "SLURM_JOB_GPUS=5",
				"CUDA_VISIBLE_DEVICES=5"); !strings.Contains(got, "export CARMA_RETRY_REASON=timeslot\n") {
				t.Errorf("slot %d sees\n%s", restart, got)
			}
		}
		w.slurm.calls = nil
		w.epilog(t, slotted(restart))
		if want := []string{"job 7", "words 7", "requeuehold 7", "update 7", "release 7"}; !slices.Equal(w.slurm.calls,
			want) {
			t.Errorf("calls %v\nwant  %v", w.slurm.calls, want)
		}
		want := `of an earlier plugin carma-retry={"reason":"timeslot","restart":` + string(rune('1'+restart)) + `}`
		if w.slurm.words.AdminComment = w.slurm.comment; w.slurm.comment != want {
			t.Errorf("AdminComment %s, want %s", w.slurm.comment, want)
		}
		if a := w.records.attempts[restart]; a.State != "REQUEUED" || a.RequeuedTo != "" || a.OOM != "" ||
			a.OOMNote != "requeued after its time slot" {
			t.Errorf("record %+v", a)
		}
		if s, _ := w.book.Snapshot(t.Context()); len(s.Leases) != 0 || len(s.PendingRestarts) != 1 || len(s.Holds) != 0 {
			t.Errorf("ledger %+v", s)
		}
	}
}

func TestTimeSlotIsNotOver(t *testing.T) {
	for name, c := range map[string]struct {
		reason  string
		change  func(*world, *jobenv.Hook)
		changes string
		state   string
		note    string
	}{
		"ended by itself":    {"None", func(*world, *jobenv.Hook) {}, "", "COMPLETED", ""},
		"failed by itself":   {"NonZeroExitCode", func(_ *world, h *jobenv.Hook) { h.Exit.Code = 1 }, "", "FAILED", ""},
		"did not ask for it": {"TimeLimit", func(_ *world, h *jobenv.Hook) { h.Carma.Requeue = "" }, "", "COMPLETED", ""},
		"--no-requeue": {"TimeLimit", func(w *world, _ *jobenv.Hook) { w.slurm.noRequeue = true }, "", "COMPLETED",
			"its time slot was over; the job may not be requeued (--no-requeue, JobRequeue=0, or a federation)"},
		"refused": {"TimeLimit", func(w *world, _ *jobenv.Hook) { w.slurm.fail["requeuehold"] = errors.New("scontrol: no") },
			"requeuehold", "COMPLETED",
			"its time slot was over; requeue refused: no"},
		"cannot be released": {"TimeLimit", func(w *world,
			_ *jobenv.Hook) {
			w.slurm.fail["release"] = errors.New("scontrol: no")
		}, "requeuehold update release",
			"COMPLETED",
			"its time slot was over; requeued, held until the agent releases it: no"},
		"cannot be changed": {"TimeLimit", func(w *world, _ *jobenv.Hook) {
			w.slurm.fail["update"] = errors.New("scontrol: no")
		},
			"requeuehold update update", "COMPLETED", "its time slot was over; held: no"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.slurm.job = sctl.Job{ID: 7, Reason: jobstate.Reason(c.reason)}
			w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
			w.prolog(t, slotted(0))
			h := slotted(0)
			c.change(w, &h)
			w.epilog(t, h)
			a := w.records.attempts[0]
			if got := w.changes(); got != c.changes || a.State != c.state || a.OOMNote != c.note {
				t.Errorf("changes %q, record %+v", got, a)
			}
			if len(w.leases(t)) != 0 {
				t.Error("the lease is left")
			}
		})
	}
}
