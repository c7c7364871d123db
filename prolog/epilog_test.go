// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"carma/db"
	"carma/gres"
	"carma/gres/lease"
	"carma/gres/output"
	"carma/prolog/oomscan"
	"carma/prolog/userfile"
	"carma/slurmbridge/config"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/tres"
)

func TestEpilogOfAGoodJob(t *testing.T) {
	w := newWorld(t)
	h := hook(7)
	h.Carma.UnreadLine = 12
	w.prolog(t, h)
	w.prolog(t, hook(8))
	asked := len(w.asked)
	w.epilog(t, hook(7))
	// Its output is read once: a message with exit 0 is noted (TestExitZeroAfterAnOOM).
	if len(w.records.attempts) != 1 || len(w.slurm.calls) != 0 || len(w.asked) != asked+1 ||
		w.asked[asked].Op != userfile.OpScan || len(w.asked[asked].Files) != 1 {
		t.Fatalf("records %+v, calls %v", w.records.attempts, w.slurm.calls)
	}
	a := w.records.attempts[0]
	if a.JobID != 7 || a.State != "COMPLETED" || a.User != "alice" || a.Mode != "shared" || a.EstMiB != 10240 ||
		a.ReserveMiB != 10240 ||
		len(a.GPUs) != 1 || a.GPUs[0].UUID != "GPU-0" || a.OOM != "" || a.Unread != 12 ||
		!a.Submit.Equal(time.Unix(1000, 0)) ||
		a.End.Before(a.Start) {
		t.Errorf("record %+v", a)
	}
	if l := w.leases(t); len(l) != 1 || l[0].Job.JobID != 8 {
		t.Errorf("leases %+v", l)
	}
	if _, err := os.Stat(taskPath(w.RunDir, 7)); err == nil {
		t.Error("the task file is left")
	}
	w.epilog(t, hook(7)) // slurmctld may ask twice
	if len(w.records.attempts) != 1 {
		t.Error("a second Epilog wrote a second record")
	}
}

func failed(h jobenv.Hook) jobenv.Hook {
	h.Exit = jobenv.Exit{Code: 1}
	return h
}

func TestEpilogBringsBack(t *testing.T) {
	w := newWorld(t)
	w.prolog(t, hook(7))
	w.oom()
	w.slurm.job = sctl.Job{ID: 7, ArrayJobID: 5, ArrayTask: 2, State: "COMPLETING"}
	w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
	w.slurm.words.Name = "train"
	w.slurm.words.AdminComment = "of an earlier plugin"
	h := failed(hook(7))
	h.StdErr = "%x-%A_%a-%N.err"
	w.epilog(t, h)
	want := []string{"job 7", "words 7", "words 7", "partition gpu-ex", "requeuehold 5_2",
		"update 5_2 gpu-ex gres:gpu:1,gres:carma:40536", "release 5_2", "queue gpu,gpu-ex"}
	if !slices.Equal(w.slurm.calls, want) {
		t.Errorf("calls %v\nwant  %v", w.slurm.calls, want)
	}
	if last := w.asked[len(w.asked)-1]; last.Op != userfile.OpScan ||
		last.Files[0].Path != "/home/alice/train-5_2-gpu7.err" {
		t.Errorf("scanned %+v", last)
	}
	if want := `of an earlier plugin carma-retry={"reason":"oom","signature":"pytorch","from":"gpu"}`; w.slurm.comment != want {
		t.Errorf("AdminComment %s", w.slurm.comment)
	}
	a := w.records.attempts[0]
	if a.State != "REQUEUED" || a.OOM != "pytorch" || a.RequeuedTo != "gpu-ex" || a.ArrayJobID != 5 || a.ArrayTask != "2" {
		t.Errorf("record %+v", a)
	}
	if s, _ := w.book.Snapshot(t.Context()); len(s.Leases) != 0 || len(s.PendingRestarts) != 1 || len(s.Holds) != 1 ||
		s.Holds[0].UUID != "GPU-0" || s.Holds[0].JobID != 7 || s.Holds[0].GPUs != 1 {
		t.Errorf("ledger %+v", s)
	}
}

