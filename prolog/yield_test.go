// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// waits is another user's job that waits for a GPU, and has booked it.
func waits() schedule.Job {
	return schedule.Job{ID: 5, UID: 2000, State: "PENDING", Partition: "gpu", Reason: "Resources", GPUs: 1, MiB: 10240}
}

// A job that has booked nothing takes no GPU that somebody waits for, waits in front of nobody, and has none
// kept for it; on an idle node it is leased one at once.
func TestUnbookedJobYields(t *testing.T) {
	t.Parallel()
	held, later, unbooked, runs := waits(), waits(), waits(), waits()
	held.Reason, later.Eligible, unbooked.MiB, runs.State = "JobHeldUser", time.Now().Add(time.Hour), 0, "RUNNING"
	itself, elsewhere, wider := waits(), waits(), waits()
	itself.ID = 7
	elsewhere.ReqNodes, elsewhere.NodeCount = "n[2-3]", 1
	wider.ReqNodes, wider.NodeCount = "n[2-3]", 3
	here := waits()
	here.ReqNodes, here.NodeCount = "n[1-2]", 2
	starts, begun, startsElsewhere, startsUnbooked := waits(), waits(), waits(), waits()
	starts.State, starts.Reason, starts.Nodes = "RUNNING", "Prolog", "n[1-2]"
	begun.State, begun.Reason, begun.Nodes = "RUNNING", "None", "n1"
	startsElsewhere.State, startsElsewhere.Reason, startsElsewhere.Nodes = "RUNNING", "Prolog", "n2"
	startsUnbooked.State, startsUnbooked.Reason, startsUnbooked.Nodes, startsUnbooked.MiB = "RUNNING", "Prolog", "n1", 0
	itselfStarts := starts
	itselfStarts.ID = 7
	takeNone := []schedule.Job{begun, startsElsewhere, startsUnbooked, itselfStarts}
	for name, c := range map[string]struct {
		queue  []schedule.Job
		busy   uint32 // GPUs in use, of two
		stays  bool   // --no-requeue
		fails  bool   // squeue does, at once (a slow squeue: TestYieldsWhereSlurmctldIsSlow)
		leased bool
	}{
		"nobody waits":                 {nil, 1, false, false, true},
		"itself":                       {[]schedule.Job{itself}, 1, false, false, true},
		"somebody waits":               {[]schedule.Job{waits()}, 1, false, false, false},
		"somebody waits, and stays":    {[]schedule.Job{waits()}, 1, true, false, false},
		"who waits does not for a GPU": {[]schedule.Job{held, later, unbooked, runs}, 1, false, false, true},
		"somebody waits for others":    {[]schedule.Job{elsewhere}, 1, false, false, true},
		"somebody waits, also for it":  {[]schedule.Job{elsewhere, here}, 1, false, false, false},
		"who waits needs one more":     {[]schedule.Job{wider}, 1, false, false, false},
		"the last GPU, and one starts": {[]schedule.Job{starts}, 1, false, false, false},
		"two GPUs, and one starts":     {[]schedule.Job{starts}, 0, false, false, true},
		"jobs that take no GPU of it":  {takeNone, 1, false, false, true},
		"none is free":                 {nil, 2, false, false, false},
		"none is free, and stays":      {nil, 2, true, false, false},
		"squeue fails at once":         {[]schedule.Job{waits()}, 1, false, true, true},
	} {
		w := newWorld(t)
		w.slurm.partitions = []string{"all", "gpu"} // of the node
		for id := range c.busy {
			h := hook(id + 1)
			h.Carma.Mode = "exclusive"
			w.prolog(t, h)
		}
		w.slurm.queue, w.slurm.noRequeue = c.queue, c.stays
		if c.fails {
			w.slurm.fail["queue"] = errors.New("no queue")
		}
		w.Config.Hooks.Wait = config.Duration(20 * time.Second) // it does not wait for that
		w.Until = time.Now().Add(2 * w.Config.Hooks.Deadline.D())
		h := hook(7)
		h.Carma = jobenv.Carma{}
		awaits := !c.leased && (c.stays || c.busy < 2)
		if err := w.Prolog(t.Context(), h, w.book, w.slurm); errors.Is(err, ErrUndecided) != awaits || !awaits && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s, err := w.book.Snapshot(t.Context())
		if err != nil || len(s.Holds) > 0 || (len(s.Leases) > int(c.busy)) != c.leased {
			t.Errorf("%s: leases %+v, holds %+v, %v", name, s.Leases, s.Holds, err)
		}
		if returned := slices.Contains(w.slurm.calls, "incomplete 7"); returned != (!c.leased && !awaits) {
			t.Errorf("%s: calls %v", name, w.slurm.calls)
		}
		if asked := slices.Contains(w.slurm.calls, "queue gpu"); asked != (c.busy < 2) ||
			slices.Contains(w.slurm.calls, "words 7") {
			t.Errorf("%s: asked %v", name, w.slurm.calls)
		}
	}
}

