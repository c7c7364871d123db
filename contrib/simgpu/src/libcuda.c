/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcuda.so.1 on the simulated GPUs: the calls of gpuload (contrib/gpucheck/load) alone, so that the program
 * that keeps a real GPU busy runs here, too. A GPU of 100 SMs and 1 GHz; a kernel takes the time that gpuload's
 * chain of n dependent steps takes on one, on as many SMs as it has blocks. Device memory is memory of the process.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda.h"
#include "nap.h"
#include "units.h"

#define SMS 100
#define KHZ 1000000
#define CYCLES_PER_STEP 4.0
#define POLL_SECONDS 0.02
#define NOT_INITIALIZED 3
#define INVALID_VALUE 1

typedef int CUresult;

static struct sim *sim;
static struct sim_snap *snap;
static struct cuda cuda;
static uint64_t held;
static double queued; /* GPU-alone seconds of all kernels so far */

/* An event is the work that was queued when it was recorded. */
struct event {
	double work;
};

static CUresult error_of(enum client_result r)
{
	if (r == CLIENT_DEVICE_OOM || r == CLIENT_LIMIT_OOM)
		return CUDA_OUT_OF_MEMORY;
	return r == CLIENT_OK ? 0 : CUDA_MPS_SERVER_NOT_READY;
}

static CUresult stopped(uint32_t stop)
{
	static const CUresult error[] = { [SIM_RUN] = 0,
					  [SIM_STOP_FAULT] = CUDA_ILLEGAL_ADDRESS,
					  [SIM_STOP_TERMINATED] = CUDA_MPS_CLIENT_TERMINATED,
					  [SIM_STOP_SERVER_GONE] = CUDA_MPS_RPC_FAILURE };

	return error[stop];
}

static void leave(void)
{
	client_leave(sim, cuda.slot);
}

/* Sleeps of real seconds; there are no signals to wait for. */
static void pause_for(double seconds)
{
	nap(-1, seconds, -1);
}

CUresult cuInit(unsigned flags)
{
	(void)flags;
	sim = sim_open(NULL);
	snap = malloc(sizeof(*snap));
	if (sim == NULL || snap == NULL)
		return CUDA_NO_DEVICE;
	return 0;
}

CUresult cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return 0;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, int device)
{
	(void)device;
	switch (attribute) {
	case 13:
		*value = KHZ;
		return 0;
	case 16:
		*value = SMS;
		return 0;
	case 75: /* of the compute capability, 9.0 */
		*value = 9;
		return 0;
	case 76:
		*value = 0;
		return 0;
	default:
		return INVALID_VALUE;
	}
}

CUresult cuCtxCreate_v2(void **context, unsigned flags, int device)
{
	struct sim_proc p = { .kind = SIM_JOB, .queues = 1 };

	(void)flags;
	(void)device;
	*context = &cuda;
	if (sim == NULL)
		return NOT_INITIALIZED;
	snprintf(p.name, sizeof(p.name), "%s", program_invocation_short_name);
	int rc = cuda_open(sim, &p, 1, -1, &cuda);

	if (rc == 0)
		atexit(leave);
	return rc;
}

/* Where memory is: only what is written takes pages. */
static uint64_t space(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return at == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)at;
}

static CUresult take(size_t bytes)
{
	struct client_refusal why;
	enum client_result r = client_resize(sim, cuda.slot, held + bytes, &why);

	if (r == CLIENT_OK)
		held += bytes;
	return error_of(r);
}

CUresult cuMemAlloc_v2(uint64_t *at, size_t bytes)
{
	CUresult rc = take(bytes);

	if (rc == 0 && (*at = space(bytes)) == 0)
		rc = CUDA_OUT_OF_MEMORY;
	return rc;
}

CUresult cuMemAllocAsync(uint64_t *at, size_t bytes, void *stream)
{
	(void)stream;
	return cuMemAlloc_v2(at, bytes);
}

/* Managed memory is held by no limit and counted for no process. */
CUresult cuMemAllocManaged(uint64_t *at, size_t bytes, unsigned flags)
{
	(void)flags;
	*at = space(bytes);
	return *at == 0 ? CUDA_OUT_OF_MEMORY : 0;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const void *prop, int option)
{
	(void)prop;
	(void)option;
	*bytes = 2 << 20;
	return 0;
}

CUresult cuMemCreate(uint64_t *handle, size_t bytes, const void *prop, unsigned long long flags)
{
	(void)prop;
	(void)flags;
	*handle = 1;
	return take(bytes);
}

CUresult cuMemAddressReserve(uint64_t *at, size_t bytes, size_t alignment, uint64_t address, unsigned long long flags)
{
	(void)alignment;
	(void)address;
	(void)flags;
	*at = space(bytes);
	return *at == 0 ? CUDA_OUT_OF_MEMORY : 0;
}