// Epilogs of all nodes keep GPUs for one requeued job of a user at a time.
func TestEpilogKeepsForOneJobOfAUser(t *testing.T) {
	other := schedule.Job{ID: 9, UID: hook(7).UID, Partition: "gpu-ex", State: jobstate.Pending, Priority: 1, Restarts: 1,
		MiB: 40536}
	with := func(change func(*schedule.Job)) []schedule.Job {
		j := other
		change(&j)
		return []schedule.Job{j}
	}
	runs := func(reason jobstate.Reason) func(*schedule.Job) {
		return func(j *schedule.Job) { j.State, j.Reason = jobstate.Running, reason }
	}
	for name, c := range map[string]struct {
		queue []schedule.Job
		held  int
	}{
		"alone":                         {nil, 1},
		"the job itself":                {with(func(j *schedule.Job) { j.ID = 7 }), 1},
		"another requeued job":          {with(func(*schedule.Job) {}), 0},
		"an Epilog still runs":          {with(func(j *schedule.Job) { j.State = jobstate.Completing }), 0},
		"in its next Prolog":            {with(runs(jobstate.InProlog)), 0},
		"running again":                 {with(runs(jobstate.None)), 1},
		"of several partitions":         {with(func(j *schedule.Job) { j.Partition = "gpu,gpu-ex" }), 0},
		"without a GPU":                 {with(func(j *schedule.Job) { j.Partition, j.MiB = "gpu,gpu-ex", 0 }), 1},
		"another user's":                {with(func(j *schedule.Job) { j.UID++ }), 1},
		"held by its user":              {with(func(j *schedule.Job) { j.Priority = 0 }), 1},
		"waiting for the first time":    {with(func(j *schedule.Job) { j.Restarts = 0 }), 1},
		"returned by a Prolog, sharing": {with(func(j *schedule.Job) { j.MiB = 10240 }), 1},
	} {
		for _, away := range []bool{false, true} {
			w := newWorld(t)
			w.prolog(t, hook(7))
			w.oom()
			w.slurm.job = sctl.Job{State: "COMPLETING"}
			w.slurm.words.TresPerNode, w.slurm.queue = "gres:gpu:1,gres:carma:10240", c.queue
			if away {
				w.slurm.fail["queue"], c.held = errors.New("away"), 0
			}
			w.epilog(t, failed(hook(7)))
			s, err := w.book.Snapshot(t.Context())
			if err != nil || len(s.Holds) != c.held || len(s.PendingRestarts) != 1 {
				t.Errorf("%s, slurmctld away %v: holds %+v, restarts %v, %v", name, away, s.Holds, s.PendingRestarts, err)
			}
		}
	}
}

// What the record notes of a job that did not use its GPU: that the agent has
// cancelled it, or else for how long, from idle.after on.
func TestRecordOfAnIdleJob(t *testing.T) {
	held := lease.Held{GPUs: []lease.Granted{{Idle: time.Minute}, {Idle: 45 * time.Minute}}}
	for cancelled, want := range map[string]string{"": "one of its GPUs was not used for 45m0s",
		"cancelled: x": "cancelled: x"} {
		held.Cancelled = cancelled
		if a := attempt(hook(7), held, jobMeta{}, verdict{}, 30*time.Minute); a.OOMNote != want {
			t.Errorf("note %q, want %q", a.OOMNote, want)
		}
	}
	held.Cancelled = ""
	if a := attempt(hook(7), held, jobMeta{}, verdict{}, time.Hour); a.OOMNote != "" {
		t.Errorf("note %q", a.OOMNote)
	}
}

// What the record notes of a job that was slowed beyond its bound for long.
func TestRecordOfASlowedJob(t *testing.T) {
	held := lease.Held{GPUs: []lease.Granted{{}, {Slowed: 1.834}}}
	const want = "it was slowed 1.83 times, beyond its bound, for a long time"
	if a := attempt(hook(7), held, jobMeta{}, verdict{}, time.Hour); a.OOMNote != want {
		t.Errorf("note %q, want %q", a.OOMNote, want)
	}
}

// A verdict needs all three: the signature, the failed exit, the shared GPU.
// A clock that is set while a job runs makes its record no longer and no shorter.
func TestRecordWhenTheClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{-time.Hour, -time.Minute, 0, time.Hour} {
		held := lease.Held{Age: 10 * time.Minute}
		about := jobMeta{Attempt: db.Attempt{Start: time.Now().Add(-10*time.Minute - 5*time.Second - jump)}}
		a := attempt(hook(7), held, about, verdict{}, time.Hour)
		if ran := a.End.Sub(a.Start); ran < 10*time.Minute || ran > 10*time.Minute+5*time.Second+time.Minute {
			t.Errorf("the clock jumps by %v: the job ran for %v", jump, ran)
		}
	}
}

func TestEpilogLeavesOthersAlone(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world, *jobenv.Hook)
		state  string
	}{
		"exit 0":         {func(_ *world, h *jobenv.Hook) { h.Exit = jobenv.Exit{} }, "COMPLETED"},
		"no signature":   {func(w *world, _ *jobenv.Hook) { w.stderr = userfile.Reply{State: userfile.StateOK} }, "FAILED"},
		"not batch host": {func(_ *world, h *jobenv.Hook) { h.BatchHost = false }, "FAILED"},
		"stderr not found": {func(w *world, _ *jobenv.Hook) { w.stderr = userfile.Reply{State: userfile.StateMissing} },
			"FAILED"},
		"slurmctld away": {func(w *world, _ *jobenv.Hook) { w.slurm.fail["job"] = errors.New("away") }, "FAILED"},
		"cancelled": {func(w *world, h *jobenv.Hook) {
			w.stderr, h.Exit = userfile.Reply{State: userfile.StateOK}, jobenv.Exit{Signal: 15}
		}, "CANCELLED"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.oom()
			w.prolog(t, hook(7))
			h := failed(hook(7))
			c.change(w, &h)
			w.epilog(t, h)
			for _, call := range w.slurm.calls {
				if !strings.HasPrefix(call, "job ") {
					t.Errorf("calls %v", w.slurm.calls)
				}
			}
			if a := w.records.attempts[0]; a.State != c.state || a.RequeuedTo != "" {
				t.Errorf("record %+v", a)
			}
			if len(w.leases(t)) != 0 {
				t.Error("the lease is left")
			}
		})
	}
}

