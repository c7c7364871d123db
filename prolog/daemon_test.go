// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"os"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/mps"
)

// The Prolog of a job on two GPUs waits until their MPS daemon listens, which the
// agent starts when it is poked; its tasks are limited on both.
func TestPrologAwaitsTheDaemonOfItsGPUs(t *testing.T) {
	w := newWorld(t)
	daemon := gres.Daemon("GPU-0,GPU-1")
	started := make(chan error, 1)
	w.Poke = func() {
		time.AfterFunc(100*time.Millisecond, func() {
			dir := mps.PipeDir(w.RunDir, daemon)
			err := os.MkdirAll(dir, 0o755)
			if err == nil {
				err = os.WriteFile(dir+"/control", nil, 0o644)
			}
			started <- err
		})
	}
	h := hook(7)
	h.Slots, h.Carma.GPUs = []int{2, 5}, 2
	w.prolog(t, h)
	if !mps.Listens(w.RunDir, daemon) {
		t.Error("the Prolog did not wait for the daemon")
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	want := `export CUDA_VISIBLE_DEVICES=GPU-0,GPU-1
export NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1
export CARMA_GPU_UUIDS=GPU-0,GPU-1
export CARMA_RESERVE_MIB=10240
export CARMA_SHARED=1
export CUDA_MPS_PIPE_DIRECTORY=` + mps.PipeDir(w.RunDir, daemon) + `
export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M,1=10240M
`
	if got := w.task(t, "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=2,5", "CUDA_VISIBLE_DEVICES=2,5"); got != want {
		t.Errorf("task:\n%swant\n%s", got, want)
	}
}