// GPUs that the queue has left alone for a while are for a job that yields, also where Prologs have less time: tasks
// wait, and the job does not begin anew at each return to the queue.
func TestYieldsForLongerThanThePrologTakes(t *testing.T) {
	for name, pass := range map[string]bool{"the GPU stays free": true, "another job comes": false} {
		w := newWorld(t)
		w.slurm.queue, w.slurm.partitions = []schedule.Job{waits()}, []string{"gpu"}
		h := hook(7)
		h.Carma = jobenv.Carma{}
		if err := w.Prolog(t.Context(), h, w.book, w.slurm); !errors.Is(err, ErrUndecided) ||
			slices.Contains(w.slurm.calls, "incomplete 7") {
			t.Fatalf("%s: %v, calls %v", name, err, w.slurm.calls)
		}
		if !pass {
			for id := range uint32(2) {
				other := hook(id + 1)
				other.Carma.Mode = "exclusive"
				w.prolog(t, other)
			}
		}
		long := yieldFor
		yieldFor = time.Second
		err := w.Settle(t.Context(), h, w.book, w.slurm)
		yieldFor = long
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		leased := slices.ContainsFunc(w.leases(t), func(l gres.Lease) bool { return l.Job.JobID == 7 })
		if returned := slices.Contains(w.slurm.calls, "incomplete 7"); leased != pass || returned == pass {
			t.Errorf("%s: leased %v, returned %v", name, leased, returned)
		}
	}
}

// Who waits in partitions without the node waits for other nodes; a node in none that carma.toml names has nobody who
// could wait for it.
func TestYieldsToThePartitionsOfTheNode(t *testing.T) {
	for _, c := range []struct {
		partitions []string
		asked      string
		leased     bool
	}{
		{[]string{"gpu-ex", "gpu"}, "queue gpu,gpu-ex", false},
		{[]string{"gpu-ex"}, "queue gpu-ex", true},
		{[]string{"all"}, "", true},
	} {
		w := newWorld(t)
		w.slurm.queue, w.slurm.partitions = []schedule.Job{waits()}, c.partitions
		w.Until = time.Now().Add(2 * w.Config.Hooks.Deadline.D())
		h := hook(7)
		h.Carma = jobenv.Carma{}
		if err := w.Prolog(t.Context(), h, w.book, w.slurm); errors.Is(err, ErrUndecided) == c.leased {
			t.Errorf("%v: %v", c.partitions, err)
		}
		asked := slices.DeleteFunc(slices.Clone(w.slurm.calls), func(s string) bool { return !strings.HasPrefix(s, "queue") })
		if len(w.leases(t)) > 0 != c.leased || strings.Join(asked, "") != c.asked {
			t.Errorf("%v: leases %+v, calls %v", c.partitions, w.leases(t), w.slurm.calls)
		}
	}
}

// A job that has booked what it needs asks nobody, and one whose GPUs were added later yields once that is known.
func TestWhoYields(t *testing.T) {
	for name, c := range map[string]struct {
		books  string
		change func(*jobenv.Hook)
		yields bool
	}{
		"booked":         {"gres:gpu:1,gres:carma:10240", func(*jobenv.Hook) {}, false},
		"nobody asked":   {"", func(*jobenv.Hook) {}, false},
		"nothing booked": {"gres:gpu:1", func(*jobenv.Hook) {}, true},
		"less":           {"gres:gpu:1,gres:carma:10239", func(*jobenv.Hook) {}, true},
		"for one of two": {"gres:gpu:2,gres:carma:10240", func(h *jobenv.Hook) {
			h.Slots, h.Carma.GPUs = []int{0, 1}, 2
		}, true},
		"by a smaller GPU": {"gres:gpu:1,gres:carma:20000", func(h *jobenv.Hook) {
			h.Carma.Mode, h.Carma.FullMiB = "exclusive", 20000
		}, false},
		"not annotated": {"gres:gpu:1,gres:carma:40536", func(h *jobenv.Hook) { h.Carma = jobenv.Carma{} }, true},
	} {
		w := newWorld(t)
		w.slurm.words.TresPerNode = c.books
		h := hook(7)
		c.change(&h)
		l := w.arrive(t.Context(), h, w.book, w.slurm)
		if c.books != "" {
			if _, err := l.books(t.Context(), w.slurm); err != nil {
				t.Fatal(err)
			}
		}
		if l.yields() != c.yields {
			t.Errorf("%s: yields %v", name, l.yields())
		}
	}
}

