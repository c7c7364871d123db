// SPDX-License-Identifier: Apache-2.0

package script

import (
	"os"
	"strconv"
	"strings"

	"carma/slurmbridge/annotate"
	"carma/slurmbridge/tres"
)

// job is the request as slurmctld would get it, without "gres:" in front of
// its GRES: that differs between versions of Slurm.
func (r Request) job(text []byte) annotate.Job {
	j := annotate.Job{
		UID: uint32(os.Getuid()), Args: r.args, Option: r.option, Variable: r.variable, Script: text, Partition: r.partition,
		MinNodes: orNoVal(r.nodes), MaxNodes: annotate.NoVal, Tasks: orNoVal(r.tasks),
		TasksPerNode: orNoVal(r.tasksPerNode), SocketsPerNode: orNoVal(r.socketsPerNode),
	}
	if r.tasks > 0 && r.nodes > r.tasks {
		j.MinNodes = r.tasks // sbatch: no node without a task
	}
	if r.gres != "none" {
		j.TRES.PerNode = r.gres
	}
	for _, l := range []struct {
		list *string
		gpus string
	}{
		{&j.TRES.PerNode, r.gpusPerNode}, {&j.TRES.PerJob, r.gpus},
		{&j.TRES.PerSocket, r.gpusPerSocket}, {&j.TRES.PerTask, r.gpusPerTask},
	} {
		if l.gpus == "" || l.gpus == "0" || l.gpus == "none" {
			continue
		}
		for one := range strings.SplitSeq(l.gpus, ",") {
			*l.list = tres.Add(*l.list, tres.GPU+":"+one)
		}
	}
	if r.tresPerTask != "" {
		// slurm_opt.c sends "gres/gpu:1" of sbatch(1)'s "gres/gpu=1".
		j.TRES.PerTask = tres.Add(j.TRES.PerTask, strings.ReplaceAll(r.tresPerTask, "=", ":"))
	}
	j.TaskGPUs = r.gpusForTasks()
	if n := r.tasksForGPUs(); n > 0 && r.tasks == 0 {
		j.Tasks = n
	}
	return j
}

// tasksForGPUs are the tasks that follow from a job's GPUs and the GPUs of a task, of the same type, as for sbatch
// (gres.c, _test_gres_cnt, 22.05.8; tried: 24.11.5); 0: none follow.
func (r Request) tasksForGPUs() uint32 {
	of := func(list string) (kind string, gpus uint64) {
		if i := strings.LastIndexByte(list, ':'); i >= 0 {
			kind, list = list[:i], list[i+1:]
		}
		gpus, _ = strconv.ParseUint(list, 10, 16) // not a number: none
		return kind, gpus
	}
	kind, all := of(r.gpus)
	if of, each := of(r.gpusPerTask); each > 0 && of == kind {
		return uint32(all / each)
	}
	return 0
}

// gpusForTasks are the GPUs of a job that says only its tasks, or its nodes, and how many
// tasks a GPU has (gres.c, gres_job_state_validate).
func (r Request) gpusForTasks() uint32 {
	switch {
	case r.tasksPerGPU == 0:
		return 0
	case r.tasks == 0:
		return r.nodes
	}
	return r.tasks / r.tasksPerGPU
}

func orNoVal(n uint32) uint32 {
	if n == 0 {
		return annotate.NoVal
	}
	return n
}
