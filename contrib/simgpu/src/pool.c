/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"
#include "units.h"

static bool is(const char *name, const char *value)
{
	const char *v = getenv(name);

	return v != NULL && strcmp(v, value) == 0;
}

/* jax/_src/xla_bridge.py: the newer name, or the older one, and never both. */
static int jax_plan(uint64_t total, struct pool *pool)
{
	const char *newer = getenv("XLA_CLIENT_MEM_FRACTION"), *older = getenv("XLA_PYTHON_CLIENT_MEM_FRACTION");
	const char *text = newer != NULL && *newer != '\0' ? newer : older;

	if (text == newer && older != NULL && *older != '\0') {
		fprintf(stderr, "ValueError: XLA_CLIENT_MEM_FRACTION is specified together with "
				"XLA_PYTHON_CLIENT_MEM_FRACTION. Remove the latter one, it is deprecated.\n");
		return 1;
	}
	pool->fraction = text != NULL && *text != '\0' ? atof(text) : 0.75;
	pool->keeps = true;
	pool->most = POOL_CONTEXT + (uint64_t)(pool->fraction * (double)total);
	if (!is("XLA_PYTHON_CLIENT_PREALLOCATE", "false") && !is("XLA_PYTHON_CLIENT_PREALLOCATE", "0"))
		pool->held = pool->most;
	return 0;
}

/* tensorflow/core/common_runtime/gpu/gpu_device.cc, SingleVirtualDeviceMemoryLimit: all that is free but for the
 * system's part (MinSystemMemory, compute capability 8), whether it grows or not. */
static int tensorflow_plan(uint64_t free, struct pool *pool)
{
	const char *reserved = getenv("TF_DEVICE_MIN_SYS_MEMORY_IN_MB");
	uint64_t system = (reserved != NULL && *reserved != '\0' ? (uint64_t)atoll(reserved) : 1536) * MIB;

	pool->keeps = true;
	pool->most = free > system ? free - system : free;
	if (!is("TF_FORCE_GPU_ALLOW_GROWTH", "true"))
		pool->held = pool->most;
	return 0;
}

static int vllm_plan(double part, uint64_t need, uint64_t total, uint64_t free, struct pool *pool)
{
	const double gib = 1073741824.0;
	const uint64_t wanted = (uint64_t)(part * (double)total);

	if (free < wanted) {
		fprintf(stderr,
			"ValueError: Free memory on device (%.2f/%.2f GiB) on startup is less than desired GPU memory "
			"utilization (%g, %.2f GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
			"processes.\n",
			(double)free / gib, (double)total / gib, part, (double)wanted / gib);
		return 1;
	}
	if (wanted < need) {
		fprintf(stderr, "ValueError: No available memory for the cache blocks. Try increasing "
				"`gpu_memory_utilization` when initializing the engine.\n");
		return 1;
	}
	pool->held = wanted;
	pool->keeps = true;
	return 0;
}

int pool_plan(enum framework fw, double part, uint64_t need, uint64_t total, uint64_t free, struct pool *pool)
{
	*pool = (struct pool){ .most = UINT64_MAX };
	switch (fw) {
	case FW_JAX:
		return jax_plan(total, pool);
	case FW_TENSORFLOW:
		return tensorflow_plan(free, pool);
	case FW_VLLM:
		return vllm_plan(part, need, total, free, pool);
	default:
		return 0;
	}
}

bool pool_back_off(enum framework fw, struct pool *pool)
{
	if (fw != FW_JAX && fw != FW_TENSORFLOW)
		return false;
	framework_refused(fw, pool->held > POOL_CONTEXT ? pool->held - POOL_CONTEXT : pool->held);
	/* BFCAllocator::Extend: kBackpedalFactor 0.9 */
	pool->held = pool->held / 10 * 9;
	return pool->held > POOL_CONTEXT;
}
