/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "nvml_view.h"

/* A look that is newer than this need not search for dead processes again: one sampling round makes many calls. */
#define REAP_AGE 0.002

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users; /* nvmlInit minus nvmlShutdown */
static struct sim *sim;
static struct sim_snap *snap;
static struct nvmlDevice_st gpus[SIM_MAX_GPUS], migs[SIM_MAX_UNITS];

static nvmlReturn_t start(void)
{
	sim = sim_open(NULL);
	snap = malloc(sizeof(*snap));
	if (sim == NULL || snap == NULL) {
		sim_close(sim);
		free(snap);
		return sim == NULL ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_ERROR_MEMORY;
	}
	sim_read(sim, snap);
	for (uint32_t g = 0; g < SIM_MAX_GPUS; g++)
		gpus[g] = (struct nvmlDevice_st){ .gpu = g, .unit = -1 };
	for (uint32_t u = 0; u < snap->units; u++)
		migs[u] = (struct nvmlDevice_st){ .gpu = snap->unit[u].gpu, .unit = (int)u };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	nvmlReturn_t rc = NVML_SUCCESS;

	(void)flags;
	pthread_mutex_lock(&lock);
	if (users == 0)
		rc = start();
	if (rc == NVML_SUCCESS)
		users++;
	pthread_mutex_unlock(&lock);
	return rc;
}

nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t rc = NVML_SUCCESS;

	pthread_mutex_lock(&lock);
	if (users == 0) {
		rc = NVML_ERROR_UNINITIALIZED;
	} else if (--users == 0) {
		sim_close(sim);
		free(snap);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

struct sim *view_sim(void)
{
	return sim;
}

nvmlDevice_t handle_gpu(uint32_t index)
{
	return &gpus[index];
}

nvmlDevice_t handle_mig(uint32_t unit)
{
	return &migs[unit];
}

nvmlReturn_t view_node(struct view *v)
{
	pthread_mutex_lock(&lock);
	if (users == 0) {
		pthread_mutex_unlock(&lock);
		return NVML_ERROR_UNINITIALIZED;
	}
	sim_reap(sim, REAP_AGE);
	sim_tell(sim, snap);
	*v = (struct view){ .s = snap, .model = model_get(snap->model), .unit = -1 };
	return NVML_SUCCESS;
}

void view_close(struct view *v)
{
	if (v->s != NULL)
		pthread_mutex_unlock(&lock);
	v->s = NULL;
}

static bool known(nvmlDevice_t d)
{
	return (d >= gpus && d < gpus + SIM_MAX_GPUS) || (d >= migs && d < migs + SIM_MAX_UNITS);
}

/* As a call that is stuck in the driver: signals do not end it. */
static void stuck(void)
{
	struct timespec ts = { .tv_nsec = 10 * 1000 * 1000 };
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	nanosleep(&ts, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

nvmlReturn_t view_open(nvmlDevice_t d, struct view *v)
{
	for (;;) {
		nvmlReturn_t rc = view_node(v);

		if (rc != NVML_SUCCESS)
			return rc;
		if (!known(d) || d->gpu >= v->s->gpus) {
			view_close(v);
			return NVML_ERROR_INVALID_ARGUMENT;
		}
		v->index = d->gpu;
		v->gpu = &v->s->gpu[d->gpu];
		v->unit = d->unit;
		v->mig = d->unit < 0 ? NULL : &v->s->unit[d->unit];
		if (v->gpu->fault != SIM_HANG || (v->gpu->fault_until > 0.0 && v->s->now >= v->gpu->fault_until))
			break;
		view_close(v);
		stuck();
	}
	switch (v->gpu->fault) {
	case SIM_LOST:
		view_close(v);
		return NVML_ERROR_GPU_IS_LOST;
	case SIM_ERROR: {
		int code = v->gpu->fault_code;

		view_close(v);
		return code;
	}
	default:
		return NVML_SUCCESS;
	}
}

bool view_mig_enabled(const struct view *v)
{
	return v->s->unit[v->gpu->first_unit].mig != 0;
}

double view_smact(const struct view *v, struct law_load load[SIM_MAX_UNITS])
{
	snap_load(v->s, load, NULL);
	return snap_gpu_smact(v->s, v->index, load);
}
