/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: what tells that a GPU is broken: events, remapped rows, the recovery action. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvml_view.h"

/* Which GPUs a reader waits for, and how many of their events it has had. */
struct nvmlEventSet_st {
	bool registered[SIM_MAX_GPUS];
	uint32_t had[SIM_MAX_GPUS];
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	if (set == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof(**set));
	return *set != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	free(set);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	OPEN(v, device, types != NULL);

	*types = NVML_EVENT_XID;
	return NVML_SUCCESS;
}

/* What was before is not told, as by the real call. */
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	OPEN(v, device, set != NULL);

	if ((types & ~NVML_EVENT_XID) != 0 || v.mig != NULL)
		return NVML_ERROR_NOT_SUPPORTED;
	set->registered[v.index] = true;
	set->had[v.index] = v.gpu->xids;
	return NVML_SUCCESS;
}

static nvmlReturn_t next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
	OPEN_NODE(v, set != NULL && data != NULL);

	for (uint32_t g = 0; g < v.s->gpus; g++) {
		const struct sim_gpu *gpu = &v.s->gpu[g];

		if (!set->registered[g] || set->had[g] == gpu->xids)
			continue;
		if (gpu->xids - set->had[g] > SIM_XIDS)
			set->had[g] = gpu->xids - SIM_XIDS;
		*data = (nvmlEventData_t){ handle_gpu(g), NVML_EVENT_XID, gpu->xid[set->had[g]++ % SIM_XIDS], 0, 0 };
		return NVML_SUCCESS;
	}
	return NVML_ERROR_TIMEOUT;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	struct timespec ts = { .tv_nsec = 10 * 1000 * 1000 };
	nvmlReturn_t rc;

	for (unsigned int waited = 0;; waited += 10) {
		rc = next_event(set, data);
		if (rc != NVML_ERROR_TIMEOUT || waited >= timeout_ms)
			return rc;
		nanosleep(&ts, NULL);
	}
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_v1_t *data, unsigned int timeout_ms)
{
	nvmlEventData_t whole;
	nvmlReturn_t rc = data == NULL ? NVML_ERROR_INVALID_ARGUMENT : nvmlEventSetWait_v2(set, &whole, timeout_ms);

	if (rc == NVML_SUCCESS)
		memcpy(data, &whole, sizeof(*data));
	return rc;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
				       unsigned int *pending, unsigned int *failed)
{
	OPEN(v, device, corrected != NULL && uncorrected != NULL && pending != NULL && failed != NULL);

	*corrected = 0;
	*uncorrected = v.gpu->rows != SIM_ROWS_OK;
	*pending = v.gpu->rows == SIM_ROWS_PENDING;
	*failed = v.gpu->rows == SIM_ROWS_FAILED;
	return NVML_SUCCESS;
}

/* Each value has its own status; only the recovery action is there. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	OPEN(v, device, count > 0 && values != NULL);

	for (int i = 0; i < count; i++) {
		values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		if (values[i].fieldId != NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
			continue;
		values[i].nvmlReturn = NVML_SUCCESS;
		values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
		values[i].value.ull = 0;
		values[i].value.ui = v.gpu->recovery;
	}
	return NVML_SUCCESS;
}
