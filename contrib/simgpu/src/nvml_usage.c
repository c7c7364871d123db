/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: memory, processes, utilisation, power. */
#include <string.h>
#include <time.h>

#include "nvml_view.h"

#define NO_INSTANCE 0xFFFFFFFFu

/* Memory of the device: total, reserved by the driver, used by processes. */
static void memory(const struct view *v, uint64_t *total, uint64_t *reserved, uint64_t *used)
{
	*total = v->mig != NULL ? v->mig->bytes : v->model->total_mib * MIB;
	*reserved = v->mig != NULL ? 0 : v->model->reserved_mib * MIB;
	*used = v->mig != NULL ? snap_unit_used(v->s, v->unit) : snap_gpu_used(v->s, v->index);
}

/* The first version has no word for reserved memory and counts it as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *m)
{
	OPEN(v, device, m != NULL);
	uint64_t total, reserved, used;

	memory(&v, &total, &reserved, &used);
	*m = (nvmlMemory_t){ .total = total, .free = total - reserved - used, .used = reserved + used };
	if (v.gpu->fault == SIM_GARBAGE_MEMORY)
		*m = (nvmlMemory_t){ .total = total, .free = 0, .used = 3 * total };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *m)
{
	OPEN(v, device, m != NULL);
	uint64_t total, reserved, used;

	if (m->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memory(&v, &total, &reserved, &used);
	m->total = total;
	m->reserved = reserved;
	m->used = used;
	m->free = total - reserved - used;
	if (v.gpu->fault == SIM_GARBAGE_MEMORY) {
		m->free = 0;
		m->used = 3 * total;
	}
	return NVML_SUCCESS;
}

enum list { COMPUTE, GRAPHICS, MPS };

/*
 * Since Volta a client of MPS has a context of its own: nvidia-smi shows it as "M+C", so it is in the compute
 * list and in the MPS list; the server is a compute process with a little memory.
 */
static bool in_list(const struct view *v, const struct sim_proc *p, enum list list, nvmlProcessInfo_v2_t *info)
{
	bool found = false;

	*info = (nvmlProcessInfo_v2_t){ (unsigned int)p->pid, 0, NO_INSTANCE, NO_INSTANCE };
	if (list == GRAPHICS || (list == MPS && !snap_is_mps_client(p)))
		return false;
	for (uint32_t k = 0; k < p->uses; k++) {
		const struct sim_unit *u = &v->s->unit[p->use[k].unit];

		if (u->gpu != v->index || (v->mig != NULL && u != v->mig))
			continue;
		found = true;
		info->usedGpuMemory += p->use[k].bytes;
		if (u->mig != 0) {
			info->gpuInstanceId = u->mig;
			info->computeInstanceId = 0;
		}
	}
	return found;
}

/* The size idiom of NVML: *count says how many fit, then how many there are. */
static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned int *count, char *to, size_t size, enum list list)
{
	OPEN(v, device, true);
	nvmlProcessInfo_v2_t info;
	unsigned int room, n = 0;

	if (count == NULL || (*count > 0 && to == NULL))
		return NVML_ERROR_INVALID_ARGUMENT;
	room = *count;
	for (uint32_t i = 0; i < v.s->procs; i++) {
		if (!in_list(&v, &v.s->proc[i], list, &info))
			continue;
		/* pid and memory change places, as gpuopenanalytics/pynvml#50 saw it. */
		if (v.gpu->fault == SIM_GARBAGE_PIDS) {
			unsigned long long bytes = info.usedGpuMemory;

			info.usedGpuMemory = info.pid;
			info.pid = (unsigned int)bytes;
		}
		/* The first version is the beginning of the second. */
		if (n++ < room)
			memcpy(to + (n - 1) * size, &info, size);
	}
	*count = n;
	return n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define LIST(name, list)                                                                                 \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)         \
	{                                                                                                \
		return list_processes(device, count, (char *)infos, sizeof(*infos), list);               \
	}                                                                                                \
	nvmlReturn_t name##_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)    \
	{                                                                                                \
		return list_processes(device, count, (char *)infos, sizeof(*infos), list);               \
	}                                                                                                \
	nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)    \
	{                                                                                                \
		return list_processes(device, count, (char *)infos, sizeof(*infos), list);               \
	}
LIST(nvmlDeviceGetComputeRunningProcesses, COMPUTE)
LIST(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, MPS)

