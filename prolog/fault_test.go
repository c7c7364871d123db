// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"carma/gres/lease"
	"carma/prolog/oomscan"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// A job that fails when its MPS server, with clients of other jobs, has had a fault comes
// back once and alone. One that was alone has made the fault itself, and stays failed.
func TestEpilogOfAServerFault(t *testing.T) {
	const note = "its MPS server has faulted"
	for name, c := range map[string]struct {
		jobs   []uint32 // with clients
		change func(*world, *jobenv.Hook)
		back   bool
		note   string
	}{
		"with another": {[]uint32{7, 8}, nil, true, note},
		"with another, which ended": {[]uint32{7, 8}, func(w *world, _ *jobenv.Hook) {
			w.records.past.Ended = map[uint32]time.Time{8: time.Now().Add(time.Hour)}
		}, true, note + "; job 8 ended on its GPU 0 s before it failed"},
		"alone":            {[]uint32{7}, nil, false, note},
		"not a client yet": {[]uint32{8}, nil, false, "fault of a program on the GPU"},
		"no fault": {[]uint32{7, 8}, func(w *world, _ *jobenv.Hook) { w.logged = false }, false,
			"fault of a program on the GPU"},
		"it ended well": {[]uint32{7, 8}, func(_ *world, h *jobenv.Hook) { h.Exit = jobenv.Exit{} }, false, ""},
		"again": {[]uint32{7, 8}, func(w *world, _ *jobenv.Hook) {
			w.slurm.words.AdminComment = `carma-retry={"reason":"mps-fault","from":"gpu"}`
		}, false, note + "; it was requeued for that before"},
		"may not": {[]uint32{7, 8}, func(w *world, _ *jobenv.Hook) { w.slurm.noRequeue = true }, false,
			note + "; the job may not be requeued (--no-requeue, JobRequeue=0, or a federation)"},
		"no recovery": {[]uint32{7, 8}, func(w *world, _ *jobenv.Hook) {
			w.Config.Partition["gpu"] = config.Partition{Share: true}
		}, false, note + "; partition has no recovery partition"},
		"with the ladder": {[]uint32{7, 8}, func(w *world, _ *jobenv.Hook) { w.Config.Recovery.Retry = "ladder" }, true,
			note},
		"out of memory, too": {[]uint32{7, 8}, func(w *world, _ *jobenv.Hook) {
			w.oom()
		}, true, "PyTorch says so; it used 9.9 GiB of the 10.0 GiB that it booked"},
	} {
		w := newWorld(t)
		w.Config.Placement.Policy = "first-fit"
		for _, id := range []uint32{7, 8} {
			w.prolog(t, hook(id))
		}
		l := w.leases(t)
		if l[0].UUID != l[1].UUID || l[0].Daemon == "" {
			t.Fatalf("leases %+v", l)
		}
		for _, id := range c.jobs {
			if err := w.book.Measure(t.Context(), idle(2), []lease.Usage{{Job: jobenv.JobKey{JobID: id}, UUID: l[0].UUID,
				Present: true}}); err != nil {
				t.Fatal(err)
			}
		}
		w.logged = false
		w.follow(t, l[0])
		w.logged = true
		h := failed(hook(7))
		w.stderr.Kind = oomscan.GPUFault
		w.slurm.job = sctl.Job{ID: 7, UID: 1000, State: "COMPLETING", Requeue: true}
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		if c.change != nil {
			c.change(w, &h)
		}
		w.epilog(t, h)
		a := w.records.attempts[0]
		if (a.RequeuedTo == "gpu-ex") != c.back || a.OOMNote != c.note || (a.State == "REQUEUED") != c.back {
			t.Errorf("%s: %q, back on %q, note %q, want %q", name, a.State, a.RequeuedTo, a.OOMNote, c.note)
		}
		whole := slices.Contains(w.slurm.calls, "update 7 gpu-ex gres:gpu:1,gres:carma:40536")
		said := strings.Contains(w.slurm.comment, `carma-retry={"reason":"mps-fault","from":"gpu"}`)
		if wantSaid := c.back && a.OOM == ""; whole != c.back || said != wantSaid {
			t.Errorf("%s: calls %v, comment %s", name, w.slurm.calls, w.slurm.comment)
		}
	}
}