func TestEpilogOfAnExclusiveJobAsksNothing(t *testing.T) {
	w := newWorld(t)
	h := hook(7)
	h.Carma.Mode = "exclusive"
	w.prolog(t, h)
	w.oom()
	w.epilog(t, failed(h))
	if len(w.slurm.calls)+len(w.asked) != 0 || w.records.attempts[0].State != "FAILED" {
		t.Errorf("calls %v, asked %v, %+v", w.slurm.calls, w.asked, w.records.attempts)
	}
}

// What cannot be requeued is said, in the record and to the user, and
// asked for once.
func TestEpilogWhenSlurmRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail  string
		err   error
		calls string
		note  string
	}{
		"requeue is off": {"requeuehold", errors.New("scontrol requeuehold 7: exit status 1: Requested operation is " +
			"presently disabled for job 7"), "requeuehold",
			"requeue refused: Requested operation is presently disabled for job 7"},
		"update": {"update", errors.New("scontrol update: exit status 1: Invalid partition name specified"),
			"requeuehold update update", "held: Invalid partition name specified"},
		"busy for ever": {"update", errors.New("scontrol update: exit status 1: Resource temporarily unavailable"),
			"requeuehold" + strings.Repeat(" update", 2*updateTries), "held: Resource temporarily unavailable"},
		"release": {"release", errors.New("no"), "requeuehold update release",
			"requeued, held until the agent releases it: no"},
		"slurmctld falls": {"words", errors.New("squeue: Unable to contact slurm controller"), "",
			"slurmctld did not answer: Unable to contact slurm controller"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.oom()
			w.slurm.fail[c.fail] = c.err
			w.slurm.job = sctl.Job{ID: 7}
			w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
			w.prolog(t, hook(7))
			w.epilog(t, failed(hook(7)))
			a := w.records.attempts[0]
			if got := w.changes(); got != c.calls+w.said() ||
				a.OOMNote != c.note+"; "+oomNote || a.RequeuedTo != "" ||
				a.State != "OUT_OF_MEMORY" {
				t.Errorf("calls %q, want %q; record %+v", got, c.calls, a)
			}
			if strings.HasPrefix(c.note, "held") != strings.Contains(w.slurm.comment, `"refused":"`+c.note+`"`) {
				t.Errorf("AdminComment %s", w.slurm.comment)
			}
			if len(w.leases(t)) != 0 {
				t.Error("the lease is left")
			}
		})
	}
}

// Where slurmctld does not answer, or does not release the job, it may be held, now or later, and the
// agent is told; where it refuses the change, or the job is one of scrontab, not.
func TestEpilogOfAJobThatMayBeHeld(t *testing.T) {
	late := fmt.Errorf("scontrol: %w: ", context.DeadlineExceeded)
	silent := errors.New("scontrol: exit status 1: slurm_requeue: Socket timed out on send/recv operation")
	for _, c := range []struct {
		fail  string
		err   error
		calls string
		held  bool
		note  string
	}{
		{"", nil, "requeuehold update release", false, "requeued"},
		{"requeuehold", late, "requeuehold", true, "slurmctld did not answer whether it is requeued: " +
			"context deadline exceeded"},
		{"requeuehold", silent, "requeuehold", true, "slurmctld did not answer whether it is requeued: " +
			"Socket timed out on send/recv operation"},
		{"update", late, "requeuehold update", true, "slurmctld did not answer whether it is changed: " +
			"context deadline exceeded"},
		{"release", late, "requeuehold update release", true, "slurmctld did not answer whether it is released: " +
			"context deadline exceeded"},
		{"requeuehold", errors.New("no"), "requeuehold", true, "requeue refused: no"},
		// Of srun: that is slurmctld's last word, and the agent has others to ask about.
		{"requeuehold", sctl.ErrBatchOnly, "requeuehold", false, "requeue refused: " + reason(sctl.ErrBatchOnly)},
		{"update", errors.New("scontrol: exit status 1: Connection reset by peer for job 7"), "requeuehold update",
			true, "slurmctld did not answer whether it is changed: Connection reset by peer for job 7"},
		{"update", errors.New("no"), "requeuehold update update update", false, "held: no"},
		{"release", errors.New("no"), "requeuehold update release", true,
			"requeued, held until the agent releases it: no"},
		{"cron", sctl.ErrCron, "", false, sctl.ErrCron.Error()},
		{"cron", late, "", false, "slurmctld did not answer: context deadline exceeded"},
	} {
		w := newWorld(t)
		w.oom()
		w.slurm.fail[c.fail] = c.err
		w.slurm.job = sctl.Job{ID: 7}
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		w.prolog(t, hook(7))
		w.epilog(t, failed(hook(7)))
		if got := w.changes(); got != c.calls {
			t.Errorf("%s %v: calls %q, want %q", c.fail, c.err, got, c.calls)
		}
		if a := w.records.attempts[0]; c.err != nil && a.OOMNote != c.note+"; "+oomNote {
			t.Errorf("%s: note %q, want %q", c.fail, a.OOMNote, c.note)
		}
		s, err := w.book.Snapshot(t.Context())
		held := len(s.PerhapsHeld) == 1 && s.PerhapsHeld[0].JobKey == jobenv.JobKey{JobID: 7, Restart: 1} &&
			s.PerhapsHeld[0].UID == 1000
		if err != nil || held != c.held {
			t.Errorf("%s %v: perhaps held %+v, %v", c.fail, c.err, s.PerhapsHeld, err)
		}
	}
}