/* Utilisation and power are the whole GPU's: refused for MIG devices, utilisation also while MIG is on. */
static nvmlReturn_t open_load(nvmlDevice_t device, const void *out, struct view *v, bool with_mig, double *smact,
			      struct law_load load[SIM_MAX_UNITS])
{
	nvmlReturn_t rc = view_open(device, v);

	if (rc != NVML_SUCCESS)
		return rc;
	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (v->mig != NULL || (!with_mig && view_mig_enabled(v)))
		return NVML_ERROR_NOT_SUPPORTED;
	*smact = view_smact(v, load);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *u)
{
	struct law_load load[SIM_MAX_UNITS];
	VIEW(v);
	double smact;
	nvmlReturn_t rc = open_load(device, u, &v, false, &smact, load);

	if (rc != NVML_SUCCESS)
		return rc;
	if (v.gpu->fault == SIM_NO_ACTIVITY)
		return NVML_ERROR_UNKNOWN;
	u->gpu = (unsigned int)(100.0 * load[v.gpu->first_unit].resident + 0.5);
	u->memory = (unsigned int)(100.0 * LAW_DRAM_PER_SMACT * smact + 0.5);
	return NVML_SUCCESS;
}

/* One sample per process, taken every sixth of a second (NVML: between 1/6 and 1 s), in microseconds. */
static unsigned long long sample_time(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	unsigned long long us = (unsigned long long)ts.tv_sec * 1000000 + (unsigned long long)ts.tv_nsec / 1000;

	return us - us % 166667;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *to,
					     unsigned int *count, unsigned long long last_seen)
{
	struct law_load load[SIM_MAX_UNITS];
	VIEW(v);
	double smact, sum = 0.0;
	unsigned int room, n = 0;
	unsigned long long now = sample_time();
	nvmlReturn_t rc = open_load(device, count, &v, false, &smact, load);

	if (rc != NVML_SUCCESS)
		return rc;
	room = to == NULL ? 0 : *count;
	*count = 0;
	for (uint32_t i = 0; i < v.s->procs; i++)
		if (snap_on_gpu(v.s, &v.s->proc[i], v.index, NULL))
			sum += snap_demand(&v.s->proc[i]);
	/* The GPU's residency and activity, split among the processes by their demand. */
	for (uint32_t i = 0; i < v.s->procs && last_seen < now; i++) {
		const struct sim_proc *p = &v.s->proc[i];

		if (!snap_on_gpu(v.s, p, v.index, NULL) || snap_demand(p) <= 0.0)
			continue;
		double part = v.gpu->fault == SIM_NO_SHARES ? 0.0 : snap_demand(p) / sum;

		if (n++ < room)
			to[n - 1] = (nvmlProcessUtilizationSample_t){
				.pid = (unsigned int)p->pid,
				.timeStamp = now,
				.smUtil = (unsigned int)(100.0 * load[v.gpu->first_unit].resident * part + 0.5),
				.memUtil = (unsigned int)(100.0 * LAW_DRAM_PER_SMACT * smact * part + 0.5),
			};
	}
	*count = n;
	if (n == 0)
		return NVML_ERROR_NOT_FOUND;
	return n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* A call that answers one number from the GPU's activity. */
#define FROM_LOAD(name, type, value)                                              \
	nvmlReturn_t name(nvmlDevice_t device, type *out)                         \
	{                                                                         \
		struct law_load load[SIM_MAX_UNITS];                              \
		VIEW(v);                                                          \
		double smact;                                                     \
		nvmlReturn_t rc = open_load(device, out, &v, true, &smact, load); \
		if (rc == NVML_SUCCESS)                                           \
			*out = (type)(value);                                     \
		return rc;                                                        \
	}
FROM_LOAD(nvmlDeviceGetPowerUsage, unsigned int, model_power(v.model, smact) * 1e3)
/* Over the time of who reads it, as power is: its mean is then watts. */
FROM_LOAD(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, v.gpu->joules * 1e3 / sim_scale(view_sim()))
FROM_LOAD(nvmlDeviceGetPowerManagementLimit, unsigned int, v.model->power_limit_w * 1e3)
/* Bit 0: the clocks are low because the GPU is idle. */
FROM_LOAD(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, smact == 0.0)
FROM_LOAD(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, smact == 0.0)
static FROM_LOAD(temperature, unsigned int, 30.0 + 40.0 * smact)

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
	return sensor == 0 ? temperature(device, celsius) : NVML_ERROR_INVALID_ARGUMENT;
}
