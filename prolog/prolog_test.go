// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/prolog/userfile"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"

	"github.com/mattn/go-sqlite3"
)

// slurm answers for slurmctld and keeps what it was asked to do.
type slurm struct {
	job       sctl.Job
	words     sctl.Words
	noRequeue bool
	told      string // the user of a job
	probed    string // whether it is of scrontab

	preemption schedule.Preemption
	completes  map[uint32]time.Time // since when
	elsewhere  map[uint32]string    // jobs in other partitions than job
	down       bool                 // the recovery partition
	recovery   sctl.Partition
	fail       map[string]error // by the first word of a call
	failOnce   map[string]error // the same, of the first such call
	calls      []string
	refuse     func(sctl.Change) error
	startIn    time.Duration
	comment    string // AdminComment, as last set
	queue      []schedule.Job
	partitions []string // of the node
	extra      string   // of the node
}

func (s *slurm) Node(_ context.Context, name string) (extra string, err error) {
	return s.extra, s.note("node " + name)
}

func (s *slurm) SlotsInUse(context.Context, string) (int, error) { return 0, nil }

func (s *slurm) note(call string) error {
	s.calls = append(s.calls, call)
	word, _, _ := strings.Cut(call, " ")
	if err, ok := s.failOnce[word]; ok {
		delete(s.failOnce, word)
		return err
	}
	return s.fail[word]
}

func (s *slurm) Job(_ context.Context, id uint32) (sctl.Job, error) {
	j := s.job
	if partition, ok := s.elsewhere[id]; ok {
		j.Partition, j.Reservation = partition, ""
	}
	j.ID = id
	j.UID = cmp.Or(j.UID, 1000)
	j.State = cmp.Or(j.State, "RUNNING")
	if end, ok := s.completes[id]; ok {
		j.State, j.End = "COMPLETING", end
	}
	j.Requeue = !s.noRequeue
	return j, s.note(fmt.Sprint("job ", id))
}
func (s *slurm) RequeueIncomplete(_ context.Context, t sctl.Target) error {
	err := s.note("incomplete " + t.String())
	if err == nil && s.elsewhere == nil {
		s.job.State = "PENDING"
	}
	return err
}
func (s *slurm) SafeStart(context.Context) (time.Duration, error) { return 2 * time.Minute, nil }
func (s *slurm) RequeueHold(_ context.Context, t sctl.Target) error {
	err := s.note("requeuehold " + t.String())
	if err == nil && s.job.State == "RUNNING" {
		s.job.State = "PENDING"
	}
	return err
}
func (s *slurm) CheckCron(_ context.Context, t sctl.Target) error {
	s.probed = t.String()
	return s.fail["cron"]
}
func (s *slurm) Release(_ context.Context, t sctl.Target) error {
	return s.note("release " + t.String())
}
func (s *slurm) Notify(_ context.Context, id uint32, text string) error {
	s.told = text
	return s.note(fmt.Sprint("notify ", id))
}
func (s *slurm) Preemption(context.Context) (schedule.Preemption, error) {
	return s.preemption, s.note("preemption")
}
func (s *slurm) Warn(_ context.Context, t sctl.Target) error   { return s.note("warn " + t.String()) }
func (s *slurm) Cancel(_ context.Context, t sctl.Target) error { return s.note("cancel " + t.String()) }
func (s *slurm) Update(_ context.Context, t sctl.Target, c sctl.Change) error {
	s.comment, s.startIn = c.AdminComment, c.StartIn
	if err := s.note(strings.TrimSpace("update " + t.String() + " " + c.Partition + " " + c.TresPerNode + " " +
		c.Extra)); err != nil || s.refuse == nil {
		return err
	}
	return s.refuse(c)
}
func (s *slurm) Words(_ context.Context, id uint32) (sctl.Words, error) {
	return s.words, s.note(fmt.Sprint("words ", id))
}
func (s *slurm) Partition(_ context.Context, name string) (sctl.Partition, error) {
	err := s.note("partition " + name)
	p := s.recovery
	p.Up = err == nil && !s.down
	return p, err
}

// Queue answers with the jobs of the partitions, as squeue does.
func (s *slurm) Queue(_ context.Context, partitions []string) (queue []schedule.Job, err error) {
	for _, j := range s.queue {
		names := strings.Split(j.Partition, ",")
		if slices.ContainsFunc(partitions, func(p string) bool { return slices.Contains(names, p) }) {
			queue = append(queue, j)
		}
	}
	return queue, s.note("queue " + strings.Join(partitions, ","))
}

func (s *slurm) PartitionsOf(_ context.Context, node string) ([]string, error) {
	return s.partitions, s.note("partitions " + node)
}

// records keeps what was written.
type records struct {
	past     db.Happened
	asked    db.Lately
	attempts []db.Attempt
	err      error
	unread   error // nothing can be read
}

func (r *records) Lately(_ context.Context, q db.Lately) (db.Happened, error) {
	if r.asked = q; r.unread != nil {
		return db.Happened{}, r.unread
	}
	if r.past.Requeues == nil {
		r.past.Requeues = map[string]int{}
	}
	return r.past, nil
}

func (r *records) Put(_ context.Context, a db.Attempt) error {
	r.attempts = append(r.attempts, a)
	return r.err
}

// world is a node with two idle GPUs and a real ledger.
type world struct {
	peak       int64    // what NVML saw of each job on each GPU
	neighbours []uint32 // of each job; nil: as the ledger has them
	*Node
	book    *lease.Ledger
	slurm   *slurm
	records *records
	stderr  userfile.Reply
	logged  bool // the log of MPS servers tells of a fault
	logAt   int64
	asked   []userfile.Ask
	samples int
	pokes   int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "jobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	book, err := lease.Open(dir, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { book.Close() })
	c := config.Default()
	c.Hooks.Wait, c.Hooks.WaitInteractive = 0, 0
	c.Partition = map[string]config.Partition{
		"gpu":    {GPUsPerNode: 2, GPUMemMiB: 40536, Share: true, Recovery: "gpu-ex"},
		"gpu-ex": {GPUsPerNode: 2, GPUMemMiB: 40536},
	}
	w := &world{book: book, slurm: &slurm{fail: map[string]error{}}, records: &records{},
		stderr: userfile.Reply{State: userfile.StateOK}}
	w.Node = &Node{
		Name: "n1", Host: "gpu7", Config: c, RunDir: dir, Log: slog.New(slog.DiscardHandler),
		Until:      time.Now(), // after one round
		Thresholds: choose.Thresholds{SMActMaxPct: 80, MarginMiB: 2048, MaxJobs: 4, CrossUser: true},
		Sample: func(context.Context) ([]gres.Reading, error) {
			w.samples++
			return idle(2), nil
		},
		AsUser: func(_ context.Context, _ userfile.User, a userfile.Ask) (userfile.Reply, error) {
			w.asked = append(w.asked, a)
			return w.stderr, nil
		},
		Groups: func(context.Context, string, uint32) []uint32 { return []uint32{1000, 1001} },
		Group: func(_ context.Context, name string) (uint32, bool) {
			gid, ok := map[string]uint32{"root": 0, "ml": 1001}[name]
			return gid, ok
		},
		Poke: func() { w.pokes++ },
	}
	w.ServerFault = func(gres.Daemon, int64) (bool, int64, error) {
		w.logAt++
		return w.logged, w.logAt, nil
	}
	return w
}

// look is the agent's look at the GPUs.
func (w *world) look(t *testing.T) {
	t.Helper()
	if err := w.book.Measure(t.Context(), idle(2), nil); err != nil {
		t.Fatal(err)
	}
}

// follow reads the log of a lease's daemon, as the agent does.
func (w *world) follow(t *testing.T, l gres.Lease) {
	t.Helper()
	read := func(from int64) (bool, int64, error) { return w.ServerFault(l.Daemon, from) }
	if _, _, err := w.book.Follow(t.Context(), l.Daemon, read); err != nil {
		t.Fatal(err)
	}
}

func idle(n int) []gres.Reading {
	var r []gres.Reading
	for i := range n {
		r = append(r, gres.Reading{GPU: gres.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, TotalMiB: 40503},
			Source: figure.SourceGPM})
	}
	return r
}

// hook is a job that shares one GPU.
func hook(id uint32) jobenv.Hook {
	return jobenv.Hook{
		JobKey: jobenv.JobKey{JobID: id}, UID: 1000, GID: 1000, User: "alice", Partition: "gpu", Node: "n1", Cluster: "c",
		WorkDir: "/home/alice", BatchHost: true, Slots: []int{5},
		Carma: jobenv.Carma{Annotated: true, Mode: "shared", Method: "user", GPUs: 1, ReserveMiB: 10240, EstMiB: 10240,
			FullMiB: 40536, Submit: time.Unix(1000, 0)},
	}
}

func (w *world) prolog(t *testing.T, h jobenv.Hook) {
	t.Helper()
	w.slurm.job.Restarts = int(h.Restart)
	if err := w.Prolog(t.Context(), h, w.book, w.slurm); err != nil {
		t.Fatal(err)
	}
}