// A job that fails by a fault of the GPU within seconds of the end of a co-located job is requeued once, alone, to the
// same partition: the co-located job's lease may have gone before the log told the fault, and a new job has no client
// then. Seen on an H200: "CUDA error: CUDA-capable device(s) is/are busy or unavailable".
func TestEpilogBesideAnEnd(t *testing.T) {
	const withoutMPS = "without MPS"
	const ended, faulted = "job 8 ended on its GPU 0 s before it failed", "its MPS server has faulted"
	for name, c := range map[string]struct {
		logged bool
		kind   oomscan.Kind
		change func(*world, *jobenv.Hook)
		to     string
		note   string
	}{
		"the log tells it":       {true, "", nil, "gpu", faulted + "; " + ended},
		"the text tells it":      {false, oomscan.MPS, nil, "gpu", "ended or not served by MPS; " + ended},
		"an illegal access, too": {false, oomscan.GPUFault, nil, "gpu", "fault of a program on the GPU; " + ended},
		"nobody ended": {true, oomscan.GPUFault, func(w *world, _ *jobenv.Hook) { w.records.past.Ended = nil }, "",
			faulted},
		"another's end by the fault": {true, oomscan.GPUFault, func(w *world, _ *jobenv.Hook) {
			w.records.past.Notes = map[uint32]string{8: faulted + "; more"}
		}, "", faulted},
		"another's end by a fault, by its text": {true, oomscan.GPUFault, func(w *world, _ *jobenv.Hook) {
			w.records.past.Notes = map[uint32]string{8: "fault of a program on the GPU"}
		}, "", faulted},
		"another's end by MPS, by its text": {true, oomscan.GPUFault, func(w *world, _ *jobenv.Hook) {
			w.records.past.Notes = map[uint32]string{8: "ended or not served by MPS; more"}
		}, "", faulted},
		"its own error":            {false, "", nil, "", ended + "; nothing shows that it ran out of memory itself"},
		"out of the node's memory": {true, oomscan.HostMemory, nil, "", faulted},
		"another error was the last": {true, "", func(w *world, _ *jobenv.Hook) { w.stderr.OtherEnd = true }, "",
			faulted},
		"cancelled": {true, oomscan.GPUFault, func(_ *world, h *jobenv.Hook) {
			h.Exit = jobenv.Exit{Signal: int(syscall.SIGTERM)}
		}, "", faulted},
		"cancelled, and its shell says so": {true, oomscan.GPUFault, func(_ *world, h *jobenv.Hook) {
			h.Exit = jobenv.Exit{Code: 143}
		}, "", faulted},
		"its time was over": {true, oomscan.GPUFault, func(w *world, _ *jobenv.Hook) {
			w.slurm.job.Reason = jobstate.TimeLimit
		}, "", faulted},
		withoutMPS: {false, oomscan.GPUFault, nil, "", "fault of a program on the GPU"},
		"the fortieth of the hour": {true, "", func(w *world, _ *jobenv.Hook) {
			w.records.past.Requeues = map[string]int{"gpu": saidPerHour}
		}, "", faulted + "; " + ended + "; not requeued: 40 of its user's jobs were requeued within an hour"},
		"again": {true, "", func(w *world, _ *jobenv.Hook) {
			w.slurm.words.AdminComment = `carma-retry={"reason":"mps-fault","from":"gpu"}`
		}, "", faulted + "; " + ended + "; it was requeued for that before"},
	} {
		w := newWorld(t)
		w.Thresholds.Streams = name == withoutMPS
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		w.prolog(t, hook(7))
		l := w.leases(t)[0]
		if err := w.book.Measure(t.Context(), idle(2), []lease.Usage{{Job: l.Job, UUID: l.UUID, Present: true}}); err != nil {
			t.Fatal(err)
		}
		if name != withoutMPS {
			w.follow(t, l)
		}
		w.logged, w.stderr.Kind = c.logged, c.kind
		w.records.past.Ended = map[uint32]time.Time{8: time.Now().Add(time.Hour)} // as soon as can be, on any machine
		w.neighbours = []uint32{8}
		h := failed(hook(7))
		if c.change != nil {
			c.change(w, &h)
		}
		w.epilog(t, h)
		s, err := w.book.Snapshot(t.Context())
		a := w.records.attempts[0]
		if err != nil || a.RequeuedTo != c.to || a.OOM != "" || a.OOMNote != c.note || len(s.Holds) > 0 {
			t.Errorf("%s: requeued to %q, %q, note %q, want %q; holds %v, %v", name, a.RequeuedTo, a.OOM, a.OOMNote, c.note,
				s.Holds, err)
		}
		if said := strings.Contains(w.slurm.comment, `carma-retry={"reason":"mps-fault","from":"gpu"}`); said != (c.to != "") {
			t.Errorf("%s: comment %s", name, w.slurm.comment)
		}
	}
}

// A server's fault, which a user may bring about, gives no more places in the recovery partition within an hour than
// other evidence does: the job comes back alone in its own partition, and no GPU is kept for it.
func TestServerFaultsCountLikeOtherEvidence(t *testing.T) {
	for name, c := range map[string]struct {
		before map[string]int
		err    error // of the records
		to     string
		note   string
	}{
		"the tenth": {map[string]int{"gpu-ex": 9}, nil, "gpu-ex", "its MPS server has faulted"},
		"the eleventh": {map[string]int{"gpu-ex": 10}, nil, "gpu", "its MPS server has faulted; requeued in its own " +
			"partition, as 10 of its user's jobs were in another within an hour"},
		"others' partition": {map[string]int{"gpu": 40}, nil, "gpu-ex", "its MPS server has faulted"},
		"nobody can tell": {nil, errors.New("the database is locked"), "gpu", "its MPS server has faulted; requeued in " +
			"its own partition, as the records did not tell how many of its user's jobs were in another within an hour"},
	} {
		w := newWorld(t)
		w.Config.Placement.Policy = "first-fit"
		for _, id := range []uint32{7, 8} {
			w.prolog(t, hook(id))
		}
		l := w.leases(t)
		for _, id := range []uint32{7, 8} {
			if err := w.book.Measure(t.Context(), idle(2), []lease.Usage{{Job: jobenv.JobKey{JobID: id}, UUID: l[0].UUID,
				Present: true}}); err != nil {
				t.Fatal(err)
			}
		}
		w.follow(t, l[0])
		w.logged, w.stderr.Kind = true, oomscan.GPUFault
		w.records.past.Requeues, w.records.unread = c.before, c.err
		w.slurm.job = sctl.Job{ID: 7, UID: 1000, State: "COMPLETING", Requeue: true}
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		w.epilog(t, failed(hook(7)))
		s, err := w.book.Snapshot(t.Context())
		a := w.records.attempts[0]
		if err != nil || a.RequeuedTo != c.to || a.OOMNote != c.note || (len(s.Holds) > 0) != (c.to == "gpu-ex") {
			t.Errorf("%s: requeued to %q, note %q, holds %v, %v", name, a.RequeuedTo, a.OOMNote, s.Holds, err)
		}
	}
}