// GPUs that those who wait have left for a while are for all.
func TestYieldsForAWhile(t *testing.T) {
	fits := choose.Decision{UUIDs: []string{"GPU-0"}}
	var y yielding
	if !y.leaves(fits) || time.Until(y.until()) < yieldFor {
		t.Errorf("left until %s", y.until())
	}
	y.free = time.Now().Add(-yieldFor)
	if y.leaves(fits) {
		t.Error("left for ever")
	}
	if y.leaves(choose.Decision{}); !y.until().IsZero() || !y.leaves(fits) {
		t.Error("it may take what was free another time")
	}
	if y.nobody = true; y.leaves(fits) {
		t.Error("left to nobody")
	}
	if y.leaves(choose.Decision{}); !y.leaves(fits) {
		t.Error("it may take on an old answer what comes free later")
	}
}

// Nothing is kept on the silence of slurmctld, until it has said what the job books.
func TestKeptOnceItIsKnownWhatIsBooked(t *testing.T) {
	w := newWorld(t)
	for id := range uint32(2) {
		h := hook(id + 1)
		h.Carma.Mode = "exclusive"
		w.prolog(t, h)
	}
	w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
	w.slurm.fail["incomplete"], w.slurm.fail["words"] = sctl.ErrBatchOnly, errors.New("away")
	for _, holds := range []int{0, 1} {
		if err := w.Prolog(t.Context(), hook(7), w.book, w.slurm); !errors.Is(err, ErrUndecided) {
			t.Error(err)
		}
		if s, err := w.book.Snapshot(t.Context()); err != nil || len(s.Holds) != holds {
			t.Errorf("holds %+v, want %d, %v", s.Holds, holds, err)
		}
		delete(w.slurm.fail, "words")
	}
}

// unwilling is a ledger that keeps no GPUs, or does not tell of any.
type unwilling struct {
	*lease.Ledger
	read, hold error
}

func (u *unwilling) Snapshot(ctx context.Context) (lease.Snapshot, error) {
	s, err := u.Ledger.Snapshot(ctx)
	return s, cmp.Or(u.read, err)
}

func (u *unwilling) Hold(ctx context.Context, job, uid uint32, gpus int, mib int64, uuids []string) error {
	if u.hold != nil {
		return u.hold
	}
	return u.Ledger.Hold(ctx, job, uid, gpus, mib, uuids)
}

// What could not be kept in one round is tried again in the next one, and kept once.
func TestKeptInALaterRound(t *testing.T) {
	locked := errors.New("the database is locked")
	put := func(w *world, readings []gres.Reading) {
		if err := w.book.PutReadings(t.Context(), readings); err != nil {
			t.Fatal(err)
		}
	}
	for name, fail := range map[string]func(*world, *unwilling) (mend func()){
		"the ledger does not answer": func(_ *world, u *unwilling) func() {
			u.read = locked
			return func() { u.read = nil }
		},
		"enough is held for the user": func(_ *world, u *unwilling) func() {
			u.hold = locked
			return func() { u.hold = nil }
		},
		"no GPU accepts jobs": func(w *world, _ *unwilling) func() {
			readings := idle(2)
			readings[0].Unreadable, readings[1].Unreadable = "NVML hangs", "NVML hangs"
			put(w, readings)
			return func() { put(w, idle(2)) }
		},
	} {
		w := newWorld(t)
		put(w, idle(2))
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		u := &unwilling{Ledger: w.book}
		mend := fail(w, u)
		l := w.arrive(t.Context(), hook(7), u, w.slurm)
		l.keep(t.Context())
		if s, err := w.book.Snapshot(t.Context()); err != nil || len(s.Holds) != 0 {
			t.Errorf("%s: kept %+v, %v", name, s.Holds, err)
		}
		mend()
		l.keep(t.Context())
		l.keep(t.Context())
		if s, err := w.book.Snapshot(t.Context()); err != nil || len(s.Holds) != 1 {
			t.Errorf("%s: kept %+v, %v", name, s.Holds, err)
		}
	}
}
