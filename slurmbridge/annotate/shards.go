// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"bytes"
	"errors"
	"regexp"

	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/tres"
)

// errShards is for a user who books shards by hand: the node would take the job
// for one that wants the GPU to itself.
var errShards = errors.New("ask for a GPU, such as --gres=gpu:1; CARMA books shards of it for a job that says what " +
	"it needs (#CARMA mem=)")

// bookShards books a job that shares under placement.mode "slurm": shards of
// 1 GiB take the place of the GPU that it asks for, as slurmctld takes no job that
// asks for both (gres.c, ESLURM_INVALID_GRES). A job that cannot do without its
// request keeps it, and has a whole GPU. slurmctld does not count jobs: so that no
// more than max_jobs come to a GPU, each books at least its part of it.
func (a *Annotation) bookShards(job Job, s Site) {
	if a.Mode != jobenv.ModeShared {
		return
	}
	most := config.ShardsOf(a.FullMiB, s.MarginMiB)
	n := max(config.ShardsFor(a.ReserveMiB), most/int64(s.MaxJobs))
	if why := a.needsGPU(job, n, most); why != "" {
		a.Mode, a.ReserveMiB, a.Note = jobenv.ModeExclusive, a.FullMiB, why
		return
	}
	a.ReserveMiB = config.MiBOf(n)
	var gpuType string
	for _, list := range []*string{&a.TRES.PerNode, &a.TRES.PerJob, &a.TRES.PerSocket, &a.TRES.PerTask} {
		rest, t := tres.Read(*list).WithoutGPUs()
		if *list = rest; t != "" {
			gpuType = t
		}
	}
	a.TRES.PerNode = tres.Add(a.TRES.PerNode, tres.Request(s.GresPrefix, tres.Shard, gpuType, n))
}

// needsGPU says why a job cannot have shards in place of its GPU, empty if it can.
// Tried on 23.11.11 and 25.11.7: one request for shards is met on one GPU; options
// that count by GPU are refused without a gpu request; --exclusive with shards never
// starts; every step of a job with shards that asks for a GPU is refused.
func (a *Annotation) needsGPU(job Job, shards, most int64) string {
	switch {
	case a.GPUs > 1:
		return "a job on several GPUs has them to itself"
	case shards > most:
		return "no other job would fit"
	case job.NeedsGPU:
		return "an option goes with whole GPUs (--cpus-per-gpu, --mem-per-gpu, --ntasks-per-gpu, --gpu-freq, --exclusive)"
	case len(job.Script) == 0:
		return "srun and salloc ask for GPUs in their steps"
	case speaksOfGPUs(job.Script):
		return "the script asks for GPUs in a step, or reads SLURM_GPUS"
	}
	return ""
}

var (
	// Options of srun that ask for a GPU.
	stepAsks = regexp.MustCompile(`--gres[= ]\S*gpu|--gpus|\s-G|--tres-per-task[= ]\S*gpu`)
	// What sbatch sets from --gpus and its like. srun would take it for its own
	// option, so TaskProlog takes it out of the environment.
	readsRequest = regexp.MustCompile(`SLURM_GPUS(_PER_(NODE|TASK|SOCKET))?\b|SLURM_TRES_PER_TASK\b`)
)

// speaksOfGPUs tells whether a script starts steps that ask for GPUs, or looks at
// what it asked for. It sees what stands in the script itself.
func speaksOfGPUs(script []byte) bool {
	srun := false // of a command that goes on in the next line
	for line := range bytes.Lines(script) {
		line = bytes.TrimSpace(line)
		if bytes.HasPrefix(line, []byte("#")) {
			continue
		}
		srun = srun || bytes.Contains(line, []byte("srun"))
		if srun && stepAsks.Match(line) || bytes.Contains(line, []byte("SLURM_")) && readsRequest.Match(line) {
			return true
		}
		srun = srun && bytes.HasSuffix(line, []byte(`\`))
	}
	return false
}
