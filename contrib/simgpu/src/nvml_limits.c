/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: limits of memory for cgroups. */
#include <unistd.h>

#include "limits.h"
#include "nvml_view.h"

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const nvmlSetMemoryLimits_v1_t *limits)
{
	OPEN(v, device, limits != NULL && limits->nameSpace != NULL && limits->softLimit <= limits->hardLimit);
	const uint32_t gpu = v.index;
	uint32_t root;
	bool room;

	if (v.mig != NULL || view_mig_enabled(&v) || v.gpu->fault == SIM_NO_LIMITS)
		return NVML_ERROR_NOT_SUPPORTED;
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	if (!limit_is_cgroup(limits->nameSpace, &root))
		return NVML_ERROR_NOT_FOUND;
	struct sim_snap *s = sim_begin(view_sim());

	room = limit_set(s, gpu, limits->nameSpace, root, limits->softLimit, limits->hardLimit);
	if (room)
		sim_commit(view_sim(), false);
	else
		sim_abort(view_sim());
	return room ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
	OPEN(v, device, limits != NULL && limits->nameSpace != NULL);
	const struct sim_limit *l;
	uint32_t root;

	if (v.mig != NULL || view_mig_enabled(&v) || v.gpu->fault == SIM_NO_LIMITS)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!limit_is_cgroup(limits->nameSpace, &root))
		return NVML_ERROR_NOT_FOUND;
	l = limit_get(v.s, v.index, limits->nameSpace);
	limits->softLimit = l != NULL ? l->soft : 0;
	limits->hardLimit = l != NULL ? l->hard : NVML_DEVICE_MEMORY_LIMIT_MAX;
	limits->currentUsed = l != NULL ? limit_used(v.s, l) : 0;
	return NVML_SUCCESS;
}
