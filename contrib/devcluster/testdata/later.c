/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A SPANK plugin that stands where pyxis does: it notes, in LATER of the task's environment,
 * what it sees of the task's GPUs before any TaskProlog runs.
 */
#include <stdio.h>

#include <slurm/spank.h>

SPANK_PLUGIN(later, 1)

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	char gpus[512], pipe[512], both[1100];

	(void)ac, (void)av;
	if (spank_getenv(sp, "CUDA_VISIBLE_DEVICES", gpus, sizeof(gpus)) != ESPANK_SUCCESS)
		snprintf(gpus, sizeof(gpus), "unset");
	if (spank_getenv(sp, "CUDA_MPS_PIPE_DIRECTORY", pipe, sizeof(pipe)) != ESPANK_SUCCESS)
		snprintf(pipe, sizeof(pipe), "unset");
	snprintf(both, sizeof(both), "%s %s", gpus, pipe);
	spank_setenv(sp, "LATER", both, 1);
	return 0;
}
