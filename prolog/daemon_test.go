// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"carma/gres"
	"carma/gres/mps"
)

// The Prolog has the daemon of its job's GPUs ready for the job's user, after the agent
// was poked; without it the job starts all the same. Its tasks are limited on both GPUs.
func TestPrologAwaitsTheDaemonOfItsGPUs(t *testing.T) {
	w := newWorld(t)
	daemon := gres.Daemon("GPU-0,GPU-1")
	h := hook(7)
	h.Slots, h.Carma.GPUs = []int{2, 5}, 2
	poked, admitted := false, false
	w.Poke = func() { poked = true }
	w.Admit = func(ctx context.Context, d gres.Daemon, uid uint32) error {
		if _, bounded := ctx.Deadline(); d != daemon || uid != h.UID || !poked || !bounded {
			t.Errorf("admit user %d to %s, poked %v, bounded %v", uid, d, poked, bounded)
		}
		admitted = true
		return errors.New("it does not come up")
	}
	w.prolog(t, h)
	if !admitted {
		t.Error("the Prolog did not wait for the daemon")
	}
	want := `export CUDA_VISIBLE_DEVICES=GPU-0,GPU-1
export NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1
export CARMA_GPU_UUIDS=GPU-0,GPU-1
export CARMA_RESERVE_MIB=10240
export CARMA_SHARED=1
export CUDA_MPS_PIPE_DIRECTORY=` + mps.PipeDir(w.RunDir, daemon) + `
export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M,1=10240M
export SLURM_JOB_GPUS=0,1
`
	if got := w.task(t, "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=2,5", "CUDA_VISIBLE_DEVICES=2,5"); got != want {
		t.Errorf("task:\n%swant\n%s", got, want)
	}
}

// A job is not told to connect to a daemon that is another user's still.
func TestPrologTellsNoOthersDaemon(t *testing.T) {
	w := newWorld(t)
	w.Admit = func(context.Context, gres.Daemon, uint32) error {
		// Its tasks look for what they are told as soon as it is there.
		if _, err := os.Stat(taskPath(w.RunDir, 7)); err == nil {
			t.Error("the job was told before its user has the daemon")
		}
		return fmt.Errorf("prepare the MPS daemon: %w: it is still user 1000's", mps.ErrNotGiven)
	}
	w.prolog(t, hook(7))
	got := w.task(t, "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=5", "CUDA_VISIBLE_DEVICES=5")
	if strings.Contains(got, "export CUDA_MPS") ||
		!strings.Contains(got, "CUDA_VISIBLE_DEVICES=GPU-") {
		t.Errorf("task:\n%s", got)
	}
}
