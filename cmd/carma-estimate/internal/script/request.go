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
		j.TRES.PerTask = tres.Add(j.TRES.PerTask, r.tresPerTask)
	}
	if n := r.gpusForTasks(); n > 0 && j.TRES == (annotate.TRES{}) {
		j.TRES.PerJob = tres.GPU + ":" + strconv.FormatUint(uint64(n), 10)
	}
	return j
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
