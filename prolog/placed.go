// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"fmt"
	"io"

	"carma/gres"
	"carma/gres/choose"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/policy"
	"carma/slurmbridge/tres"
)

// What is different where slurmctld picks the GPU (placement.mode "slurm",
// docs/adr/0010).

// chooser is how the job's GPUs are chosen.
func (n *Node) chooser(h jobenv.Hook) func(choose.Input) choose.Decision {
	if n.Config.Placement.BySlurm() {
		return func(in choose.Input) choose.Decision { return slurmAssigned(h.Slots, in) }
	}
	policy := n.policy(h)
	return func(in choose.Input) choose.Decision { return choose.GPUs(policy, in) }
}

// slurmAssigned is the choice that slurmctld has made: the GPUs that the job was given, in
// their order, or none if one of them takes no further job now. given are their
// numbers in SLURM_JOB_GPUS: places in the order of gres.conf's files
// (gres_common.c, common_gres_set_env), which are /dev/nvidia0 and up.
func slurmAssigned(given []int, in choose.Input) choose.Decision {
	uuids := make([]string, len(given))
	candidates := make([]gres.Reading, len(given))
	for i, minor := range given {
		r := ofMinor(in.Readings, minor)
		if r == nil {
			return choose.Decision{Refusals: []choose.Refusal{choose.Missing(fmt.Sprintf("/dev/nvidia%d", minor))}}
		}
		uuids[i], candidates[i] = r.UUID, *r
	}
	in.Readings = candidates
	d := choose.GPUs(policy.MAGM, in)
	if len(d.UUIDs) > 0 {
		d.UUIDs = uuids
	}
	return d
}

// ofMinor finds the GPU behind /dev/nvidia<minor>, nil if there is none that a job
// can be given: MIG instances share their device's number.
func ofMinor(readings []gres.Reading, minor int) *gres.Reading {
	for i := range readings {
		if r := &readings[i]; r.Minor == minor && !r.MIG {
			return r
		}
	}
	return nil
}

// booking is what a job books per GPU, as slurmctld shows its request; 0: nothing
// of ours.
func (n *Node) booking(tresPerNode string, fullMiB int64) int64 {
	list := tres.Read(tresPerNode)
	switch {
	case !n.Config.Placement.BySlurm():
		return list.ReserveMiB()
	case list.Shards > 0:
		return config.MiBOf(list.Shards)
	}
	return fullMiB
}

// booked returns a job's GRES list with its booking set to mib. Under
// placement.mode "slurm" that is shards again, or the GPU that they stand for:
// slurmctld takes that of a pending job (23.02 and later, e652133c67).
func (n *Node) booked(tresPerNode string, mib, fullMiB int64) string {
	list := tres.Read(tresPerNode)
	if !n.Config.Placement.BySlurm() {
		free := mib
		switch {
		case list.Sent():
			free = tres.SentMiB
		case !list.Anywhere():
			free = tres.AnyMiB
		case list.Whole():
			free = tres.WholeMiB
		}
		return list.Rebook(free, mib)
	}
	if list.Shards == 0 {
		return tresPerNode
	}
	rest, gpuType := list.WithoutGPUs()
	name, count := tres.Shard, config.ShardsFor(mib)
	if count > config.ShardsOf(fullMiB, n.Config.Placement.MarginMiB) {
		name, count = tres.GPU, 1
	}
	return tres.Add(rest, tres.Request("gres/", name, gpuType, count))
}

// request variables that sbatch sets from the user's options and srun reads as its
// own (srun.1): a job that has shards in place of its GPU has no GPU for a step to
// ask for.
var gpuRequests = []string{"SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK",
	"SLURM_GPU_BIND", "SLURM_TRES_BIND"}

// printSteps lets the steps of a job with shards have what the job has. A step
// takes over the job's request by itself, but not one with a type; with
// SLURM_STEP_GRES it does (tried: 23.11.11, 25.11.7).
func printSteps(w io.Writer, shards int64, get jobenv.Getenv) {
	for _, name := range gpuRequests {
		if get(name) != "" {
			fmt.Fprintf(w, "unset %s\n", name)
		}
	}
	const perTask = "SLURM_TRES_PER_TASK"
	if rest, _ := tres.Read(get(perTask)).WithoutGPUs(); rest != "" {
		fmt.Fprintf(w, "export %s=%s\n", perTask, rest)
	} else if get(perTask) != "" {
		fmt.Fprintf(w, "unset %s\n", perTask)
	}
	fmt.Fprintf(w, "export SLURM_STEP_GRES=%s\n", tres.Request("gres/", tres.Shard, "", shards))
}