// oomNote is what is noted of such a job.
const oomNote = "PyTorch says so; it used 9.9 GiB of the 10.0 GiB that it booked"

// oom has every scan find PyTorch's words, and NVML see the jobs at their limits.
func (w *world) oom() {
	w.stderr.Signature, w.stderr.Kind, w.stderr.Grade, w.peak = "pytorch", oomscan.GPUMemory, oomscan.Strong, 10100
}

// changes are the first words of what slurmctld was asked to change.
func (w *world) changes() string {
	var words []string
	for _, call := range w.slurm.calls {
		word, _, _ := strings.Cut(call, " ")
		if word != "job" && word != "words" && word != "partition" && word != "queue" {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

// said is how the words end if AdminComment was set last.
func (w *world) said() string {
	if strings.Contains(w.slurm.comment, "refused") {
		return " update"
	}
	return ""
}

func TestEpilogOfAJobThatMayNotBeRequeued(t *testing.T) {
	w := newWorld(t)
	w.oom()
	w.slurm.noRequeue = true
	w.prolog(t, hook(7))
	w.epilog(t, failed(hook(7)))
	a := w.records.attempts[0]
	if w.changes() != "" || !strings.Contains(a.OOMNote, "--no-requeue") || a.State != "OUT_OF_MEMORY" {
		t.Errorf("calls %v, record %+v", w.slurm.calls, a)
	}
}

// A wrapper that reads the first failure wants no second attempt (docs/user.md): requeue=no keeps Slurm's own requeues,
// and the job stays failed after an OOM, and after a fault of its MPS server.
func TestEpilogOfAJobThatSaysNoRequeue(t *testing.T) {
	w := newWorld(t)
	w.oom()
	h := hook(7)
	h.Carma.Requeue = jobenv.RequeueNo
	w.prolog(t, h)
	w.epilog(t, failed(h))
	a := w.records.attempts[0]
	if w.changes() != "" || !strings.Contains(a.OOMNote, "requeue=no") || a.State != "OUT_OF_MEMORY" {
		t.Errorf("calls %v, record %+v", w.slurm.calls, a)
	}
}

// A recovery partition that is down, missing or not for the user is no reason
// to lose the job: whole GPUs are whole GPUs where it was.
func TestEpilogWithoutTheRecoveryPartition(t *testing.T) {
	for name, change := range map[string]func(*slurm){
		"down":    func(s *slurm) { s.down = true },
		"missing": func(s *slurm) { s.fail["partition"] = errors.New("Partition gpu-ex not found") },
		"not for the user": func(s *slurm) {
			s.refuse = func(c sctl.Change) error {
				// slurmctld sets the partition, and then says that the
				// job cannot run there, whatever is changed next.
				if c.Partition != "" {
					s.job.Partition = c.Partition
				}
				if s.job.Partition == "gpu-ex" {
					return errors.New("Requested partition configuration not available now")
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.oom()
			change(w.slurm)
			w.slurm.job = sctl.Job{ID: 7}
			w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
			w.prolog(t, hook(7))
			w.epilog(t, failed(hook(7)))
			last := w.slurm.calls[len(w.slurm.calls)-3:]
			if update, release := strings.Fields(last[0]),
				last[1]; update[len(update)-1] != "gres:gpu:1,gres:carma:40536" ||
				strings.Contains(last[0], "gpu-ex") || release != "release 7" {
				t.Errorf("calls %q", w.slurm.calls)
			}
			if a := w.records.attempts[0]; a.RequeuedTo != "gpu" || a.State != "REQUEUED" {
				t.Errorf("record %+v", a)
			}
			// There it has them alone, though its environment says shared,
			// and it is not judged again.
			h := hook(7)
			h.Restart = 1
			w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:40536"
			w.prolog(t, h)
			if l := w.leases(t); len(l) != 1 || !l[0].Exclusive {
				t.Errorf("leases %+v", l)
			}
			calls := len(w.slurm.calls)
			w.epilog(t, failed(h))
			if len(w.slurm.calls) != calls || w.records.attempts[1].State != "FAILED" {
				t.Errorf("calls %v, record %+v", w.slurm.calls[calls:], w.records.attempts[1])
			}
		})
	}
}

// The ladder raises what a job books by 5 GiB at a time and ends alone.
func TestLadder(t *testing.T) {
	w := newWorld(t)
	w.oom()
	w.Config.Recovery.Retry = "ladder"
	h := hook(7)
	book := int64(10240)
	var books []int64
	for range 20 {
		w.slurm.job = sctl.Job{ID: 7}
		w.slurm.words.TresPerNode = fmt.Sprintf("gres:gpu:1,gres:carma:%d", book)
		w.prolog(t, h)
		l := w.leases(t)
		if len(l) != 1 || l[0].ReserveMiB != book && !l[0].Exclusive {
			t.Fatalf("booked %d, leases %+v", book, l)
		}
		if l[0].Exclusive {
			break
		}
		w.slurm.calls, w.peak = nil, book
		w.epilog(t, failed(h))
		k := slices.IndexFunc(w.slurm.calls, func(c string) bool { return strings.HasPrefix(c, "update") })
		book = tres.Read(w.slurm.calls[k][strings.LastIndex(w.slurm.calls[k], " ")+1:]).MiB
		books = append(books, book)
		h.Restart++
	}
	if want := []int64{15360, 20480, 25600, 30720, 35840, 40536}; !slices.Equal(books, want) {
		t.Errorf("booked %v, want %v", books, want)
	}
	if !slices.ContainsFunc(w.slurm.calls, func(c string) bool { return strings.HasPrefix(c, "update 7 gpu-ex ") }) {
		t.Errorf("the last rung: %q", w.slurm.calls)
	}
}

// All components of a heterogeneous job return to the queue by the leader's id; the one
// that ran out is changed; its messages are in the leader's output.
func TestEpilogOfAHeterogeneousJob(t *testing.T) {
	w := newWorld(t)
	w.oom()
	w.slurm.job = sctl.Job{ID: 8}
	w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
	w.slurm.job.HetJobID, w.slurm.job.HetOffset = 7, 1
	h := hook(8)
	h.HetJobID = 7
	w.prolog(t, h)
	w.epilog(t, failed(h))
	want := []string{"job 8", "words 8", "partition gpu-ex", "requeuehold 7",
		"update 7+1 gpu-ex gres:gpu:1,gres:carma:40536", "release 7", "queue gpu,gpu-ex"}
	if !slices.Equal(w.slurm.calls, want) {
		t.Errorf("calls %v\nwant  %v", w.slurm.calls, want)
	}
	if last := w.asked[len(w.asked)-1]; last.Files[0].Path != "/home/alice/slurm-7.out" {
		t.Errorf("scanned %+v", last)
	}
}

// Ends that are no lack of GPU memory are named and leave the job failed.
func TestEpilogTellsOtherEnds(t *testing.T) {
	for kind, note := range map[oomscan.Kind]string{
		oomscan.HostMemory: "out of the node's memory", oomscan.MPS: "ended or not served by MPS",
		oomscan.GPUFault: "fault of a program on the GPU",
	} {
		w := newWorld(t)
		w.stderr.Signature, w.stderr.Kind = "some", kind
		w.prolog(t, hook(7))
		w.epilog(t, failed(hook(7)))
		if a := w.records.attempts[0]; a.State != "FAILED" || a.OOM != "" || a.OOMNote != note || w.changes() != "" {
			t.Errorf("%s: %+v, calls %v", kind, a, w.slurm.calls)
		}
	}
}

// The Epilog looks into what the agent saw the processes write to as well.
func TestEpilogLooksIntoOtherFiles(t *testing.T) {
	w := newWorld(t)
	h := failed(hook(7))
	h.StdErr = "batch.err"
	list, err := json.Marshal([]output.File{{Path: []byte("/home/alice/step\xff.err"), Dev: 1, Ino: 2, Size: 3},
		{Path: []byte("/home/alice/batch.err")}})
	if err != nil {
		t.Fatal(err)
	}
	w.prolog(t, h)
	path := filepath.Join(w.RunDir, "jobs", "7.0.stderr")
	if err := os.WriteFile(path, list, 0o600); err != nil {
		t.Fatal(err)
	}
	w.epilog(t, h)
	files := w.asked[len(w.asked)-1].Files
	if len(files) != 2 || files[1].Path != "/home/alice/step\xff.err" ||
		files[1].From != (userfile.Mark{Exists: true, Dev: 1, Ino: 2, Size: 3}) {
		t.Errorf("looked into %+v", files)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the list is left")
	}
}

// Requeues of a node keep their distance, first come first served; a turn that
// comes too late is not waited for, and takes none from others.
func TestTurns(t *testing.T) {
	path := filepath.Join(t.TempDir(), turnFile)
	begin := time.Now()
	const every = 10 * time.Second
	for i := range 5 {
		at, err := takeTurn(t.Context(), path, every)
		if want := time.Duration(i) * every; err != nil || at.Sub(begin) < want || at.Sub(begin) > want+every/2 {
			t.Errorf("turn %d comes after %s, %v", i, at.Sub(begin), err)
		}
	}
	for range 2 {
		if _, err := takeTurn(t.Context(), path, every); !errors.Is(err, errTooMany) {
			t.Errorf("a turn after 50 s: %v", err)
		}
	}
	for name, text := range map[string]string{"spoiled": "\x00nonsense",
		"clock set back": fmt.Sprint(time.Now().Add(time.Hour).UnixNano())} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if at, err := takeTurn(t.Context(), path, every); err != nil || time.Until(at) > 0 {
			t.Errorf("%s: %v %v", name, at, err)
		}
	}
}

func init() { requeueEvery, confirmAfter = time.Second/15, time.Second/4 }

// 40 jobs of a node that run out of memory at once are all requeued, though the
// last waits longer than a hook may take otherwise.
func TestManyRequeued(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wait sync.WaitGroup
	turn := func(ctx context.Context) (ended chan struct{}) {
		ended = make(chan struct{})
		wait.Add(1)
		go func() {
			defer wait.Done()
			defer close(ended)
			ctx, cancel, err := w.turn(ctx)
			if err != nil || ctx.Err() != nil {
				t.Errorf("%v", err)
				return
			}
			cancel()
		}()
		return ended
	}
	for range 40 {
		turn(t.Context())
	}
	wait.Wait()
	// A hook's time ends as soon as its turn is known, which on a busy machine may take long.
	path := filepath.Join(w.RunDir, turnFile)
	next := fmt.Sprint(time.Now().Add(5 * time.Second).UnixNano())
	if err := os.WriteFile(path, []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := turn(ctx)
	for text := []byte(next); string(text) == next; {
		select {
		case <-ended:
			t.Fatal("the turn ended without a wait")
		case <-time.After(time.Millisecond):
		}
		var err error
		if text, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	wait.Wait()
}

// A job that runs again is told why.
func TestRetryReason(t *testing.T) {
	for comment, want := range map[string]string{
		"":                                   "requeued",
		`carma={"v":1} note`:                 "requeued",
		`x carma-retry={"reason":"oom","x"}`: "oom",
		`carma-retry={"reason":"oom"} carma-retry={"reason":"timeslot"}`: "timeslot",
		`carma-retry={"reason":"$(reboot)"}`:                             "requeued",
	} {
		w := newWorld(t)
		w.slurm.job = sctl.Job{ID: 7}
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:40536"
		w.slurm.words.AdminComment = comment
		h := hook(7)
		h.Restart = 1
		w.prolog(t, h)
		if got := w.task(t, "SLURM_JOB_ID=7", "SLURM_RESTART_COUNT=1", "SLURM_JOB_GPUS=5",
			"CUDA_VISIBLE_DEVICES=5"); !strings.Contains(got, "export CARMA_RETRY_REASON="+want+"\n") {
			t.Errorf("%s:\n%s", comment, got)
		}
	}
}

// Whether a job that ran before has a raised booking only slurmctld knows; if it
// does not say, nobody is put at risk.
func TestAgainWithoutAnAnswer(t *testing.T) {
	w := newWorld(t)
	w.slurm.fail["job"] = errors.New("away")
	h := hook(7)
	h.Restart = 1
	w.prolog(t, h)
	if l := w.leases(t); len(l) != 1 || !l[0].Exclusive {
		t.Errorf("leases %+v", l)
	}
}

func TestEpilogWithoutRecovery(t *testing.T) {
	w := newWorld(t)
	w.oom()
	w.prolog(t, hook(7))
	w.Config.Partition["gpu"] = config.Partition{Share: true}
	w.epilog(t, failed(hook(7)))
	a := w.records.attempts[0]
	if a.OOMNote != "partition has no recovery partition; "+oomNote ||
		a.State != "OUT_OF_MEMORY" || len(w.slurm.calls) != 1 {
		t.Errorf("calls %v, record %+v", w.slurm.calls, a)
	}
}

func TestEpilogReleasesThoughTheRecordIsLost(t *testing.T) {
	w := newWorld(t)
	w.prolog(t, hook(7))
	w.records.err = errors.New("disk full")
	w.epilog(t, hook(7))
	if len(w.leases(t)) != 0 {
		t.Error("the lease is left")
	}
}

func TestRebooked(t *testing.T) {
	shared, two := hook(7), hook(7)
	two.Carma.GPUs = 2
	counted, all, several := two, two, two
	counted.Carma.Counted = true
	all.Carma.Counted, all.Carma.All, all.OneNode = true, true, true
	several.Carma.Counted, several.Carma.All = true, true
	const ask = "carma2>=40536|carma2u1000>=40536"
	for _, c := range []struct {
		h                 jobenv.Hook
		list, tres, extra string
	}{
		{shared, "gres:gpu:1,gres:carma:10240", "gres:gpu:1,gres:carma:40536", ""},
		{two, "gres/gpu:a100:2,gres/carma:20480,gres/x:1", "gres/gpu:a100:2,gres/x:1,gres/carma:81072", ""},
		{counted, "gres/gpu:2,gres/carma:20480", "gres/gpu:2,gres/carma:81072", ask},
		{counted, "gres/gpu:2", "gres/gpu:2", ""},
		{all, "gres/gpu:2,gres/carma:81072", "gres/gpu:2,gres/carma:81072", ask},
		{several, "gres/gpu:2,gres/carma:81072", "gres/gpu:2,gres/carma:81072", ""},
	} {
		if got := rebooked(c.h, tres.Read(c.list), 40536, extra.Tags{}); got.TresPerNode != c.tres || got.Extra != c.extra {
			t.Errorf("%s: got %+v, want %s, %s", c.list, got, c.tres, c.extra)
		}
	}
	hidden := rebooked(counted, tres.Read("gres:carma:20480"), 40536, extra.Tags{Secret: []byte("x")})
	if strings.Contains(hidden.Extra, "u1000") || !strings.HasPrefix(hidden.Extra, "carma2>=40536|carma2u") {
		t.Errorf("with a secret: %s", hidden.Extra)
	}
}

// A job is moved only to where its user may be.
func TestRecoveryPartitionOfOthers(t *testing.T) {
	for _, c := range []struct {
		name string
		p    sctl.Partition
		want string // partition and GRES of the update
	}{
		{"everybody", sctl.Partition{}, "update 7 gpu-ex gres:"},
		{"a group of the user's", sctl.Partition{AllowGroups: []string{"root", "ml"}}, "update 7 gpu-ex gres:"},
		{"groups of others", sctl.Partition{AllowGroups: []string{"root", "nobody-knows"}}, "update 7  gres:"},
		{"the job's account", sctl.Partition{AllowAccounts: []string{"vision"}}, "update 7 gpu-ex gres:"},
		{"other accounts", sctl.Partition{AllowAccounts: []string{"physics"}}, "update 7  gres:"},
		{"all but the job's account", sctl.Partition{DenyAccounts: []string{"vision"}}, "update 7  gres:"},
	} {
		w := newWorld(t)
		w.oom()
		w.slurm.recovery = c.p
		w.slurm.job = sctl.Job{ID: 7, State: "COMPLETING"}
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		w.slurm.words.Account = "vision"
		w.prolog(t, hook(7))
		w.epilog(t, failed(hook(7)))
		if !slices.ContainsFunc(w.slurm.calls, func(call string) bool { return strings.HasPrefix(call, c.want) }) {
			t.Errorf("%s: calls %v, want %s", c.name, w.slurm.calls, c.want)
		}
	}
}

// Requeued by an operator or for a preemption: slurmctld counts the restart
// before it starts the Epilog of the attempt that ends (22.05.8).
func TestEpilogOfARequeuedJob(t *testing.T) {
	w := newWorld(t)
	w.oom()
	w.prolog(t, hook(7))
	h := failed(hook(7))
	h.Restart = 1
	w.epilog(t, h)
	if len(w.leases(t)) != 0 || len(w.records.attempts) != 1 {
		t.Fatalf("leases %v, %d records", w.leases(t), len(w.records.attempts))
	}
	if a := w.records.attempts[0]; a.Restart != 0 || a.State != "REQUEUED" || a.OOM != "" || w.changes() != "" {
		t.Errorf("record %+v, changes %s", a, w.changes())
	}
	// An Epilog that comes late leaves the next attempt alone.
	h.Restart = 2
	w.prolog(t, h)
	h.Restart = 1
	w.epilog(t, h)
	if len(w.leases(t)) != 1 {
		t.Error("the lease of the next attempt is gone")
	}
}

// Only a job that failed soon, with a fault of the GPU in its stderr, counts against its
// GPU; one that used it and ended well, or ran for long, speaks for it.
func TestEpilogCountsFailures(t *testing.T) {
	for name, c := range map[string]struct {
		ran  time.Duration
		seen bool
		exit jobenv.Exit
		kind oomscan.Kind
		want string
	}{
		"a fault of the GPU":         {5 * time.Second, false, jobenv.Exit{Code: 1}, oomscan.GPUFault, "[GPU-0] true"},
		"the same after an hour":     {time.Hour, true, jobenv.Exit{Code: 1}, oomscan.GPUFault, "[GPU-0] false"},
		"a mistake in the script":    {5 * time.Second, true, jobenv.Exit{Code: 1}, "", ""},
		"well":                       {5 * time.Second, true, jobenv.Exit{}, "", "[GPU-0] false"},
		"well, and not on the GPU":   {time.Hour, false, jobenv.Exit{}, "", ""},
		"an MPS server that faulted": {5 * time.Second, true, jobenv.Exit{Code: 1}, oomscan.GPUFault, ""},
	} {
		l := &counting{}
		h := hook(7)
		h.Exit = c.exit
		held := lease.Held{Age: c.ran, GPUs: []lease.Granted{{UUID: "GPU-0", Seen: c.seen}}}
		if strings.Contains(name, "MPS") {
			held.Fault = "its MPS server has faulted"
		}
		n := &Node{Log: slog.New(slog.DiscardHandler)}
		ep := &epilog{node: n, hook: h, held: held, ledger: l}
		ep.countFailure(t.Context(), verdict{gpuFault: c.kind == oomscan.GPUFault})
		if l.got != c.want {
			t.Errorf("%s: %q, want %q", name, l.got, c.want)
		}
	}
}

type counting struct {
	EpilogLedger
	got string
}

func (c *counting) JobEnded(_ context.Context, _, _ uint32, uuids []string, failed bool) (closed, unsure []string,
	err error) {
	c.got = fmt.Sprint(uuids, failed)
	return nil, nil, nil
}

// Jobs of two users that fail on a GPU close the GPU, through Prologs and Epilogs: once a day, and again where nobody
// waits but users whose jobs have failed on the GPU.
func TestEpilogClosesAGPU(t *testing.T) {
	waits := func(uid uint32, change func(*schedule.Job)) schedule.Job {
		j := schedule.Job{ID: 99, UID: uid, State: jobstate.Pending, Reason: jobstate.Resources, Partition: "gpu", GPUs: 2}
		change(&j)
		return j
	}
	inProlog := func(j *schedule.Job) { j.State, j.Reason = jobstate.Running, jobstate.InProlog }
	for name, c := range map[string]struct {
		queue  schedule.Job
		silent bool
		want   gres.Cause
	}{
		"another user waits":          {queue: waits(2000, func(*schedule.Job) {})},
		"another user's Prolog waits": {queue: waits(2000, inProlog)},
		"slurmctld does not answer":   {silent: true},
		"one of the users waits":      {queue: waits(1000, func(*schedule.Job) {}), want: gres.CauseJobs},
		"another user's job is held": {queue: waits(2000, func(j *schedule.Job) { j.Reason = "JobHeldUser" }),
			want: gres.CauseJobs},
		"another runs": {queue: waits(2000, func(j *schedule.Job) { j.State = jobstate.Running }), want: gres.CauseJobs},
		"another waits without GPUs": {queue: waits(2000, func(j *schedule.Job) { j.GPUs = 0 }),
			want: gres.CauseJobs},
		"another waits for other nodes": {queue: waits(2000, func(j *schedule.Job) { j.ReqNodes = "n9" }),
			want: gres.CauseJobs},
	} {
		w := newWorld(t)
		w.stderr.State, w.stderr.Kind = userfile.StateOK, oomscan.GPUFault
		w.slurm.partitions, w.slurm.queue = []string{"gpu"}, []schedule.Job{c.queue}
		cause := func(after string, want gres.Cause) {
			t.Helper()
			s, err := w.book.Snapshot(t.Context())
			if err != nil || s.Readings[0].Cause != want {
				t.Errorf("%s, %s: %+v, %v, want %s", name, after, s.Readings[0], err, want)
			}
		}
		fail := func(id uint32) {
			h := failed(hook(id))
			h.UID = 1000 + id/2
			w.slurm.job = sctl.Job{ID: h.JobID, UID: h.UID, State: "COMPLETING"}
			w.prolog(t, h)
			w.epilog(t, h)
		}
		for i := range uint32(3) {
			fail(i + 1)
		}
		cause("three jobs", gres.CauseJobs)
		if _, err := w.book.EndFault(t.Context(), "GPU-0", gres.CauseJobs); err != nil {
			t.Fatal(err)
		}
		if c.silent {
			w.slurm.fail = map[string]error{"queue": errors.New("no answer")}
		}
		fail(1)
		cause("another one", c.want)
	}
}

// A job whose Prolog was an older program's keeps its GPU's size and its own identity.
func TestJobMetaOfAnOlderForm(t *testing.T) {
	w := newWorld(t)
	held := lease.Held{Job: lease.Job{JobKey: jobenv.JobKey{JobID: 7, Restart: 1}, UID: 1000, About: json.RawMessage(
		`{"user":"alice","part":"gpu","mode":"shared","method":"user","est_mib":1,"full_mib":2,"stderr":{}}`)}}
	m := w.metaOf(held)
	if m.JobID != 7 || m.Restart != 1 || m.UID != 1000 || m.User != "alice" || m.Mode != jobenv.ModeShared ||
		m.FullMiB != w.Config.Partition["gpu"].GPUMemMiB || m.FullMiB == 0 {
		t.Errorf("%+v", m)
	}
}

// One component of a heterogeneous job is asked about scrontab: of all, the question would have those
// requeued whose users said --no-requeue.
func TestEpilogOfAComponentProbesIt(t *testing.T) {
	w := newWorld(t)
	w.oom()
	w.slurm.job = sctl.Job{ID: 7, HetJobID: 6, HetOffset: 1}
	w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
	w.prolog(t, hook(7))
	w.epilog(t, failed(hook(7)))
	if w.slurm.probed != "6+1" || !slices.Contains(w.slurm.calls, "requeuehold 6") {
		t.Errorf("probed %q, calls %v", w.slurm.probed, w.slurm.calls)
	}
}

// silent is a slurmctld without an answer about the queue.
type silent struct{ *slurm }

func (s silent) Queue(ctx context.Context, _ []string) ([]schedule.Job, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// stalled is a disk too slow for any record.
type stalled struct{ *records }

func (stalled) Put(ctx context.Context, _ db.Attempt) error {
	<-ctx.Done()
	return ctx.Err()
}

// Whatever takes all of its time, an Epilog gives the GPUs back.
func TestEpilogReleasesWhateverHangs(t *testing.T) {
	published := func(context.Context) error { return nil }
	for name, end := range map[string]func(*testing.T, *world) error{
		"how the job ended": func(t *testing.T, w *world) error {
			w.prolog(t, hook(7))
			ctx, cancel := context.WithTimeout(t.Context(), 0)
			defer cancel()
			return w.Epilog(ctx, hook(7), w.book, w.records, w.slurm, published)
		},
		"the record": func(t *testing.T, w *world) error {
			w.prolog(t, hook(7))
			return w.Epilog(t.Context(), hook(7), w.book, stalled{w.records}, w.slurm, published)
		},
		"who waits for a GPU on which jobs fail": func(t *testing.T, w *world) error {
			w.stderr.State, w.stderr.Kind = userfile.StateOK, oomscan.GPUFault
			w.slurm.partitions = []string{"gpu"}
			fail := func(id uint32, s Slurm) error {
				h := failed(hook(id))
				h.UID = 1000 + id/2
				w.slurm.job = sctl.Job{ID: h.JobID, UID: h.UID, State: "COMPLETING"}
				w.prolog(t, h)
				ctx, cancel := context.WithTimeout(t.Context(), w.Config.Hooks.Deadline.D())
				defer cancel()
				return w.Epilog(ctx, h, w.book, w.records, s, published)
			}
			for id := range uint32(3) {
				if err := fail(id+1, w.slurm); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := w.book.EndFault(t.Context(), "GPU-0", "jobs"); err != nil {
				t.Fatal(err)
			}
			return fail(1, silent{w.slurm})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Config.Hooks.Deadline = config.Duration(time.Second)
			if err := end(t, w); err != nil {
				t.Error(err)
			}
			if l := w.leases(t); len(l) > 0 {
				t.Errorf("leases left: %+v", l)
			}
		})
	}
}
