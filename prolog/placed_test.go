// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"carma/gres"
	"carma/gres/choose"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// bySlurm is a node under placement.mode "slurm". The GPUs stand in NVML's order,
// which is not that of their device files.
func bySlurm(t *testing.T, minors ...int) *world {
	t.Helper()
	w := newWorld(t)
	w.Config.Placement.Mode = "slurm"
	w.Sample = func(context.Context) ([]gres.Reading, error) {
		readings := idle(len(minors))
		for i, m := range minors {
			readings[i].Minor = m
		}
		return readings, nil
	}
	return w
}

// on is a job to which slurmctld gave GPUs.
func on(id uint32, gpus ...int) jobenv.Hook {
	h := hook(id)
	h.Slots = gpus
	return h
}

func TestPlacedWhereSlurmSays(t *testing.T) {
	w := bySlurm(t, 2, 0, 1)
	w.prolog(t, on(7, 0))
	w.prolog(t, on(8, 0))
	two := on(9, 1, 2)
	two.Carma.Mode, two.Carma.ReserveMiB, two.Carma.GPUs = "exclusive", 40536, 2
	w.prolog(t, two)
	var got []string
	for _, l := range w.leases(t) {
		got = append(got, fmt.Sprintf("%d %s %v", l.Job.JobID, l.UUID, l.Exclusive))
	}
	if want := []string{"9 GPU-0 true", "7 GPU-1 false", "8 GPU-1 false", "9 GPU-2 true"}; !slices.Equal(got, want) {
		t.Errorf("leases %v, want %v", got, want)
	}
	for slot, uuid := range map[int]string{1: "GPU-2", 2: "GPU-0"} {
		if got := w.task(t, "SLURM_JOB_ID=9", "SLURM_JOB_GPUS=1,2", fmt.Sprint("SLURM_STEP_GPUS=", slot),
			fmt.Sprint("CUDA_VISIBLE_DEVICES=", slot)); !strings.Contains(got,
			"export CUDA_VISIBLE_DEVICES="+uuid+"\n") || strings.Contains(got, "SLURM_STEP_GRES") {
			t.Errorf("task on GPU %d:\n%s", slot, got)
		}
	}
}

// The node has the last word: the job returns to the queue, and to no other GPU.
func TestPlacedOnAGPUThatIsClosed(t *testing.T) {
	for name, spoil := range map[string]func(*gres.Reading){
		"busy":       func(r *gres.Reading) { r.SMActPct = 95 },
		"unreadable": func(r *gres.Reading) { r.Unreadable = "lost" },
		"full":       func(r *gres.Reading) { r.UsedMiB = 35000 },
		"gone":       func(r *gres.Reading) { r.Minor = -1 },
		"MIG":        func(r *gres.Reading) { r.MIG = true },
	} {
		w := bySlurm(t, 0, 1)
		w.prolog(t, on(6, 0))
		sample := w.Sample
		readings, _ := sample(t.Context())
		spoil(&readings[0])
		if err := w.book.PutReadings(t.Context(), readings); err != nil {
			t.Fatal(err)
		}
		w.slurm.job = sctl.Job{ID: 7, State: "RUNNING"}
		w.slurm.words.TresPerNode = "gres/shard:10"
		w.prolog(t, on(7, 0))
		if len(w.leases(t)) != 1 || !slices.Contains(w.slurm.calls, "incomplete 7") {
			t.Errorf("%s: leases %+v, calls %v", name, w.leases(t), w.slurm.calls)
		}
	}
	d := slurmAssigned([]int{3}, choose.Input{})
	if len(d.Refusals) != 1 || d.Refusals[0].UUID != "/dev/nvidia3" ||
		d.Refusals[0].Reason.String() != "NVML shows no GPU there that can be shared" {
		t.Errorf("refusals %+v", d.Refusals)
	}
}

// slurmctld may send it to busy GPUs for ever; one of its own it can plan.
func TestGivenBackOftenBySlurm(t *testing.T) {
	w := bySlurm(t, 0, 1)
	w.prolog(t, on(6, 0))
	w.slurm.job = sctl.Job{ID: 7, State: "RUNNING"}
	w.slurm.words.TresPerNode = "gres/shard:30"
	h := on(7, 0)
	h.Restart, h.Carma.ReserveMiB = uint32(w.Config.Hooks.Vetoes), 30<<10
	w.prolog(t, h)
	if want := "update 7 gpu-ex gres/gpu:1"; !slices.Contains(w.slurm.calls, want) {
		t.Errorf("calls %v, want %s", w.slurm.calls, want)
	}
}

