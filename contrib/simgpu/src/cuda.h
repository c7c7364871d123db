/* SPDX-License-Identifier: Apache-2.0 */
/* What cuInit() and the first context do: see the GPUs, find MPS, take a place on them. */
#ifndef SIMGPU_CUDA_H
#define SIMGPU_CUDA_H

#include "framework.h"

struct cuda {
	uint32_t slot;
	uint32_t gpus;
	int unit[SIM_MAX_GPUS];
};

/*
 * Opens contexts on the first `gpus` visible devices for the process that *p describes (kind, demand, target).
 * 0; a cuda_error; or minus the number of a signal that came while it waited for its MPS server.
 */
int cuda_open(struct sim *sim, struct sim_proc *p, uint32_t gpus, int signals, struct cuda *cuda);

#endif
