// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/confine"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
)

// guard keeps what it was asked for; the first fail calls of Open fail.
type guard struct {
	fail  int
	calls []string
	loose bool
}

func (g *guard) Open(job confine.Job, minors []int) error {
	g.calls = append(g.calls, fmt.Sprint("open ", job.ID, minors))
	if g.fail--; g.fail >= 0 {
		return errors.New("no such cgroup")
	}
	return nil
}

func (g *guard) Close(job confine.Job) error {
	g.calls = append(g.calls, fmt.Sprint("close ", job.ID))
	return nil
}

func (g *guard) Ready(job confine.Job) error {
	g.calls = append(g.calls, fmt.Sprint("ready ", job.ID))
	return nil
}

func (g *guard) Forget(confine.Job) error           { return nil }
func (g *guard) Jobs() ([]confine.Job, error)       { return nil, nil }
func (g *guard) Unconfined() ([]confine.Job, error) { return nil, nil }
func (g *guard) Exact() bool                        { return !g.loose }
func (g *guard) String() string                     { return "test" }

// A job's tasks open no GPU until it has some, and then these.
func TestConfined(t *testing.T) {
	w := newWorld(t)
	g := &guard{}
	w.Guard = g
	h := hook(7)
	w.prolog(t, h)
	w.Ready(h)
	w.Shut(h)
	w.epilog(t, h)
	w.Left(h)
	if want := []string{"open 7 []", "open 7 [0]", "ready 7", "close 7"}; !slices.Equal(g.calls, want) {
		t.Errorf("calls %v", g.calls)
	}
}

// A job that cannot be confined waits, and its tasks with it, also one without GPUs.
func TestNotConfined(t *testing.T) {
	t.Parallel()
	h := hook(7)
	none := h
	none.JobID, none.Slots, none.Carma = 8, nil, jobenv.Carma{}
	for _, h := range []jobenv.Hook{h, none} {
		w := newWorld(t)
		w.slurm.noRequeue = true
		w.Guard = &guard{fail: 3}
		if err := w.Prolog(t.Context(), h, w.book, w.slurm); !errors.Is(err, ErrUndecided) || !w.undecided(h) {
			t.Errorf("job %d: %v, undecided %v", h.JobID, err, w.undecided(h))
		}
		if err := w.Settle(t.Context(), h, w.book, w.slurm); err != nil || w.undecided(h) {
			t.Errorf("job %d: %v, undecided %v", h.JobID, err, w.undecided(h))
		}
	}
	w := newWorld(t)
	w.GuardErr = errors.New("no cgroups")
	if err := w.Prolog(t.Context(), none, w.book, w.slurm); err != nil {
		t.Error(err)
	}
	if !slices.Contains(w.slurm.calls, "incomplete 8") {
		t.Errorf("not returned to the queue: %v", w.slurm.calls)
	}
}