CUresult cuMemMap(uint64_t at, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags)
{
	(void)at;
	(void)bytes;
	(void)offset;
	(void)handle;
	(void)flags;
	return 0;
}

CUresult cuMemSetAccess(uint64_t at, size_t bytes, const void *access, size_t count)
{
	(void)at;
	(void)bytes;
	(void)access;
	(void)count;
	return 0;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	sim_read(sim, snap);
	const struct sim_proc *me = snap_by_slot(snap, cuda.slot);

	if (me == NULL)
		return CUDA_MPS_SERVER_NOT_READY;
	uint64_t left, all;

	client_memory(snap, me, &left, &all);
	*free_bytes = left;
	*total = all;
	return 0;
}

CUresult cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes)
{
	memset((void *)(uintptr_t)at, value, bytes);
	return 0;
}

/* The work that is done; an error when the process must end. */
static CUresult look(double *work, double *rate)
{
	static double rates[SIM_MAX_PROCS];

	sim_beat(sim, cuda.slot);
	sim_reap(sim, 0.1);
	sim_read(sim, snap);
	const struct sim_proc *me = snap_by_slot(snap, cuda.slot);

	if (me == NULL)
		return CUDA_MPS_RPC_FAILURE;
	snap_load(snap, NULL, rates);
	*work = me->work;
	*rate = rates[me - snap->proc];
	return stopped(me->stop);
}

static CUresult wait_until(double work)
{
	double done, rate;

	for (;;) {
		CUresult rc = look(&done, &rate);

		if (rc != 0 || done >= work - 1e-6)
			return rc;
		double left = rate > 0.0 ? (work - done) / rate / sim_scale(sim) : POLL_SECONDS;

		pause_for(left < POLL_SECONDS ? left : POLL_SECONDS);
	}
}

CUresult cuModuleLoadData(void **module, const void *text)
{
	*module = &cuda;
	return strstr(text, ".version") == NULL ? INVALID_VALUE : 0;
}

static char work_kernel, wild_kernel;

CUresult cuModuleGetFunction(void **function, void *module, const char *name)
{
	(void)module;
	*function = strcmp(name, "wild") == 0 ? &wild_kernel : &work_kernel;
	return 0;
}

/* An illegal access: under MPS the server faults, and with it all of its clients. */
static CUresult wild(void)
{
	struct sim_snap *s = sim_begin(sim);
	struct sim_proc *me = snap_by_slot(s, cuda.slot);
	struct sim_proc *server = me == NULL ? NULL : snap_by_pid(s, me->server);

	if (me != NULL && server == NULL)
		me->stop = SIM_STOP_FAULT;
	if (server != NULL)
		server->faulted = 1;
	sim_commit(sim, true);
	return 0;
}

/* What gpuload's kernel does to its memory; a few steps stand for n. */
static void compute(float *out, unsigned threads, uint64_t n)
{
	for (unsigned i = 0; i < threads; i++) {
		float v = out[i] + (float)i * 1e-7f;

		for (uint64_t k = 0; k < n && k < 16; k++)
			v = v * v - 1.9f;
		out[i] = v;
	}
}

CUresult cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
			unsigned shared, void *stream, void **args, void **extra)
{
	(void)y, (void)z, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
	if (function == &wild_kernel)
		return wild();
	uint64_t n = *(uint64_t *)args[0];
	double demand = (double)x / SMS, seconds = (double)n * CYCLES_PER_STEP / (KHZ * 1e3);
	struct sim_snap *s = sim_begin(sim);
	struct sim_proc *me = snap_by_slot(s, cuda.slot);

	if (me == NULL || me->stop != SIM_RUN) {
		CUresult rc = me == NULL ? CUDA_MPS_RPC_FAILURE : stopped(me->stop);

		sim_abort(sim);
		return rc;
	}
	bool changed = me->demand != demand || me->ended != 0.0 || me->target == 0.0;

	queued += seconds;
	me->demand = demand > 1.0 ? 1.0 : demand;
	me->target = queued;
	me->ended = 0.0;
	sim_commit(sim, changed);
	compute(*(float **)args[1], x * bx, n);
	return 0;
}

CUresult cuEventCreate(void **event, unsigned flags)
{
	(void)flags;
	*event = calloc(1, sizeof(struct event));
	return *event == NULL ? CUDA_OUT_OF_MEMORY : 0;
}

CUresult cuEventRecord(void *event, void *stream)
{
	(void)stream;
	((struct event *)event)->work = queued;
	return 0;
}

CUresult cuEventSynchronize(void *event)
{
	return wait_until(((struct event *)event)->work);
}

CUresult cuCtxSynchronize(void)
{
	return wait_until(queued);
}

CUresult cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
	CUresult rc = wait_until(queued);

	if (rc == 0)
		memcpy(to, (void *)(uintptr_t)from, bytes);
	return rc;
}