func (w *world) epilog(t *testing.T, h jobenv.Hook) {
	t.Helper()
	if err := w.Epilog(t.Context(), h, seen{w.book, w.peak, w.neighbours}, w.records, w.slurm,
		func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func (w *world) leases(t *testing.T) []gres.Lease {
	t.Helper()
	s, err := w.book.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Leases
}

// task returns what a task with these variables is told.
func (w *world) task(t *testing.T, vars ...string) string {
	t.Helper()
	var b strings.Builder
	err := Task(&b, w.RunDir, func(name string) string {
		for _, v := range vars {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value
			}
		}
		return ""
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPrologLeases(t *testing.T) {
	w := newWorld(t)
	w.prolog(t, hook(7))
	l := w.leases(t)
	if len(l) != 1 || l[0].UUID != "GPU-0" || l[0].ReserveMiB != 10240 || l[0].Exclusive {
		t.Errorf("leases %+v", l)
	}
	if w.samples != 1 || w.pokes != 1 || len(w.slurm.calls) != 0 {
		t.Errorf("%d samples, %d pokes, calls %v", w.samples, w.pokes, w.slurm.calls)
	}
	want := `export CUDA_VISIBLE_DEVICES=GPU-0
export NVIDIA_VISIBLE_DEVICES=GPU-0
export CARMA_GPU_UUIDS=GPU-0
export CARMA_RESERVE_MIB=10240
export CARMA_SHARED=1
export CUDA_MPS_PIPE_DIRECTORY=` + w.RunDir + `/mps/GPU-0
export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M
export SLURM_JOB_GPUS=0
`
	if got := w.task(t, "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=5", "CUDA_VISIBLE_DEVICES=5"); got != want {
		t.Errorf("task:\n%swant\n%s", got, want)
	}
	w.prolog(t, hook(8))
	if w.samples != 1 {
		t.Error("fresh readings were read again")
	}
}

func TestTold(t *testing.T) {
	for _, test := range []struct {
		mark, job, pid string
		want           bool
	}{
		{"7:100", "7", "100", true},
		{"7:100", "7", "101", false}, // a step's task has its batch script's
		{"6:100", "7", "100", false}, // a job that another has submitted
		{"", "7", "100", false},
		{":", "7", "100", false},
		{"7:", "7", "100", false},
	} {
		vars := map[string]string{"CARMA_TASK": test.mark, "SLURM_JOB_ID": test.job, "SLURM_TASK_PID": test.pid}
		if got := Told(func(name string) string { return vars[name] }); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

func TestPrologGivesWholeGPUs(t *testing.T) {
	for name, change := range map[string]func(*jobenv.Hook){
		"moved to smaller GPUs": func(h *jobenv.Hook) { h.Carma.ReserveMiB, h.Carma.FullMiB = 61440, 81072 },
		"exclusive":             func(h *jobenv.Hook) { h.Carma.Mode, h.Carma.ReserveMiB = "exclusive", 40536 },
		"off":                   func(h *jobenv.Hook) { h.Carma.Mode, h.Carma.ReserveMiB = "off", 40536 },
		"not annotated":         func(h *jobenv.Hook) { h.Carma = jobenv.Carma{} },
		"recovery partition":    func(h *jobenv.Hook) { h.Partition, h.Restart = "gpu-ex", 1 },
		"unknown partition":     func(h *jobenv.Hook) { h.Partition = "cpu" },
		"a mode of the future":  func(h *jobenv.Hook) { h.Carma.Mode = "fractional" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := hook(7)
			change(&h)
			w.prolog(t, h)
			if l := w.leases(t); len(l) != 1 || !l[0].Exclusive || l[0].ReserveMiB != 40503 {
				t.Errorf("leases %+v", l)
			}
			if got := w.task(t, "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=5", "CUDA_VISIBLE_DEVICES=5",
				fmt.Sprint("SLURM_RESTART_COUNT=", h.Restart)); !strings.Contains(got,
				"CARMA_SHARED=0\nunset CUDA_MPS_PIPE_DIRECTORY") {
				t.Errorf("task:\n%s", got)
			}
		})
	}
}

func TestPrologWithoutGPUs(t *testing.T) {
	none := hook(7)
	none.Slots, none.Carma = nil, jobenv.Carma{}
	forgotten := hook(7) // slurmctld has just started, and counted GPUs without their numbers
	forgotten.Slots, forgotten.OneNode = nil, true
	often := forgotten // as an operator has taken its GPUs from it
	often.Restart = 5
	elsewhere := hook(7) // --gpus=1 on two nodes
	elsewhere.Slots = nil
	for _, c := range []struct {
		name     string
		h        jobenv.Hook
		srun     bool
		returned bool
	}{
		{"a job without GPUs", none, false, false},
		{"a job with GPUs on other nodes", elsewhere, false, false},
		{"a job that slurmctld gave none", forgotten, false, true},
		{"one that cannot return", forgotten, true, false},
		{"one that was returned often", often, false, false},
	} {
		w := newWorld(t)
		w.slurm.noRequeue = c.srun
		w.prolog(t, c.h)
		if len(w.leases(t)) != 0 || w.samples != 0 {
			t.Errorf("%s was given some", c.name)
		}
		if got := slices.Contains(w.slurm.calls, "incomplete 7"); got != c.returned {
			t.Errorf("%s: %v", c.name, w.slurm.calls)
		}
		s, _ := w.book.Snapshot(t.Context())
		if got := len(s.PendingRestarts) == 1; got != c.returned {
			t.Errorf("%s: the agent looks after %v", c.name, s.PendingRestarts)
		}
	}
	w := newWorld(t)
	w.Until = time.Now().Add(time.Second)
	if err := w.Prolog(t.Context(), forgotten, nil, w.slurm); err != nil || // its ledger cannot be opened
		!slices.Contains(w.slurm.calls, "incomplete 7") {
		t.Errorf("without a ledger: %v, calls %v", err, w.slurm.calls)
	}
}

func TestPrologGivesBack(t *testing.T) {
	w := newWorld(t)
	w.look(t)
	for id := range uint32(2) {
		h := hook(id + 1)
		h.Carma.Mode = "exclusive"
		w.prolog(t, h)
	}
	w.slurm.job = sctl.Job{ID: 7, ArrayJobID: 5, ArrayTask: 2, State: "RUNNING"}
	w.prolog(t, hook(7))
	if want := []string{"job 7", "incomplete 5_2", "update 5_2", "job 7"}; !slices.Equal(w.slurm.calls, want) {
		t.Errorf("calls %v, want %v", w.slurm.calls, want)
	}
	s, _ := w.book.Snapshot(t.Context())
	if len(s.PendingRestarts) != 1 || s.PendingRestarts[0].JobID != 7 {
		t.Errorf("pending restarts %+v", s.PendingRestarts)
	}
	if d := s.PendingRestarts[0].Delay; d != 5*time.Second {
		t.Errorf("waits %s", d)
	}
	w.epilog(t, hook(7)) // Slurm runs it for a job that was returned to the queue
	if len(w.records.attempts) != 0 {
		t.Error("a job that never ran has a record")
	}
}

func TestBackOff(t *testing.T) {
	for n, want := range map[uint32]time.Duration{0: 5 * time.Second, 1: 10 * time.Second, 3: 40 * time.Second,
		7: 640 * time.Second, 8: 15 * time.Minute, 4000000000: 15 * time.Minute} {
		if got := backOff(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// After so many times a job waits for idle GPUs instead of being sent around, or GPUs are kept for it.
func TestPrologGivesBackOften(t *testing.T) {
	const shares, whole = "gres:gpu:1,gres:carma:10240", "gres:gpu:1,gres:carma:40536"
	plain := func(*jobenv.Hook) {}
	counted := func(h *jobenv.Hook) { h.Carma.Counted = true }
	exclusive := func(h *jobenv.Hook) { h.Carma.Counted, h.Carma.Mode, h.Carma.ReserveMiB = true, "exclusive", 40536 }
	smaller := func(h *jobenv.Hook) {
		h.Carma.Counted, h.Carma.Mode, h.Carma.ReserveMiB, h.Carma.FullMiB = true, "exclusive", 20000, 20000
	}
	node := func(h *jobenv.Hook) { exclusive(h); h.Carma.All = true }
	nodes := func(h *jobenv.Hook) { node(h); h.OneNode = false }
	const asked = "job 7,words 7,job 7" // by again, by giveBack
	for _, c := range []struct {
		name    string
		restart uint32
		books   string
		job     func(*jobenv.Hook)
		others  uint32 // whose jobs are on the GPUs; 0: the user's own, exclusive
		asked   string
		change  string
		kept    int64 // MiB; -1: nothing is
	}{
		{"not often", 4, shares, counted, 2000, asked, "", -1},
		{"shares", 5, shares, counted, 2000, asked, "   carma1>=40536|carma1u1000>=40536", -1},
		{"lacks memory", 5, shares, counted, 0, asked, "", -1},
		{"exclusive", 5, whole, exclusive, 0, asked, "", -1},
		{"by a smaller GPU", 5, "gres:gpu:1,gres:carma:20000", smaller, 0, asked,
			"  gres:gpu:1,gres:carma:40536 carma1>=40536|carma1u1000>=40536", -1},
		{"all GPUs of a node", 5, whole, node, 0, asked, "   carma1>=40536|carma1u1000>=40536", -1},
		{"all GPUs of several", 5, whole, nodes, 0, asked, "", 0},
		{"not counted", 5, shares, plain, 2000, asked, "", 10240},
		{"nothing booked", 5, "gres:gpu:1", plain, 2000, asked, "", -1},
		{"more than booked", 5, "gres:gpu:1,gres:carma:5000", func(h *jobenv.Hook) { h.Carma.Mode = "exclusive" }, 2000,
			asked, "  gres:gpu:1,gres:carma:40536", -1},
		{"not annotated", 5, "gres:gpu:1", func(h *jobenv.Hook) { h.Carma = jobenv.Carma{} }, 2000, "job 7", "", -1},
	} {
		w := newWorld(t)
		w.look(t)
		w.Thresholds.Settle, w.Thresholds.CrossUser = 0, false
		for id := range uint32(2) {
			h := hook(id + 1)
			h.UID = c.others
			if c.others == 0 {
				h.UID, h.Carma.Mode = hook(7).UID, "exclusive"
			}
			w.prolog(t, h)
		}
		w.slurm.job = sctl.Job{ID: 7, State: "RUNNING"}
		w.slurm.words.TresPerNode = c.books
		w.Config.Hooks.Vetoes = 5
		h := hook(7)
		h.Restart, h.OneNode = c.restart, true
		c.job(&h)
		w.prolog(t, h)
		want := strings.Split(c.asked, ",")
		if c.kept >= 0 {
			want = append(want, "queue gpu,gpu-ex")
		}
		if want = append(want, "incomplete 7", "update 7"+c.change,
			"job 7"); !slices.Equal(w.slurm.calls, want) || w.slurm.startIn != latestStart {
			t.Errorf("%s: calls %q, want %q; starts in %v", c.name, w.slurm.calls, want, w.slurm.startIn)
		}
		w.prolog(t, h) // kept once
		s, err := w.book.Snapshot(t.Context())
		if err != nil || len(s.Holds) > 1 || (len(s.Holds) == 1) != (c.kept >= 0) || c.kept >= 0 &&
			(s.Holds[0].JobID != 7 || s.Holds[0].UID != h.UID || s.Holds[0].MiB != c.kept) {
			t.Errorf("%s: kept %+v, %v", c.name, s.Holds, err)
		}
	}
}

// What is kept for a job that names its nodes: as much as it books, or all where that
// does not tell whether it fits; nothing where no GPU takes jobs.
func TestPrologKeeps(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   string
	}{
		"a share":             {func(*world) {}, "[10240]"},
		"a bound on slowdown": {func(w *world) { w.Thresholds.MaxSlowdown = 1.5 }, "[0]"},
		"none to keep":        {func(w *world) { quarantine(t, w, "GPU-0"); quarantine(t, w, "GPU-1") }, "[]"},
	} {
		w := newWorld(t)
		var log strings.Builder
		w.Log = slog.New(slog.NewTextHandler(&log, nil))
		w.Thresholds.Settle, w.Thresholds.CrossUser = 0, false
		for id := range uint32(2) {
			h := hook(id + 1)
			h.UID = 2000
			w.prolog(t, h)
		}
		c.change(w)
		w.slurm.job = sctl.Job{ID: 7, State: "RUNNING"}
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		w.Config.Hooks.Vetoes = 5
		h := hook(7)
		h.Restart = 5
		w.prolog(t, h)
		s, err := w.book.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		kept := []int64{}
		for _, held := range s.Holds {
			kept = append(kept, held.MiB)
			if held.GPUs != 1 {
				t.Errorf("%s: kept for a job on %d GPUs", name, held.GPUs)
			}
		}
		if got := fmt.Sprint(kept); got != c.want {
			t.Errorf("%s: kept %s, want %s", name, got, c.want)
		}
		if says := strings.Contains(log.String(), "GPUs are held for the job"); says != (len(kept) > 0) {
			t.Errorf("%s: the log says %v:\n%s", name, says, log.String())
		}
	}
}

func quarantine(t *testing.T, w *world, uuid string) {
	t.Helper()
	if _, err := w.book.Quarantine(t.Context(), uuid, "x"); err != nil {
		t.Fatal(err)
	}
}

func TestPolicyOfTheJob(t *testing.T) {
	w := newWorld(t)
	w.Config.Placement.AllowPolicies = []string{"first-fit", "mug"}
	for asked, want := range map[string]choose.Policy{"": "magm", "mug": "mug", "rr": "magm", "nonsense": "magm"} {
		h := hook(1)
		h.Carma.Policy = asked
		if got := w.policy(h); got != want {
			t.Errorf("%q: %s, want %s", asked, got, want)
		}
	}
}

// What can be neither leased nor returned to the queue waits, and its tasks with it, until GPUs
// are there: it does not run without, and sees no other job's.
func TestPrologWaits(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]map[string]error{
		"srun":           {"incomplete": sctl.ErrBatchOnly},
		"slurmctld away": {"job": errors.New("away")},
		"refused":        {"incomplete": errors.New("slurmctld is full")},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for id := range uint32(2) {
				h := hook(id + 1)
				h.Carma.Mode = "exclusive"
				w.prolog(t, h)
			}
			w.slurm.fail = fail
			w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
			if err := w.Prolog(t.Context(), hook(7), w.book, w.slurm); !errors.Is(err, ErrUndecided) {
				t.Errorf("got %v", err)
			}
			s, err := w.book.Snapshot(t.Context())
			// it is to have the next GPU
			if srun := name == "srun"; err != nil || (len(s.Holds) == 1 && s.Holds[0].JobID == 7) != srun {
				t.Errorf("kept %+v, %v", s.Holds, err)
			}
			told := make(chan string)
			go func() {
				told <- w.task(t, "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=5", "CUDA_VISIBLE_DEVICES=5")
			}()
			settled := make(chan error)
			go func() { settled <- w.Settle(t.Context(), hook(7), w.book, w.slurm) }()
			select {
			case text := <-told:
				t.Fatalf("told before there was a GPU:\n%s", text)
			case <-time.After(2 * taskLooks):
			}
			for id := range uint32(2) {
				if err := w.book.Release(t.Context(), hook(id+1).JobKey); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-settled; err != nil {
				t.Error(err)
			}
			if text := <-told; !strings.Contains(text, "export CUDA_VISIBLE_DEVICES=GPU-") {
				t.Errorf("task:\n%s", text)
			}
			// The user reads once why the job waits, though Settle goes on for the Prolog.
			n := strings.Count(strings.Join(w.slurm.calls, "\n"), "notify 7")
			if want := map[bool]int{true: 1}[name == "srun"]; n != want {
				t.Errorf("told %d times, want %d: %v", n, want, w.slurm.calls)
			}
		})
	}
}

// Each round of a job that waits in its Prolog ends without a GPU; the log says once a minute why none fits.
func TestRefusalsAreLoggedSeldom(t *testing.T) {
	w := newWorld(t)
	var log bytes.Buffer
	w.Log = slog.New(slog.NewTextHandler(&log, nil))
	l := &launch{Hook: hook(7), node: w.Node}
	of := choose.Decision{Refusals: []choose.Refusal{{UUID: "GPU-0"}, {UUID: "GPU-1"}}}
	for range 100 {
		l.logRefusals(of)
	}
	if n := strings.Count(log.String(), "\n"); n != 3 {
		t.Errorf("%d lines of a hundred rounds:\n%s", n, log.String())
	}
	l.refused = l.refused.Add(-refusalsEvery)
	l.logRefusals(of)
	if n := strings.Count(log.String(), "\n"); n != 6 {
		t.Errorf("a minute later: %d lines\n%s", n, log.String())
	}
}

// A job that cannot return to the queue says on the user's terminal why the job waits.
func TestPrologTellsWhatItWaitsFor(t *testing.T) {
	const shares = "carma: the job waits on node n1 for 1 GPU with room for 10240 MiB"
	for name, c := range map[string]struct {
		change func(*world, *jobenv.Hook)
		want   string
	}{
		"shares":       {func(*world, *jobenv.Hook) {}, shares},
		"--no-requeue": {func(w *world, _ *jobenv.Hook) { w.slurm.noRequeue = true }, shares},
		"two": {func(_ *world, h *jobenv.Hook) { h.Slots, h.Carma.GPUs = []int{4, 5}, 2 },
			"carma: the job waits on node n1 for 2 GPUs with room for 10240 MiB each"},
		"alone": {func(_ *world, h *jobenv.Hook) { h.Carma.Mode = "exclusive" },
			"carma: the job waits on node n1 for 1 GPU that no other job uses"},
		"not the GPUs": {func(w *world, _ *jobenv.Hook) { w.book.Close() },
			"carma: the job waits on node n1, which cannot lease it a GPU now; if that lasts, tell an administrator"},
	} {
		w := newWorld(t)
		quarantine(t, w, "GPU-0")
		quarantine(t, w, "GPU-1")
		w.slurm.fail["incomplete"] = sctl.ErrBatchOnly
		h := hook(7)
		c.change(w, &h)
		if err := w.Prolog(t.Context(), h, w.book, w.slurm); !errors.Is(err, ErrUndecided) {
			t.Errorf("%s: got %v", name, err)
		}
		if w.slurm.told != c.want {
			t.Errorf("%s: told %q\nwant %q", name, w.slurm.told, c.want)
		}
	}
}

// So does a job that waits for the node itself: for the ledger, or until GPUs are closed to a job without any.
func TestPrologTellsThatTheNodeFails(t *testing.T) {
	const want = "carma: the job waits on node n1, which cannot lease it a GPU now; if that lasts, tell an administrator"
	w := newWorld(t)
	w.slurm.noRequeue = true
	h := hook(7)
	w.Config.Paths.RunDir = filepath.Join(w.RunDir, "leases.db", "%n") // below a file
	if book, err := w.OpenLedger(t.Context(), h, w.slurm); !errors.Is(err, ErrUndecided) || book != nil {
		t.Errorf("got %v, %v", book, err)
	}
	if w.slurm.told != want || strings.Count(strings.Join(w.slurm.calls, "\n"), "notify 7") != 1 {
		t.Errorf("no ledger: told %q, calls %v", w.slurm.told, w.slurm.calls)
	}
	w = newWorld(t)
	w.slurm.noRequeue = true
	h.Slots, h.Carma = nil, jobenv.Carma{}
	w.Guard = &guard{fail: 3}
	if err := w.Prolog(t.Context(), h, nil, w.slurm); !errors.Is(err, ErrUndecided) {
		t.Error(err)
	}
	if closed := strings.Replace(want, "lease it a GPU", "close its GPUs to it", 1); w.slurm.told != closed {
		t.Errorf("not confined: told %q, calls %v", w.slurm.told, w.slurm.calls)
	}
}

// A job that was cancelled, or is in the queue again, while it waits is let go.
func TestPrologLetsGo(t *testing.T) {
	for name, change := range map[string]func(*slurm){
		"cancelled": func(s *slurm) { s.job.State, s.fail = "COMPLETING", nil },
		"purged":    func(s *slurm) { s.fail = map[string]error{"job": sctl.ErrNoJob} },
		"in queue":  func(s *slurm) { s.job.State, s.fail = "PENDING", nil },
	} {
		w := newWorld(t)
		quarantine(t, w, "GPU-0")
		quarantine(t, w, "GPU-1")
		w.slurm.fail = map[string]error{"job": errors.New("away")}
		if err := w.Prolog(t.Context(), hook(7), w.book, w.slurm); !errors.Is(err, ErrUndecided) {
			t.Errorf("%s: got %v", name, err)
		}
		w.slurm.calls = nil
		change(w.slurm)
		if err := w.Settle(t.Context(), hook(7), w.book, w.slurm); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !w.undecided(hook(7)) || len(w.slurm.calls) != 1 {
			t.Errorf("%s: a task may start; calls %v", name, w.slurm.calls)
		}
		w.epilog(t, hook(7))
		if _, err := os.Stat(taskPath(w.RunDir, 7)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: word for tasks is left: %v", name, err)
		}
	}
}

// Whatever slurmctld says, nothing is done to the job of another user.
func TestHooksActOnTheirOwnJobAlone(t *testing.T) {
	for name, j := range map[string]sctl.Job{"another user": {UID: 1001}, "root": {UID: 1 << 31}} {
		w := newWorld(t)
		quarantine(t, w, "GPU-0")
		quarantine(t, w, "GPU-1")
		w.slurm.job = j
		if err := w.Prolog(t.Context(), hook(7), w.book, w.slurm); !errors.Is(err, ErrUndecided) {
			t.Errorf("%s: got %v", name, err)
		}
		if err := w.returnJob(t.Context(), hook(7), w.slurm); err == nil {
			t.Errorf("%s: returned to the queue", name)
		}
		if want := []string{"job 7", "job 7"}; !slices.Equal(w.slurm.calls, want) {
			t.Errorf("%s: calls %v", name, w.slurm.calls)
		}
	}
}

// What goes on for a Prolog does nothing to a later attempt of its job, and keeps no
// lease of one whose Epilog may have run.
func TestSettleLeavesOthersAlone(t *testing.T) {
	for name, j := range map[string]sctl.Job{"a later attempt": {Restarts: 1}, "ends": {State: "COMPLETING"}} {
		w := newWorld(t)
		w.slurm.job = j
		if err := w.Settle(t.Context(), hook(7), w.book, w.slurm); err != nil || len(w.leases(t)) != 0 ||
			!slices.Equal(w.slurm.calls, []string{"job 7"}) {
			t.Errorf("%s, with idle GPUs: %v, leases %v, calls %v", name, err, w.leases(t), w.slurm.calls)
		}
		quarantine(t, w, "GPU-0")
		quarantine(t, w, "GPU-1")
		w.slurm.calls = nil
		if err := w.Settle(t.Context(), hook(7), w.book, w.slurm); err != nil ||
			!slices.Equal(w.slurm.calls, []string{"job 7"}) {
			t.Errorf("%s: %v, calls %v", name, err, w.slurm.calls)
		}
	}
}

// What goes on for a Prolog ends with the word that it left for the tasks: the Epilog takes
// that away, and so does who removes CARMA, also while slurmctld does not answer.
func TestSettleEnds(t *testing.T) {
	none := hook(7)
	none.Slots, none.Carma = nil, jobenv.Carma{}
	for name, h := range map[string]jobenv.Hook{"waits for GPUs": hook(7), "waits to be confined": none} {
		w := newWorld(t)
		w.Guard = &guard{fail: 1 << 30}
		quarantine(t, w, "GPU-0")
		quarantine(t, w, "GPU-1")
		away := errors.New("away")
		w.slurm.fail = map[string]error{"job": away, "incomplete": away}
		if err := w.Prolog(t.Context(), h, w.book, w.slurm); !errors.Is(err, ErrUndecided) {
			t.Fatalf("%s: got %v", name, err)
		}
		ended := make(chan error, 1)
		go func() { ended <- w.Settle(t.Context(), h, w.book, w.slurm) }()
		if err := os.RemoveAll(filepath.Dir(taskPath(w.RunDir, 7))); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: still at it", name)
		}
	}
}

// A job that may not be requeued waits as one of srun does, and all components of a
// heterogeneous job return to the queue by their leader.
func TestWhoGoesBack(t *testing.T) {
	w := newWorld(t)
	w.look(t)
	quarantine(t, w, "GPU-0")
	quarantine(t, w, "GPU-1")
	w.slurm.noRequeue = true
	// words: nothing is kept for a job that needs more than it has booked.
	if err := w.Prolog(t.Context(), hook(7), w.book, w.slurm); !errors.Is(err, ErrUndecided) ||
		!slices.Equal(w.slurm.calls, []string{"job 7", "words 7", "notify 7"}) {
		t.Errorf("--no-requeue: %v, calls %v", err, w.slurm.calls)
	}
	w.slurm.noRequeue, w.slurm.calls = false, nil
	w.slurm.job.HetJobID, w.slurm.job.HetOffset = 6, 1
	w.prolog(t, hook(7))
	if want := []string{"job 7", "incomplete 6", "update 6+1", "job 7"}; !slices.Equal(w.slurm.calls, want) {
		t.Errorf("component: calls %v", w.slurm.calls)
	}
}

// A returned job starts as early where no agent runs as elsewhere: the hook sets the start that the agent would set.
func TestGivenBackWithoutAnAgent(t *testing.T) {
	for _, lives := range []bool{false, true} {
		w := newWorld(t)
		if lives {
			w.look(t)
		}
		l := w.arrive(t.Context(), hook(7), w.book, w.slurm)
		if err := l.giveBack(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		want := 2 * time.Minute // slurm.SafeStart
		if lives {
			want = latestStart // until the agent sets an earlier one
		}
		if w.slurm.startIn != want {
			t.Errorf("an agent %v: the job starts in %s, want %s", lives, w.slurm.startIn, want)
		}
	}
}

// A job that slurmctld has returned, without an answer, starts as early as one of which it said so.
func TestReturnedWithoutAnAnswer(t *testing.T) {
	for _, refused := range []bool{false, true} {
		w := newWorld(t)
		err := errors.New("scontrol requeue: exit status 1: Socket timed out on send/recv operation")
		if refused {
			err = errors.New("scontrol requeue: exit status 1: Requested operation is presently disabled")
		}
		w.slurm.fail["incomplete"] = err
		l := w.arrive(t.Context(), hook(7), w.book, w.slurm)
		if got := l.giveBack(t.Context(), false); !errors.Is(got, err) {
			t.Fatal(got)
		}
		w.slurm.job.State, w.slurm.job.Restarts = "PENDING", 1
		if got := l.giveBack(t.Context(), false); !errors.Is(got, errGone) {
			t.Fatal(got)
		}
		s, err := w.book.Snapshot(t.Context())
		noted := len(s.PendingRestarts) == 1 && s.PendingRestarts[0].JobID == 7 && s.PendingRestarts[0].Delay == backOff(0)
		if err != nil || noted == refused {
			t.Errorf("refused %v: %+v, %v", refused, s.PendingRestarts, err)
		}
	}
}

func TestPrologHoldsWhatNeverFits(t *testing.T) {
	w := newWorld(t)
	h := hook(7)
	h.Slots, h.Carma.GPUs = []int{0, 1, 2}, 3
	if err := w.book.AddPerhapsHeld(t.Context(), h.JobKey, h.UID); err != nil {
		t.Fatal(err)
	}
	w.prolog(t, h)
	if want := []string{"job 7", "requeuehold 7", "words 7", "update 7"}; !slices.Equal(w.slurm.calls, want) ||
		w.slurm.probed != "7" || w.slurm.comment !=
		`carma={"v":1,"note":"the job asks for 3 GPUs on node n1, which has 2"}` {
		t.Errorf("calls %v, probed %q", w.slurm.calls, w.slurm.probed)
	}
	if s, err := w.book.Snapshot(t.Context()); err != nil || len(s.PerhapsHeld) != 0 {
		t.Errorf("the agent would release it: %v, %v", s.PerhapsHeld, err)
	}
}

// One of srun, or that may not return to the queue, as --no-requeue with GPUs by a later update, is told and ended:
// it would keep its slots for ever. One of scrontab, which nobody can end, is told.
func TestPrologTellsWhatNeverFits(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(*slurm)
		ended bool
	}{
		"srun":         {func(s *slurm) { s.fail["requeuehold"] = sctl.ErrBatchOnly }, true},
		"--no-requeue": {func(s *slurm) { s.noRequeue = true }, true},
		"scrontab":     {func(s *slurm) { s.fail["cron"] = sctl.ErrCron }, false},
		"perhaps":      {func(s *slurm) { s.fail["cron"] = errors.New("a word of a later Slurm") }, false},
		"a slurmctld that does not answer": {func(s *slurm) {
			s.noRequeue, s.fail["cancel"] = true, errors.New("away")
		}, false},
	} {
		w := newWorld(t)
		c.plant(w.slurm)
		h := hook(7)
		h.Slots, h.Carma = []int{0, 1, 2}, jobenv.Carma{}
		w.slurm.job.State = "RUNNING"
		if err := w.Prolog(t.Context(), h, w.book, w.slurm); errors.Is(err, ErrUndecided) == c.ended {
			t.Errorf("%s: %v", name, err)
		}
		if got := slices.Contains(w.slurm.calls, "cancel 7") && w.slurm.fail["cancel"] == nil; got != c.ended {
			t.Errorf("%s: ended %v, %v", name, got, w.slurm.calls)
		}
		if want := "carma: the job asks for 3 GPUs on node n1, which has 2, and cannot start; end it and ask for at most " +
			"2"; w.slurm.told != want && name != "perhaps" {
			t.Errorf("%s: told %q, %v", name, w.slurm.told, w.slurm.calls)
		}
		if (name == "scrontab" || name == "perhaps") && slices.Contains(w.slurm.calls, "requeuehold 7") {
			t.Errorf("a job that nobody can release is held: %v", w.slurm.calls)
		}
	}
}

// So is one for all GPUs of a node that has lost one; it is not held, as the GPU may come back.
func TestPrologTellsWhatDoesNotFitNow(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(*slurm)
		lost  bool
		told  bool
	}{
		"srun":           {func(s *slurm) { s.fail["incomplete"] = sctl.ErrBatchOnly }, true, true},
		"--no-requeue":   {func(s *slurm) { s.noRequeue = true }, true, true},
		"a batch job":    {func(*slurm) {}, true, false},
		"no GPU is lost": {func(s *slurm) { s.noRequeue = true }, false, false},
	} {
		w := newWorld(t)
		c.plant(w.slurm)
		readings := idle(2)
		readings[1].Foreign = 1
		if c.lost {
			readings[1].Unreadable = "GPU is lost"
		}
		w.Sample = func(context.Context) ([]gres.Reading, error) { return readings, nil }
		h := hook(7)
		h.Slots, h.Carma.GPUs, h.Carma.Mode = []int{0, 1}, 2, "exclusive"
		if err := w.Prolog(t.Context(), h, w.book, w.slurm); err != nil && !errors.Is(err, ErrUndecided) {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(w.slurm.told, "cannot start") != c.told || slices.Contains(w.slurm.calls, "requeuehold 7") {
			t.Errorf("%s: told %q, calls %v", name, w.slurm.told, w.slurm.calls)
		}
	}
}

// slurmctld gives a job with --exclusive all slots of the node: it gets the GPUs that it
// asked for, whole; one of which job_submit has said nothing gets all.
func TestPrologOfAWholeNode(t *testing.T) {
	for _, c := range []struct {
		name  string
		carma jobenv.Carma
		gpus  int
	}{
		{"shares elsewhere", hook(7).Carma, 1},
		{"not annotated", jobenv.Carma{}, 2},
	} {
		w := newWorld(t)
		if err := w.book.PutReadings(t.Context(), idle(2)); err != nil {
			t.Fatal(err)
		}
		h := hook(7)
		h.Slots, h.Carma = []int{0, 1, 2, 3, 4, 5}, c.carma
		w.slurm.job.WholeNode = true
		w.prolog(t, h)
		leases := w.leases(t)
		if len(leases) != c.gpus || !leases[0].Exclusive {
			t.Fatalf("%s: %+v, %v", c.name, leases, w.slurm.calls)
		}
		want := "GPU-0"
		if c.gpus == 2 {
			want = "GPU-0,GPU-1"
		}
		for _, vars := range [][]string{
			{"SLURM_JOB_GPUS=0,1,2,3,4,5", "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5"},
			{"SLURM_JOB_GPUS=0,1,2,3,4,5", "SLURM_STEP_GPUS=4,5", "CUDA_VISIBLE_DEVICES=4,5"},
		} {
			got := w.task(t, append(vars, "SLURM_JOB_ID=7")...)
			if !strings.Contains(got, "export CUDA_VISIBLE_DEVICES="+want+"\n") ||
				!strings.Contains(got, fmt.Sprintf("export SLURM_GPUS_ON_NODE=%d\n", c.gpus)) {
				t.Errorf("%s, %v:\n%s", c.name, vars, got)
			}
		}
	}
}

// A job with the node to itself is given all GPUs, unless the job asks for more GPUs than the node has. From 26.05 on
// squeue calls each job alone on the node, and slurmd tells the truth.
func TestPrologOfMoreThanTheNode(t *testing.T) {
	for _, c := range []struct {
		perNode, perJob string
		beside          bool
		leased          int
	}{
		{"", "", false, 2},
		{"gres:gpu:2", "", false, 2},
		{"gres:gpu:5", "", false, 0},
		{"", "gres:gpu:2", false, 2},
		{"", "gres/gpu:5", false, 0},
		{"", "", true, 0}, // --gpus-per-task=5, say
	} {
		w := newWorld(t)
		if err := w.book.PutReadings(t.Context(), idle(2)); err != nil {
			t.Fatal(err)
		}
		h := hook(7)
		h.Slots, h.Carma, h.OneNode, h.Beside = []int{0, 1, 2, 3, 4, 5}, jobenv.Carma{}, true, c.beside
		w.slurm.job.WholeNode, w.slurm.job.State = true, "RUNNING"
		w.slurm.words.TresPerNode, w.slurm.words.TresPerJob = c.perNode, c.perJob
		w.prolog(t, h)
		if got := len(w.leases(t)); got != c.leased {
			t.Errorf("%+v: %d GPUs are leased", c, got)
		}
		if told := strings.Contains(w.slurm.comment, "asks for 5 GPUs"); told != (c.leased == 0 && !c.beside) {
			t.Errorf("%+v: told %q", c, w.slurm.comment)
		}
	}
}

// A job on a whole node whose slots could not be compared with the node's GPUs at first, as the GPUs were not read yet
// or slurmctld gave no answer, is neither ended nor held for the slots: the job gets all GPUs of the node.
func TestWholeNodeIsNoRequestForItsSlots(t *testing.T) {
	for name, c := range map[string]struct {
		srun bool
		read bool // the GPUs, before
	}{
		"srun, no readings yet":              {true, false},
		"a batch job, no readings yet":       {false, false},
		"srun, slurmctld away at first":      {true, true},
		"batch job, slurmctld away at first": {false, true},
	} {
		w := newWorld(t)
		if c.read {
			if err := w.book.PutReadings(t.Context(), idle(2)); err != nil {
				t.Fatal(err)
			}
			w.slurm.failOnce = map[string]error{"job": errors.New("away")}
		}
		h := hook(7)
		h.Slots, h.Carma = []int{0, 1, 2, 3, 4, 5}, jobenv.Carma{}
		w.slurm.job.WholeNode, w.slurm.job.State = true, "RUNNING"
		if c.srun {
			w.slurm.noRequeue = true
		}
		if err := w.Prolog(t.Context(), h, w.book, w.slurm); err != nil && !errors.Is(err, ErrUndecided) {
			t.Errorf("%s: %v", name, err)
		}
		for _, call := range []string{"cancel 7", "requeuehold 7", "notify 7"} {
			if slices.Contains(w.slurm.calls, call) {
				t.Errorf("%s: %v", name, w.slurm.calls)
			}
		}
		if !c.srun {
			if !slices.Contains(w.slurm.calls, "incomplete 7") {
				t.Errorf("%s: %v", name, w.slurm.calls)
			}
			continue
		}
		if err := w.Settle(t.Context(), h, w.book, w.slurm); err != nil || len(w.leases(t)) != 2 {
			t.Errorf("%s: leases %+v, %v", name, w.leases(t), err)
		}
	}
}

// Without a word in carma.toml about the size of nodes, a node that has lost a GPU ends no job.
func TestNodeOfUnknownSizeEndsNobody(t *testing.T) {
	w := newWorld(t)
	w.Config.Partition = nil
	w.slurm.noRequeue = true
	h := hook(7)
	h.Slots, h.Carma = []int{0, 1, 2}, jobenv.Carma{}
	if err := w.Prolog(t.Context(), h, w.book, w.slurm); !errors.Is(err, ErrUndecided) ||
		slices.Contains(w.slurm.calls, "cancel 7") {
		t.Errorf("%v, %v", err, w.slurm.calls)
	}
}

// Where the driver does not answer, the last readings count while they tell something of now.
func TestPrologDecidesOnOldReadings(t *testing.T) {
	for age, leased := range map[time.Duration]bool{50 * time.Second: true, time.Hour: false} {
		w := newWorld(t)
		w.stale(t, age)
		w.prolog(t, hook(7))
		if got := len(w.leases(t)) == 1; got != leased {
			t.Errorf("readings of %s ago: leased %v", age, got)
		}
	}
}

// Nor are GPUs kept for a job whose readings are too old.
func TestPrologKeepsNoStaleGPUs(t *testing.T) {
	for age, kept := range map[time.Duration]int{50 * time.Second: 1, time.Hour: 0} {
		w := newWorld(t)
		w.stale(t, age)
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		l := w.arrive(t.Context(), hook(7), w.book, w.slurm)
		l.keep(t.Context())
		if s, err := w.book.Snapshot(t.Context()); err != nil || len(s.Holds) != kept {
			t.Errorf("readings of %s ago: kept %+v, %v", age, s.Holds, err)
		}
	}
}

// Prologs of all nodes keep GPUs for a single job of a user at a time: the job with the longest wait in a Prolog, or
// since its last of many returns to the queue. Whether its user holds it, and which id it has, changes nothing.
func TestPrologKeepsForOneJobOfAUser(t *testing.T) {
	now := time.Now()
	waits := func(id, uid uint32, ago time.Duration) schedule.Job {
		return schedule.Job{ID: id, UID: uid, Partition: "gpu", State: jobstate.Running, Reason: jobstate.InProlog,
			Start: now.Add(-ago).Truncate(time.Second), Nodes: "n2"}
	}
	own := waits(7, hook(7).UID, time.Minute)
	running := waits(3, own.UID, time.Hour)
	running.Reason = jobstate.None
	back := own
	back.Restarts, back.Submitted = 5, now.Add(-2*time.Minute)
	returned := func(id uint32, restarts int, ago time.Duration, priority int64) schedule.Job {
		j := waits(id, own.UID, 0)
		j.Submitted = now.Add(-ago)
		j.State, j.Reason, j.Start, j.Nodes = jobstate.Pending, jobstate.BeginTime, time.Time{}, ""
		j.Restarts, j.Priority = restarts, priority
		return j
	}
	for name, c := range map[string]struct {
		others []schedule.Job
		kept   int
	}{
		"alone":                            {nil, 1},
		"another that runs":                {[]schedule.Job{running}, 1},
		"one that waits for longer":        {[]schedule.Job{waits(6, own.UID, time.Hour)}, 0},
		"one that waits as long":           {[]schedule.Job{waits(6, own.UID, time.Minute)}, 0},
		"a later one that waits as long":   {[]schedule.Job{waits(8, own.UID, time.Minute)}, 1},
		"one that waits for less":          {[]schedule.Job{waits(6, own.UID, time.Second)}, 1},
		"one in the queue again":           {[]schedule.Job{returned(6, 5, 3*time.Minute, 1)}, 0},
		"one with a higher id":             {[]schedule.Job{returned(8, 5, 3*time.Minute, 1)}, 0},
		"one returned later":               {[]schedule.Job{returned(6, 5, 30*time.Second, 1)}, 1},
		"one that was returned once":       {[]schedule.Job{returned(6, 1, 3*time.Minute, 1)}, 1},
		"one in the queue, held":           {[]schedule.Job{returned(6, 5, 3*time.Minute, 0)}, 0},
		"back too, after another":          {[]schedule.Job{back, returned(8, 5, 3*time.Minute, 1)}, 0},
		"back too, and held before":        {[]schedule.Job{back, returned(8, 5, 3*time.Minute, 0)}, 0},
		"back too, before another":         {[]schedule.Job{back, returned(6, 5, time.Minute, 1)}, 1},
		"another user's that waits longer": {[]schedule.Job{waits(6, own.UID+1, time.Hour)}, 1},
	} {
		w := newWorld(t)
		if err := w.book.PutReadings(t.Context(), idle(2)); err != nil {
			t.Fatal(err)
		}
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		w.slurm.queue = append(c.others, own)
		l := w.arrive(t.Context(), hook(7), w.book, w.slurm)
		l.keep(t.Context())
		if s, err := w.book.Snapshot(t.Context()); err != nil || len(s.Holds) != c.kept {
			t.Errorf("%s: kept %+v, %v", name, s.Holds, err)
		}
		w.slurm.queue = []schedule.Job{own}
		asked := len(w.slurm.calls)
		l.keep(t.Context()) // at once
		if len(w.slurm.calls) != asked {
			t.Errorf("%s: slurmctld was asked again at once: %v", name, w.slurm.calls[asked:])
		}
		l.behind = time.Time{} // a while later
		l.keep(t.Context())
		if s, err := w.book.Snapshot(t.Context()); err != nil || len(s.Holds) != 1 {
			t.Errorf("%s, which has gone: kept %+v, %v", name, s.Holds, err)
		}
	}
}

// A job asks again after 20 s, and later more rarely, but GPUs that come free are found within two minutes.
func TestKeepPause(t *testing.T) {
	for waited, want := range map[time.Duration]time.Duration{0: 20 * time.Second, time.Minute: 20 * time.Second,
		4 * time.Minute: time.Minute, 8 * time.Minute: 2 * time.Minute, 24 * time.Hour: 2 * time.Minute} {
		if got := keepPause(waited); got != want {
			t.Errorf("after %s: %s, want %s", waited, got, want)
		}
	}
}

// An Epilog publishes what the GPUs can give now, also where no agent reads them.
func TestEpilogRereadsStaleGPUs(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		age     time.Duration
		samples int
	}{{50 * time.Second, 0}, {time.Hour, 1}} {
		w.stale(t, c.age)
		w.samples, w.Sample = 0, func(context.Context) ([]gres.Reading, error) {
			w.samples++
			return idle(2), nil
		}
		w.RereadStale(t.Context(), w.book)
		age, _, err := w.book.Oldest(t.Context())
		if w.samples != c.samples || err != nil || age > time.Minute {
			t.Errorf("readings of %s ago: %d samples, now of %s ago, %v", c.age, w.samples, age, err)
		}
	}
}

// stale has the GPUs read so long ago, by a driver that does not answer any more.
func (w *world) stale(t *testing.T, age time.Duration) {
	t.Helper()
	old := idle(2)
	for i := range old {
		old[i].Age = age
	}
	if err := w.book.PutReadings(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	w.Sample = func(context.Context) ([]gres.Reading, error) { return nil, errors.New("NVML hangs") }
}

// A driver that does not answer costs a Prolog that waits neither ten processes nor ten lines a second.
func TestPrologSamplesSeldom(t *testing.T) {
	w := newWorld(t)
	var log strings.Builder
	w.Log = slog.New(slog.NewTextHandler(&log, nil))
	w.Sample = func(context.Context) ([]gres.Reading, error) {
		w.samples++
		return nil, errors.New("NVML hangs")
	}
	w.Config.Hooks.Wait = config.Duration(time.Second)
	w.Until = time.Now().Add(2*w.Config.Hooks.Deadline.D() + 2*time.Second)
	w.prolog(t, hook(7))
	if lines := strings.Count(log.String(), "read GPUs"); w.samples > 2 || lines != 1 {
		t.Errorf("%d samples, %d lines", w.samples, lines)
	}
}

// A node that has lost a GPU returns the jobs for all to the queue, and holds none: neither where NVML
// no longer lists the GPU, nor where no memory was ever booked for the job.
func TestPrologOfANodeThatLostAGPU(t *testing.T) {
	for name, unbooked := range map[string]bool{"gone": false, "cannot be read": true} {
		w := newWorld(t)
		readings := idle(2)
		h := hook(7)
		h.Slots, h.Carma.GPUs, h.Carma.Mode = []int{0, 1}, 2, "exclusive"
		if unbooked {
			readings[1].Unreadable = "GPU is lost"
			h.Carma, h.Restart = jobenv.Carma{}, uint32(w.Config.Hooks.Vetoes)
			w.slurm.words.TresPerNode = "gres:gpu:2"
		} else {
			readings = readings[:1]
		}
		w.Sample = func(context.Context) ([]gres.Reading, error) { return readings, nil }
		w.prolog(t, h)
		if !slices.Contains(w.slurm.calls, "incomplete 7") || slices.Contains(w.slurm.calls, "requeuehold 7") {
			t.Errorf("%s: calls %v", name, w.slurm.calls)
		}
	}
}

func TestTask(t *testing.T) {
	w := newWorld(t)
	h := hook(7)
	h.Slots, h.Carma.GPUs = []int{3, 9}, 2
	w.prolog(t, h)
	for _, c := range []struct {
		name string
		vars []string
		want string // GPUs; "-": nothing is changed
	}{
		{"batch", []string{"SLURM_JOB_GPUS=3,9", "CUDA_VISIBLE_DEVICES=3,9"}, "GPU-0,GPU-1"},
		{"step with all", []string{"SLURM_JOB_GPUS=3,9", "SLURM_STEP_GPUS=3,9", "CUDA_VISIBLE_DEVICES=3,9"}, "GPU-0,GPU-1"},
		{"step with one", []string{"SLURM_JOB_GPUS=3,9", "SLURM_STEP_GPUS=9", "CUDA_VISIBLE_DEVICES=9"}, "GPU-1"},
		{"task bound to one", []string{"SLURM_JOB_GPUS=3,9", "SLURM_STEP_GPUS=3,9", "CUDA_VISIBLE_DEVICES=9"}, "GPU-1"},
		{"task bound to one by local number", []string{"SLURM_JOB_GPUS=3,9", "SLURM_STEP_GPUS=3,9",
			"CUDA_VISIBLE_DEVICES=1"}, "GPU-1"},
		{"constrained step", []string{"SLURM_JOB_GPUS=3,9", "SLURM_STEP_GPUS=9", "CUDA_VISIBLE_DEVICES=0"}, "GPU-1"},
		{"step without GPUs", []string{"SLURM_JOB_GPUS=3,9"}, ""},
		{"a UUID of the user's", []string{"SLURM_JOB_GPUS=3,9", "SLURM_STEP_GPUS=3,9", "CUDA_VISIBLE_DEVICES=GPU-x"},
			"GPU-0,GPU-1"},
		{"not our slots", []string{"SLURM_JOB_GPUS=3,9", "SLURM_STEP_GPUS=4", "CUDA_VISIBLE_DEVICES=4"}, ""},
		{"direct srun", []string{"SLURM_STEP_GPUS=3,9", "CUDA_VISIBLE_DEVICES=3,9"}, "GPU-0,GPU-1"},
		{"another user's job of the same id", []string{"SLURM_JOB_UID=4711", "SLURM_JOB_GPUS=3,9",
			"CUDA_VISIBLE_DEVICES=3,9"}, ""},
		{"tasks that are bound to none", []string{"SLURM_JOB_GPUS=3,9", "SLURM_GPUS_ON_NODE=2"}, "GPU-0,GPU-1"},
		{"the same, direct srun", []string{"SLURM_GPUS_ON_NODE=2"}, "GPU-0,GPU-1"},
		{"the same, from a shell of a job that runs again", []string{"SLURM_RESTART_COUNT=1", "SLURM_GPUS_ON_NODE=2"},
			"GPU-0,GPU-1"},
		{"job without gres", nil, ""},
		{"job without gres that Slurm tells its devices", []string{"CUDA_VISIBLE_DEVICES=1"}, "-"},
		{"a batch job of a job that runs again", []string{"SLURM_RESTART_COUNT=1", "SLURM_JOB_GPUS=3,9",
			"CUDA_VISIBLE_DEVICES=3,9"}, "GPU-0,GPU-1"},
		{"a batch job of another job's step", []string{"SLURM_JOB_GPUS=3,9", "SLURM_STEP_GPUS=4",
			"CUDA_VISIBLE_DEVICES=3,9"}, "GPU-0,GPU-1"},
		{"the same, on one of its slots", []string{"SLURM_JOB_GPUS=3,9", "SLURM_STEP_GPUS=9",
			"CUDA_VISIBLE_DEVICES=3,9"}, "GPU-0,GPU-1"},
		{"the same, of a component of a heterogeneous job", []string{"SLURM_JOB_GPUS=3,9", "SLURM_STEP_GPUS=5",
			"CUDA_VISIBLE_DEVICES=3,9", "SLURM_HET_SIZE=2", "SLURM_JOB_ID_HET_GROUP_0=5", "SLURM_JOB_ID_HET_GROUP_1=6"},
			"GPU-0,GPU-1"},
	} {
		got := w.task(t, append(c.vars, "SLURM_JOB_ID=7")...)
		if c.want == "-" {
			if got != "" {
				t.Errorf("%s: %s", c.name, got)
			}
		} else if !strings.Contains(got, "export CUDA_VISIBLE_DEVICES="+c.want+"\n") {
			t.Errorf("%s:\n%swant %s", c.name, got, c.want)
		}
	}
	if got := w.task(t, "SLURM_JOB_ID=99", "SLURM_JOB_GPUS=1", "CUDA_VISIBLE_DEVICES=1"); !strings.Contains(got,
		"export CUDA_VISIBLE_DEVICES=\n") {
		t.Errorf("a job that no Prolog knows:\n%s", got)
	}
	var gone strings.Builder
	if err := Task(&gone, w.RunDir, func(name string) string {
		return map[string]string{"SLURM_JOB_ID": "x", "SLURM_STEP_GPUS": "3", "CUDA_VISIBLE_DEVICES": "3"}[name]
	}); err == nil || !strings.Contains(gone.String(), "export CUDA_VISIBLE_DEVICES=\n") {
		t.Errorf("a job without a number: %v\n%s", err, gone.String())
	}
	if err := os.WriteFile(taskPath(w.RunDir, 7), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	err := Task(&b, w.RunDir, func(name string) string {
		return map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": "3"}[name]
	})
	if err == nil || !strings.Contains(b.String(), "export CUDA_VISIBLE_DEVICES=\n") {
		t.Errorf("a spoiled file: %v\n%s", err, b.String())
	}
}

// A step of a heterogeneous job sees the GPUs of its component, though it is told the
// leader's id; one of a component without GPUs sees none, and waits while that is not sure.
func TestTaskOfComponent(t *testing.T) {
	w := newWorld(t)
	leader, second := hook(7), hook(8)
	leader.Slots, second.Slots = []int{3}, []int{5}
	leader.HetJobID, second.HetJobID = 7, 7
	w.prolog(t, leader)
	w.prolog(t, second)
	gpu := func(job string) string {
		_, rest, _ := strings.Cut(w.task(t, "SLURM_JOB_ID="+job, "SLURM_STEP_GPUS="+map[string]string{"7": "3",
			"8": "5"}[job]), "export CUDA_VISIBLE_DEVICES=")
		uuid, _, _ := strings.Cut(rest, "\n")
		return uuid
	}
	for _, c := range []struct {
		name, vars, want string
	}{
		{"batch script", "SLURM_JOB_GPUS=3 CUDA_VISIBLE_DEVICES=3", gpu("7")},
		{"leader", "SLURM_JOB_GPUS=3 SLURM_STEP_GPUS=3 CUDA_VISIBLE_DEVICES=3", gpu("7")},
		{"component of sbatch", "SLURM_JOB_GPUS=3 SLURM_STEP_GPUS=5 CUDA_VISIBLE_DEVICES=5", gpu("8")},
		{"component of srun", "SLURM_STEP_GPUS=5 CUDA_VISIBLE_DEVICES=5 SLURM_JOB_ID_HET_GROUP_0= " +
			"SLURM_JOB_ID_HET_GROUP_1= SLURM_JOB_ID_PACK_GROUP_0=7 SLURM_JOB_ID_PACK_GROUP_1=8", gpu("8")},
		{"slots of nobody", "SLURM_JOB_GPUS=3 SLURM_STEP_GPUS=4 CUDA_VISIBLE_DEVICES=4", ""},
		{"batch script from a step of another heterogeneous job", "SLURM_JOB_GPUS=3 SLURM_STEP_GPUS=5 " +
			"CUDA_VISIBLE_DEVICES=0 SLURM_JOB_ID_HET_GROUP_0=6 SLURM_JOB_ID_HET_GROUP_1=8", gpu("7")},
		{"no such component", "SLURM_STEP_GPUS=5 CUDA_VISIBLE_DEVICES=5 SLURM_HET_SIZE=1", ""},
		{"text for numbers", "SLURM_STEP_GPUS=5 CUDA_VISIBLE_DEVICES=5 SLURM_JOB_ID_HET_GROUP_1=../8", ""},
	} {
		vars := append(strings.Fields(c.vars), "SLURM_JOB_ID=7", "SLURM_HET_SIZE=2", "SLURM_JOB_ID_HET_GROUP_0=7",
			"SLURM_JOB_ID_HET_GROUP_1=8")
		if got := w.task(t, vars...); !strings.Contains(got, "export CUDA_VISIBLE_DEVICES="+c.want+"\n") {
			t.Errorf("%s:\n%swant %s", c.name, got, c.want)
		}
	}
	// On a node with a component that has no GPUs the leader's are in the environment.
	vars := []string{"SLURM_JOB_ID=70", "SLURM_HET_SIZE=2", "SLURM_JOB_ID_HET_GROUP_0=70", "SLURM_JOB_ID_HET_GROUP_1=71",
		"SLURM_JOB_GPUS=3", "CUDA_VISIBLE_DEVICES=GPU-9"}
	if got := w.task(t, vars...); got != "export CUDA_VISIBLE_DEVICES=\nexport NVIDIA_VISIBLE_DEVICES=void\n" {
		t.Errorf("a component without GPUs:\n%s", got)
	}
	// It waits for what its own Prolog could not decide.
	if err := w.markUndecided(jobenv.Hook{JobKey: jobenv.JobKey{JobID: 71}}, false); err != nil {
		t.Fatal(err)
	}
	done := make(chan string)
	go func() { done <- w.task(t, vars...) }()
	select {
	case got := <-done:
		t.Errorf("an undecided component without GPUs did not wait:\n%s", got)
	case <-time.After(3 * taskLooks):
		os.Remove(taskPath(w.RunDir, 71))
		<-done
	}
}

// A node whose ledger cannot be opened keeps no job that it can give no GPU.
func TestReturn(t *testing.T) {
	w := newWorld(t)
	w.slurm.job = sctl.Job{ID: 7, ArrayJobID: 5, ArrayTask: 2, State: "RUNNING"}
	if err := w.returnJob(t.Context(), hook(7), w.slurm); err != nil {
		t.Error(err)
	}
	if want := []string{"job 7", "incomplete 5_2", "update 5_2", "job 7"}; !slices.Equal(w.slurm.calls, want) {
		t.Errorf("calls %v", w.slurm.calls)
	}
	if w.slurm.startIn != 2*time.Minute { // nobody else sets it
		t.Errorf("starts in %s", w.slurm.startIn)
	}
	w.slurm.job.State, w.slurm.fail["incomplete"] = "RUNNING", sctl.ErrBatchOnly
	if err := w.returnJob(t.Context(), hook(7), w.slurm); !errors.Is(err, sctl.ErrBatchOnly) {
		t.Errorf("got %v", err)
	}
}

// A Prolog that can do nothing but return the job tries again where slurmctld does not answer, and then
// has its tasks wait.
func TestReturnSurely(t *testing.T) {
	w := newWorld(t)
	w.slurm.fail["job"] = fs.ErrNotExist
	if err := w.ReturnSurely(t.Context(), hook(7), w.slurm); !errors.Is(err, fs.ErrNotExist) || w.undecided(hook(7)) {
		t.Fatalf("no commands of Slurm: %v, tasks wait: %v", err, w.undecided(hook(7)))
	}
	w.slurm.fail["job"] = errors.New("away")
	if err := w.ReturnSurely(t.Context(), hook(7), w.slurm); !errors.Is(err, ErrUndecided) || !w.undecided(hook(7)) {
		t.Fatalf("slurmctld away: %v, tasks wait: %v", err, w.undecided(hook(7)))
	}
	w.Until = time.Time{} // as for settle
	time.AfterFunc(settlePause/2, func() { w.forgetUndecided(hook(7)) })
	if err := w.ReturnSurely(t.Context(), hook(7), w.slurm); err != nil {
		t.Errorf("nobody waits: %v", err)
	}
	delete(w.slurm.fail, "job")
	if err := w.ReturnSurely(t.Context(), hook(7), w.slurm); err != nil ||
		!slices.Contains(w.slurm.calls, "incomplete 7") {
		t.Errorf("an answer: %v, calls %v", err, w.slurm.calls)
	}
	for _, err := range []error{sctl.ErrBatchOnly, fs.ErrNotExist} { // its tasks would wait for nobody
		if err := w.markUndecided(hook(7), false); err != nil {
			t.Fatal(err)
		}
		w.slurm.job.State, w.slurm.fail = "RUNNING", map[string]error{"incomplete": err}
		if got := w.ReturnSurely(t.Context(), hook(7), w.slurm); !errors.Is(got, err) || w.undecided(hook(7)) {
			t.Errorf("%v: %v, undecided %v", err, got, w.undecided(hook(7)))
		}
	}
}

// An Epilog that comes while the process that continues for its Prolog writes the job's GPUs leaves
// nothing for the next attempt to read.
func TestSettleAfterTheEpilog(t *testing.T) {
	w := newWorld(t)
	if err := w.markUndecided(hook(7), false); err != nil {
		t.Fatal(err)
	}
	w.Poke = func() {
		if err := w.book.Release(t.Context(), hook(7).JobKey); err != nil {
			t.Error(err)
		}
	}
	if err := w.Settle(t.Context(), hook(7), w.book, w.slurm); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(taskPath(w.RunDir, 7)); err == nil {
		t.Error("a task file is left")
	}
}

// failing is a ledger that answers with an error.
type failing struct {
	*lease.Ledger
	err error
}

func (f failing) Snapshot(context.Context) (lease.Snapshot, error) { return lease.Snapshot{}, f.err }

func (f failing) Acquire(context.Context, lease.Job, gres.Request, lease.Choose) ([]lease.Granted, error) {
	return nil, f.err
}

// A strict site's Prolog fails for a GPU that is lost and for a ledger that
// is damaged, so that the node drains, and the job is slurmctld's to requeue.
// A GPU that cannot be read for another reason, or is full, is no such fault.
func TestStrict(t *testing.T) {
	for name, c := range map[string]struct {
		strict     bool
		unreadable string
		ledger     error
		fault      bool
	}{
		"well":                    {true, "", nil, false},
		"GPU lost":                {true, "read memory: GPU is lost", nil, true},
		"GPU to be reset":         {true, "read memory: GPU requires reset", nil, true},
		"GPU lost, named by code": {true, "ERROR_GPU_IS_LOST", nil, true},
		"NVML does not answer":    {true, "NVML does not answer", nil, false},
		"not strict":              {false, "read memory: GPU is lost", nil, false},
		"ledger locked":           {true, "", sqlite3.Error{Code: sqlite3.ErrBusy}, false},
		"disk full":               {true, "", sqlite3.Error{Code: sqlite3.ErrFull}, false},
		"out of time":             {true, "", context.DeadlineExceeded, false},
		"ledger damaged":          {true, "", sqlite3.Error{Code: sqlite3.ErrCorrupt}, true},
		"damaged, not strict":     {false, "", sqlite3.Error{Code: sqlite3.ErrCorrupt}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Config.Hooks.Strict = c.strict
			w.slurm.job = sctl.Job{ID: 7, State: "RUNNING"}
			readings := idle(2)
			readings[1].Unreadable = c.unreadable
			if err := w.book.PutReadings(t.Context(), readings); err != nil {
				t.Fatal(err)
			}
			var ledger Ledger = w.book
			if c.ledger != nil {
				ledger = failing{w.book, fmt.Errorf("acquire: %w", c.ledger)}
			}
			err := w.Node.Prolog(t.Context(), hook(7), ledger, w.slurm)
			if errors.Is(err, ErrNode) != c.fault {
				t.Errorf("error %v", err)
			}
			if c.fault && len(w.slurm.calls) != 0 {
				t.Errorf("calls %v", w.slurm.calls)
			}
		})
	}
}

// gone is a slurmctld without answers once the job has been taken back.
type gone struct{ *slurm }

func (s gone) Job(ctx context.Context, id uint32) (sctl.Job, error) {
	if s.job.State == "PENDING" {
		<-ctx.Done()
		return sctl.Job{}, ctx.Err()
	}
	return s.slurm.Job(ctx, id)
}

func (s gone) SafeStart(ctx context.Context) (time.Duration, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// The agent learns of a job returned to the queue, however slow slurmctld is then: else the job waits until
// its Prolog's start time, ten minutes.
func TestReturnedJobIsNoted(t *testing.T) {
	w := newWorld(t)
	w.Config.Hooks.Deadline = config.Duration(time.Second)
	if err := w.arrive(t.Context(), hook(7), w.book, gone{w.slurm}).giveBack(t.Context(), false); err != nil {
		t.Error(err)
	}
	if s, err := w.book.Snapshot(t.Context()); err != nil || len(s.PendingRestarts) != 1 {
		t.Errorf("the agent knows of %v, %v", s.PendingRestarts, err)
	}
}
