/* SPDX-License-Identifier: Apache-2.0 */
/* What a framework takes of a GPU at its start, by its variables, and how it grows. */
#ifndef SIMGPU_POOL_H
#define SIMGPU_POOL_H

#include "framework.h"

/* JAX counts its pool without the CUDA context; so much is that. */
#define POOL_CONTEXT (450 * MIB)

struct pool {
	uint64_t held;	/* by the process since its start, context and all; what it gets back it keeps */
	uint64_t most;	/* that the process may come to; UINT64_MAX: no bound of the framework's own */
	bool keeps;	/* memory that is free again inside of the process stays with it */
	double fraction; /* of the GPU, as asked for */
};

/*
 * What a process of the framework wants of a GPU of `total` bytes with `free` bytes left to it, and needs. part:
 * vLLM's gpu_memory_utilization. 0; or the exit status, after the framework's words, of one that does not start.
 */
int pool_plan(enum framework fw, double part, uint64_t need, uint64_t total, uint64_t free, struct pool *pool);

/* The framework was refused: says so and asks for a tenth less. False: it has no more to try. */
bool pool_back_off(enum framework fw, struct pool *pool);

#endif