// With its devices confined a job counts its GPUs from 0, in NVML's order.
func TestOrdinals(t *testing.T) {
	for _, c := range []struct {
		name            string
		loose, mps, mig bool
		names           string
		want            string
	}{
		{"auto", false, false, false, "auto", "0,1"},
		{"auto, by the daemon's order", false, true, false, "auto", "0,1"},
		{"auto, a user's jobs open each other's GPUs", true, false, false, "auto", "GPU-0,GPU-1"},
		{"auto, instances of MIG", false, false, true, "auto", "GPU-0,GPU-1"},
		{"uuid", false, false, false, "uuid", "GPU-0,GPU-1"},
		{"ordinal", false, false, false, "ordinal", "0,1"},
		{"by the daemon's order", false, true, false, "ordinal", "0,1"},
		{"a user's jobs open each other's GPUs", true, false, false, "ordinal", "GPU-0,GPU-1"},
		{"instances of MIG, which have no number", false, false, true, "ordinal", "GPU-0,GPU-1"},
	} {
		w := newWorld(t)
		g := &guard{loose: c.loose}
		w.Guard, w.Config.Devices.Names, w.Config.MPS.Enabled = g, c.names, c.mps
		h := hook(7)
		h.Slots, h.Carma.GPUs = []int{3, 9}, 2
		readings := idle(2)
		readings[1].Minor = 1
		if c.mig { // of one GPU, whose device node they share
			readings[0].MIG, readings[1].MIG, readings[1].Minor = true, true, 0
		}
		if err := w.book.PutReadings(t.Context(), readings); err != nil {
			t.Fatal(err)
		}
		w.Config.Hooks.Wait = 0
		l := w.arrive(t.Context(), h, w.book, w.slurm)
		granted, err := l.acquire(t.Context(), time.Second, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.finish(t.Context(), granted); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprint("open ", 7, []int{0, readings[1].Minor}); !slices.Contains(g.calls, want) {
			t.Errorf("%s: %v, want %s", c.name, g.calls, want)
		}
		got := w.task(t, "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=3,9", "CUDA_VISIBLE_DEVICES=3,9")
		visible := "export CUDA_VISIBLE_DEVICES=" + c.want + "\n"
		if !strings.Contains(got, visible) || !strings.Contains(got, "CARMA_GPU_UUIDS=GPU-0,GPU-1\n") {
			t.Errorf("%s:\n%s", c.name, got)
		}
		got = w.task(t, "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=3,9", "SLURM_STEP_GPUS=9", "CUDA_VISIBLE_DEVICES=9")
		second := "GPU-1"
		if c.want == "0,1" && c.names == "ordinal" { // auto: a container may hold the second alone
			second = "1"
		}
		if !strings.Contains(got, "export CUDA_VISIBLE_DEVICES="+second+"\n") {
			t.Errorf("%s, the second:\n%s", c.name, got)
		}
		os.Remove(taskPath(w.RunDir, 7))
	}
}

// Numbers that could mean other GPUs are none: CUDA counts GPUs of several models by speed, and a daemon may serve
// more GPUs than the job's. Those of an administrator who insists stay.
func TestOrdinalsThatWouldMislead(t *testing.T) {
	gpu := func(index int, model string) gres.GPU {
		return gres.GPU{UUID: fmt.Sprint("GPU-", index), Index: index, Model: model}
	}
	granted := func(daemon gres.Daemon, uuids ...string) (list []lease.Granted) {
		for _, uuid := range uuids {
			list = append(list, lease.Granted{UUID: uuid, Daemon: daemon})
		}
		return list
	}
	both := granted("", "GPU-3", "GPU-1")
	for name, c := range map[string]struct {
		gpus     []gres.GPU
		granted  []lease.Granted
		auto     []int
		insisted []int
	}{
		"one":                        {[]gres.GPU{gpu(3, "a")}, granted("", "GPU-3"), []int{0}, []int{0}},
		"one with its daemon":        {[]gres.GPU{gpu(3, "a")}, granted("GPU-3", "GPU-3"), []int{0}, []int{0}},
		"one of a daemon's two":      {[]gres.GPU{gpu(3, "a")}, granted("GPU-2,GPU-3", "GPU-3"), nil, []int{1}},
		"two of one model":           {[]gres.GPU{gpu(3, "a"), gpu(1, "a")}, both, []int{1, 0}, []int{1, 0}},
		"two of two models":          {[]gres.GPU{gpu(3, "a"), gpu(1, "b")}, both, nil, []int{1, 0}},
		"none, as not yet a reading": {nil, nil, nil, nil},
	} {
		w := newWorld(t)
		w.Guard, w.Config.MPS.Enabled = &guard{}, true
		l := w.arrive(t.Context(), hook(7), w.book, w.slurm)
		for names, want := range map[string][]int{"auto": c.auto, "ordinal": c.insisted, "uuid": nil} {
			w.Config.Devices.Names = names
			if got := l.ordinals(c.gpus, c.granted); !slices.Equal(got, want) {
				t.Errorf("%s, %s: %v, want %v", name, names, got, want)
			}
		}
	}
}
