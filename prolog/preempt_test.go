// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/config"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// A job that slurmctld has started whatever the node offers makes room by its rights, and
// nobody else does.
func TestPrologPreempts(t *testing.T) {
	t.Parallel()
	const booked, less, counted = "gres:gpu:1,gres:carma:40536", "gres:gpu:1,gres:carma:10240", "counted"
	held := func(word string) func(*slurm) {
		return func(s *slurm) { s.extra = `{"site":"x","carma1":10,"carmahold":"` + word + `"}` }
	}
	rules := func(mode string) schedule.Preemption {
		return schedule.Preemption{ByPartition: true, Rules: map[string]schedule.PreemptRule{"high": {Tier: 5,
			Mode: "REQUEUE"}, "gpu": {Tier: 1, Mode: mode}, "gpu-ex": {Tier: 5, Mode: "REQUEUE"}}}
	}
	grace := func(p schedule.Preemption, d time.Duration) schedule.Preemption {
		low := p.Rules["gpu"]
		low.Grace = d
		p.Rules["gpu"] = low
		return p
	}
	for _, c := range []struct {
		name, books, partition string
		rules                  schedule.Preemption
		plant                  func(*slurm)
		want                   string // the last of what is done to job 2
		stale                  bool
	}{
		{"requeue", booked, "high", rules("REQUEUE"), nil, "incomplete 2", false},
		{"cancel", booked, "high", rules("CANCEL"), nil, "cancel 2", false},
		{"it cannot be requeued", booked, "high", rules("REQUEUE"), func(s *slurm) {
			s.fail["incomplete"] = sctl.ErrBatchOnly
		}, "cancel 2", false},
		{"slurmctld does not answer", booked, "high", rules("REQUEUE"), func(s *slurm) {
			s.fail["incomplete"] = errors.New("scontrol: timed out")
		}, "incomplete 2", false},
		{"one that came for what GPUs can give", counted, "high", rules("REQUEUE"), nil, "", false},
		{"one that the steward sends", counted, "high", rules("REQUEUE"), held("7:1:40536:1700000000:preempt:1000"),
			"incomplete 2", false},
		{"one that it sends elsewhere", counted, "high", rules("REQUEUE"), held("77:1:40536:1700000000:preempt:1000"),
			"", false},
		{"one that waits", counted, "high", rules("REQUEUE"), held("7:1:40536:1700000000"), "", false},
		{"no JSON", counted, "high", rules("REQUEUE"), func(s *slurm) { s.extra = "7:1:1:1:preempt:1000" }, "", false},
		{"more than it booked", less, "high", rules("REQUEUE"), nil, "", false},
		{"the same tier", booked, "gpu", rules("REQUEUE"), nil, "", false},
		{"a recovery partition", booked, "gpu-ex", rules("REQUEUE"), nil, "", false},
		{"a part of a hetjob", booked, "high", rules("REQUEUE"), func(s *slurm) { s.job.HetJobID = 9 }, "", false},
		{"in a reservation", booked, "high", rules("REQUEUE"), func(s *slurm) { s.job.Reservation = "r" }, "", false},
		{"suspended", booked, "high", rules("REQUEUE"), func(s *slurm) { s.job.State = "SUSPENDED" }, "", false},
		{"the youngest does not go", booked, "high", rules("REQUEUE"), func(s *slurm) {
			s.completes = map[uint32]time.Time{2: time.Now().Add(-time.Hour)}
		}, "incomplete 1", false},
		{"neither goes", booked, "high", rules("REQUEUE"), func(s *slurm) {
			s.completes = map[uint32]time.Time{1: time.Now().Add(-time.Hour), 2: time.Now().Add(-time.Hour)}
		}, "", false},
		{"a GraceTime longer than its Prolog", booked, "high", grace(rules("CANCEL"), time.Hour), nil, "", false},
		{"a GraceTime", booked, "high", grace(rules("CANCEL"), time.Second), nil, "cancel 2", false},
		{"nobody preempts", booked, "high", schedule.Preemption{}, nil, "", false},
		{"suspend", booked, "high", rules("SUSPEND"), nil, "", false},
		{"the driver does not answer", booked, "high", rules("REQUEUE"), nil, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // each waits for some seconds
			w := newWorld(t)
			w.Config.Partition["high"] = w.Config.Partition["gpu"]
			for id := range uint32(2) {
				h := hook(id + 1)
				h.Carma.Mode = "exclusive"
				w.prolog(t, h)
			}
			if c.stale {
				w.stale(t, time.Hour)
			}
			w.slurm.calls, w.slurm.words.TresPerNode, w.slurm.preemption = nil, c.books, c.rules
			w.slurm.job = sctl.Job{State: "RUNNING", Partition: "gpu", Start: time.Now().Add(-time.Hour)}
			w.slurm.elsewhere = map[uint32]string{7: c.partition}
			if c.plant != nil {
				c.plant(w.slurm)
			}
			h := hook(7)
			h.Partition, h.Carma.Mode = c.partition, "exclusive"
			if c.books == counted {
				h.Carma.Counted, w.slurm.words.TresPerNode = true, booked
			}
			w.Config.Hooks.Wait = config.Duration(preemptEvery + retryEvery)
			if c.want != "" { // the wait ends with the preemption; a busy machine may take long to come so far
				w.Config.Hooks.Wait = config.Duration(preemptEvery + 10*time.Second)
			}
			if c.rules.Rules["gpu"].Grace > 0 {
				w.Until = time.Now().Add(20*time.Second + 2*w.Config.Hooks.Deadline.D())
			}
			if err := w.Prolog(t.Context(), h, w.book, w.slurm); err != nil && !errors.Is(err, ErrUndecided) {
				t.Error(err)
			}
			var done []string
			for _, call := range w.slurm.calls {
				if call == "incomplete 1" || call == "incomplete 2" || strings.HasPrefix(call, "cancel ") ||
					strings.HasPrefix(call, "warn ") {
					done = append(done, call)
				}
			}
			if c.want == "" && len(done) > 0 || c.want != "" && (len(done) == 0 || done[len(done)-1] != c.want) {
				t.Errorf("%s: %v", c.name, w.slurm.calls)
			}
			s, err := w.book.Snapshot(t.Context())
			if kept := len(s.Holds) == 1 && s.Holds[0].JobID == 7; err != nil || kept != (c.want != "") {
				t.Errorf("%s: kept %+v, %v", c.name, s.Holds, err)
			}
			// The agent lets the job that was requeued start.
			requeued := w.slurm.fail["incomplete"] == nil && strings.HasPrefix(c.want, "incomplete ")
			if got := slices.ContainsFunc(s.PendingRestarts, func(r lease.PendingRestart) bool {
				return fmt.Sprint("incomplete ", r.JobID) == c.want
			}); got != requeued {
				t.Errorf("%s: the agent looks after %+v", c.name, s.PendingRestarts)
			}
			if !slices.ContainsFunc(w.slurm.calls, func(call string) bool { return strings.HasPrefix(call, "incomplete ") }) {
				t.Errorf("%s: not returned to the queue in the end: %v", c.name, w.slurm.calls)
			}
		})
	}
}