// Steps take what the job has, whatever its request looked like.
func TestStepsOfAJobWithShards(t *testing.T) {
	w := bySlurm(t, 0, 1)
	w.prolog(t, on(7, 1))
	got := w.task(t, "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=1", "CUDA_VISIBLE_DEVICES=1", "SLURM_GPUS_PER_NODE=a100:1",
		"SLURM_TRES_BIND=gres/gpu:per_task:1", "SLURM_TRES_PER_TASK=cpu=2,gres/gpu=1")
	want := `export CARMA_SHARED=1
export CUDA_MPS_PIPE_DIRECTORY=` + w.RunDir + `/mps/GPU-1
export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M
unset SLURM_GPUS_PER_NODE
unset SLURM_TRES_BIND
export SLURM_TRES_PER_TASK=cpu=2
export SLURM_STEP_GRES=gres/shard:10
`
	if !strings.HasSuffix(got, want) {
		t.Errorf("task:\n%s", got)
	}
	got = w.task(t, "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=1", "CUDA_VISIBLE_DEVICES=1", "SLURM_TRES_PER_TASK=gres/gpu:1")
	if !strings.Contains(got, "\nunset SLURM_TRES_PER_TASK\n") {
		t.Errorf("task:\n%s", got)
	}
}

// After an OOM the job asks for the GPU again, and slurmctld picks one that is free:
// none is kept for it here.
func TestRecoveryBySlurm(t *testing.T) {
	w := bySlurm(t, 0, 1)
	w.oom()
	w.slurm.job = sctl.Job{ID: 7, State: "COMPLETING"}
	w.slurm.words.TresPerNode = "gres/shard:a100:10"
	w.prolog(t, on(7, 1))
	w.epilog(t, failed(on(7, 1)))
	if want := "update 7 gpu-ex gres/gpu:a100:1"; !slices.Contains(w.slurm.calls, want) {
		t.Errorf("calls %v, want %q", w.slurm.calls, want)
	}
	if s, _ := w.book.Snapshot(t.Context()); len(s.Holds) != 0 || len(s.PendingRestarts) != 1 {
		t.Errorf("holds %v, pending restarts %v", s.Holds, s.PendingRestarts)
	}
	// Where it was, it is alone all the same.
	for tres, exclusive := range map[string]bool{"gres/gpu:a100:1": true, "gres/shard:10": false} {
		w := bySlurm(t, 0, 1)
		w.slurm.job = sctl.Job{ID: 7, State: "RUNNING"}
		w.slurm.words.TresPerNode = tres
		h := on(7, 1)
		h.Restart = 1
		w.prolog(t, h)
		if l := w.leases(t); len(l) != 1 || l[0].Exclusive != exclusive {
			t.Errorf("%s: leases %+v", tres, l)
		}
	}
}

// --exclusive gives a job all GPUs of the node: it has them to itself.
func TestAllGPUsBySlurm(t *testing.T) {
	w := bySlurm(t, 0, 1)
	w.prolog(t, on(7, 0, 1))
	if l := w.leases(t); len(l) != 2 || !l[0].Exclusive || !l[1].Exclusive {
		t.Errorf("leases %+v", l)
	}
}

func TestBookedBySlurm(t *testing.T) {
	w := bySlurm(t)
	for _, c := range []struct {
		list string
		mib  int64
		want string
	}{
		{"gres/shard:10", 40536, "gres/gpu:1"},
		{"gres/shard:a100:10,gres/x:2", 40536, "gres/x:2,gres/gpu:a100:1"},
		{"gres/shard:10", 15000, "gres/shard:15"},
		{"gres/shard:10", 38000, "gres/gpu:1"}, // 38 shards are more than a GPU has
		{"gres/gpu:2", 40536, "gres/gpu:2"},
	} {
		if got := w.booked(c.list, c.mib, 40536); got != c.want {
			t.Errorf("%s with %d MiB: got %s, want %s", c.list, c.mib, got, c.want)
		}
	}
}

// A job that cannot return to the queue, as one of srun, waits.
func TestPlacedAndCannotGoBack(t *testing.T) {
	w := bySlurm(t, 0, 1)
	w.prolog(t, on(6, 0))
	h := on(7, 0)
	h.Carma = jobenv.Carma{}
	w.slurm.job = sctl.Job{ID: 7, State: "RUNNING"}
	w.slurm.fail["incomplete"] = sctl.ErrBatchOnly
	if err := w.Prolog(t.Context(), h, w.book, w.slurm); !errors.Is(err, ErrUndecided) {
		t.Errorf("got %v", err)
	}
}
